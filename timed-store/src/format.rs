//! The file format: `{"storage": {"<session>": {"data": …, "updated_at": "<stamp>", …}}}`.
//!
//! Entries are borrowed from the file's text and written back as they stood, so that fields of
//! other tools survive; only an entry that changes is taken apart.

use std::borrow::Cow;

use crate::scan::{Damage, Scanner, plain_length, whole_number};
use crate::stamp;

/// One session's entry, as it stands in the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) session: Cow<'a, str>,
    /// Key and object.
    pub(crate) line: &'a str,
    /// Where in the file the line begins.
    pub(crate) start: usize,
    /// The value, as JSON.
    pub(crate) data: &'a str,
    /// When it was stored, in Unix milliseconds, if that can be read.
    pub(crate) stamp_ms: Option<i64>,
    /// The timeout it was stored with. Without it, that of the reader counts.
    pub(crate) ttl_ms: Option<u64>,
    /// The fencing token, if it was claimed.
    pub(crate) token: Option<u64>,
    /// The process it ends with, if it does, as JSON.
    pub(crate) owner: Option<&'a str>,
}

/// Reads a sound file: gives its entries to `admit`, and returns what stands beside `storage`.
pub(crate) fn parse<'a>(
    text: &'a str,
    mut admit: impl FnMut(Entry<'a>),
) -> Result<Vec<&'a str>, Damage> {
    let mut scanner = Scanner::new(text);
    let mut extra = Vec::new();
    let mut found = false;
    scanner.next();
    scanner.object(|scanner, key, start| {
        if key != "storage" {
            scanner.value()?;
            extra.push(scanner.since(start));
            return Ok(());
        }
        found = true;
        scanner.members(|scanner, start| {
            let entry = match Entry::in_own_form(text, start) {
                Some(entry) => {
                    scanner.go_to(start + entry.line.len());
                    entry
                }
                None => Entry::scan(scanner, start)?,
            };
            admit(entry);
            Ok(())
        })
    })?;
    scanner.end()?;
    if found {
        Ok(extra)
    } else {
        Err(Damage {
            at: text.len(),
            missing: "`storage`",
        })
    }
}

/// Reads one entry with its key.
pub(crate) fn parse_line(line: &str) -> Option<Entry<'_>> {
    Entry::scan(&mut Scanner::new(line), 0).ok()
}

/// A change of one field: its new JSON, or `None` to leave it out.
pub(crate) type Change<'c> = (&'c str, Option<String>);

/// The line of an entry: the fields `old`, with some changed.
pub(crate) fn line(session: &str, old: &[(Cow<'_, str>, &str)], changes: &[Change<'_>]) -> String {
    let mut line = quote(session);
    line.push(':');
    push_object(&mut line, old, changes);
    line
}

impl<'a> Entry<'a> {
    /// Any object with the fields that an entry needs, in any order, with its key.
    fn scan(scanner: &mut Scanner<'a>, start: usize) -> Result<Self, Damage> {
        let session = scanner.key()?;
        let at = scanner.next();
        let (mut data, mut updated_at, mut ttl_ms, mut token, mut owner) =
            (None, None, None, None, None);
        scanner.object(|scanner, key, _| {
            match &*key {
                "data" => data = Some(scanner.value()?),
                "updated_at" => updated_at = Some(scanner.string()?),
                "ttl_ms" => ttl_ms = scanner.number()?,
                "token" => token = scanner.number()?,
                "owner" => owner = Some(scanner.value()?),
                _ => {
                    scanner.value()?;
                }
            }
            Ok(())
        })?;
        let data = data.ok_or(Damage {
            at,
            missing: "an entry's `data`",
        })?;
        let updated_at = updated_at.ok_or(Damage {
            at,
            missing: "an entry's `updated_at`",
        })?;
        Ok(Self {
            session,
            line: scanner.since(start),
            start,
            data,
            stamp_ms: stamp::parse(&updated_at),
            ttl_ms,
            token,
            owner,
        })
    }

    /// The same for what most entries look like when we have written them, in a third of the
    /// time: plain strings, no owner. `None` says nothing about other forms.
    #[inline]
    fn in_own_form(text: &'a str, start: usize) -> Option<Self> {
        let rest = after(text.as_bytes().get(start..)?, b"\"")?;
        let session = rest.get(..plain_length(rest))?;
        let rest = after(&rest[session.len()..], b"\":{\"data\":\"")?;
        let data = rest.get(..plain_length(rest))?;
        let rest = after(&rest[data.len()..], b"\",\"updated_at\":\"")?;
        let (updated_at, rest) = rest.split_at_checked(stamp::LENGTH)?;
        let stamp_ms = stamp::parse_own_form(updated_at)?;
        let rest = after(rest, b"\"")?;
        let (ttl_ms, rest) = number_after(rest, b",\"ttl_ms\":")?;
        let (token, rest) = number_after(rest, b",\"token\":")?;
        let rest = after(rest, b"}")?;
        let end = text.len() - rest.len();
        let session_end = start + 1 + session.len();
        // With its quotation marks.
        let data_start = session_end + b"\":{\"data\":".len();
        Some(Self {
            session: text.get(start + 1..session_end)?.into(),
            line: text.get(start..end)?,
            start,
            data: text.get(data_start..data_start + data.len() + 2)?,
            stamp_ms: Some(stamp_ms),
            ttl_ms,
            token,
            owner: None,
        })
    }

    /// The line with some fields changed; all others stay, in their order.
    pub(crate) fn edited(&self, changes: &[Change<'_>]) -> String {
        let (key, object) = self.line.split_at(self.object());
        let mut line = key.to_owned();
        push_object(&mut line, &fields(object), changes);
        line
    }

    /// The time stamp as it stands, for one that cannot be read.
    pub(crate) fn stamp(&self) -> String {
        let fields = fields(&self.line[self.object()..]);
        let stamp = fields.iter().rfind(|(key, _)| key == "updated_at");
        stamp
            .and_then(|(_, json)| serde_json::from_str(json).ok())
            .unwrap_or_default()
    }

    /// Where in the line the object begins.
    fn object(&self) -> usize {
        let mut scanner = Scanner::new(self.line);
        scanner.key().map_or(0, |_| scanner.next())
    }
}

/// What comes after `text`, if `bytes` begin with it. For a known length that is a comparison of
/// words.
#[inline(always)]
fn after<'a, const LENGTH: usize>(bytes: &'a [u8], text: &[u8; LENGTH]) -> Option<&'a [u8]> {
    let (found, rest) = bytes.split_first_chunk()?;
    (found == text).then_some(rest)
}

/// The number after `name`, if it is there, and what comes after it.
#[inline(always)]
fn number_after<'a, const LENGTH: usize>(
    bytes: &'a [u8],
    name: &[u8; LENGTH],
) -> Option<(Option<u64>, &'a [u8])> {
    let Some(digits) = after(bytes, name) else {
        return Some((None, bytes));
    };
    let (number, length) = whole_number(digits)?;
    Some((Some(number), &digits[length..]))
}

/// The fields of an object, in their order; none if it is not one.
pub(crate) fn fields(object: &str) -> Vec<(Cow<'_, str>, &str)> {
    let mut fields = Vec::new();
    let read = Scanner::new(object).object(|scanner, key, _| {
        fields.push((key, scanner.value()?));
        Ok(())
    });
    if read.is_ok() { fields } else { Vec::new() }
}

fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn push_object(out: &mut String, old: &[(Cow<'_, str>, &str)], changes: &[Change<'_>]) {
    let empty = out.len() + 1;
    out.push('{');
    let mut push = |key: &str, value: &str| {
        if out.len() > empty {
            out.push(',');
        }
        out.push_str(&quote(key));
        out.push(':');
        out.push_str(value);
    };
    for (at, (key, value)) in old.iter().enumerate() {
        // Of a key that is there twice, the last one counts, as in JavaScript.
        if old[at + 1..].iter().any(|(later, _)| later == key) {
            continue;
        }
        match changes.iter().find(|(name, _)| name == key) {
            None => push(key, value),
            Some((_, Some(value))) => push(key, value),
            Some((_, None)) => {}
        }
    }
    for (name, value) in changes {
        if let Some(value) = value
            .as_deref()
            .filter(|_| !old.iter().any(|(key, _)| key == name))
        {
            push(name, value);
        }
    }
    out.push('}');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the shorter way takes for an entry, the general one does, and finds the same.
    #[test]
    fn every_single_byte_change_is_read_alike_in_both_ways() {
        let line = concat!(
            r#""session-1":{"data":"operator-1","updated_at":"2025-08-18T10:20:30.456Z","#,
            r#""ttl_ms":14400000,"token":1755512430457},"#,
            "\n        "
        );
        assert!(Entry::in_own_form(line, 0).is_some());
        let mut alike = 0;
        for at in 0..line.len() {
            for byte in 0..=127 {
                let mut bytes = line.as_bytes().to_vec();
                bytes[at] = byte;
                let changed = String::from_utf8(bytes).unwrap();
                if let Some(entry) = Entry::in_own_form(&changed, 0) {
                    let general = Entry::scan(&mut Scanner::new(&changed), 0);
                    assert_eq!(general.ok(), Some(entry), "{changed}");
                    alike += 1;
                }
            }
        }
        assert!(alike > 2000, "{alike}");
    }
}
