//! The one error type of the crate.

use std::{fmt, io, path::PathBuf, time::Duration};

use crate::pane::PaneId;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, one variant for each thing that a caller can do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The tmux program was not found or could not be started.
    #[error("tmux was not found as `{program}`: install tmux {needed} or newer", needed = crate::version::NEEDED)]
    TmuxMissing {
        /// The program that was tried.
        program: PathBuf,
        /// Why it could not be started.
        #[source]
        source: io::Error,
    },

    /// tmux ran and refused a command.
    #[error("tmux failed on `{command}`: {message}")]
    TmuxFailed {
        /// The command, without the texts that it carried.
        command: String,
        /// What tmux said.
        message: String,
    },

    /// tmux did not answer in time.
    #[error("tmux did not answer `{command}` within {after:?}")]
    TmuxTimeout {
        /// The command, without the texts that it carried.
        command: String,
        /// How long was waited.
        after: Duration,
    },

    /// This tmux has no control mode as this crate needs it.
    #[error("tmux {found} is too old: control mode as used here needs tmux {needed} or newer", needed = crate::version::NEEDED)]
    TmuxTooOld {
        /// The version that was found.
        found: String,
    },

    /// The connection to the tmux server has ended: the server or the session is gone.
    #[error("the tmux server of session `{session}` is gone")]
    ServerGone {
        /// The session that this client was attached to.
        session: String,
        /// What had been received of an answer, where one was waited for.
        partial: PartialAnswer,
    },

    /// No cluster or session runs under this name.
    #[error("session `{session}` does not run on socket {}", socket.display())]
    NotRunning {
        /// The session that was asked for.
        session: String,
        /// The socket that was tried.
        socket: PathBuf,
    },

    /// A session of this name runs already.
    #[error("session `{session}` runs already on socket {}: attach to it or stop it", socket.display())]
    AlreadyRunning {
        /// The session's name.
        session: String,
        /// Its socket.
        socket: PathBuf,
    },

    /// The folder for the socket cannot be used.
    #[error("the folder {} for the socket cannot be used: {reason}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// The cause, where the system gave one.
        #[source]
        source: Option<io::Error>,
    },

    /// A name is not allowed.
    #[error("{what} `{name}` is not allowed: {reason}")]
    InvalidName {
        /// What the name is for.
        what: &'static str,
        /// The name.
        name: String,
        /// The rule that it breaks.
        reason: &'static str,
    },

    /// There is no such agent.
    #[error("there is no agent `{name}`; known agents: {}", known.join(", "))]
    UnknownAgent {
        /// The name that was asked for.
        name: String,
        /// The names that the configuration has.
        known: Vec<String>,
    },

    /// The configuration is wrong.
    #[error("{}: {place}: {reason}", path.display())]
    Config {
        /// The configuration file.
        path: PathBuf,
        /// The place in it: line and column, or the key.
        place: String,
        /// What is wrong there.
        reason: String,
    },

    /// The message was refused before anything was sent.
    #[error("the message for pane {pane} was not sent: {reason}")]
    Refused {
        /// The pane that it was for.
        pane: PaneId,
        /// Why.
        reason: Refusal,
    },

    /// Too many senders wait for this pane.
    #[error("the message for pane {pane} was not sent: {waiting} senders wait for it already")]
    QueueFull {
        /// The pane.
        pane: PaneId,
        /// How many wait.
        waiting: usize,
    },

    /// It cannot be known whether the message was submitted. It is not sent again.
    #[error(
        "the message may or may not have reached pane {pane}: do not send it again without looking"
    )]
    SubmitUnknown {
        /// The pane.
        pane: PaneId,
        /// What happened in between.
        #[source]
        source: Box<Error>,
    },

    /// The text was pasted into the pane but certainly not submitted.
    #[error("the message stands in pane {pane} but was not submitted")]
    NotSubmitted {
        /// The pane.
        pane: PaneId,
        /// Why.
        #[source]
        source: Box<Error>,
    },

    /// The marker did not come in time. The text is the specification's.
    #[error("合言葉 '{marker}' がタイムアウトまでに検出されませんでした")]
    ResponseTimeout {
        /// The marker.
        marker: String,
        /// The pane.
        pane: PaneId,
        /// What had been received.
        partial: PartialAnswer,
    },

    /// The pane's program ended, or the pane was closed, before the marker came.
    #[error("the program in pane {pane} ended ({exit}) before it answered")]
    PaneDied {
        /// The pane.
        pane: PaneId,
        /// How it ended.
        exit: Exit,
        /// What had been received.
        partial: PartialAnswer,
    },

    /// The answer is larger than the limit.
    #[error("the answer from pane {pane} is longer than {limit} bytes")]
    AnswerTooLong {
        /// The pane.
        pane: PaneId,
        /// The limit, see [`ServerBuilder::max_answer`](crate::ServerBuilder::max_answer).
        limit: usize,
        /// What had been received up to the limit.
        partial: PartialAnswer,
    },

    /// An agent was not ready in time, or ended while it started.
    #[error("agent `{agent}` did not get ready")]
    NotReady {
        /// The agent.
        agent: String,
        /// Why.
        #[source]
        source: Box<Error>,
    },

    /// Neither the prompt nor the answer to the start-up question was seen in time.
    #[error("no prompt appeared in pane {pane} within {after:?}")]
    NoPrompt {
        /// The pane.
        pane: PaneId,
        /// How long was waited.
        after: Duration,
    },

    /// A file could not be read or written.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },

    /// Processes could not be ended.
    #[error("processes of session `{session}` did not end: {pids:?}")]
    Survivors {
        /// The session.
        session: String,
        /// What is still there.
        pids: Vec<u32>,
    },
}

impl Error {
    /// True when an answer or tmux itself did not come in time.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(
            self,
            Self::ResponseTimeout { .. } | Self::TmuxTimeout { .. } | Self::NoPrompt { .. }
        )
    }

    /// True when the message was certainly not submitted, so that it may be sent again.
    #[must_use]
    pub fn is_not_sent(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::QueueFull { .. })
    }

    /// What had been received of the answer, for the errors that end a wait.
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

    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::File {
            action,
            path: path.into(),
            source,
        }
    }
}

/// Why a message was refused. Nothing has reached the pane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no such pane.
    #[error("there is no such pane")]
    NoSuchPane,
    /// The pane's program has ended.
    #[error("the pane's program has ended")]
    Dead,
    /// The pane's input is switched off.
    #[error("the pane's input is off (select-pane -e switches it on)")]
    InputOff,
    /// The message is empty.
    #[error("it is empty")]
    Empty,
    /// The message is larger than 1 MB.
    #[error("it is longer than {} bytes", crate::send::MAX_MESSAGE)]
    TooLong,
    /// The message has a NUL, which no terminal line can carry.
    #[error("it has a NUL byte")]
    Nul,
    /// The message has the sequence that ends a bracketed paste.
    #[error("it has the sequence ESC[201~, which would end the paste inside the message")]
    PasteEnd,
    /// The program does not ask for bracketed paste, so that a newline would submit.
    #[error(
        "it has a newline or a control character, and the program does not ask for bracketed paste: each newline would submit (SendOptions::allow_unbracketed sends it all the same)"
    )]
    Unbracketed,
    /// The message has a character on which the pane's terminal acts, such as an interrupt. A
    /// bracketed paste does not keep it from that.
    #[error(
        "it has the byte {byte:#04x}, on which the pane's terminal acts (SendOptions::allow_unbracketed sends it all the same)"
    )]
    Acts {
        /// The first such byte.
        byte: u8,
    },
    /// A line is longer than a terminal in canonical mode can take.
    #[error(
        "a line of it has {length} bytes, and the pane's terminal reads whole lines of at most {limit}"
    )]
    LineTooLong {
        /// The longest line, in bytes.
        length: usize,
        /// The limit.
        limit: usize,
    },
}

/// How a pane's program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Exit {
    /// It exited with this status.
    Status(i32),
    /// A signal ended it.
    Signal(i32),
    /// The pane is gone, or its end was not reported.
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

/// What had arrived of an answer when the wait for it ended. Its `Debug` shows only the length.
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
