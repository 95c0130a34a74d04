use std::io;
use std::path::{Path, PathBuf};

use crate::SessionId;

/// What can go wrong; each variant is something a caller can act on.
///
/// Nothing was started, registered or changed when a launch returns one of these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The workspace is not there. The text is the specification's.
    #[error("Workspace path does not exist: {}", path.display())]
    WorkspaceMissing {
        /// The path of the request.
        path: PathBuf,
    },
    /// The workspace is a file.
    #[error("workspace path is not a directory: {}", path.display())]
    WorkspaceNotDirectory {
        /// The path of the request.
        path: PathBuf,
    },
    /// The workspace could not be looked at.
    #[error("cannot use the workspace path {}", path.display())]
    Workspace {
        /// The path of the request.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no such profile. The text is the specification's.
    #[error("Profile config not found for {label}")]
    ProfileNotFound {
        /// The label of the request.
        label: String,
    },
    /// The profile has no such variant.
    #[error("profile {label} has no variant {variant:?}; it has: {}", list(known))]
    UnknownVariant {
        /// The profile.
        label: String,
        /// The variant of the request.
        variant: String,
        /// The variants there are.
        known: Vec<String>,
    },
    /// The profile has no usable command. The text is the specification's.
    #[error("Profile command not found for {label}")]
    CommandNotFound {
        /// The label of the request.
        label: String,
    },
    /// The agent needs a prompt and got none.
    #[error("the prompt is empty, and {label} cannot start without one")]
    EmptyPrompt {
        /// The profile.
        label: String,
    },
    /// Not a session id.
    #[error("invalid session id {value:?}: {reason}")]
    InvalidSessionId {
        /// What was given.
        value: String,
        /// What is wrong with it and what would be right.
        reason: String,
    },
    /// The session belongs to another kind of agent or another project than the request.
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
    /// The session has a live execution; agents lose answers when they get two messages at once.
    #[error("session {session_id} is still running: wait for its end or stop it first")]
    SessionBusy {
        /// The session.
        session_id: SessionId,
    },
    /// The profile could not make process parameters of the request.
    #[error("profile {label} refuses the request")]
    Parameters {
        /// The profile.
        label: String,
        /// The profile's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A variable of the command or of the parameters has a name that no variable can have.
    #[error("{name:?} cannot be the name of an environment variable")]
    InvalidVariable {
        /// The name.
        name: String,
    },
    /// The program is not there.
    #[error("cannot find {binary:?}: {hint}")]
    BinaryNotFound {
        /// The program of the command, or the wrapper.
        binary: String,
        /// Where it was looked for and what helps.
        hint: String,
    },
    /// The program is there but could not be started.
    #[error("cannot start {binary:?}")]
    Spawn {
        /// The program of the command, or the wrapper.
        binary: String,
        /// What the system said.
        source: io::Error,
    },
    /// A file of the state folder or a log file could not be used.
    #[error("cannot {action} {}", path.display())]
    State {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Processes of the execution could not be ended: they belong to another user, or the kernel
    /// holds them.
    #[error("processes of session {session_id} are still alive: {pids:?}")]
    StillAlive {
        /// The session.
        session_id: SessionId,
        /// Their ids.
        pids: Vec<u32>,
    },
    /// The tokio runtime that supervised the execution is gone, so its end will not be seen.
    #[error("session {session_id} is no longer supervised: its runtime has been shut down")]
    Abandoned {
        /// The session.
        session_id: SessionId,
    },
    /// The process table could not be read.
    #[error("cannot read the process table")]
    ProcessTable {
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// Makes the error of a failed file operation.
    pub(crate) fn state(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::State {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// Whether the session has a live execution, so that the same request may work later.
    pub fn is_session_busy(&self) -> bool {
        matches!(self, Self::SessionBusy { .. })
    }
}

/// Not public: two crates whose `Result`s are both imported by a glob would hide each other's.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

fn list(names: &[String]) -> String {
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}
