//! How the hooks of an agent are read. Pointers are JSON pointers (RFC 6901) into the payload of an
//! event.

use std::collections::BTreeMap;

use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HookRules {
    /// Pointer to the id of the session.
    pub(crate) session: String,
    /// Pointer to the id of the turn.
    #[serde(default)]
    pub(crate) turn: Option<String>,
    /// Pointer to the name of the event, where the name of the file does not have it.
    #[serde(default)]
    pub(crate) event: Option<String>,
    pub(crate) prompt: PromptRule,
    pub(crate) answer: AnswerRule,
    /// Events of an agent that has started.
    #[serde(default)]
    pub(crate) ready: Vec<EventMatch>,
    /// Events of an agent that works.
    #[serde(default)]
    pub(crate) working: Vec<EventMatch>,
    /// Events of an agent that asks for approval.
    #[serde(default)]
    pub(crate) approval: Vec<EventMatch>,
    /// Events that end a request for approval; `working` events and the answer end it too.
    #[serde(default)]
    pub(crate) approval_ends: Vec<EventMatch>,
    /// Events of a turn that failed.
    #[serde(default)]
    pub(crate) failed: Vec<EventMatch>,
    /// Events of a session that ends.
    #[serde(default)]
    pub(crate) exited: Vec<EventMatch>,
    /// Whether an interrupt by a person fires no event: only the screen tells that the turn has ended.
    #[serde(default)]
    pub(crate) interrupt_is_silent: bool,
    /// A file of the agent with the text of the answer.
    #[serde(default)]
    pub(crate) transcript: Option<TranscriptFormat>,
}

/// The event that has the prompt of a turn.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PromptRule {
    pub(crate) event: String,
    /// Pointer to the text.
    #[serde(default)]
    pub(crate) text: Option<String>,
    /// Pointer to a list whose last element is the text.
    #[serde(default)]
    pub(crate) last_of: Option<String>,
    /// Pointer to the id of the turn, if it differs from that of other events.
    #[serde(default)]
    pub(crate) turn: Option<String>,
}

/// The event that ends a turn.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AnswerRule {
    pub(crate) event: String,
    /// Pointer to the text of the answer; missing where the transcript has it.
    #[serde(default)]
    pub(crate) text: Option<String>,
    /// Pointer to the prompt of the turn.
    #[serde(default)]
    pub(crate) prompt: Option<String>,
    /// Pointer to the path of the transcript.
    #[serde(default)]
    pub(crate) transcript: Option<String>,
    /// Pointer to the id of the turn, if it differs from that of other events.
    #[serde(default)]
    pub(crate) turn: Option<String>,
    /// Values that a complete answer has, by pointer.
    #[serde(default)]
    pub(crate) needs: BTreeMap<String, String>,
    /// Pointers whose value, other than null, tells that there is no answer.
    #[serde(default)]
    pub(crate) refuse: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TranscriptFormat {
    GeminiChat,
    CodexRollout,
}

/// An event by its name, and by a value of its payload.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum EventMatch {
    Event(String),
    Where(EventCondition),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventCondition {
    pub(crate) event: String,
    #[serde(rename = "where")]
    pub(crate) pointer: String,
    pub(crate) equals: String,
}

impl EventMatch {
    pub(crate) fn matches(&self, event: &str, payload: &serde_json::Value) -> bool {
        match self {
            Self::Event(name) => name == event,
            Self::Where(condition) => {
                condition.event == event
                    && payload
                        .pointer(&condition.pointer)
                        .and_then(serde_json::Value::as_str)
                        .is_some_and(|value| value == condition.equals)
            }
        }
    }
}
