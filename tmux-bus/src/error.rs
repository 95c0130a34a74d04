use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::JoinError;

use crate::answer::PartialAnswer;
use crate::inbox::MessageId;
use crate::pane::{Exit, PaneId, Refusal};
use crate::shared::private_file::FileError;
use crate::state::AgentState;
use crate::tmux::tmux_version::NEEDED;

/// Why an operation failed.
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

    /// The output of a tmux command was longer than the limit.
    #[error("the output of tmux for `{command}` is longer than {limit} bytes")]
    TmuxOutputTooLong {
        /// The command, without its arguments.
        command: String,
        /// The limit.
        limit: usize,
    },

    /// This version of tmux is too old.
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

    /// An id, name or value is not allowed.
    #[error("invalid {what} {value:?}: {reason}")]
    Invalid {
        /// The kind of value, such as "session name".
        what: &'static str,
        /// The value.
        value: String,
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

    /// The configuration file is invalid.
    #[error("{}: {position}: {reason}", path.display())]
    Config {
        /// The configuration file.
        path: PathBuf,
        /// Line and column, or the key.
        position: String,
        /// The mistake.
        reason: String,
    },

    /// The message was refused. The program that was to get it did not get it submitted: nothing was
    /// pasted, the program ended before the submit, or the message was removed from the input line
    /// before Enter.
    #[error("the message for pane {pane} was not sent: {reason}")]
    Refused {
        /// The pane.
        pane: PaneId,
        /// The cause.
        reason: Refusal,
        /// The text of the screen, if it is the cause: a question of the agent, or a draft.
        screen: PartialAnswer,
    },

    /// The configuration does not allow this message. It was not sent; the log has the refusal.
    #[error(
        "`{from}` may not send messages to `{to}`: `may_message` in the configuration does not name it"
    )]
    NotAllowed {
        /// The sender.
        from: String,
        /// The receiver.
        to: String,
    },

    /// The receiver waits for the sender, directly or over others: neither could answer. The message was not sent.
    #[error("`{}` cannot wait for `{}`, which waits for it: {}", chain[0], chain[1], chain.join(" -> "))]
    Cycle {
        /// The sender, the receiver and the agents that wait for each other, up to the sender again.
        chain: Vec<String>,
    },

    /// The caller may not send in this name. The message was not sent.
    #[error("the sender `{claimed}` is refused: {reason}")]
    NotTheSender {
        /// The name that the caller gave.
        claimed: String,
        /// Where the caller runs.
        reason: String,
    },

    /// Neither a configuration nor a folder tells which cluster is meant.
    #[error(
        "no cluster is named: name its configuration or its folder, or run this in a pane of it"
    )]
    NoCluster,

    /// The session keeps as many asks, or as many bytes of asks, as it may. The message was not sent.
    #[error(
        "the ask was not begun: {asks} asks with {bytes} bytes are kept, and all of them run or have just ended"
    )]
    TooManyAsks {
        /// The number of asks.
        asks: usize,
        /// The bytes of their messages and answers.
        bytes: u64,
    },

    /// No ask of this caller has this id.
    #[error("there is no ask `{id}`")]
    UnknownAsk {
        /// The id.
        id: String,
    },

    /// The process that carried out an ask has ended without a result. The agent may or may not have got the message.
    #[error("the outcome of ask `{id}` is not known: the process that carried it out has died")]
    OutcomeUnknown {
        /// The id of the ask.
        id: String,
    },

    /// Too many senders of this process use the pane or wait for it.
    #[error(
        "the message for pane {pane} was not sent: {senders} senders of this process already wait for it or use it"
    )]
    QueueFull {
        /// The pane.
        pane: PaneId,
        /// The number of senders, including the one that has the lock of the pane.
        senders: usize,
    },

    /// The message may or may not have been submitted. It is not sent again.
    #[error(
        "the message may or may not have reached pane {pane}: look at the pane before you send it again"
    )]
    SubmitUnknown {
        /// The pane.
        pane: PaneId,
        /// The failure during the submit.
        source: Box<Error>,
    },

    /// The text is, or may be, in the input line of the program, and was not submitted. Look at the pane
    /// before you send it again.
    #[error("the message was pasted into pane {pane} but not submitted")]
    NotSubmitted {
        /// The pane.
        pane: PaneId,
        /// The cause.
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

    /// The agent ended its turn without an answer: it failed, or a person interrupted it.
    #[error("the agent in pane {pane} ended its turn without an answer")]
    NoAnswer {
        /// The pane.
        pane: PaneId,
        /// The text on the screen.
        partial: PartialAnswer,
    },

    /// The answer is longer than the limit.
    #[error("the answer from pane {pane} is longer than {limit} bytes")]
    AnswerTooLong {
        /// The pane.
        pane: PaneId,
        /// The limit: that of [`ServerBuilder::max_answer`](crate::ServerBuilder::max_answer), or 8 MiB for an
        /// answer that a hook reports.
        limit: usize,
        /// The output received up to the limit.
        partial: PartialAnswer,
    },

    /// The marker was printed, but the answer cannot be read as a whole: a part of it has left the
    /// screen, or was cleared. The message was submitted.
    #[error("the answer from pane {pane} is not complete: {reason}")]
    AnswerIncomplete {
        /// The pane.
        pane: PaneId,
        /// What is missing.
        reason: &'static str,
        /// The text of the screen.
        partial: PartialAnswer,
    },

    /// The inbox of an agent has as many messages as [`InboxLimits`](crate::InboxLimits) allows.
    #[error("the message for `{agent}` was not left: {limit} messages already wait")]
    InboxFull {
        /// The agent.
        agent: String,
        /// The limit.
        limit: usize,
    },

    /// A message is longer than [`InboxLimits`](crate::InboxLimits), or the input of an agent, allows.
    #[error(
        "the message for `{agent}` was refused: it has {length} bytes, and the limit is {limit}"
    )]
    MessageTooLong {
        /// The agent.
        agent: String,
        /// The length of the message, in bytes.
        length: usize,
        /// The limit.
        limit: usize,
    },

    /// A message for an inbox has a text that no terminal can take.
    #[error("the message for `{agent}` was not left: {reason}")]
    NotLeft {
        /// The agent.
        agent: String,
        /// The cause.
        reason: Refusal,
    },

    /// The inbox has no message of this id: it was taken back or forgotten, or delivered some time ago.
    #[error("there is no message {id} in the inbox")]
    UnknownMessage {
        /// The id.
        id: MessageId,
    },

    /// A message of the inbox is not in the state that the operation needs.
    #[error("message {id} is {found}, not {needed}")]
    MessageState {
        /// The id.
        id: MessageId,
        /// Its state.
        found: &'static str,
        /// The state that the operation needs.
        needed: &'static str,
    },

    /// An agent was not ready in time, or ended while it started. The cluster runs: answer what the
    /// agent asks, or stop the cluster.
    #[error("agent `{agent}` did not become ready: {advice}")]
    NotReady {
        /// The agent.
        agent: String,
        /// What the agent shows, and what to do about it.
        advice: String,
        /// Other agents that are not ready.
        others: Vec<String>,
        /// The cause.
        source: Box<Error>,
    },

    /// An agent did not reach a state in time.
    #[error("pane {pane} was not {wanted} within {after:?}: it is {found}")]
    StateTimeout {
        /// The pane of the agent.
        pane: PaneId,
        /// The state that was waited for.
        wanted: AgentState,
        /// The state at the end of the wait.
        found: AgentState,
        /// The time limit.
        after: Duration,
        /// The text on the screen.
        screen: PartialAnswer,
    },

    /// A file operation failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The operation, such as "read".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },

    /// The file or folder is refused: another user could have written it, or could change it.
    #[error("refusing {}: {reason}", path.display())]
    NotPrivate {
        /// The file or folder.
        path: PathBuf,
        /// The rule that it breaks, and the remedy.
        reason: &'static str,
    },

    /// Processes did not end, not even by SIGKILL.
    #[error("processes of session `{session}` did not end: {pids:?}")]
    StillAlive {
        /// The session.
        session: String,
        /// The processes that are alive.
        pids: Vec<u32>,
    },

    /// The runtime shut down before the operation had finished.
    #[error("the runtime is shutting down")]
    ShuttingDown,
}

impl Error {
    /// Whether an answer, a prompt or tmux itself did not come in time.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(
            self,
            Self::ResponseTimeout { .. } | Self::TmuxTimeout { .. } | Self::StateTimeout { .. }
        )
    }

    /// Whether the message was certainly not submitted and is in no input line, so that it may be sent
    /// again.
    #[must_use]
    pub fn is_not_sent(&self) -> bool {
        matches!(
            self,
            Self::Refused { .. }
                | Self::QueueFull { .. }
                | Self::NotAllowed { .. }
                | Self::Cycle { .. }
                | Self::NotTheSender { .. }
                | Self::TooManyAsks { .. }
        )
    }

    /// The output received so far, for the errors that end a wait for an answer. The text on the
    /// screen, for those that end a wait for a state, and for a refusal that it is the reason of.
    #[must_use]
    pub fn partial(&self) -> Option<&str> {
        match self {
            Self::Refused { screen, .. } => Some(screen.as_str()).filter(|text| !text.is_empty()),
            Self::ResponseTimeout { partial, .. }
            | Self::PaneDied { partial, .. }
            | Self::NoAnswer { partial, .. }
            | Self::ServerGone { partial, .. }
            | Self::AnswerIncomplete { partial, .. }
            | Self::AnswerTooLong { partial, .. } => Some(partial.as_str()),
            Self::StateTimeout { screen, .. } => Some(screen.as_str()),
            Self::NotReady { source, .. } => source.partial(),
            _ => None,
        }
    }

    pub(crate) fn refused(pane: PaneId, reason: Refusal) -> Self {
        Self::Refused {
            pane,
            reason,
            screen: PartialAnswer::default(),
        }
    }

    pub(crate) fn failed(command: impl Into<String>, message: impl Into<String>) -> Self {
        Self::TmuxFailed {
            command: command.into(),
            message: message.into(),
        }
    }

    /// For a task of `command` that did not finish.
    pub(crate) fn unfinished(command: &str, error: &JoinError) -> Self {
        if error.is_cancelled() {
            Self::ShuttingDown
        } else {
            Self::failed(command, error.to_string())
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
