//! The file format: `{"storage": {"<session>": {"data": …, "updated_at": "<stamp>", …}}}`.
//!
//! Entries are borrowed from the file's text and written back as they stood, so that fields of
//! other tools survive; only an entry that changes is taken apart.

use std::borrow::Cow;

use crate::scan::{Damage, Scanner};
use crate::stamp;

/// One session's entry.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) session: Cow<'a, str>,
    /// Key and object, as they stand or will stand in the file.
    line: Cow<'a, str>,
    /// Where in `line` the object begins.
    object: usize,
    /// The value, as JSON.
    pub(crate) data: &'a str,
    pub(crate) updated_at: Cow<'a, str>,
    /// The same in Unix milliseconds, if it can be read.
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
        scanner.object(|scanner, session, start| {
            admit(Entry::scan(scanner, session, start)?);
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
    let mut scanner = Scanner::new(line);
    let session = scanner.key().ok()?;
    Entry::scan(&mut scanner, session, 0).ok()
}

/// A file of these entries. One a line: easy on the eyes, and a damaged line damages no other.
pub(crate) fn to_bytes(extra: &[&str], entries: &[Entry<'_>], added: Option<&str>) -> Vec<u8> {
    let size: usize = entries.iter().map(|entry| entry.line.len() + 2).sum();
    let mut out = String::with_capacity(size + added.map_or(0, str::len) + 256);
    out.push('{');
    for field in extra {
        out.push_str(field);
        out.push_str(",\n");
    }
    out.push_str("\"storage\":{");
    for (at, line) in entries
        .iter()
        .map(|entry| &*entry.line)
        .chain(added)
        .enumerate()
    {
        out.push_str(if at == 0 { "\n" } else { ",\n" });
        out.push_str(line);
    }
    out.push_str("\n}}\n");
    out.into_bytes()
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
    fn scan(
        scanner: &mut Scanner<'a>,
        session: Cow<'a, str>,
        start: usize,
    ) -> Result<Self, Damage> {
        let object = scanner.next();
        let fields = match Fields::scan_own_form(scanner) {
            Some(fields) => fields,
            None => {
                scanner.back_to(object);
                Fields::scan(scanner)?
            }
        };
        let Fields {
            data,
            updated_at,
            stamp_ms,
            ttl_ms,
            token,
            owner,
        } = fields;
        let line = scanner.since(start).into();
        let object = object - start;
        Ok(Self {
            session,
            line,
            object,
            data,
            updated_at,
            stamp_ms,
            ttl_ms,
            token,
            owner,
        })
    }

    /// The line with some fields changed; all others stay, in their order.
    pub(crate) fn edited(&self, changes: &[Change<'_>]) -> String {
        let mut line = self.line[..self.object].to_owned();
        push_object(&mut line, &fields(&self.line[self.object..]), changes);
        line
    }

    /// Changes what will stand in the file. What has been read of the entry stays as it was.
    pub(crate) fn rewrite(&mut self, line: String) -> bool {
        let changes = self.line != line;
        self.line = line.into();
        changes
    }
}

/// What is read of an entry's object.
struct Fields<'a> {
    data: &'a str,
    updated_at: Cow<'a, str>,
    stamp_ms: Option<i64>,
    ttl_ms: Option<u64>,
    token: Option<u64>,
    owner: Option<&'a str>,
}

impl<'a> Fields<'a> {
    /// Any object with the fields that an entry needs, in any order.
    fn scan(scanner: &mut Scanner<'a>) -> Result<Self, Damage> {
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
            data,
            stamp_ms: stamp::parse(&updated_at),
            updated_at,
            ttl_ms,
            token,
            owner,
        })
    }

    /// The same for what we write ourselves, in a third of the time. `None` leaves the scanner
    /// anywhere.
    fn scan_own_form(scanner: &mut Scanner<'a>) -> Option<Self> {
        if !scanner.take("{\"data\":") {
            return None;
        }
        let data = scanner.value().ok()?;
        if !scanner.take(",\"updated_at\":\"") {
            return None;
        }
        let updated_at = scanner.take_bytes(stamp::LENGTH)?;
        let stamp_ms = Some(stamp::parse_own_form(updated_at.as_bytes())?);
        if !scanner.take("\"") {
            return None;
        }
        let ttl_ms = if scanner.take(",\"ttl_ms\":") {
            scanner.number().ok()?
        } else {
            None
        };
        let token = if scanner.take(",\"token\":") {
            scanner.number().ok()?
        } else {
            None
        };
        let owner = if scanner.take(",\"owner\":") {
            Some(scanner.value().ok()?)
        } else {
            None
        };
        let updated_at = updated_at.into();
        scanner.take("}").then_some(Self {
            data,
            updated_at,
            stamp_ms,
            ttl_ms,
            token,
            owner,
        })
    }
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
