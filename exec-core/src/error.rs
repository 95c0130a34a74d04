use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::shared::private_file::FileError;
use crate::{
    BudgetNotice, BudgetResource, DropReason, ExitReport, Failure, MessageId, SessionId, SettledBy,
    TurnId,
};

/// Why an operation failed.
///
/// When a launch returns an error, no process runs and nothing is registered.
///
/// ```
/// use exec_core::{Error, SessionId};
///
/// let error = "ses_4f".parse::<SessionId>().unwrap_err();
/// assert!(matches!(&error, Error::Invalid { value, .. } if value == "ses_4f"));
/// assert!(!error.is_session_busy());
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The workspace does not exist. The message is part of the specification.
    #[error("Workspace path does not exist: {}", path.display())]
    WorkspaceMissing {
        /// The path of the request.
        path: PathBuf,
    },
    /// The workspace is not a folder.
    #[error("workspace path is not a directory: {}", path.display())]
    WorkspaceNotDirectory {
        /// The path of the request.
        path: PathBuf,
    },
    /// The profile does not exist. The message is part of the specification.
    #[error("Profile config not found for {label}")]
    ProfileNotFound {
        /// The label of the request.
        label: String,
        /// The labels that the source of the profiles knows.
        known: Vec<String>,
        /// The known label that the one of the request was probably meant to be.
        nearest: Option<String>,
    },
    /// The profile does not have this variant.
    #[error("profile {label} has no variant {variant:?}; it has: {}", list(known))]
    UnknownVariant {
        /// The profile.
        label: String,
        /// The variant of the request.
        variant: String,
        /// The variants of the profile.
        known: Vec<String>,
    },
    /// The profile has no usable command. The message is part of the specification.
    #[error("Profile command not found for {label}")]
    CommandNotFound {
        /// The label of the request.
        label: String,
    },
    /// The agent needs a prompt and the request has none.
    #[error("the prompt is empty, and {label} needs one")]
    EmptyPrompt {
        /// The profile.
        label: String,
    },
    /// An id, a name or another short value of the caller is invalid.
    #[error("invalid {what} {value:?}: {reason}")]
    Invalid {
        /// The kind of value, such as `session id`.
        what: &'static str,
        /// The value.
        value: String,
        /// The rule that it breaks.
        reason: String,
    },
    /// The session belongs to another executor type or project than the request.
    #[error(
        "session {session} does not belong to executor type {executor_type} and project \
         {actual_project_id} of the request"
    )]
    ForeignSession {
        /// The session of the request.
        session: SessionId,
        /// The executor type of the request.
        executor_type: String,
        /// The project of the request.
        actual_project_id: String,
    },
    /// The session has a live execution. Agents lose answers when two messages arrive at once.
    #[error("session {session} is still running: wait for its end or stop it first")]
    SessionBusy {
        /// The session.
        session: SessionId,
    },
    /// The profile could not turn the request into process parameters.
    #[error("profile {label} refuses the request")]
    Parameters {
        /// The profile.
        label: String,
        /// The reason that the profile gave.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The program was not found.
    #[error("cannot find {binary:?}: {hint}")]
    BinaryNotFound {
        /// The program of the command, or the wrapper.
        binary: String,
        /// Where the service searched, and what to do.
        hint: String,
    },
    /// The program exists but the system did not start it.
    #[error("cannot start {binary:?}")]
    Spawn {
        /// The program of the command, or the wrapper.
        binary: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The sandbox of the profile cannot be enforced: bubblewrap does not work here, or a path of the
    /// sandbox breaks its rule. An agent is never started without the sandbox that was asked for.
    #[error("cannot enforce the sandbox: {reason}")]
    Sandbox {
        /// The cause, and what to do.
        reason: String,
    },
    /// No state folder was given and the environment does not name one.
    #[error(
        "cannot choose a state folder: neither XDG_STATE_HOME nor HOME is an absolute path; set \
         one with `state_dir`"
    )]
    NoStateFolder,
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
    /// Processes of the execution could not be ended: they belong to another user, or the kernel
    /// holds them.
    #[error("processes of session {session} are still alive: {pids:?}")]
    StillAlive {
        /// The session.
        session: SessionId,
        /// The process ids.
        pids: Vec<u32>,
    },
    /// A budget of the request has nothing left.
    #[error("nothing is left of the budget: {notice}")]
    BudgetExhausted {
        /// The budget.
        notice: BudgetNotice,
    },
    /// The agent does not report what a budget of the request limits.
    #[error("cannot limit {resource} of {label}: {reason}")]
    BudgetNotMeasurable {
        /// The profile.
        label: String,
        /// What cannot be limited.
        resource: BudgetResource,
        /// The reason, and the remedy.
        reason: &'static str,
    },
    /// A launch was [cancelled](crate::WaitingLaunch::cancel) while it waited.
    #[error("the launch of session {session} was cancelled while it waited")]
    Cancelled {
        /// The session of the request.
        session: SessionId,
    },
    /// The profile has no protocol for live sessions.
    #[error("profile {label} has no live sessions: its agent is started for each prompt")]
    NoLiveProtocol {
        /// The profile.
        label: String,
    },
    /// The agent did not open the live session. Its process was stopped.
    #[error(
        "{label} did not open a live session: {failure}{}",
        last_lines(&exit.stderr_tail)
    )]
    NotOpened {
        /// The profile.
        label: String,
        /// Why.
        failure: Failure,
        /// How the process ended, with the last lines of standard error.
        exit: Arc<ExitReport>,
    },
    /// The session is live with another profile, variant or workspace than the request has.
    #[error("session {session} is live with another {what} than that of the request")]
    LiveElsewhere {
        /// The session.
        session: SessionId,
        /// What differs: `profile`, `variant` or `workspace`.
        what: &'static str,
    },
    /// The live session has ended, or is about to.
    #[error("live session {session} has ended: resume it")]
    SessionEnded {
        /// The session.
        session: SessionId,
    },
    /// The live session takes no further message now.
    #[error("the queue of live session {session} is full: {reason}")]
    QueueFull {
        /// The session.
        session: SessionId,
        /// Which queue.
        reason: &'static str,
    },
    /// The turn has ended, or waits in the queue.
    #[error("turn {turn} is not running")]
    TurnNotRunning {
        /// The turn.
        turn: TurnId,
    },
    /// The permission request was settled before, or was never asked.
    #[error("permission request {permission:?} is not open{}", settled(by))]
    AlreadySettled {
        /// The id of the request.
        permission: String,
        /// The origin of the first decision; `None` if the request is unknown, or was settled long
        /// ago.
        by: Option<SettledBy>,
    },
    /// The message was dropped.
    #[error("message {message} was not delivered: {reason}")]
    NotDelivered {
        /// The message.
        message: MessageId,
        /// Why.
        reason: DropReason,
    },
    /// The agent, or its protocol, does not support the command or its value.
    #[error("the agent refuses the command: {reason}")]
    Refused {
        /// The words of the agent, or of its driver.
        reason: String,
    },
    /// The service was [shut down](crate::ExecutionService::shutdown) and starts nothing. Or the
    /// tokio runtime of the execution is shutting down: the end of the execution cannot be observed,
    /// and [`reap_orphans`](crate::ExecutionService::reap_orphans) of the next run ends its
    /// processes. Or code of the profile, such as its parser, has panicked: the processes
    /// were ended, or are still alive and on record for the next run.
    #[error("the service is shutting down")]
    ShuttingDown,
}

impl Error {
    /// For `map_err`: adds the operation and the path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// Advice beyond the message, for a person to read below it.
    ///
    /// ```
    /// use exec_core::Error;
    ///
    /// let error = Error::ProfileNotFound {
    ///     label: "claude".into(),
    ///     known: vec!["claude-code".into(), "codex".into()],
    ///     nearest: Some("claude-code".into()),
    /// };
    /// assert_eq!(error.to_string(), "Profile config not found for claude");
    /// let hint = error.hint().unwrap();
    /// assert_eq!(hint, "did you mean claude-code? known profiles: claude-code, codex");
    /// ```
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let Self::ProfileNotFound { known, nearest, .. } = self else {
            return None;
        };
        let meant = nearest
            .as_ref()
            .map(|nearest| format!("did you mean {nearest}?"));
        let known = (!known.is_empty()).then(|| format!("known profiles: {}", list(known)));
        let parts: Vec<_> = meant.into_iter().chain(known).collect();
        (!parts.is_empty()).then(|| parts.join(" "))
    }

    /// Whether the session has a live execution. The same request can succeed after its end.
    #[must_use]
    pub fn is_session_busy(&self) -> bool {
        matches!(self, Self::SessionBusy { .. })
    }

    /// Whether a launch was cancelled while it waited.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Cancelled { .. })
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

/// Lets [`ExecutionService::launch`](crate::ExecutionService::launch) accept a
/// [`LaunchRequest`](crate::LaunchRequest) beside the requests that are checked first.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

fn last_lines(stderr_tail: &[String]) -> String {
    const SHOWN: usize = 3;
    let from = stderr_tail.len().saturating_sub(SHOWN);
    match stderr_tail[from..].join(" / ") {
        lines if lines.trim().is_empty() => String::new(),
        lines => format!("; standard error ends with: {lines}"),
    }
}

fn settled(by: &Option<SettledBy>) -> String {
    match by {
        Some(by) => format!(": it was settled by {by}"),
        None => String::new(),
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}
