use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Error, Refusal};

/// Why a verb failed.
///
/// ```
/// use tmux_bus::Error;
/// use tmux_bus::vocabulary::{Failure, FailureKind};
///
/// let chain = ["b", "a", "b"].map(str::to_owned).to_vec();
/// let failure = Failure::from(&Error::Cycle { chain });
/// assert_eq!(failure.kind, FailureKind::Cycle);
/// assert_eq!(failure.kind.exit_code(), 4);
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Failure {
    /// What went wrong.
    pub kind: FailureKind,
    /// The message.
    pub message: String,
    /// What the caller can do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Why the agent takes no message, for `refused`, if the reason is the agent or the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    /// The agents that wait for each other, for `cycle`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<String>,
    /// The output of the agent so far, or the text on its screen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
}

/// The kind of a [`Failure`].
///
/// ```
/// use tmux_bus::vocabulary::FailureKind;
///
/// assert_eq!(FailureKind::Timeout.exit_code(), 5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FailureKind {
    /// The system, tmux or the configuration.
    Failed,
    /// Wrong arguments, or no cluster is named.
    Usage,
    /// There is no such cluster, agent or ask.
    NotFound,
    /// The agent takes no message now. Nothing was sent.
    Refused,
    /// The configuration does not allow the message. Nothing was sent.
    NotAllowed,
    /// The receiver waits for the sender. Nothing was sent.
    Cycle,
    /// The caller may not send in the name that it gave. Nothing was sent.
    NotTheSender,
    /// The agent did not answer in time.
    Timeout,
    /// The agent has ended, or has ended its turn, without an answer.
    NoAnswer,
    /// The agent may or may not have got the message.
    Uncertain,
}

impl FailureKind {
    /// The exit code of the command.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Refused | Self::NotAllowed | Self::Cycle | Self::NotTheSender => 4,
            Self::Timeout => 5,
            Self::NoAnswer => 6,
            Self::Uncertain => 7,
        }
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        let mut message = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            message.push_str(&format!(": {error}"));
            cause = error.source();
        }
        let refusal = match error {
            Error::Refused { reason, .. } | Error::NotLeft { reason, .. } => Some(*reason),
            _ => None,
        };
        let chain = match error {
            Error::Cycle { chain } => chain.clone(),
            _ => Vec::new(),
        };
        Self {
            kind: kind(error),
            message,
            hint: hint(error).map(str::to_owned),
            refusal,
            chain,
            partial: error.partial().map(str::to_owned),
        }
    }
}

fn kind(error: &Error) -> FailureKind {
    match error {
        Error::NoCluster => FailureKind::Usage,
        Error::NotRunning { .. } | Error::UnknownAgent { .. } | Error::UnknownAsk { .. } => {
            FailureKind::NotFound
        }
        Error::Refused { .. }
        | Error::QueueFull { .. }
        | Error::InboxFull { .. }
        | Error::TooManyAsks { .. }
        | Error::MessageTooLong { .. }
        | Error::NotLeft { .. } => FailureKind::Refused,
        Error::NotAllowed { .. } => FailureKind::NotAllowed,
        Error::Cycle { .. } => FailureKind::Cycle,
        Error::NotTheSender { .. } => FailureKind::NotTheSender,
        Error::ResponseTimeout { .. } | Error::StateTimeout { .. } => FailureKind::Timeout,
        Error::NoAnswer { .. }
        | Error::PaneDied { .. }
        | Error::ServerGone { .. }
        | Error::AnswerTooLong { .. }
        | Error::AnswerIncomplete { .. } => FailureKind::NoAnswer,
        Error::SubmitUnknown { .. } | Error::NotSubmitted { .. } | Error::OutcomeUnknown { .. } => {
            FailureKind::Uncertain
        }
        _ => FailureKind::Failed,
    }
}

fn hint(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::NotRunning { .. } => {
            "start the cluster, or name another one with --config FILE or --folder DIR"
        }
        Error::NoCluster => {
            "--config FILE names its configuration, --folder DIR the folder of its socket"
        }
        Error::TooManyAsks { .. } => "wait until some of the asks have ended, then ask again",
        Error::UnknownAsk { .. } => "ids are printed by `ask`, and end with the cluster",
        Error::NotAllowed { .. } => "ask an agent that you may send to; `status` lists all agents",
        Error::Cycle { .. } => {
            "answer the message that you have got by your reply, without asking back"
        }
        Error::NotTheSender { .. } => "leave --from out: the sender is found by the pane",
        Error::Refused { .. } => "`explain` shows the screen of the agent; `post` leaves a message",
        Error::ResponseTimeout { .. } => {
            "the log will have the answer if it comes; --limit waits longer"
        }
        Error::PaneDied { .. } | Error::NoAnswer { .. } => {
            "`explain` shows the screen of the agent"
        }
        Error::SubmitUnknown { .. } | Error::NotSubmitted { .. } | Error::OutcomeUnknown { .. } => {
            "look at the log and at the screen (`explain`) before you send it again"
        }
        _ => return None,
    })
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure")
            .field("kind", &self.kind)
            .field("message", &self.message)
            .field("refusal", &self.refusal)
            .field("chain", &self.chain)
            .finish_non_exhaustive()
    }
}
