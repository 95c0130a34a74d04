use serde::{Deserialize, Serialize};

/// What an agent reports about its work, in one vocabulary for all agents.
///
/// The parsers are part of the profiles. Beside the events, [`Output`](crate::Output) always has
/// the line from which they were read: it contains what this vocabulary does not cover.
///
/// ```
/// use exec_core::AgentEvent;
///
/// let event = AgentEvent::Text { text: "done".to_owned(), delta: false };
/// let json = serde_json::to_string(&event)?;
/// assert_eq!(json, r#"{"type":"text","text":"done","delta":false}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
