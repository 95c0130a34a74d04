//! What a source is asked to do.

use super::entities::Decision;

/// A command, as the source of its agent gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Give the agent a message.
    Send {
        /// The agent.
        agent: String,
        /// The text.
        text: String,
    },
    /// End the agent's turn and keep its session.
    Interrupt {
        /// The agent.
        agent: String,
    },
    /// End the agent's processes.
    Stop {
        /// The agent.
        agent: String,
    },
    /// Start the agent again.
    Restart {
        /// The agent.
        agent: String,
    },
    /// Answer a permission request. Sent once for each request.
    Answer {
        /// The agent that asked.
        agent: String,
        /// The request.
        permission: String,
        /// The answer.
        decision: Decision,
    },
    /// Take a waiting message back.
    TakeBack {
        /// The agent that would get it.
        agent: String,
        /// The message.
        item: String,
    },
}

/// Why a command was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionError {
    /// For programs: `unknown`, `not_able`, `already_settled`, `gone`, `invalid`, `busy` or `failed`.
    pub code: &'static str,
    /// For people.
    pub message: String,
}

impl ActionError {
    /// An error with a code of the documented list.
    #[must_use]
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message }
    }

    /// The source could not do it.
    #[must_use]
    pub fn failed(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::new("failed", crate::with_causes(error))
    }
}

impl std::fmt::Display for ActionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ActionError {}
