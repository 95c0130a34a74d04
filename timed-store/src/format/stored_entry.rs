//! One session's entry in the data file.

use std::borrow::Cow;

use super::raw_object::{RawObject, decode_string};
use super::timestamp;

/// An entry as it stands in the file. All parts borrow from the file's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredEntry<'a> {
    pub(crate) session: Cow<'a, str>,
    /// Key and object. The whole entry is written back from here, unless it changes.
    pub(crate) line: &'a str,
    /// The object of `line`.
    object: &'a str,
    /// The value, as JSON.
    pub(crate) data: &'a str,
    /// Time of the last change in Unix milliseconds; `None` if the timestamp cannot be
    /// parsed.
    pub(crate) timestamp_ms: Option<i64>,
    /// The timeout that it was stored with. Without one, the reader's timeout applies.
    pub(crate) ttl_ms: Option<u64>,
    /// The fencing token of a claimed entry.
    pub(crate) token: Option<u64>,
    /// The process that the entry ends with, as JSON.
    pub(crate) owner: Option<&'a str>,
}

/// A change of one field: its new JSON, or `None` to remove it.
pub(crate) type FieldChange<'c> = (&'c str, Option<String>);

impl<'a> StoredEntry<'a> {
    /// Parses `"session":{…}` in any form.
    pub(crate) fn parse(line: &'a str) -> Option<Self> {
        let mut keys =
            serde_json::Deserializer::from_str(line).into_iter::<&serde_json::value::RawValue>();
        let key = keys.next()?.ok()?.get();
        let object = trim_start(&line[keys.byte_offset()..]).strip_prefix(':')?;
        Self::from_parts(line, key, trim_start(object))
    }

    /// Parses an object with the fields that an entry needs, in any order. If a field is there
    /// twice, the last one counts, as in JavaScript.
    pub(crate) fn from_parts(line: &'a str, key: &'a str, object: &'a str) -> Option<Self> {
        let (mut data, mut updated_at) = (None, None);
        let (mut ttl_ms, mut token, mut owner) = (None, None, None);
        for (name, json) in RawObject::fields(object)? {
            match &*name {
                "data" => data = Some(json),
                "updated_at" => updated_at = Some(decode_string(json)?),
                "ttl_ms" => ttl_ms = serde_json::from_str(json).ok()?,
                "token" => token = serde_json::from_str(json).ok()?,
                "owner" => owner = Some(json),
                _ => {}
            }
        }
        Some(Self {
            session: decode_string(key)?,
            line,
            object,
            data: data?,
            timestamp_ms: timestamp::parse(&updated_at?),
            ttl_ms,
            token,
            owner,
        })
    }

    /// The same for the entries that this crate writes most: a session without escapes, a string as
    /// the value, no owner. Takes the entry at the start of `text`, and returns the text after it.
    /// It takes a fraction of the time, and every operation parses every entry. `None` says nothing
    /// about other forms.
    #[inline]
    pub(crate) fn in_compact_form(text: &'a str) -> Option<(Self, &'a str)> {
        let (session, rest) = plain_string(text)?;
        let object = rest.strip_prefix(':')?;
        let value = object.strip_prefix("{\"data\":")?;
        let after_value = after_string(value)?;
        let rest = after_value.strip_prefix(",\"updated_at\":\"")?;
        let (updated_at, rest) = rest.split_at_checked(timestamp::LENGTH)?;
        let rest = rest.strip_prefix('"')?;
        let (ttl_ms, rest) = optional_number(rest.strip_prefix(",\"ttl_ms\":"), rest)?;
        let (token, rest) = optional_number(rest.strip_prefix(",\"token\":"), rest)?;
        let rest = rest.strip_prefix('}')?;
        let entry = Self {
            session: session.into(),
            line: &text[..text.len() - rest.len()],
            object: &object[..object.len() - rest.len()],
            data: &value[..value.len() - after_value.len()],
            timestamp_ms: Some(timestamp::parse_compact_form(updated_at.as_bytes())?),
            ttl_ms,
            token,
            owner: None,
        };
        Some((entry, rest))
    }

    /// The line with changed fields; all others stay, in their order.
    pub(crate) fn edited(&self, changes: &[FieldChange<'_>]) -> String {
        let key = &self.line[..self.line.len() - self.object.len()];
        let fields = RawObject::fields(self.object).unwrap_or_default();
        let mut line = key.to_owned();
        push_object(&mut line, &fields, changes);
        line
    }

    /// The text of a timestamp that cannot be parsed.
    pub(crate) fn timestamp_text(&self) -> String {
        let fields = RawObject::fields(self.object).unwrap_or_default();
        let updated_at = fields.iter().rfind(|(name, _)| name == "updated_at");
        let text = updated_at.and_then(|(_, json)| decode_string(json));
        text.unwrap_or_default().into_owned()
    }
}

/// The line of an entry made of the fields `old` with changes.
pub(crate) fn new_line(
    session: &str,
    old: &[(Cow<'_, str>, &str)],
    changes: &[FieldChange<'_>],
) -> String {
    let mut line = quote(session);
    line.push(':');
    push_object(&mut line, old, changes);
    line
}

fn push_object(out: &mut String, old: &[(Cow<'_, str>, &str)], changes: &[FieldChange<'_>]) {
    let empty = out.len() + 1;
    out.push('{');
    let mut push = |name: &str, json: &str| {
        if out.len() > empty {
            out.push(',');
        }
        out.push_str(&quote(name));
        out.push(':');
        out.push_str(json);
    };
    for (at, (name, json)) in old.iter().enumerate() {
        if old[at + 1..].iter().any(|(later, _)| later == name) {
            continue;
        }
        match changes.iter().find(|(changed, _)| changed == name) {
            None => push(name, json),
            Some((_, Some(json))) => push(name, json),
            Some((_, None)) => {}
        }
    }
    for (name, json) in changes {
        if let Some(json) = json
            && !old.iter().any(|(old, _)| old == name)
        {
            push(name, json);
        }
    }
    out.push('}');
}

/// Bytes that cannot stand for themselves in a JSON string.
const IS_SPECIAL: [bool; 256] = {
    let mut table = [false; 256];
    let mut control = 0;
    while control < 0x20 {
        table[control] = true;
        control += 1;
    }
    table[b'"' as usize] = true;
    table[b'\\' as usize] = true;
    table
};

/// The string that `text` begins with, if it has no escapes, and the text after it.
#[inline]
fn plain_string(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix('"')?;
    let length = text
        .bytes()
        .position(|byte| IS_SPECIAL[usize::from(byte)])?;
    let rest = text[length..].strip_prefix('"')?;
    Some((&text[..length], rest))
}

/// The text after the string that `text` begins with. The escapes are checked as serde_json does
/// when it skips a string.
#[inline]
fn after_string(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    if bytes.first() != Some(&b'"') {
        return None;
    }
    let mut at = 1;
    loop {
        at += bytes[at..]
            .iter()
            .position(|byte| IS_SPECIAL[usize::from(*byte)])?;
        match (bytes[at], bytes.get(at + 1)) {
            (b'"', _) => return Some(&text[at + 1..]),
            (b'\\', Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't')) => at += 2,
            (b'\\', Some(b'u')) => {
                let digits = bytes.get(at + 2..at + 6)?;
                if !digits.iter().all(u8::is_ascii_hexdigit) {
                    return None;
                }
                at += 6;
            }
            _ => return None,
        }
    }
}

/// The whole number that `digits` begin with, and the text after it; nothing and `otherwise` if the
/// field is not there. The caller checks the text after the number, so that `1.5` and `1e3` are not
/// taken for `1`.
fn optional_number<'a>(
    digits: Option<&'a str>,
    otherwise: &'a str,
) -> Option<(Option<u64>, &'a str)> {
    let Some(text) = digits else {
        return Some((None, otherwise));
    };
    let (mut number, mut length) = (0u64, 0);
    while let Some(digit @ b'0'..=b'9') = text.as_bytes().get(length) {
        number = number
            .wrapping_mul(10)
            .wrapping_add(u64::from(digit - b'0'));
        length += 1;
    }
    // JSON has neither empty numbers nor leading zeros; 19 digits always fit.
    let is_json = length == 1 || ((2..=19).contains(&length) && !text.starts_with('0'));
    is_json.then_some((Some(number), &text[length..]))
}

fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn trim_start(json: &str) -> &str {
    json.trim_start_matches([' ', '\n', '\r', '\t'])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = concat!(
        r#""session-1":{"data":"operator-1","updated_at":"2025-08-18T10:20:30.456Z","#,
        r#""ttl_ms":14400000,"token":1755512430457}"#
    );

    /// A line that the fast path accepts has the same meaning for the general parser.
    #[test]
    fn both_parsers_read_every_single_byte_change_alike() {
        let escaped = LINE.replace("operator-1", r#"a \"b\"\n\u00e9 \\ \/c"#);
        for line in [LINE, &escaped] {
            assert!(StoredEntry::in_compact_form(line).is_some());
            let two_lines = format!("{line},\n{line}");
            let (first, rest) = StoredEntry::in_compact_form(&two_lines).unwrap();
            assert_eq!((first.line, rest), (line, &two_lines[line.len()..]));
            let mut alike = 0;
            for at in 0..line.len() {
                for byte in 0..=127 {
                    let mut bytes = line.as_bytes().to_vec();
                    bytes[at] = byte;
                    let changed = String::from_utf8(bytes).unwrap();
                    if let Some((entry, "")) = StoredEntry::in_compact_form(&changed) {
                        assert_eq!(StoredEntry::parse(&changed), Some(entry), "{changed}");
                        alike += 1;
                    }
                }
            }
            assert!(alike > 2000, "{alike}");
        }
    }

    #[test]
    fn numbers_that_are_not_whole_are_left_to_the_general_parser() {
        for number in ["1.5", "1e3", "01", "-1", "18446744073709551616", "", "1 "] {
            let line = LINE.replace("14400000", number);
            assert!(StoredEntry::in_compact_form(&line).is_none(), "{line}");
        }
        for number in ["0", "9", "10", "9999999999999999999"] {
            let line = LINE.replace("14400000", number);
            let (entry, _) = StoredEntry::in_compact_form(&line).unwrap();
            assert_eq!(entry.ttl_ms, number.parse().ok());
        }
    }

    #[test]
    fn an_edit_keeps_unknown_fields_and_their_order() {
        let line = r#""a" : {"x": [1, 2], "token": 7, "data":"old","token":8,"y":null}"#;
        let line = line.replace("\"y\"", r#""updated_at":"2025-08-18T10:20:30Z","y""#);
        let entry = StoredEntry::parse(&line).unwrap();
        assert_eq!(entry.token, Some(8), "the last of two counts");
        let edited = entry.edited(&[
            ("data", Some("\"new\"".to_owned())),
            ("token", None),
            ("ttl_ms", Some("5".to_owned())),
        ]);
        assert_eq!(
            edited,
            r#""a" : {"x":[1, 2],"data":"new","updated_at":"2025-08-18T10:20:30Z","y":null,"ttl_ms":5}"#
        );
    }
}
