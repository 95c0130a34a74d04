//! Recovery of a corrupt file.

use serde_json::value::RawValue;

use super::raw_object::{RawObject, decode_string};
use super::stored_entry::new_line;
use super::timestamp;

/// An entry that was recovered.
pub(crate) struct SalvagedEntry {
    session: String,
    /// Key and object.
    pub(crate) line: String,
}

/// Finds every whole entry, wherever it stands in `bytes`: text of the form `"session": {…}` whose
/// object has a readable timestamp and a value that `is_value` accepts.
///
/// A quotation mark may have been lost or added anywhere, so each one is tried as the start of a
/// session's name.
pub(crate) fn salvage(bytes: &[u8], is_value: impl Fn(&str) -> bool) -> Vec<SalvagedEntry> {
    let mut search = Search {
        found: Vec::new(),
        is_value,
    };
    let mut at = 0;
    while let Some(quote) = bytes[at..].iter().position(|byte| *byte == b'"') {
        at += quote;
        at += search.entry_at_start(&bytes[at..]).unwrap_or(1);
    }
    search.found
}

/// How many lost braces are followed: the stack is bounded.
const MAX_DEPTH: usize = 16;

struct Search<V> {
    found: Vec<SalvagedEntry>,
    is_value: V,
}

impl<V: Fn(&str) -> bool> Search<V> {
    /// Adds the entry that `bytes` begin with, and returns its length; `None` if there is none.
    fn entry_at_start(&mut self, bytes: &[u8]) -> Option<usize> {
        let (session, after_name): (String, usize) = value_at(bytes, 0)?;
        let colon = after_name + white_space(&bytes[after_name..]);
        if bytes.get(colon) != Some(&b':') {
            return None;
        }
        let object = colon + 1 + white_space(&bytes[colon + 1..]);
        if bytes.get(object) != Some(&b'{') {
            return None;
        }
        let (text, end): (&RawValue, usize) = value_at(bytes, object)?;
        self.add(session, text.get(), 0).then_some(end)
    }

    fn add(&mut self, session: String, object: &str, depth: usize) -> bool {
        let fields = RawObject::fields(object).unwrap_or_default();
        let field = |wanted| {
            let field = fields.iter().rfind(|(name, _)| name == wanted);
            field.map(|(_, json)| *json)
        };
        let updated_at = field("updated_at").and_then(decode_string);
        let has_time = updated_at.is_some_and(|text| timestamp::parse(&text).is_some());
        if !has_time || !field("data").is_some_and(&self.is_value) {
            return false;
        }
        let mut changes = Vec::new();
        for (name, json) in &fields {
            let is_kept = match &**name {
                "data" | "updated_at" => true,
                "ttl_ms" | "token" => serde_json::from_str::<Option<u64>>(json).is_ok(),
                // An entry that lost its last brace contains the entries that follow it.
                _ => depth >= MAX_DEPTH || !self.add(name.clone().into_owned(), json, depth + 1),
            };
            if !is_kept {
                changes.push((&**name, None));
            }
        }
        // Of a session that is there twice, the last entry counts, as in JavaScript.
        self.found.retain(|earlier| earlier.session != session);
        self.found.push(SalvagedEntry {
            line: new_line(&session, &fields, &changes),
            session,
        });
        true
    }
}

/// The JSON value at `from`, and where it ends.
fn value_at<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8], from: usize) -> Option<(T, usize)> {
    let mut values = serde_json::Deserializer::from_slice(&bytes[from..]).into_iter::<T>();
    let value = values.next()?.ok()?;
    Some((value, from + values.byte_offset()))
}

fn white_space(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .take_while(|byte| byte.is_ascii_whitespace())
        .count()
}

#[cfg(test)]
mod tests {
    use super::super::stored_entry::StoredEntry;
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let found = salvage(text.as_bytes(), |_| true);
        let sessions: Vec<&str> = found.iter().map(|entry| entry.session.as_str()).collect();
        assert_eq!(sessions, expected, "{text}");
        let is_entry = |entry: &SalvagedEntry| StoredEntry::parse(&entry.line).is_some();
        assert!(found.iter().all(is_entry), "{text}");
    }

    const TIME: &str = r#""updated_at":"2025-08-18T10:20:30.456Z""#;

    #[test]
    fn whole_entries_are_found_wherever_they_stand() {
        check("", &[]);
        check("nonsense \" : {", &[]);
        check(
            &format!(r#"{{"storage":{{"a":{{"data":1,{TIME}}},"b":{{"data":2,{TIME}}}"#),
            &["a", "b"],
        );
        check(
            &format!(r#"{{"storage":{{"a":{{"data":1,{TIME}}},"b":{{"data":2,"upd"#),
            &["a"],
        );
        check(
            &format!(r#"{{"storage":{{"a":{{"data":1,{TIME}}},"a":{{"data":2,{TIME}}}"#),
            &["a"],
        );
        check(
            &format!(r#"{{"storage":{{"a":5,"b":{{"data":2,{TIME}}},"c":{{{TIME}}}"#),
            &["b"],
        );
    }

    #[test]
    fn an_entry_without_its_last_brace_gives_back_the_entries_inside_it() {
        let text = format!(
            r#"{{"storage":{{"a":{{"data":1,{TIME},"b":{{"data":2,{TIME}}},"c":{{"data":3,{TIME}}}}}}}"#
        );
        check(&text, &["b", "c", "a"]);
    }

    /// The value stays busy until it expires. Dropping the entry would let another session claim
    /// the value while its holder still uses it.
    #[test]
    fn an_entry_whose_name_is_damaged_is_kept_under_the_rest_of_its_name() {
        check(
            &format!(r#"{{"storage":{{xa":{{"data":1,{TIME}}},"b":{{"data":2,{TIME}}}}}}}"#),
            &[":{xa", "b"],
        );
    }

    #[test]
    fn invalid_optional_fields_are_removed_and_unknown_ones_kept() {
        let text =
            format!(r#""a":{{"data":1,{TIME},"ttl_ms":-4,"token":"x","owner":7,"mark":[1]}}"#);
        let found = salvage(text.as_bytes(), |_| true);
        assert_eq!(
            found[0].line,
            format!(r#""a":{{"data":1,{TIME},"owner":7,"mark":[1]}}"#)
        );
    }

    #[test]
    fn an_object_inside_a_value_is_not_an_entry() {
        let inner = format!(r#"{{"x":{{"data":1,{TIME}}}}}"#);
        check(
            &format!(r#"{{"storage":{{"a":{{"data":{inner},{TIME}}},"#),
            &["a"],
        );
        let is_object = |data: &str| data.starts_with('{');
        let torn = format!(r#"{{"storage":{{"a":{{"data":{inner},"updat"#);
        assert!(salvage(torn.as_bytes(), is_object).is_empty());
    }
}
