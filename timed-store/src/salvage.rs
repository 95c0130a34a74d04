//! What can be saved of a corrupt file.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::format::{Document, Entry, Fields, RawFields, edit};
use crate::process::Process;
use crate::stamp;

/// Every entry that is whole, wherever it stands in `bytes`: something of the form
/// `"session": {…}` with an object that has a value, which `accept` takes, and a readable stamp.
///
/// A quotation mark may have been lost or added anywhere, so that each one is tried as the
/// beginning of a session's name.
pub(crate) fn salvage(bytes: &[u8], accept: impl Fn(&RawValue) -> bool) -> Vec<(String, String)> {
    let mut saved: Vec<(String, String)> = Vec::new();
    let mut at = 0;
    while let Some(quote) = bytes[at..].iter().position(|byte| *byte == b'"') {
        at += quote;
        match entry_at(&bytes[at..], &accept) {
            Some((session, text, length)) => {
                saved.retain(|(earlier, _)| *earlier != session);
                saved.push((session, text));
                at += length;
            }
            None => at += 1,
        }
    }
    saved
}

/// The saved entries as a file.
pub(crate) fn document(saved: &[(String, String)]) -> Document<'_> {
    let entries = saved.iter().filter_map(|(session, text)| {
        let fields: Fields<'_> = serde_json::from_str(text).ok()?;
        Some(Entry {
            session: session.into(),
            text: text.into(),
            fields,
        })
    });
    Document::of_entries(entries.collect())
}

fn entry_at(bytes: &[u8], accept: &impl Fn(&RawValue) -> bool) -> Option<(String, String, usize)> {
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
    Some((session, mend(text.get(), accept)?, end))
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

/// The entry without optional fields that make no sense; `None` if a needed one does not.
fn mend(text: &str, accept: &impl Fn(&RawValue) -> bool) -> Option<String> {
    let RawFields(fields) = serde_json::from_str(text).ok()?;
    let field = |name| {
        fields
            .iter()
            .rfind(|(key, _)| key == name)
            .map(|(_, value)| value.get())
    };
    let stamp: Cow<'_, str> = serde_json::from_str::<String>(field("updated_at")?)
        .ok()?
        .into();
    stamp::parse(&stamp)?;
    let data: &RawValue = serde_json::from_str(field("data")?).ok()?;
    if !accept(data) {
        return None;
    }
    let is_number = |text| serde_json::from_str::<Option<u64>>(text).is_ok();
    let is_process = |text| serde_json::from_str::<Option<Process>>(text).is_ok();
    let mut changes = Vec::new();
    for (name, sensible) in [
        ("ttl_ms", field("ttl_ms").is_none_or(is_number)),
        ("token", field("token").is_none_or(is_number)),
        ("owner", field("owner").is_none_or(is_process)),
    ] {
        if !sensible {
            changes.push((name, None));
        }
    }
    edit(text, &changes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let saved = salvage(text.as_bytes(), |_| true);
        let sessions: Vec<&str> = saved.iter().map(|(session, _)| session.as_str()).collect();
        assert_eq!(sessions, expected, "{text}");
        assert_eq!(document(&saved).entries.len(), expected.len());
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
        assert_eq!(saved[0].1, format!(r#"{{"data":1,{STAMP},"mark":[1]}}"#));
    }

    #[test]
    fn an_object_inside_a_value_is_not_an_entry() {
        let inner = format!(r#"{{"x":{{"data":1,{STAMP}}}}}"#);
        check(
            &format!(r#"{{"storage":{{"a":{{"data":{inner},{STAMP}}},"#),
            &["a"],
        );
        let numbers = |data: &RawValue| data.get().starts_with('{');
        let torn = format!(r#"{{"storage":{{"a":{{"data":{inner},"updat"#);
        assert!(salvage(torn.as_bytes(), numbers).is_empty());
    }
}
