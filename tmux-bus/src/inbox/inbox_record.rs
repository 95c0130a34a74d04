//! The lines of the inbox file.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::inbox_entry::DeadReason;
use super::message_id::MessageId;

/// One line. The file of an inbox is the sequence of these records; `inbox_model.rs` says what they
/// mean.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum InboxRecord {
    Left(LeftRecord),
    /// Written before the first key of a delivery.
    Sending {
        id: MessageId,
    },
    /// Nothing of the message reached the agent: it waits again.
    NotSent {
        id: MessageId,
    },
    Delivered {
        id: MessageId,
        at: u64,
    },
    Uncertain {
        id: MessageId,
        reason: String,
    },
    Dead {
        id: MessageId,
        reason: DeadReason,
    },
    /// By its sender or by a person: it is not listed any more.
    Removed {
        id: MessageId,
    },
    /// By a person: it waits again, in its old place.
    Resent {
        id: MessageId,
        expires: u64,
    },
}

/// Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeftRecord {
    pub(super) id: MessageId,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) text: String,
    pub(super) at: u64,
    /// Fixed when the message is left: processes with other limits agree on it.
    pub(super) expires: u64,
    /// Whether the sender was an agent when the message was left. It may be removed from the
    /// cluster before the delivery, and its message must be framed all the same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_agent: bool,
}

pub(super) fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

/// Later than a representable time is `None`.
pub(super) fn time(millis: u64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis))
}
