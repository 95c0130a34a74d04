//! What can be saved of a corrupt file.

use serde_json::value::RawValue;

use crate::format::{fields, line};
use crate::stamp;

/// An entry that was saved.
pub(crate) struct Saved {
    session: String,
    /// Key and object.
    pub(crate) line: String,
}

/// Every entry that is whole, wherever it stands in `bytes`: something of the form
/// `"session": {…}` with an object that has a value, which `accept` takes, and a readable stamp.
///
/// A quotation mark may have been lost or added anywhere, so that each one is tried as the
/// beginning of a session's name.
pub(crate) fn salvage(bytes: &[u8], accept: impl Fn(&str) -> bool) -> Vec<Saved> {
    let mut search = Search {
        saved: Vec::new(),
        accept,
    };
    let mut at = 0;
    while let Some(quote) = bytes[at..].iter().position(|byte| *byte == b'"') {
        at += quote;
        at += search.take(&bytes[at..]).unwrap_or(1);
    }
    search.saved
}

/// How many braces may have been lost. The stack is not without end.
const DEEPEST: usize = 16;

struct Search<A> {
    saved: Vec<Saved>,
    accept: A,
}

impl<A: Fn(&str) -> bool> Search<A> {
    /// Saves the entry that `bytes` begin with, if they do, and returns how long it is.
    fn take(&mut self, bytes: &[u8]) -> Option<usize> {
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
        let fields = fields(object);
        let field = |name| {
            fields
                .iter()
                .rfind(|(key, _)| key == name)
                .map(|(_, value)| *value)
        };
        let stamp =
            field("updated_at").and_then(|stamp| serde_json::from_str::<String>(stamp).ok());
        let has_time = stamp.is_some_and(|stamp| stamp::parse(&stamp).is_some());
        if !has_time || !field("data").is_some_and(&self.accept) {
            return false;
        }
        let mut changes = Vec::new();
        for (name, value) in &fields {
            let sensible = match &**name {
                "data" | "updated_at" => true,
                "ttl_ms" | "token" => serde_json::from_str::<Option<u64>>(value).is_ok(),
                // An entry that lost its last brace has swallowed those that come after it.
                _ => depth >= DEEPEST || !self.add(name.clone().into_owned(), value, depth + 1),
            };
            if !sensible {
                changes.push((&**name, None));
            }
        }
        // Of a session that is there twice, the last one counts, as in JavaScript.
        self.saved.retain(|earlier| earlier.session != session);
        self.saved.push(Saved {
            line: line(&session, &fields, &changes),
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
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let saved = salvage(text.as_bytes(), |_| true);
        let sessions: Vec<&str> = saved.iter().map(|saved| saved.session.as_str()).collect();
        assert_eq!(sessions, expected, "{text}");
        assert!(
            saved
                .iter()
                .all(|saved| crate::format::parse_line(&saved.line).is_some())
        );
    }

    const STAMP: &str = r#""updated_at":"2025-08-18T10:20:30.456Z""#;

    #[test]
    fn whole_entries_are_saved_wherever_they_stand() {
        check("", &[]);
        check("nonsense \" : {", &[]);
        check(
            &format!(r#"{{"storage":{{"a":{{"data":1,{STAMP}}},"b":{{"data":2,{STAMP}}}"#),
            &["a", "b"],
        );
        check(
            &format!(r#"{{"storage":{{"a":{{"data":1,{STAMP}}},"b":{{"data":2,"upd"#),
            &["a"],
        );
        check(
            &format!(r#"{{"storage":{{"a":{{"data":1,{STAMP}}},"a":{{"data":2,{STAMP}}}"#),
            &["a"],
        );
        check(
            &format!(r#"{{"storage":{{"a":5,"b":{{"data":2,{STAMP}}},"c":{{{STAMP}}}"#),
            &["b"],
        );
    }

    #[test]
    fn an_entry_without_its_last_brace_gives_back_what_it_swallowed() {
        let text = format!(
            r#"{{"storage":{{"a":{{"data":1,{STAMP},"b":{{"data":2,{STAMP}}},"c":{{"data":3,{STAMP}}}}}}}"#
        );
        check(&text, &["b", "c", "a"]);
    }

    /// The value stays taken until it expires, rather than going to somebody else while its
    /// holder believes to have it.
    #[test]
    fn an_entry_whose_name_is_damaged_is_saved_under_what_is_left_of_it() {
        check(
            &format!(r#"{{"storage":{{xa":{{"data":1,{STAMP}}},"b":{{"data":2,{STAMP}}}}}}}"#),
            &[":{xa", "b"],
        );
    }

    #[test]
    fn senseless_optional_fields_are_left_out_and_unknown_ones_kept() {
        let text =
            format!(r#""a":{{"data":1,{STAMP},"ttl_ms":-4,"token":"x","owner":7,"mark":[1]}}"#);
        let saved = salvage(text.as_bytes(), |_| true);
        assert_eq!(
            saved[0].line,
            format!(r#""a":{{"data":1,{STAMP},"owner":7,"mark":[1]}}"#)
        );
    }

    #[test]
    fn an_object_inside_a_value_is_not_an_entry() {
        let inner = format!(r#"{{"x":{{"data":1,{STAMP}}}}}"#);
        check(
            &format!(r#"{{"storage":{{"a":{{"data":{inner},{STAMP}}},"#),
            &["a"],
        );
        let numbers = |data: &str| data.starts_with('{');
        let torn = format!(r#"{{"storage":{{"a":{{"data":{inner},"updat"#);
        assert!(salvage(torn.as_bytes(), numbers).is_empty());
    }
}
