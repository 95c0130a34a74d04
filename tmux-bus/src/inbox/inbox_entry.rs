use std::fmt;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::message_id::MessageId;

/// A message in an [`Inbox`](crate::Inbox). Its `Debug` does not show the text.
///
/// ```
/// use tmux_bus::{InboxEntry, MessageState};
///
/// fn needs_a_decision(entry: &InboxEntry) -> bool {
///     matches!(entry.state, MessageState::Uncertain { .. } | MessageState::Dead { .. })
/// }
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InboxEntry {
    /// The id.
    pub id: MessageId,
    /// The sender.
    pub from: String,
    /// The receiver.
    pub to: String,
    /// The text. Empty for a delivered message, whose text is in the log.
    pub text: String,
    /// When it was left.
    pub left_at: SystemTime,
    /// What has become of it.
    pub state: MessageState,
}

impl fmt::Debug for InboxEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxEntry")
            .field("id", &self.id)
            .field("from", &self.from)
            .field("to", &self.to)
            .field("text", &format_args!("{} bytes", self.text.len()))
            .field("left_at", &self.left_at)
            .field("state", &self.state)
            .finish()
    }
}

/// The state of a message in an [`Inbox`](crate::Inbox).
///
/// ```
/// use tmux_bus::{DeadReason, MessageState};
///
/// assert_eq!(MessageState::Waiting.to_string(), "waiting");
/// let dead = MessageState::Dead { reason: DeadReason::Expired };
/// assert_eq!(dead.to_string(), "dead: it was not delivered in time");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageState {
    /// It waits until the agent is idle.
    Waiting,
    /// A deliverer is typing it.
    Sending,
    /// It may or may not have reached the agent. It is not sent again unless
    /// [`Inbox::resend`](crate::Inbox::resend) is called.
    Uncertain {
        /// The failure during the delivery.
        reason: String,
    },
    /// It will not be delivered.
    Dead {
        /// Why not.
        reason: DeadReason,
    },
    /// The agent has it.
    Delivered {
        /// When the delivery was recorded.
        at: SystemTime,
    },
}

impl fmt::Display for MessageState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting => f.write_str("waiting"),
            Self::Sending => f.write_str("sending"),
            Self::Uncertain { reason } => write!(f, "uncertain: {reason}"),
            Self::Dead { reason } => write!(f, "dead: {reason}"),
            Self::Delivered { .. } => f.write_str("delivered"),
        }
    }
}

/// Why a message is a dead letter.
///
/// ```
/// use tmux_bus::DeadReason;
///
/// assert_eq!(DeadReason::AgentRemoved.to_string(), "the agent was removed from the cluster");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DeadReason {
    /// It waited longer than [`InboxLimits::keep`](crate::InboxLimits::keep).
    Expired,
    /// Its receiver is not part of the cluster any more.
    AgentRemoved,
    /// The program of the agent cannot take such a text, with the cause.
    Refused(String),
}

impl fmt::Display for DeadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("it was not delivered in time"),
            Self::AgentRemoved => f.write_str("the agent was removed from the cluster"),
            Self::Refused(reason) => write!(f, "the agent cannot take it: {reason}"),
        }
    }
}
