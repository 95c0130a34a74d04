use serde::{Deserialize, Serialize};

/// What an agent says it does, in one vocabulary for all agents.
///
/// The parsers live with the profiles. The line an event was read from is always kept beside it,
/// so whatever this vocabulary does not cover is still there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum AgentEvent {
    /// The agent named its session.
    SessionStarted {
        /// The agent's own id, without the parts that [`SessionId`](crate::SessionId) adds.
        session_id: String,
        /// The model, where the agent says it.
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
        /// Ties the call to its result, where the agent gives an id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// The tool's name.
        name: String,
        /// The arguments, as the agent wrote them.
        input: serde_json::Value,
    },
    /// A tool answered.
    ToolResult {
        /// The id of the call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// What the tool gave back.
        output: String,
        /// Whether the tool failed.
        is_error: bool,
    },
    /// Tokens and money spent.
    Usage(Usage),
    /// Something went wrong. Not the end of the run: that is [`Finished`](Self::Finished).
    Error {
        /// The agent's words.
        message: String,
    },
    /// The final event of the run: the agent will do nothing more.
    Finished {
        /// How it ended.
        outcome: Outcome,
        /// The final answer or the reason of the failure, where the agent repeats it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
    },
}

/// How a run ended, in the agent's own judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// The agent did what it was asked to.
    Success,
    /// The agent gave up.
    Failure,
}

/// Tokens and money, as far as the agent tells. A field the agent does not give is `None`.
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
    /// Tokens the model wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Tokens the model spent on reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// Cost in US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}

/// Reads [`AgentEvent`]s from an agent's standard output.
///
/// 1. It gets every line of standard output once, in order, without the line end. A line that was
///    cut at the cap is not given to it: half a JSON document cannot be read.
/// 2. Bytes that are not UTF-8 arrive as replacement characters; the raw line keeps them.
/// 3. A line it does not know gives no events. That is not an error: the line is passed on raw.
/// 4. It does not block and does not panic.
pub trait EventParser: Send {
    /// The events in one line: none, one or several.
    fn parse_line(&mut self, line: &str) -> Vec<AgentEvent>;
}
