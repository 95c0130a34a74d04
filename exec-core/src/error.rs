use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};

use crate::SessionId;
use crate::shared::private_file::FileError;

/// Everything that can go wrong.
///
/// When a launch returns an error, no process runs and nothing is registered.
///
/// ```
/// use exec_core::{Error, SessionId};
///
/// let error = "ses_4f".parse::<SessionId>().unwrap_err();
/// assert!(matches!(&error, Error::InvalidSessionId { value, .. } if value == "ses_4f"));
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
    #[error("the prompt is empty, and {label} cannot start without one")]
    EmptyPrompt {
        /// The profile.
        label: String,
    },
    /// The text is not a session id.
    #[error("invalid session id {value:?}: {reason}")]
    InvalidSessionId {
        /// The text.
        value: String,
        /// What is wrong, and what a session id looks like.
        reason: String,
    },
    /// The text is not an execution id.
    #[error("invalid execution id {value:?}: it is not a UUID")]
    InvalidExecutionId {
        /// The text.
        value: String,
    },
    /// The session belongs to another executor type or project than the request.
    #[error(
        "session {session_id} does not belong to executor type {executor_type} and project \
         {actual_project_id} of the request"
    )]
    ForeignSession {
        /// The session of the request.
        session_id: SessionId,
        /// The executor type of the request.
        executor_type: String,
        /// The project of the request.
        actual_project_id: String,
    },
    /// The session has a live execution. Agents lose answers when two messages arrive at once.
    #[error("session {session_id} is still running: wait for its end or stop it first")]
    SessionBusy {
        /// The session.
        session_id: SessionId,
    },
    /// The profile could not turn the request into process parameters.
    #[error("profile {label} refuses the request")]
    Parameters {
        /// The profile.
        label: String,
        /// The reason that the profile gave.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An environment variable of the command or of the parameters has an invalid name.
    #[error("{name:?} cannot be the name of an environment variable")]
    InvalidVariable {
        /// The name.
        name: String,
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
        /// The error of the system.
        source: io::Error,
    },
    /// No state folder was given and the environment does not name one.
    #[error(
        "cannot choose a state folder: neither XDG_STATE_HOME nor HOME is an absolute path; set \
         one with `state_dir`"
    )]
    NoStateFolder,
    /// A file or folder could not be used.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Another user could have written the file, or could change it.
    #[error("refusing {}: {reason}", path.display())]
    NotPrivate {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: &'static str,
    },
    /// Processes of the execution could not be ended: they belong to another user, or the kernel
    /// holds them.
    #[error("processes of session {session_id} are still alive: {pids:?}")]
    StillAlive {
        /// The session.
        session_id: SessionId,
        /// The process ids.
        pids: Vec<u32>,
    },
    /// The tokio runtime of the execution was shut down, so that its end cannot be observed.
    #[error("session {session_id} is no longer supervised: its runtime has been shut down")]
    Abandoned {
        /// The session.
        session_id: SessionId,
    },
}

impl Error {
    /// For `map_err`: adds what was attempted and on which path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// Whether the session has a live execution. The same request can succeed after its end.
    pub fn is_session_busy(&self) -> bool {
        matches!(self, Self::SessionBusy { .. })
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

fn list(names: &[String]) -> String {
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}
