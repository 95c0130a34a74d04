//! What a definition says about the hooks of an agent.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::hook_event::HookEvent;

/// What is added to the command line and the environment of an agent.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LaunchSpec {
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) file: Vec<LaunchFile>,
    /// Files that the agent reads if a variable of `env` is not set; the first that exists is merged.
    pub(crate) default_files: BTreeMap<String, Vec<String>>,
}

/// A file in the private folder of a launch.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LaunchFile {
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) content: Option<String>,
    /// A file of this crate, in place of `content`.
    #[serde(default)]
    pub(crate) source: Option<String>,
}

/// The events of an agent. Values are JSON pointers into the payload unless said otherwise.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HookSpec {
    pub(crate) session: String,
    /// The id of a turn, the same for a prompt and its answer.
    #[serde(default)]
    pub(crate) turn: Option<String>,
    /// The name of the event; without it, the name of the file counts.
    #[serde(default)]
    pub(crate) event: Option<String>,
    pub(crate) prompt: PromptSpec,
    pub(crate) answer: AnswerSpec,
    #[serde(default)]
    pub(crate) ready: Vec<String>,
    #[serde(default)]
    pub(crate) working: Vec<String>,
    #[serde(default)]
    pub(crate) approval: Vec<EventPattern>,
    #[serde(default)]
    pub(crate) approval_ends: Vec<String>,
    #[serde(default)]
    pub(crate) failed: Vec<String>,
    #[serde(default)]
    pub(crate) exited: Vec<String>,
    /// An interrupt fires no event.
    #[serde(default)]
    pub(crate) interrupt_is_silent: bool,
    #[serde(default)]
    pub(crate) transcript: Option<TranscriptFormat>,
}

/// The event that a prompt fires.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PromptSpec {
    /// The name of the event.
    pub(crate) event: String,
    #[serde(default)]
    pub(crate) text: Option<String>,
    /// A list whose last item is the text.
    #[serde(default)]
    pub(crate) last_of: Option<String>,
    /// In place of the general one.
    #[serde(default)]
    pub(crate) turn: Option<String>,
}

/// The event that the end of a turn fires.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AnswerSpec {
    /// The name of the event.
    pub(crate) event: String,
    #[serde(default)]
    pub(crate) text: Option<String>,
    /// The prompt of the turn, for an agent whose events have no id of the turn.
    #[serde(default)]
    pub(crate) prompt: Option<String>,
    /// The path of a transcript that has the text.
    #[serde(default)]
    pub(crate) transcript: Option<String>,
    /// In place of the general one.
    #[serde(default)]
    pub(crate) turn: Option<String>,
    /// Values that a complete answer has.
    #[serde(default)]
    pub(crate) needs: BTreeMap<String, String>,
    /// A complete answer has none of these.
    #[serde(default)]
    pub(crate) refuse: Vec<String>,
}

/// An event by its name, or by its name and a value.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum EventPattern {
    Name(String),
    Value {
        event: String,
        r#where: String,
        equals: String,
    },
}

/// How an agent stores its conversations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TranscriptFormat {
    GeminiChat,
    CodexRollout,
}

impl EventPattern {
    pub(crate) fn matches(&self, event: &HookEvent) -> bool {
        match self {
            Self::Name(name) => event.kind == *name,
            Self::Value {
                event: name,
                r#where,
                equals,
            } => event.kind == *name && event.text(r#where) == Some(equals),
        }
    }
}
