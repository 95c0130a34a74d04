//! The vocabulary of all agents, and the parser that a profile provides.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::failure::{Failure, FailureKind, RateLimit};
use super::tool_input::ToolInput;
use super::usage::UsageTotals;

/// An event of an agent's work, in one vocabulary for all agents.
///
/// The parsers are part of the profiles. Beside the events, [`Output`](crate::Output) always has
/// the line from which they were read: it contains what this vocabulary does not cover. `Debug` shows
/// the sizes of texts, not the texts, because they may contain anything that the agent has read.
///
/// ```
/// use exec_core::{AgentEvent, AgentEventKind};
///
/// let event = AgentEvent::from(AgentEventKind::Text { text: "done".to_owned(), delta: false });
/// assert_eq!(event.parent, None);
/// let json = serde_json::to_string(&event)?;
/// assert_eq!(json, r#"{"type":"text","text":"done","delta":false}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AgentEvent {
    /// The tool call that has started the sub-agent from which the event comes; `None` for the
    /// agent itself. Sub-agents have no start and no finish of their own: their call and its result
    /// are events of their parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Box<str>>,
    /// The kind, with its data.
    #[serde(flatten)]
    pub kind: AgentEventKind,
}

/// The kind of an [`AgentEvent`], with its data.
///
/// ```
/// use exec_core::AgentEventKind;
///
/// let json = r#"{"type":"tool_call","id":"t1","name":"Bash","input":{"command":"ls"}}"#;
/// let AgentEventKind::ToolCall { name, input, .. } = serde_json::from_str(json)? else {
///     panic!("not a tool call");
/// };
/// assert_eq!((name.as_str(), input.as_str()), ("Bash", r#"{"command":"ls"}"#));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum AgentEventKind {
    /// The agent reported its session. At most once in a run.
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
        input: ToolInput,
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
    /// Tokens and cost so far. Replaces the values of earlier events.
    Usage(UsageTotals),
    /// A notice about a usage limit.
    RateLimit(RateLimit),
    /// A request to the model has failed, and the agent tries again.
    Retry {
        /// The failure.
        #[serde(flatten)]
        failure: Failure,
        /// The number of the next attempt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<u64>,
        /// After how many attempts the agent gives up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_attempts: Option<u64>,
        /// How long the agent waits before the attempt. In JSON: milliseconds.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            with = "milliseconds",
            rename = "delay_ms"
        )]
        delay: Option<Duration>,
    },
    /// An error. Not the end of the run, which is [`Finished`](Self::Finished).
    Error(Failure),
    /// The last event of the run. At most once in a run.
    Finished {
        /// How the run ended.
        outcome: Outcome,
        /// The final answer, if the agent repeats it here.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// The reason of the failure, if the agent tells it here.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    },
}

impl AgentEvent {
    /// An event of a sub-agent.
    #[must_use]
    pub fn of_sub_agent(parent: impl Into<Box<str>>, kind: AgentEventKind) -> Self {
        Self {
            parent: Some(parent.into()),
            kind,
        }
    }

    /// The memory on the heap, for the bound of the log.
    pub(crate) fn heap_bytes(&self) -> usize {
        // What an allocation costs beside its contents.
        const ALLOCATION: usize = 16;
        let text = |text: &String| text.capacity() + ALLOCATION;
        let optional = |value: &Option<String>| value.as_ref().map_or(0, text);
        let failure = |failure: &Failure| match &failure.kind {
            FailureKind::Limited { scope, .. } => optional(scope) + text(&failure.message),
            _ => text(&failure.message),
        };
        let parent = self.parent.as_ref().map_or(0, |p| p.len() + ALLOCATION);
        parent
            + match &self.kind {
                AgentEventKind::SessionStarted { session_id, model } => {
                    text(session_id) + optional(model)
                }
                AgentEventKind::Text { text: t, .. } | AgentEventKind::Thinking { text: t, .. } => {
                    text(t)
                }
                AgentEventKind::ToolCall { id, name, input } => {
                    optional(id) + text(name) + input.as_str().len() + ALLOCATION
                }
                AgentEventKind::ToolResult { id, output, .. } => optional(id) + text(output),
                AgentEventKind::Usage(_) => 0,
                AgentEventKind::RateLimit(notice) => optional(&notice.scope),
                AgentEventKind::Retry { failure: f, .. } | AgentEventKind::Error(f) => failure(f),
                AgentEventKind::Finished {
                    text: t,
                    failure: f,
                    ..
                } => optional(t) + f.as_ref().map_or(0, failure),
            }
    }
}

impl From<AgentEventKind> for AgentEvent {
    /// An event of the agent itself.
    fn from(kind: AgentEventKind) -> Self {
        Self { parent: None, kind }
    }
}

impl fmt::Debug for AgentEventKind {
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
            Self::ToolCall { id, name, input } => f
                .debug_struct("ToolCall")
                .field("id", id)
                .field("name", name)
                .field("input", input)
                .finish(),
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
            Self::RateLimit(notice) => f.debug_tuple("RateLimit").field(notice).finish(),
            Self::Retry {
                failure,
                attempt,
                max_attempts,
                delay,
            } => f
                .debug_struct("Retry")
                .field("failure", failure)
                .field("attempt", attempt)
                .field("max_attempts", max_attempts)
                .field("delay", delay)
                .finish(),
            Self::Error(failure) => f.debug_tuple("Error").field(failure).finish(),
            Self::Finished {
                outcome,
                text,
                failure,
            } => f
                .debug_struct("Finished")
                .field("outcome", outcome)
                .field("len", &text.as_ref().map(String::len))
                .field("failure", failure)
                .finish(),
        }
    }
}

/// How a run ended, according to the agent.
///
/// ```
/// use exec_core::Outcome;
///
/// assert_eq!(serde_json::to_string(&Outcome::Success)?, r#""success""#);
/// # Ok::<(), serde_json::Error>(())
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

/// Reads [`AgentEvent`]s from an agent's standard output.
///
/// 1. It gets every line of standard output once, in order, without the line end, except for
///    truncated lines: half a JSON document cannot be parsed.
/// 2. Bytes that are not UTF-8 arrive as replacement characters; the raw line keeps them.
/// 3. A line that it does not know has no events. That is no error: the raw line is passed on.
/// 4. It does not block and does not panic.
/// 5. A run has at most one `SessionStarted` and one `Finished`.
/// 6. The memory of the events of a line is in proportion to the line.
///
/// ```
/// use exec_core::{AgentEvent, AgentEventKind, EventParser};
///
/// struct SayParser;
///
/// impl EventParser for SayParser {
///     fn parse_line(&mut self, line: &str) -> Vec<AgentEvent> {
///         let text = line.strip_prefix("say ").map(str::to_owned);
///         let event = text.map(|text| AgentEventKind::Text { text, delta: false }.into());
///         event.into_iter().collect()
///     }
/// }
///
/// assert_eq!(SayParser.parse_line("say hello").len(), 1);
/// assert_eq!(SayParser.parse_line("noise").len(), 0);
/// ```
pub trait EventParser: Send {
    /// The events of one line.
    fn parse_line(&mut self, line: &str) -> Vec<AgentEvent>;

    /// The events that only the end of the output decides. Called once, after the last line.
    fn finish(&mut self) -> Vec<AgentEvent> {
        Vec::new()
    }

    /// Whether the agent reports the cost of its runs. Otherwise a
    /// [cost budget](crate::Budget::cost_usd) needs a price table.
    fn reports_cost(&self) -> bool {
        false
    }
}

/// A duration as whole milliseconds.
mod milliseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let whole = duration.map(|duration| duration.as_millis() as u64);
        whole.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let whole = Option::<u64>::deserialize(deserializer)?;
        Ok(whole.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_of_each(text: &str) -> Vec<AgentEvent> {
        let text = || text.to_owned();
        let failure = || Failure::new(FailureKind::Overloaded, text());
        let kinds = vec![
            AgentEventKind::SessionStarted {
                session_id: "ses".into(),
                model: None,
            },
            AgentEventKind::Text {
                text: text(),
                delta: false,
            },
            AgentEventKind::Thinking {
                text: text(),
                delta: true,
            },
            AgentEventKind::ToolCall {
                id: None,
                name: "Bash".to_owned(),
                input: ToolInput::new(&format!("{{\"command\":\"{}\"}}", text())).unwrap(),
            },
            AgentEventKind::ToolResult {
                id: Some("t".into()),
                output: text(),
                is_error: false,
            },
            AgentEventKind::Usage(UsageTotals::default()),
            AgentEventKind::RateLimit(RateLimit::new(crate::RateLimitStatus::Allowed)),
            AgentEventKind::Retry {
                failure: failure(),
                attempt: Some(1),
                max_attempts: None,
                delay: Some(Duration::from_millis(574)),
            },
            AgentEventKind::Error(failure()),
            AgentEventKind::Finished {
                outcome: Outcome::Failure,
                text: Some(text()),
                failure: Some(failure()),
            },
        ];
        let own = kinds.iter().cloned().map(AgentEvent::from);
        let of_sub = |kind| AgentEvent::of_sub_agent("toolu_1", kind);
        own.chain(kinds.iter().cloned().map(of_sub)).collect()
    }

    #[test]
    fn debug_shows_no_text_of_the_agent() {
        let shown = format!("{:?}", one_of_each("hunter2"));
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("Bash"), "{shown}");
    }

    #[test]
    fn every_event_survives_its_json_form() {
        for event in one_of_each("words") {
            let json = serde_json::to_string(&event).unwrap();
            let read: AgentEvent = serde_json::from_str(&json).unwrap();
            assert_eq!(read, event, "{json}");
        }
    }

    #[test]
    fn the_counted_memory_grows_with_the_texts() {
        let long = "x".repeat(1 << 20);
        for (short, long) in one_of_each("x").iter().zip(one_of_each(&long)) {
            let has_text = !matches!(
                short.kind,
                AgentEventKind::SessionStarted { .. }
                    | AgentEventKind::Usage(_)
                    | AgentEventKind::RateLimit(_)
                    // Messages of failures are cut.
                    | AgentEventKind::Retry { .. }
                    | AgentEventKind::Error(_)
            );
            assert_eq!(long.heap_bytes() > 1 << 20, has_text, "{short:?}");
        }
    }
}
