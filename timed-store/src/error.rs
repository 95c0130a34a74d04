use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::SessionId;

/// Why an operation failed. A failed operation has changed nothing, with one exception: if the
/// disk fails at the very last sync of [`Durability::Power`](crate::Durability::Power), the change
/// is in the file but may not survive a power cut.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process, thread or handle is at work on the file. Try again, or set
    /// [`LockPolicy::Wait`](crate::LockPolicy::Wait).
    #[error("`{}` is locked by {}{}", path.display(), name_holder(*.holder), name_wait(*.waited))]
    Locked {
        /// The data file.
        path: PathBuf,
        /// The process that holds the lock, where the system tells (Linux).
        holder: Option<u32>,
        /// How long the operation waited; zero without [`LockPolicy::Wait`](crate::LockPolicy::Wait).
        waited: Duration,
    },

    /// The operating system said no: permissions, a full disk, a broken one.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder that it was tried on.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },

    /// The file is not one to trust: somebody else could read or change what it says.
    #[error("`{}` is refused: {reason}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: &'static str,
    },

    /// The value cannot be written as JSON.
    #[error("the value cannot be written as JSON")]
    Encode {
        /// What serde said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// An entry holds valid JSON that is not a value of this store's type: it was written by
    /// a program with another idea of it. It stays until it expires or its session removes it.
    #[error("the entry of session `{session}` in `{}` has a value of another type", path.display())]
    Decode {
        /// The data file.
        path: PathBuf,
        /// Whose entry it is.
        session: SessionId,
        /// What serde said. It may quote the value.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// The configuration file is not what was specified.
    #[error("configuration `{}`: {reason}", path.display())]
    Config {
        /// The configuration file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// An argument that cannot work.
    #[error("{what} `{value}` {reason}")]
    Invalid {
        /// What the argument is.
        what: &'static str,
        /// The argument.
        value: String,
        /// Why it cannot work.
        reason: &'static str,
    },

    /// The Tokio runtime is being shut down, and took the operation with it before it began.
    #[error("the runtime is shutting down")]
    ShuttingDown,

    /// The fencing tokens have reached the largest number that JSON tools keep exactly. No
    /// program gets there by claiming: an entry or the side file was edited by hand.
    #[error("no fencing token is left above those in `{}`", path.display())]
    TokensExhausted {
        /// The data file.
        path: PathBuf,
    },
}

impl Error {
    /// Whether the cause is that somebody else holds the lock, so that trying again helps.
    pub fn is_locked(&self) -> bool {
        matches!(self, Self::Locked { .. })
    }

    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}

fn name_holder(holder: Option<u32>) -> String {
    match holder {
        Some(pid) if pid == std::process::id() => format!("this process ({pid})"),
        Some(pid) => format!("process {pid}"),
        None => "another process".to_owned(),
    }
}

fn name_wait(waited: Duration) -> String {
    if waited.is_zero() {
        String::new()
    } else {
        format!(" (waited {waited:?})")
    }
}
