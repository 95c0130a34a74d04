//! The vocabulary of all agents, and the parser that a profile provides.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An event of an agent's work, in one vocabulary for all agents.
///
/// The parsers are part of the profiles. Beside the events, [`Output`](crate::Output) always has
/// the line from which they were read: it contains what this vocabulary does not cover. `Debug` shows
/// the sizes of texts, not the texts, because they may contain anything that the agent has read.
///
/// ```
/// use exec_core::AgentEvent;
///
/// let event = AgentEvent::Text { text: "done".to_owned(), delta: false };
/// let json = serde_json::to_string(&event)?;
/// assert_eq!(json, r#"{"type":"text","text":"done","delta":false}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum AgentEvent {
    /// The agent reported its session.
    SessionStarted {
        /// The agent's own id: the last part of a [`SessionId`](crate::SessionId).
        session_id: String,
        /// The model, if the agent reports it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
    },
    /// Text for the user.
    Text {
        /// The text.
        text: String,
        /// `true`: a piece to append to the piece before it; `false`: a whole message.
        #[serde(default)]
        delta: bool,
    },
    /// The agent's reasoning.
    Thinking {
        /// The text.
        text: String,
        /// `true`: a piece to append to the piece before it; `false`: a whole thought.
        #[serde(default)]
        delta: bool,
    },
    /// The agent calls a tool.
    ToolCall {
        /// The id that the result repeats, if the agent has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// The tool's name.
        name: String,
        /// The arguments, as the agent wrote them.
        input: serde_json::Value,
    },
    /// A tool returned.
    ToolResult {
        /// The id of the call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// The output of the tool.
        output: String,
        /// Whether the tool failed.
        is_error: bool,
    },
    /// Tokens and cost.
    Usage(Usage),
    /// An error. Not the end of the run, which is [`Finished`](Self::Finished).
    Error {
        /// The message of the agent.
        message: String,
    },
    /// The last event of the run.
    Finished {
        /// How the run ended.
        outcome: Outcome,
        /// The final answer or the reason of the failure, if the agent repeats it here.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
    },
}

impl fmt::Debug for AgentEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SessionStarted { session_id, model } => f
                .debug_struct("SessionStarted")
                .field("session_id", session_id)
                .field("model", model)
                .finish(),
            Self::Text { text, delta } => f
                .debug_struct("Text")
                .field("len", &text.len())
                .field("delta", delta)
                .finish(),
            Self::Thinking { text, delta } => f
                .debug_struct("Thinking")
                .field("len", &text.len())
                .field("delta", delta)
                .finish(),
            Self::ToolCall { id, name, input: _ } => f
                .debug_struct("ToolCall")
                .field("id", id)
                .field("name", name)
                .finish_non_exhaustive(),
            Self::ToolResult {
                id,
                output,
                is_error,
            } => f
                .debug_struct("ToolResult")
                .field("id", id)
                .field("len", &output.len())
                .field("is_error", is_error)
                .finish(),
            Self::Usage(usage) => f.debug_tuple("Usage").field(usage).finish(),
            Self::Error { message } => f
                .debug_struct("Error")
                .field("len", &message.len())
                .finish(),
            Self::Finished { outcome, text } => f
                .debug_struct("Finished")
                .field("outcome", outcome)
                .field("len", &text.as_ref().map(String::len))
                .finish(),
        }
    }
}

/// How a run ended, according to the agent.
///
/// ```
/// use exec_core::{AgentEvent, Outcome};
///
/// let event = AgentEvent::Finished { outcome: Outcome::Success, text: None };
/// assert!(matches!(event, AgentEvent::Finished { outcome: Outcome::Success, .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// The agent completed the task.
    Success,
    /// The agent failed.
    Failure,
}

/// Tokens and cost, as far as the agent reports them.
///
/// ```
/// use exec_core::Usage;
///
/// let usage: Usage = serde_json::from_str(r#"{"input_tokens":12,"output_tokens":3}"#)?;
/// assert_eq!((usage.input_tokens, usage.cost_usd), (Some(12), None));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens sent to the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Tokens read from the provider's cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_read_tokens: Option<u64>,
    /// Tokens written to the provider's cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_write_tokens: Option<u64>,
    /// Tokens that the model wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Tokens that the model used for reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// Cost in US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}

/// Reads [`AgentEvent`]s from an agent's standard output.
///
/// 1. It gets every line of standard output once, in order, without the line end, except for
///    truncated lines: half a JSON document cannot be parsed.
/// 2. Bytes that are not UTF-8 arrive as replacement characters; the raw line keeps them.
/// 3. A line that it does not know has no events. That is no error: the raw line is passed on.
/// 4. It does not block and does not panic.
///
/// ```
/// use exec_core::{AgentEvent, EventParser};
///
/// struct SayParser;
///
/// impl EventParser for SayParser {
///     fn parse_line(&mut self, line: &str) -> Vec<AgentEvent> {
///         let text = line.strip_prefix("say ").map(str::to_owned);
///         text.map(|text| AgentEvent::Text { text, delta: false }).into_iter().collect()
///     }
/// }
///
/// assert_eq!(SayParser.parse_line("say hello").len(), 1);
/// assert_eq!(SayParser.parse_line("noise").len(), 0);
/// ```
pub trait EventParser: Send {
    /// The events of one line.
    fn parse_line(&mut self, line: &str) -> Vec<AgentEvent>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_text_of_the_agent() {
        let secret = || "hunter2".to_owned();
        let events = [
            AgentEvent::Text {
                text: secret(),
                delta: false,
            },
            AgentEvent::Thinking {
                text: secret(),
                delta: true,
            },
            AgentEvent::ToolCall {
                id: None,
                name: "Bash".to_owned(),
                input: serde_json::json!({ "command": secret() }),
            },
            AgentEvent::ToolResult {
                id: None,
                output: secret(),
                is_error: false,
            },
            AgentEvent::Error { message: secret() },
            AgentEvent::Finished {
                outcome: Outcome::Success,
                text: Some(secret()),
            },
        ];
        for event in events {
            let shown = format!("{event:?}");
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }
}
