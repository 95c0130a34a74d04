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

/// An event of a live session. `docs/live-json.md` of the repository describes its JSON form.
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
        /// The answer; `None` if the request became void, or if the protocol could not pass the
        /// answer on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        decision: Option<Decision>,
        /// The origin of the decision.
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
    /// The agent has not reported whether it took the message, which was offered to a running turn:
    /// its process ended, or ten seconds have passed since the end of the turn. The message may have
    /// been delivered. It is not sent again.
    Uncertain,
    /// The message waited for a resumed session, and its budget has no turn left: other executions
    /// have used it meanwhile.
    BudgetExhausted,
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TakenBack => "it was taken back",
            Self::SessionEnded => "the session has ended",
            Self::Uncertain => {
                "the agent has not reported whether it took it into the running turn"
            }
            Self::BudgetExhausted => "the budget has no turn left",
        })
    }
}

/// The origin of a decision about a permission request.
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
    /// A rule of the policy, or the bound of open requests: a question beyond it is denied.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Failure, FailureKind, ToolInput, Usage};

    /// The JSON form is a contract with front ends.
    #[test]
    fn every_event_has_a_stable_json_form() {
        let (message, turn) = (MessageId(3), TurnId(3));
        let mut request = PermissionRequest::new("p", "Bash", ToolInput::default());
        request.command = Some("ls".to_owned());
        let failure = Failure::new(FailureKind::Overloaded, "529");
        let used = Usage {
            output_tokens: Some(5),
            ..Usage::default()
        };
        let settled = |decision, by| LiveEvent::PermissionSettled {
            permission: "p".to_owned(),
            tool: "Bash".to_owned(),
            decision,
            by,
        };
        let ended = |outcome, usage| LiveEvent::TurnEnded {
            turn,
            outcome,
            usage,
        };
        for (event, expected) in [
            (LiveEvent::Opened, r#"{"type":"opened"}"#),
            (LiveEvent::Ended, r#"{"type":"ended"}"#),
            (
                LiveEvent::MessageQueued { message },
                r#"{"type":"message_queued","message":3}"#,
            ),
            (
                LiveEvent::MessageDelivered { message, turn },
                r#"{"type":"message_delivered","message":3,"turn":3}"#,
            ),
            (
                LiveEvent::MessageDropped {
                    message,
                    reason: DropReason::SessionEnded,
                },
                r#"{"type":"message_dropped","message":3,"reason":"session_ended"}"#,
            ),
            (
                LiveEvent::TurnStarted { turn },
                r#"{"type":"turn_started","turn":3}"#,
            ),
            (
                ended(TurnOutcome::Completed, Some(UsageTotals::of_run(used))),
                r#"{"type":"turn_ended","turn":3,"outcome":"completed","usage":{"run":{"output_tokens":5},"session":{}}}"#,
            ),
            (
                ended(TurnOutcome::Failed { failure }, None),
                r#"{"type":"turn_ended","turn":3,"outcome":"failed","failure":{"class":"overloaded","message":"529"}}"#,
            ),
            (
                LiveEvent::PermissionAsked(request),
                r#"{"type":"permission_asked","id":"p","tool":"Bash","input":null,"command":"ls"}"#,
            ),
            (
                settled(Some(Decision::Deny), SettledBy::Deadline),
                r#"{"type":"permission_settled","permission":"p","tool":"Bash","decision":"deny","by":"deadline"}"#,
            ),
            (
                settled(None, SettledBy::Cancel),
                r#"{"type":"permission_settled","permission":"p","tool":"Bash","by":"cancel"}"#,
            ),
            (
                LiveEvent::CommandRefused {
                    reason: "no".to_owned(),
                },
                r#"{"type":"command_refused","reason":"no"}"#,
            ),
        ] {
            let json = serde_json::to_string(&event).unwrap();
            assert_eq!(json, expected);
            let read: LiveEvent = serde_json::from_str(&json).unwrap();
            assert_eq!(read, event, "{json}");
        }
    }

    #[test]
    fn the_counted_memory_grows_with_the_question() {
        let cost = |command: &str| {
            let mut request = PermissionRequest::new("p", "Bash", ToolInput::default());
            request.command = Some(command.to_owned());
            LiveEvent::PermissionAsked(request).heap_bytes()
        };
        assert!(cost(&"x".repeat(1 << 20)) >= cost("") + (1 << 20));
    }

    #[test]
    fn debug_shows_no_arguments() {
        let input = ToolInput::new(r#"{"token":"hunter2"}"#).unwrap();
        let mut request = PermissionRequest::new("p", "Bash", input);
        request.command = Some("curl hunter2".to_owned());
        let shown = format!("{:?}", LiveEvent::PermissionAsked(request));
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
