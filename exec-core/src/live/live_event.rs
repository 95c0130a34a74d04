//! The events of a live session, beside those of every execution.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::protocol_driver::{Decision, PermissionRequest, TurnOutcome};
use crate::UsageTotals;

/// The number of a message that the host gave to a live session: 1, 2, 3, …
///
/// A message that starts a turn gives its number to the turn.
///
/// ```
/// use exec_core::MessageId;
///
/// let id: MessageId = serde_json::from_str("3")?;
/// assert_eq!(id.to_string(), "3");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MessageId(pub(super) u64);

/// The number of a turn: that of the message which has started it.
///
/// ```
/// use exec_core::TurnId;
///
/// let id: TurnId = serde_json::from_str("3")?;
/// assert_eq!(id.to_string(), "3");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TurnId(pub(super) u64);

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for TurnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<TurnId> for MessageId {
    fn from(turn: TurnId) -> Self {
        Self(turn.0)
    }
}

/// The turn that the message starts.
impl From<MessageId> for TurnId {
    fn from(message: MessageId) -> Self {
        Self(message.0)
    }
}

/// An event of a live session. `docs/live-json.md` describes its JSON form.
///
/// ```
/// use exec_core::LiveEvent;
///
/// let event: LiveEvent = serde_json::from_str(r#"{"type":"turn_started","turn":1}"#)?;
/// assert!(matches!(event, LiveEvent::TurnStarted { .. }));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum LiveEvent {
    /// The agent is ready for prompts.
    Opened,
    /// The process of the agent has ended. Messages that wait stay for a resumed session.
    Ended,
    /// A message waits for its turn.
    MessageQueued {
        /// The message.
        message: MessageId,
    },
    /// A message is written to the agent. It is never written a second time.
    MessageDelivered {
        /// The message.
        message: MessageId,
        /// The turn that it starts, or into which it was put.
        turn: TurnId,
    },
    /// A message will not be delivered.
    MessageDropped {
        /// The message.
        message: MessageId,
        /// Why.
        reason: DropReason,
    },
    /// A turn has started.
    TurnStarted {
        /// The turn.
        turn: TurnId,
    },
    /// A turn has ended.
    TurnEnded {
        /// The turn.
        turn: TurnId,
        /// How.
        #[serde(flatten)]
        outcome: TurnOutcome,
        /// Tokens and cost at its end, as far as the agent has reported them in this turn.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<UsageTotals>,
    },
    /// The agent asks for a permission, and a caller has to answer.
    PermissionAsked(PermissionRequest),
    /// A permission request is settled, also one that was never asked because a rule has decided.
    PermissionSettled {
        /// The id of the request.
        permission: String,
        /// The tool.
        tool: String,
        /// The answer; `None` if the request became void.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        decision: Option<Decision>,
        /// By whom.
        by: SettledBy,
    },
    /// The agent has refused a command after it was sent, such as a mode that it does not know.
    CommandRefused {
        /// The words of the agent.
        reason: String,
    },
}

impl LiveEvent {
    /// The memory on the heap, for the bound of the log.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::PermissionAsked(request) => request.heap_bytes(),
            Self::PermissionSettled {
                permission, tool, ..
            } => permission.capacity() + tool.capacity() + 32,
            Self::CommandRefused { reason } => reason.capacity() + 16,
            Self::TurnEnded {
                outcome: TurnOutcome::Failed { failure },
                ..
            } => failure.message.capacity() + 64,
            _ => 0,
        }
    }
}

/// Why a message was not delivered.
///
/// ```
/// use exec_core::DropReason;
///
/// assert_eq!(serde_json::to_string(&DropReason::TakenBack)?, r#""taken_back""#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DropReason {
    /// The caller has taken it back.
    TakenBack,
    /// The session has ended.
    SessionEnded,
    /// The process ended while the message was offered to a running turn: it may have been delivered.
    /// It is not sent again.
    Uncertain,
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TakenBack => "it was taken back",
            Self::SessionEnded => "the session has ended",
            Self::Uncertain => "the process ended while it was offered to a running turn",
        })
    }
}

/// Who has settled a permission request.
///
/// ```
/// use exec_core::SettledBy;
///
/// assert_eq!(serde_json::to_string(&SettledBy::Deadline)?, r#""deadline""#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SettledBy {
    /// A caller.
    Caller,
    /// A rule of the policy.
    Policy,
    /// No caller has answered in time.
    Deadline,
    /// An interrupt, a stop, the end of the turn, or the agent itself.
    Cancel,
}

impl fmt::Display for SettledBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Caller => "a caller",
            Self::Policy => "the policy",
            Self::Deadline => "its deadline",
            Self::Cancel => "a cancel",
        })
    }
}
