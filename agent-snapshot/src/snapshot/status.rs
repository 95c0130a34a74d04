use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The state of the agent's state machine.
///
/// The set is open: the specified states are constants, and any other text is kept as it is.
///
/// ```
/// use agent_snapshot::Status;
///
/// assert_eq!(Status::default(), Status::WAITING_FOR_EVENT);
/// assert_eq!(Status::new("RUNNING"), Status::RUNNING);
/// assert_eq!(Status::new("PAUSED").as_str(), "PAUSED");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Status(Cow<'static, str>);

impl Status {
    /// Idle until the next event.
    pub const WAITING_FOR_EVENT: Self = Self(Cow::Borrowed("WAITING_FOR_EVENT"));
    /// In the middle of a tick.
    pub const RUNNING: Self = Self(Cow::Borrowed("RUNNING"));
    /// A tool runs.
    pub const WAITING_FOR_TOOL: Self = Self(Cow::Borrowed("WAITING_FOR_TOOL"));
    /// Stopped on purpose.
    pub const STOPPED: Self = Self(Cow::Borrowed("STOPPED"));
    /// Stopped by an error.
    pub const FAILED: Self = Self(Cow::Borrowed("FAILED"));

    /// A state by its text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(Cow::Owned(text.into()))
    }

    /// The state as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Status {
    fn default() -> Self {
        Self::WAITING_FOR_EVENT
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
