//! The error type of the crate.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::pane::pane_id::PaneId;
use crate::shared::private_file::FileError;
use crate::tmux::tmux_version::NEEDED;

/// Why an operation failed: one variant for each thing that a caller can do about it.
///
/// Messages name the pane, agent, command or path, never the text of a message.
///
/// ```
/// use tmux_bus::{ClusterConfig, Error};
///
/// let error = ClusterConfig::load("/missing/team.yaml").unwrap_err();
/// assert!(matches!(error, Error::Io { .. }));
/// assert_eq!(error.to_string(), "cannot read /missing/team.yaml");
/// assert!(!error.is_timeout() && error.partial().is_none());
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The tmux program was not found or could not be started.
    #[error("cannot start tmux as `{}`: install tmux {NEEDED} or newer", program.display())]
    TmuxMissing {
        /// The program.
        program: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },

    /// tmux refused a command.
    #[error("tmux failed on `{command}`: {message}")]
    TmuxFailed {
        /// The command, without its arguments.
        command: String,
        /// The message of tmux.
        message: String,
    },

    /// tmux did not answer in time.
    #[error("tmux did not answer `{command}` within {after:?}")]
    TmuxTimeout {
        /// The command, without its arguments.
        command: String,
        /// The time limit.
        after: Duration,
    },

    /// This version of tmux lacks what this crate needs.
    #[error("tmux {found} is too old: tmux {NEEDED} or newer is needed")]
    TmuxTooOld {
        /// The version of the program.
        found: String,
    },

    /// The connection to the tmux server has ended: the server or the session is gone.
    #[error("the tmux server of session `{session}` is gone")]
    ServerGone {
        /// The session of the connection.
        session: String,
        /// The output received so far, if the call waited for an answer.
        partial: PartialAnswer,
    },

    /// No session of this name is running.
    #[error("session `{session}` is not running on socket {}", socket.display())]
    NotRunning {
        /// The name.
        session: String,
        /// The socket that belongs to the name.
        socket: PathBuf,
    },

    /// A session of this name is already running.
    #[error("session `{session}` is already running on socket {}: attach to it or stop it", socket.display())]
    AlreadyRunning {
        /// The name.
        session: String,
        /// The socket.
        socket: PathBuf,
    },

    /// A name or value is not allowed.
    #[error("{what} `{name}` is not allowed: {reason}")]
    InvalidName {
        /// What the name is for.
        what: &'static str,
        /// The name.
        name: String,
        /// The rule that it breaks.
        reason: &'static str,
    },

    /// The cluster has no agent of this name.
    #[error("there is no agent `{name}`; known agents: {}", known.join(", "))]
    UnknownAgent {
        /// The name.
        name: String,
        /// The names of the agents that exist.
        known: Vec<String>,
    },

    /// The configuration is invalid.
    #[error("{}: {place}: {reason}", path.display())]
    Config {
        /// The configuration file.
        path: PathBuf,
        /// Line and column, or the key.
        place: String,
        /// The mistake.
        reason: String,
    },

    /// The message was refused before anything was sent.
    #[error("the message for pane {pane} was not sent: {reason}")]
    Refused {
        /// The pane.
        pane: PaneId,
        /// The cause.
        reason: Refusal,
    },

    /// Too many senders of this process wait for the pane.
    #[error(
        "the message for pane {pane} was not sent: {waiting} senders are already waiting for it"
    )]
    QueueFull {
        /// The pane.
        pane: PaneId,
        /// The number of senders.
        waiting: usize,
    },

    /// The message may or may not have been submitted. It is not sent again.
    #[error(
        "the message may or may not have reached pane {pane}: look at the pane before you send it again"
    )]
    SubmitUnknown {
        /// The pane.
        pane: PaneId,
        /// The failure during the submit.
        #[source]
        source: Box<Error>,
    },

    /// The text was pasted into the pane but not submitted.
    #[error("the message was pasted into pane {pane} but not submitted")]
    NotSubmitted {
        /// The pane.
        pane: PaneId,
        /// The cause.
        #[source]
        source: Box<Error>,
    },

    /// The marker did not appear in time. The message ends with the text of the specification.
    #[error(
        "no answer from pane {pane} within {after:?}: 合言葉 '{marker}' がタイムアウトまでに検出されませんでした"
    )]
    ResponseTimeout {
        /// The marker.
        marker: String,
        /// The pane.
        pane: PaneId,
        /// The time limit.
        after: Duration,
        /// The output received so far.
        partial: PartialAnswer,
    },

    /// The program in the pane ended, or the pane was closed, before the marker appeared.
    #[error("the program in pane {pane} ended ({exit}) before it answered")]
    PaneDied {
        /// The pane.
        pane: PaneId,
        /// How the program ended.
        exit: Exit,
        /// The output received so far.
        partial: PartialAnswer,
    },

    /// The answer is longer than the limit.
    #[error("the answer from pane {pane} is longer than {limit} bytes")]
    AnswerTooLong {
        /// The pane.
        pane: PaneId,
        /// The limit, see [`ServerBuilder::max_answer`](crate::ServerBuilder::max_answer).
        limit: usize,
        /// The output received up to the limit.
        partial: PartialAnswer,
    },

    /// An agent was not ready in time, or ended while it started.
    #[error("agent `{agent}` did not become ready")]
    NotReady {
        /// The agent.
        agent: String,
        /// The cause.
        #[source]
        source: Box<Error>,
    },

    /// A starting program did not show a prompt in time.
    #[error("no prompt appeared in pane {pane} within {after:?}")]
    NoPrompt {
        /// The pane.
        pane: PaneId,
        /// The time limit.
        after: Duration,
    },

    /// An operation on a file or folder failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },

    /// A file or folder is refused because another user can change it.
    #[error("refusing {}: {reason}", path.display())]
    NotPrivate {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: &'static str,
    },

    /// Processes did not end, not even by SIGKILL.
    #[error("processes of session `{session}` did not end: {pids:?}")]
    Survivors {
        /// The session.
        session: String,
        /// The processes that are alive.
        pids: Vec<u32>,
    },
}

impl Error {
    /// Whether an answer, a prompt or tmux itself did not come in time.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(
            self,
            Self::ResponseTimeout { .. } | Self::TmuxTimeout { .. } | Self::NoPrompt { .. }
        )
    }

    /// Whether the message was certainly not sent, so that it may be sent again.
    #[must_use]
    pub fn is_not_sent(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::QueueFull { .. })
    }

    /// The output received so far, for the errors that end a wait for an answer.
    #[must_use]
    pub fn partial(&self) -> Option<&str> {
        match self {
            Self::ResponseTimeout { partial, .. }
            | Self::PaneDied { partial, .. }
            | Self::ServerGone { partial, .. }
            | Self::AnswerTooLong { partial, .. } => Some(partial.as_str()),
            _ => None,
        }
    }

    pub(crate) fn failed(command: impl Into<String>, message: impl Into<String>) -> Self {
        Self::TmuxFailed {
            command: command.into(),
            message: message.into(),
        }
    }

    /// For `map_err`: adds the operation and the path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Io {
                action,
                path,
                source,
            } => Self::Io {
                action,
                path,
                source,
            },
            FileError::NotPrivate { path, reason } => Self::NotPrivate { path, reason },
        }
    }
}

/// Why a message was refused. Nothing has reached the pane.
///
/// ```
/// use tmux_bus::Refusal;
///
/// assert_eq!(Refusal::Dead.to_string(), "the program in the pane has ended");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The pane does not exist.
    #[error("the pane does not exist")]
    NoSuchPane,
    /// The program in the pane has ended.
    #[error("the program in the pane has ended")]
    Dead,
    /// The input of the pane is disabled.
    #[error("the input of the pane is disabled (`select-pane -e` enables it)")]
    InputOff,
    /// The message is empty.
    #[error("it is empty")]
    Empty,
    /// The message is larger than 1 MiB.
    #[error("it is longer than {} bytes", crate::pane::sender::MAX_MESSAGE)]
    TooLong,
    /// The message has a NUL byte, which a paste cannot carry.
    #[error("it has a NUL byte")]
    Nul,
    /// The message has the sequence that ends a bracketed paste.
    #[error("it has the sequence ESC[201~, which would end the paste inside the message")]
    PasteEnd,
    /// The message has a newline or a control character, and the program did not enable bracketed
    /// paste: each newline would submit.
    #[error(
        "it has a newline or a control character, and the program did not enable bracketed paste: each newline would submit (SendOptions::allow_unbracketed sends it anyway)"
    )]
    Unbracketed,
    /// The message has a special character of the pane's terminal, such as an interrupt. The
    /// terminal driver acts on it also inside a bracketed paste.
    #[error(
        "it has the byte {byte:#04x}, a special character of the pane's terminal (SendOptions::allow_unbracketed sends it anyway)"
    )]
    SpecialCharacter {
        /// The first such byte.
        byte: u8,
    },
    /// A line is longer than a terminal in canonical mode accepts.
    #[error(
        "a line of it has {length} bytes, and the pane's terminal accepts lines of at most {limit}"
    )]
    LineTooLong {
        /// Length of the longest line, in bytes.
        length: usize,
        /// The limit.
        limit: usize,
    },
}

/// How the program in a pane ended.
///
/// ```
/// use tmux_bus::Exit;
///
/// assert_eq!(Exit::Status(3).to_string(), "exit status 3");
/// assert_eq!(Exit::Signal(9).to_string(), "signal 9");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Exit {
    /// It exited with this status.
    Status(i32),
    /// It was ended by this signal.
    Signal(i32),
    /// The pane is gone, or the exit was not reported.
    Unknown,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "exit status {status}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Unknown => f.write_str("status unknown"),
        }
    }
}

/// The part of an answer that had arrived when the wait for it failed. Its `Debug` shows only the
/// length.
///
/// ```
/// use tmux_bus::PartialAnswer;
///
/// let nothing = PartialAnswer::default();
/// assert_eq!(nothing.as_str(), "");
/// assert_eq!(format!("{nothing:?}"), "PartialAnswer(0 bytes)");
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PartialAnswer(String);

impl PartialAnswer {
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PartialAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PartialAnswer({} bytes)", self.0.len())
    }
}
