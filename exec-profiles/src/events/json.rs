//! JSON of an agent's output, read without a tree of values.
//!
//! # Theory
//!
//! A parsed tree needs up to 80 times the memory of its text, and an agent controls the text. So a
//! value is a slice of the line ([`Json`]), and a line becomes a struct with the fields that some
//! event uses; all other fields are skipped. Memory is then in proportion to what events keep, and
//! that is at most the line itself: strings are copied once, and [`Events`] caps their number.
//!
//! Access is lenient, because agents add, drop and retype fields between versions: a missing field
//! reads as null, a field of another type as no text.
//!
//! Skipping is iterative and keeps one byte for each open bracket. A long line with nothing but
//! brackets would double its memory, so [`parse_line`] refuses nesting beyond [`MAX_DEPTH`] in
//! long lines.

use std::fmt;

use exec_core::{AgentEvent, AgentEventKind, Failure, FailureKind, ToolInput};
use serde::Deserialize;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The deepest nesting of a long line.
const MAX_DEPTH: usize = 1000;
/// From this length on the nesting is checked.
const LONG_LINE: usize = 256 << 10;
/// The most events of one line. Real agents print fewer than a hundred.
const MAX_EVENTS: usize = 1000;
/// How deep lists of text blocks are flattened. Agents use two levels.
const MAX_TEXT_DEPTH: usize = 8;

/// A JSON value as a slice of the line; `None` for a missing value and for `null`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(transparent)]
pub(crate) struct Json<'a>(#[serde(borrow)] Option<&'a RawValue>);

/// The struct of a line, or `None` if the line is not a JSON object.
pub(crate) fn parse_line<'a, T: Deserialize<'a>>(line: &'a str) -> Option<T> {
    if !line.trim_start().starts_with('{') || (line.len() >= LONG_LINE && is_too_deep(line)) {
        return None;
    }
    serde_json::from_str(line).ok()
}

fn is_too_deep(line: &str) -> bool {
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut bytes = line.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => in_string = !in_string,
            b'\\' if in_string => {
                bytes.next();
            }
            b'[' | b'{' if !in_string => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return true;
                }
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

impl<'a> Json<'a> {
    /// The whole text of a JSON document.
    pub(crate) fn document(text: &'a str) -> Option<Self> {
        Some(Self(Some(serde_json::from_str(text).ok()?)))
    }

    fn raw(self) -> &'a str {
        self.0.map_or("null", RawValue::get)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn is_object(self) -> bool {
        self.raw().starts_with('{')
    }

    /// A string without escape sequences, such as a type name; empty for anything else.
    pub(crate) fn word(self) -> &'a str {
        let inner = self
            .raw()
            .strip_prefix('"')
            .and_then(|r| r.strip_suffix('"'));
        inner
            .filter(|word| !word.contains('\\'))
            .unwrap_or_default()
    }

    pub(crate) fn text(self) -> Option<String> {
        self.parse()
    }

    pub(crate) fn number(self) -> Option<u64> {
        self.parse()
    }

    pub(crate) fn float(self) -> Option<f64> {
        self.parse()
    }

    /// A number as it is written; empty for anything else.
    pub(crate) fn text_of_number(self) -> &'a str {
        let raw = self.raw();
        let is_number = raw.starts_with(|c: char| c.is_ascii_digit() || c == '-');
        if is_number { raw } else { "" }
    }

    pub(crate) fn is_true(self) -> bool {
        self.raw() == "true"
    }

    /// The value as a struct; its default if the value has another shape.
    pub(crate) fn object<T: Deserialize<'a> + Default>(self) -> T {
        match self.is_object() {
            true => self.parse().unwrap_or_default(),
            false => T::default(),
        }
    }

    fn parse<T: Deserialize<'a>>(self) -> Option<T> {
        serde_json::from_str(self.0?.get()).ok()
    }

    pub(crate) fn tool_input(self) -> ToolInput {
        ToolInput::new(self.raw()).unwrap_or_default()
    }

    /// Calls `visit` for every element of a list.
    pub(crate) fn each(self, visit: impl FnMut(Json<'a>)) {
        self.walk(Elements(visit));
    }

    /// Calls `visit` for every value of an object, until it returns `false`.
    pub(crate) fn each_entry(self, visit: impl FnMut(&str, Json<'a>) -> bool) {
        self.walk(Entries(visit));
    }

    /// The value at a dotted path, such as `session.id`.
    pub(crate) fn at(self, path: &str) -> Json<'a> {
        path.split('.').fold(self, |value, key| {
            let mut found = Json::default();
            value.each_entry(|name, value| {
                if name == key {
                    found = value;
                }
                name != key
            });
            found
        })
    }

    fn walk<V: Visitor<'a, Value = ()>>(self, visitor: V) {
        if let Some(raw) = self.0 {
            // A value of another type is visited by nothing.
            let mut deserializer = serde_json::Deserializer::from_str(raw.get());
            let _ = deserializer.deserialize_any(visitor);
        }
    }

    /// The text of a string or of a list of `{"text": …}` blocks. Any other value becomes JSON, so
    /// that no content is lost.
    pub(crate) fn flatten(self) -> String {
        let mut text = String::new();
        self.flatten_into(&mut text, MAX_TEXT_DEPTH);
        text
    }

    fn flatten_into(self, text: &mut String, depth: usize) {
        let raw = self.raw();
        match raw.as_bytes().first() {
            _ if self.is_null() => {}
            Some(b'"') => text.push_str(&self.text().unwrap_or_default()),
            Some(b'[') if depth > 0 => {
                let mut first = true;
                self.each(|element| {
                    if !std::mem::take(&mut first) {
                        text.push('\n');
                    }
                    element.flatten_into(text, depth - 1);
                });
            }
            Some(b'{') => match self.at("text").text() {
                Some(inner) => text.push_str(&inner),
                None => text.push_str(raw),
            },
            _ => text.push_str(raw),
        }
    }
}

struct Elements<F>(F);

impl<'a, F: FnMut(Json<'a>)> Visitor<'a> for Elements<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'a>>(mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(element) = list.next_element()? {
            (self.0)(element);
        }
        Ok(())
    }
}

struct Entries<F>(F);

impl<'a, F: FnMut(&str, Json<'a>) -> bool> Visitor<'a> for Entries<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if !(self.0)(&key, map.next_value()?) {
                // The rest must be valid JSON, but is not looked at.
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            }
        }
        Ok(())
    }
}

/// The events of one line: of the agent itself or of one sub-agent, and not more than
/// [`MAX_EVENTS`].
pub(super) struct Events {
    parent: Option<Box<str>>,
    events: Vec<AgentEvent>,
    omitted: usize,
}

impl Events {
    pub(super) fn new() -> Self {
        Self::of(None)
    }

    /// Events of a sub-agent, if there is a parent.
    pub(super) fn of(parent: Option<String>) -> Self {
        Self {
            parent: parent.map(String::into_boxed_str),
            events: Vec::new(),
            omitted: 0,
        }
    }

    pub(super) fn push(&mut self, kind: AgentEventKind) {
        if self.omit() {
            return;
        }
        self.events.push(match &self.parent {
            Some(parent) => AgentEvent::of_sub_agent(parent.clone(), kind),
            None => kind.into(),
        });
    }

    /// An event of the agent itself, on a line of a sub-agent too.
    pub(super) fn push_own(&mut self, kind: AgentEventKind) {
        self.events.push(kind.into());
    }

    /// Counts an event without making it, if the line has too many; `true` if it has.
    pub(super) fn omit(&mut self) -> bool {
        let is_full = self.events.len() >= MAX_EVENTS;
        self.omitted += usize::from(is_full);
        is_full
    }

    pub(super) fn done(mut self) -> Vec<AgentEvent> {
        if self.omitted > 0 {
            let message = format!(
                "{} more events of this line are only in its text",
                self.omitted
            );
            let failure = Failure::new(FailureKind::Agent, message);
            self.events.push(AgentEventKind::Error(failure).into());
        }
        self.events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json<'_> {
        Json::document(text).unwrap()
    }

    #[test]
    fn a_value_of_another_type_reads_as_nothing() {
        assert_eq!(json("3").text(), None);
        assert_eq!(json(r#""3""#).number(), None);
        assert_eq!(json("-3").number(), None);
        assert_eq!(json("1e400").float(), None);
        assert_eq!(json(r#""a\"b""#).word(), "");
        assert_eq!(json(r#""a\"b""#).text().as_deref(), Some("a\"b"));
        assert_eq!(json("[1]").at("a").text(), None);
        json("3").each(|_| panic!("not a list"));
    }

    #[test]
    fn a_dotted_path_leads_into_objects() {
        let document = json(r#"{"x":[1,{"a":2}],"a":{"b\u0020c":{"d":"found"}},"z":{"a":1}}"#);
        assert_eq!(document.at("a.b c.d").text().as_deref(), Some("found"));
        assert_eq!(document.at("a.d").text(), None);
        assert_eq!(document.at("x.a").text(), None);
    }

    #[test]
    fn text_blocks_are_joined_and_other_values_stay_json() {
        for (text, expected) in [
            (r#""a\nb""#, "a\nb"),
            (
                r#"[{"type":"text","text":"a"},"b",{"c":1},[{"text":"d"}]]"#,
                "a\nb\n{\"c\":1}\nd",
            ),
            ("null", ""),
            ("[null]", ""),
            ("1.50", "1.50"),
        ] {
            let value: Json = serde_json::from_str(text).unwrap();
            assert_eq!(value.flatten(), expected);
        }
    }

    #[test]
    fn deep_nesting_neither_overflows_the_stack_nor_doubles_the_memory() {
        let deep = "[".repeat(1 << 20) + &"]".repeat(1 << 20);
        let line = format!(r#"{{"type":"x","y":{deep}}}"#);
        assert!(parse_line::<Json>(&line).is_none());
        let quoted = format!(r#"{{"type":"x","y":"{}\\\""}}"#, "[".repeat(1 << 20));
        assert!(
            parse_line::<Json>(&quoted).is_some(),
            "brackets in a string"
        );
        let short = "[".repeat(10_000) + &"]".repeat(10_000);
        let value: Json = serde_json::from_str(&short).unwrap();
        assert_eq!(value.flatten().len(), short.len() - 2 * MAX_TEXT_DEPTH);
    }

    #[test]
    fn the_number_of_events_of_a_line_is_bounded() {
        let mut events = Events::new();
        for _ in 0..MAX_EVENTS + 5 {
            events.push(AgentEventKind::Text {
                text: String::new(),
                delta: false,
            });
        }
        let events = events.done();
        assert_eq!(events.len(), MAX_EVENTS + 1);
        let AgentEventKind::Error(failure) = &events[MAX_EVENTS].kind else {
            panic!("{:?}", events.last());
        };
        assert!(failure.message.starts_with("5 more"), "{failure}");
    }
}
