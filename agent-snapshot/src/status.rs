use std::{borrow::Cow, fmt};

use serde::{Deserialize, Serialize};

/// What the agent's state machine is doing.
///
/// An open set: the known states have names here, and any other text is kept as it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Status(Cow<'static, str>);

impl Status {
    /// Idle until the next event.
    pub const WAITING_FOR_EVENT: Self = Self(Cow::Borrowed("WAITING_FOR_EVENT"));
    /// In the middle of a tick.
    pub const RUNNING: Self = Self(Cow::Borrowed("RUNNING"));
    /// A tool runs.
    pub const WAITING_FOR_TOOL: Self = Self(Cow::Borrowed("WAITING_FOR_TOOL"));
    /// Ended on purpose.
    pub const STOPPED: Self = Self(Cow::Borrowed("STOPPED"));
    /// Ended by an error.
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
