//! One event of an agent.

use std::time::SystemTime;

use serde_json::Value;

use crate::definition::hook_rules::{EventMatch, HookRules};
use crate::state::hook_report::HookSignal;

/// The largest payload. The hook programs keep no more.
pub(crate) const MAX_PAYLOAD: usize = 8 << 20;

/// An event that a hook has stored. Its `Debug` does not show the payload.
#[derive(Clone)]
pub(crate) struct HookEvent {
    /// The name of the event.
    pub(crate) kind: String,
    /// When it was stored.
    pub(crate) at: SystemTime,
    /// `None`: the payload was longer than [`MAX_PAYLOAD`] or is not JSON.
    payload: Option<Value>,
}

impl std::fmt::Debug for HookEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HookEvent")
            .field("kind", &self.kind)
            .field("at", &self.at)
            .field("is_readable", &self.payload.is_some())
            .finish_non_exhaustive()
    }
}

impl HookEvent {
    /// An event by the name of its file, such as `Stop.4711.0.json`, and its payload. `event` points to
    /// the name of the event in the payload.
    pub(super) fn parse(file: &str, bytes: &[u8], at: SystemTime, event: Option<&str>) -> Self {
        let is_cut = bytes.len() >= MAX_PAYLOAD;
        let payload: Option<Value> = match is_cut {
            true => None,
            false => serde_json::from_slice(bytes)
                .inspect_err(|error| tracing::warn!(file, %error, "a hook stored no JSON"))
                .ok(),
        };
        let named = payload
            .as_ref()
            .and_then(|payload| payload.pointer(event?)?.as_str());
        let stem = file.split('.').next().unwrap_or(file);
        // Events of opencode have dots in their names: the last three parts are ours.
        let stem = file.rsplitn(4, '.').nth(3).unwrap_or(stem);
        Self {
            kind: named.unwrap_or(stem).to_owned(),
            at,
            payload,
        }
    }

    /// What the event tells about the state of the agent.
    pub(crate) fn signal(&self, rules: &HookRules) -> Option<HookSignal> {
        let payload = self.payload.as_ref().unwrap_or(&Value::Null);
        rules.signal(&self.kind, payload)
    }

    pub(crate) fn matches(&self, rule: &EventMatch) -> bool {
        let payload = self.payload.as_ref().unwrap_or(&Value::Null);
        rule.matches(&self.kind, payload)
    }

    /// A text of the payload.
    pub(crate) fn text(&self, pointer: &str) -> Option<&str> {
        self.payload.as_ref()?.pointer(pointer)?.as_str()
    }

    /// Whether the payload has a value there that is not null.
    pub(crate) fn has(&self, pointer: &str) -> bool {
        let value = self.payload.as_ref().and_then(|all| all.pointer(pointer));
        value.is_some_and(|value| !value.is_null())
    }

    /// The last text of a list.
    pub(crate) fn last_text(&self, pointer: &str) -> Option<&str> {
        let list = self.payload.as_ref()?.pointer(pointer)?.as_array()?;
        list.last()?.as_str()
    }

    /// Whether the payload was longer than the limit.
    pub(crate) fn is_too_long(&self) -> bool {
        self.payload.is_none() || self.has("/too_long")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(file: &str, payload: &str, event: Option<&str>, expected: &str) {
        let event = HookEvent::parse(file, payload.as_bytes(), SystemTime::UNIX_EPOCH, event);
        assert_eq!(event.kind, expected);
    }

    #[test]
    fn the_payload_names_the_event_and_otherwise_the_file_does() {
        check("Stop.12.0.json", "{}", None, "Stop");
        check(
            "permission.asked.12.3.json",
            "{}",
            Some("/type"),
            "permission.asked",
        );
        check(
            "notify.1.0.json",
            r#"{"type":"agent-turn-complete"}"#,
            Some("/type"),
            "agent-turn-complete",
        );
        check("odd.json", "no json", None, "odd");
        check("", "", None, "");
    }

    #[test]
    fn values_are_found_by_pointers() {
        let payload = br#"{"a":{"b":"text"},"list":["x","y"],"none":null,"n":1}"#;
        let event = HookEvent::parse("E.1.0.json", payload, SystemTime::UNIX_EPOCH, None);
        assert_eq!(event.text("/a/b"), Some("text"));
        assert_eq!(event.text("/n"), None);
        assert_eq!(event.last_text("/list"), Some("y"));
        assert_eq!(event.last_text("/a"), None);
        assert!(event.has("/n") && !event.has("/none") && !event.has("/missing"));
        assert!(!event.is_too_long());
        assert!(!format!("{event:?}").contains("text"));
    }

    #[test]
    fn a_payload_that_was_cut_has_no_values() {
        let bytes = vec![b' '; MAX_PAYLOAD];
        let event = HookEvent::parse("Stop.1.0.json", &bytes, SystemTime::UNIX_EPOCH, None);
        assert!(event.is_too_long() && event.kind == "Stop" && event.text("/x").is_none());
    }
}
