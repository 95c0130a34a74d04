//! What clients ask for.

use serde::Deserialize;

use super::entities::Decision;

/// A frame of a client: a command, and an id that its reply repeats.
#[derive(Debug, Deserialize)]
pub struct Request {
    /// Chosen by the client.
    #[serde(default)]
    pub id: String,
    /// The command.
    #[serde(flatten)]
    pub command: Command,
}

/// A command of a client.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Command {
    /// The first frame: the key, and the position in the events.
    Open {
        /// The key of the page; not needed with a token in the header.
        #[serde(default)]
        key: String,
        /// The stream of the sequence number.
        #[serde(default)]
        stream: String,
        /// The last event that the client has; absent for the whole state.
        #[serde(default)]
        after: Option<u64>,
    },
    /// Give an agent a message.
    Send {
        /// The agent.
        agent: String,
        /// The text.
        text: String,
    },
    /// End the turn of an agent.
    Interrupt {
        /// The agent.
        agent: String,
    },
    /// End the processes of an agent.
    Stop {
        /// The agent.
        agent: String,
    },
    /// Start an agent again.
    Restart {
        /// The agent.
        agent: String,
    },
    /// Answer a permission request.
    Answer {
        /// The request.
        permission: String,
        /// The answer.
        decision: Decision,
    },
    /// Take a waiting message back.
    TakeBack {
        /// The waiting message.
        item: String,
    },
    /// Get the output of one agent from now on; an absent agent ends it.
    Watch {
        /// The agent.
        #[serde(default)]
        agent: Option<String>,
        /// The last line that the client has.
        #[serde(default)]
        after: u64,
    },
    /// Get older messages.
    Messages {
        /// Only numbers below this one.
        before: u64,
        /// At most this many.
        limit: usize,
    },
}
