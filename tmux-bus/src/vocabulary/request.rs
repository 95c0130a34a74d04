use std::fmt;

use serde::{Deserialize, Serialize};

use super::Hidden;

/// A verb with its arguments. Its `Debug` does not show the text of a message.
///
/// ```
/// use tmux_bus::vocabulary::Request;
///
/// let request: Request = serde_json::from_str(r#"{"verb":"ask","to":"b","text":"Are you there?"}"#)?;
/// assert!(matches!(request, Request::Ask { detach: false, .. }));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Request {
    /// Sends a message and waits for its answer.
    Ask {
        /// The receiver.
        to: String,
        /// The message.
        text: String,
        /// Answers at once with the id of the ask, which continues.
        #[serde(default)]
        detach: bool,
        /// How long to wait for the answer, in seconds; the ask continues. The default is
        /// `limit_s`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_s: Option<f64>,
        /// How long the agent may take, in seconds; the default is an hour.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit_s: Option<f64>,
    },
    /// Leaves a message without waiting for an answer.
    Post {
        /// The receiver.
        to: String,
        /// The message.
        text: String,
        /// Types it at once, or fails; it is not left for later.
        #[serde(default)]
        now: bool,
    },
    /// Lists the messages that wait for an agent.
    Inbox {
        /// The agent; the default is the sender.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<String>,
    },
    /// The state of all agents.
    Status {},
    /// How the state of an agent is found.
    Explain {
        /// The agent.
        agent: String,
    },
    /// Waits for the answer to an earlier ask. Can be repeated.
    Wait {
        /// The id of the ask.
        id: String,
        /// How long to wait, in seconds; the default is until the end of the ask.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_s: Option<f64>,
    },
    /// The last messages of the log.
    Log {
        /// Only from this agent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<String>,
        /// Only to this agent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
        /// Number of entries; the default is 20.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last: Option<usize>,
    },
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask {
                to, text, detach, ..
            } => f
                .debug_struct("Ask")
                .field("to", to)
                .field("text", &Hidden(text.len()))
                .field("detach", detach)
                .finish_non_exhaustive(),
            Self::Post { to, text, now } => f
                .debug_struct("Post")
                .field("to", to)
                .field("text", &Hidden(text.len()))
                .field("now", now)
                .finish(),
            Self::Inbox { agent } => f.debug_struct("Inbox").field("agent", agent).finish(),
            Self::Status {} => f.write_str("Status"),
            Self::Explain { agent } => f.debug_struct("Explain").field("agent", agent).finish(),
            Self::Wait { id, timeout_s } => f
                .debug_struct("Wait")
                .field("id", id)
                .field("timeout_s", timeout_s)
                .finish(),
            Self::Log { from, to, last } => f
                .debug_struct("Log")
                .field("from", from)
                .field("to", to)
                .field("last", last)
                .finish(),
        }
    }
}
