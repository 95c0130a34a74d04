//! Recovery of a corrupt file, in time linear to its size.
//!
//! # Theory
//!
//! An entry is text of the form `"session": {…}` whose object has a readable timestamp and a value
//! of the store's type. A quotation mark or a brace may have been lost or added anywhere, so every
//! brace is tried as the start of an object, and every quotation mark as the start of a string or
//! of a session's name. Parsing forward from each of them would take quadratic time: in
//! `{"a":{"a":{"a":` every attempt runs to the end of the file.
//!
//! So the file is read once, from its end to its start, and each position is decided once:
//!
//! - *Strings.* A string that starts at a quotation mark ends at the next one that is not escaped.
//!   Whether a mark is escaped depends on the backslashes before it, not on where the string starts.
//!   A control character ends the search: JSON strings do not contain one.
//! - *Containers.* When the scan arrives at a brace or bracket, the ends of all strings and
//!   containers behind it are known. Its direct members are stepped over, each in constant time,
//!   until it closes or breaks a rule of JSON.
//!
//! **Invariant.** A container steps over its direct members only. A position is a direct member of
//! one container for each reading of the text, and there are two readings: a position is inside of
//! a string or outside. So the steps of all containers together are linear.
//!
//! **Names.** The name of an object stands before its colon: the text back to the quotation mark
//! before is looked at once for each object.
//!
//! **Budget.** The objects that have a timestamp and a value are handed to the general parser, the
//! outer one before the inner one, and its text is skipped if it is an entry. Only refused objects
//! that contain each other could cost more than linear time; a budget of bytes ends the search.

use std::collections::HashMap;

use super::raw_object::{RawObject, decode_string};
use super::stored_entry::new_line;
use super::timestamp;
use super::token_record::{self, TokenRecord};

/// An entry that was recovered.
pub(crate) struct SalvagedEntry {
    /// Key and object.
    pub(crate) line: String,
}

/// Finds every whole entry, wherever it stands in `bytes`.
pub(crate) fn salvage(bytes: &[u8], is_value: impl Fn(&str) -> bool) -> Vec<SalvagedEntry> {
    let map = Map::of(bytes);
    let mut search = Search {
        found: Vec::new(),
        places: HashMap::new(),
        is_value,
    };
    let mut budget = BUDGET.saturating_mul(bytes.len());
    let mut at = 0;
    for &object in map.entries.iter().rev() {
        // An object inside of an entry is its member, not an entry.
        if object < at {
            continue;
        }
        let Some((text, end)) = map.end(object).and_then(|end| {
            budget = budget.checked_sub(end - object)?;
            Some((std::str::from_utf8(&bytes[object..end]).ok()?, end))
        }) else {
            continue;
        };
        let is_found = map.names_of(object).into_iter().any(|name| {
            let left = budget.checked_sub(text.len() + name.len());
            budget = left.unwrap_or(0);
            let name = std::str::from_utf8(name).ok().filter(|_| left.is_some());
            let session = name.and_then(decode_string);
            session.is_some_and(|session| search.add(session.into_owned(), text, 0))
        });
        if is_found {
            at = end;
        }
    }
    search.found.into_iter().flatten().collect()
}

/// Whether bytes without a whole entry are the rest of a store. Any other file is not ours, and the
/// key `storage` alone proves nothing: other programs use it too.
///
/// - Nothing, or the first bytes of a store: a power cut can empty, zero or shorten a file.
/// - Whole JSON is a store if a member of `storage` has the keys of an entry, or if there is a token
///   record. Damage that leaves whole JSON changes values, not the shape.
/// - Torn JSON is a store if it begins as this crate writes it, or has the keys.
pub(crate) fn is_recognisable(bytes: &[u8]) -> bool {
    let start: Vec<u8> = bytes
        .iter()
        .copied()
        .filter(|byte| *byte != 0 && !byte.is_ascii_whitespace())
        .take(START.len() + 1)
        .collect();
    if START.starts_with(&start) {
        return true;
    }
    if serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok() {
        let members = std::str::from_utf8(bytes).ok().and_then(RawObject::fields);
        return members.unwrap_or_default().iter().any(|(key, value)| {
            let entries = || RawObject::fields(value).unwrap_or_default();
            match &**key {
                "storage" => entries().iter().any(|(_, entry)| has_entry_keys(entry)),
                token_record::KEY => TokenRecord::from_json(value).is_some(),
                _ => false,
            }
        });
    }
    let has = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    bytes.starts_with(COMPACT_START)
        || has(b"\"storage\"") && (has(b"\"updated_at\"") || has(b"\"timed_store\""))
}

const START: &[u8] = b"{\"storage\":{";

/// The first line of the form that [`NextVersion`](super::NextVersion) writes.
const COMPACT_START: &[u8] = b"{\"storage\":{\n";

fn has_entry_keys(entry: &str) -> bool {
    let members = RawObject::fields(entry).unwrap_or_default();
    let has = |name: &str| members.iter().any(|(key, _)| key == name);
    has("data") && has("updated_at")
}

/// How often each byte may be handed to the general parser.
const BUDGET: usize = 8;

/// How many lost braces are followed: the stack is bounded.
const MAX_DEPTH: usize = 16;

/// Where the strings and containers of a text end.
struct Map<'a> {
    bytes: &'a [u8],
    /// For each quotation mark, brace and bracket the index after its string or container; zero if
    /// there is none. A file has less than 4 GB.
    ends: Vec<u32>,
    /// The objects that have the members that an entry needs, last first.
    entries: Vec<usize>,
    /// The steps that the containers took, for the test of the invariant.
    #[cfg(test)]
    steps: usize,
}

impl<'a> Map<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        let bytes = &bytes[..bytes.len().min(u32::MAX as usize)];
        let mut map = Self {
            bytes,
            ends: vec![0; bytes.len()],
            entries: Vec::new(),
            #[cfg(test)]
            steps: 0,
        };
        // The next quotation mark that is not escaped, if no control character stands before it.
        let mut next_quote = None;
        for at in (0..bytes.len()).rev() {
            match bytes[at] {
                b'"' => {
                    map.ends[at] = next_quote.map_or(0, |quote: usize| index(quote + 1));
                    if !is_escaped(bytes, at) {
                        next_quote = Some(at);
                    }
                }
                b'{' => map.close_object(at),
                b'[' => map.close_array(at),
                0..0x20 => next_quote = None,
                _ => {}
            }
        }
        map
    }

    /// The names that an object may have, longest first: all strings that end right before its
    /// colon. There is more than one if a name contains escaped quotation marks, of which one may
    /// be the true start.
    fn names_of(&self, object: usize) -> Vec<&'a [u8]> {
        let before = |end: usize| {
            let text = &self.bytes[..end];
            text.iter().rposition(|byte| !byte.is_ascii_whitespace())
        };
        let colon = before(object).filter(|at| self.bytes[*at] == b':');
        let Some(quote) = colon.and_then(before).filter(|at| self.bytes[*at] == b'"') else {
            return Vec::new();
        };
        let mut names = Vec::new();
        for at in (0..quote).rev().take_while(|at| self.bytes[*at] >= 0x20) {
            if self.bytes[at] == b'"' {
                if self.end(at) == Some(quote + 1) {
                    names.push(&self.bytes[at..=quote]);
                }
                if !is_escaped(self.bytes, at) {
                    break;
                }
            }
        }
        names.reverse();
        names
    }

    fn close_object(&mut self, open: usize) {
        let (mut has_value, mut has_time) = (false, false);
        let mut at = self.skip_space(open + 1);
        if self.byte(at) != Some(b'}') {
            loop {
                self.count_step();
                let Some((value, end)) = self
                    .end(at)
                    .filter(|_| self.byte(at) == Some(b'"'))
                    .and_then(|name_end| self.after_colon(name_end))
                    .and_then(|value| Some((value, self.value_end(value)?)))
                else {
                    return;
                };
                let name = &self.bytes[at..];
                has_value |= name.starts_with(b"\"data\"");
                has_time |= name.starts_with(b"\"updated_at\"")
                    && std::str::from_utf8(&self.bytes[value..end])
                        .ok()
                        .and_then(decode_string)
                        .is_some_and(|text| timestamp::parse(&text).is_some());
                at = self.skip_space(end);
                match self.byte(at) {
                    Some(b',') => at = self.skip_space(at + 1),
                    Some(b'}') => break,
                    _ => return,
                }
            }
        }
        self.ends[open] = index(at + 1);
        if has_value && has_time {
            self.entries.push(open);
        }
    }

    fn close_array(&mut self, open: usize) {
        let mut at = self.skip_space(open + 1);
        if self.byte(at) != Some(b']') {
            loop {
                self.count_step();
                let Some(end) = self.value_end(at) else {
                    return;
                };
                at = self.skip_space(end);
                match self.byte(at) {
                    Some(b',') => at = self.skip_space(at + 1),
                    Some(b']') => break,
                    _ => return,
                }
            }
        }
        self.ends[open] = index(at + 1);
    }

    /// The start of the value after a name that ends at `at`.
    fn after_colon(&self, at: usize) -> Option<usize> {
        let colon = self.skip_space(at);
        (self.byte(colon) == Some(b':')).then(|| self.skip_space(colon + 1))
    }

    /// Numbers and literals are checked by the general parser.
    fn value_end(&self, at: usize) -> Option<usize> {
        if matches!(self.byte(at)?, b'"' | b'{' | b'[') {
            return self.end(at);
        }
        let is_scalar = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
        let length = self.bytes[at..].iter().take_while(is_scalar).count();
        (length > 0).then_some(at + length)
    }

    fn end(&self, at: usize) -> Option<usize> {
        self.ends
            .get(at)
            .map(|end| *end as usize)
            .filter(|end| *end > 0)
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.bytes.get(at).copied()
    }

    fn skip_space(&self, from: usize) -> usize {
        let rest = self.bytes.get(from..).unwrap_or_default();
        from + rest
            .iter()
            .take_while(|byte| byte.is_ascii_whitespace())
            .count()
    }

    fn count_step(&mut self) {
        #[cfg(test)]
        {
            self.steps += 1;
        }
    }
}

/// Whether an odd number of backslashes stands before the byte.
fn is_escaped(bytes: &[u8], at: usize) -> bool {
    let escapes = bytes[..at].iter().rev().take_while(|byte| **byte == b'\\');
    escapes.count() % 2 == 1
}

fn index(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(0)
}

struct Search<V> {
    /// In the order of the file; `None` where a later entry of the same session was found.
    found: Vec<Option<SalvagedEntry>>,
    places: HashMap<String, usize>,
    is_value: V,
}

impl<V: Fn(&str) -> bool> Search<V> {
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
        // The entries that were taken out are not compared with each other when the line is written.
        let mut kept = Vec::new();
        for (name, json) in &fields {
            let is_kept = match &**name {
                "data" | "updated_at" => true,
                "ttl_ms" | "token" => serde_json::from_str::<Option<u64>>(json).is_ok(),
                // An entry that lost its last brace contains the entries that follow it.
                _ => depth >= MAX_DEPTH || !self.add(name.clone().into_owned(), json, depth + 1),
            };
            if is_kept {
                kept.push((name.clone(), *json));
            }
        }
        // Of a session that is there twice, the last entry counts, as in JavaScript.
        if let Some(earlier) = self.places.insert(session.clone(), self.found.len()) {
            self.found[earlier] = None;
        }
        self.found.push(Some(SalvagedEntry {
            line: new_line(&session, &kept, &[]),
        }));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::stored_entry::StoredEntry;
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let found = salvage(text.as_bytes(), |_| true);
        let parse = |entry: &SalvagedEntry| {
            StoredEntry::parse(&entry.line)
                .unwrap()
                .session
                .into_owned()
        };
        let sessions: Vec<String> = found.iter().map(parse).collect();
        assert_eq!(sessions, expected, "{text}");
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

    /// Damage whose parts contain each other, or fail only at the end of the file.
    #[test]
    fn the_work_is_linear_in_the_size() {
        let entry = format!(r#""s":{{"data":"x",{TIME}"#);
        let deep = "[{\"a\":".repeat(1 << 13);
        let mut nested = format!("{entry},").repeat(1 << 11);
        nested += &"}".repeat(1 << 11);
        let refused = nested.replace("\"x\"", "1");
        for text in [
            "{\"a\":".repeat(1 << 14),
            deep + &"}]".repeat(1 << 13),
            format!("{entry},\n").repeat(1 << 11),
            nested,
            refused,
            "\\\"".repeat(1 << 15),
            "\\".repeat(1 << 16),
            "\"".repeat(1 << 16),
            "{".repeat(1 << 16),
            " ".repeat(1 << 16),
            "\\\"".repeat(1 << 15) + "\"" + &" ".repeat(1 << 15),
            format!("\"{}\":{{\"data\":1,{TIME}}}", "\\\"".repeat(1 << 15)),
            format!("{entry},") + &format!("{entry}}},").repeat(1 << 13),
        ] {
            let map = Map::of(text.as_bytes());
            assert!(
                map.steps <= text.len(),
                "{} steps: {}",
                map.steps,
                &text[..20]
            );
            let parsed = std::cell::Cell::new(0);
            salvage(text.as_bytes(), |data| {
                parsed.set(parsed.get() + data.len());
                data.starts_with('"')
            });
            assert!(parsed.get() <= BUDGET * text.len());
        }
    }

    #[test]
    fn all_entries_behind_a_torn_one_are_found() {
        let entry = |at: usize| format!("\"s{at}\":{{\"data\":\"x\",{TIME}}}");
        let entries: Vec<String> = (0..10_000).map(entry).collect();
        let text = format!(
            "{{\"storage\":{{\"torn\":{{\"data\":\n{}",
            entries.join(",\n")
        );
        assert_eq!(salvage(text.as_bytes(), |_| true).len(), entries.len());
    }

    #[test]
    fn only_the_rest_of_a_store_is_recognised() {
        for text in [
            "",
            " \n",
            "\0\0\0",
            "{",
            "{ \"sto",
            "{\"storage\":{",
            "x\"storage\"y\"updated_at\"",
        ] {
            assert!(is_recognisable(text.as_bytes()), "{text}");
        }
        for text in [
            "{}",
            "[]",
            "null",
            "#!/bin/sh\n",
            "{\"store\":{}}",
            "x\"storage\"y",
            "root:x:0:0",
        ] {
            assert!(!is_recognisable(text.as_bytes()), "{text}");
        }
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
