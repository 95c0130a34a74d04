//! What a live session is doing.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::live_event::TurnId;
use crate::output::epoch_seconds;

/// What a live session is doing, and the event that proves it.
///
/// ```
/// use exec_core::{LiveState, LiveStatus};
///
/// let state: LiveState = serde_json::from_str(r#"{"status":"working","turn":3,"proof":17}"#)?;
/// assert_eq!(state.proof, 17);
/// assert!(matches!(state.status, LiveStatus::Working { .. }));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LiveState {
    /// What it is doing.
    #[serde(flatten)]
    pub status: LiveStatus,
    /// The sequence number of the event since which it is so.
    pub proof: u64,
}

/// What a live session is doing.
///
/// ```
/// use exec_core::LiveStatus;
///
/// assert_eq!(serde_json::to_string(&LiveStatus::Idle)?, r#"{"status":"idle"}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
#[non_exhaustive]
pub enum LiveStatus {
    /// The agent is not ready for prompts yet.
    Opening,
    /// The agent waits for a prompt.
    Idle,
    /// A turn runs.
    Working {
        /// The turn.
        turn: TurnId,
    },
    /// At least one permission request waits for an answer.
    WaitingForPermission,
    /// A usage limit was reached. It ends with the next sign of progress or the next turn.
    Limited {
        /// When the limit is reset, if the agent says so. In JSON: seconds since 1970.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            with = "epoch_seconds"
        )]
        resets_at: Option<SystemTime>,
    },
    /// The process has ended.
    Ended,
}
