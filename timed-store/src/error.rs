use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::SessionId;
use crate::shared::private_file::FileError;

/// Why an operation failed.
///
/// A failed operation has changed nothing, with three exceptions:
///
/// - If the last sync of [`Durability::Power`](crate::Durability::Power) fails, the change is in the
///   file but may not survive a power cut.
/// - A server may have executed the change although the call failed: `Error::Server` says so
///   (`may_be_done`).
/// - A change that the replicas of a server did not acknowledge is taken back, and the value that
///   the session held before may be lost: `Error::NotAcknowledged` says so (`earlier_may_be_lost`).
///
/// ```
/// use timed_store::{Error, blocking::TimedStorage};
///
/// fn greet(store: &TimedStorage<String>) -> Result<(), Error> {
///     match store.restore() {
///         Ok(operator) => println!("{}", operator.as_deref().unwrap_or("no operator")),
///         Err(error) if error.is_locked() => println!("try again: {error}"),
///         Err(error) => return Err(error),
///     }
///     Ok(())
/// }
/// # let folder = tempfile::tempdir().unwrap();
/// # greet(&TimedStorage::open(folder.path().join("operators.json"))?)?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process, thread or handle holds the lock. Try again, or set
    /// [`LockPolicy::Wait`](crate::LockPolicy::Wait).
    #[error("{} is locked by {}{}", path.display(), name_holder(*.holder), name_wait(*.waited))]
    Locked {
        /// The data file.
        path: PathBuf,
        /// The lock holder: its process id, if the operating system reports it (Linux).
        holder: Option<u32>,
        /// How long the operation waited; zero with [`LockPolicy::Fail`](crate::LockPolicy::Fail).
        waited: Duration,
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

    /// The file is not a store and shows no sign of having been one. It is left as it is.
    #[error("{} is not a store; choose another path, or remove the file", path.display())]
    NotAStore {
        /// The file.
        path: PathBuf,
    },

    /// The data file has no write permission for its owner.
    #[error("{} is read-only; run `chmod u+w` on it to allow changes", path.display())]
    ReadOnly {
        /// The data file.
        path: PathBuf,
    },

    /// The value has no JSON form.
    #[error("the value has no JSON form")]
    Encode {
        /// The serializer's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// An entry holds valid JSON that is not a value of this store's type. Another program wrote
    /// it. It stays until it expires or its session removes it.
    #[error("the entry of session `{session}` in {} has a value of another type", path.display())]
    Decode {
        /// The data file.
        path: PathBuf,
        /// The session of the entry.
        session: SessionId,
        /// The deserializer's error. It may quote the value.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// The configuration file is not in the specified form.
    #[error("{}: {position}: {reason}", path.display())]
    Config {
        /// The configuration file.
        path: PathBuf,
        /// Line and column, or the key.
        position: String,
        /// The mistake.
        reason: String,
    },

    /// An id, a name, a path or another argument is invalid.
    #[error("invalid {what} {value:?}: {reason}")]
    Invalid {
        /// The kind of value, such as `session id`.
        what: &'static str,
        /// The value.
        value: String,
        /// The rule that it breaks.
        reason: &'static str,
    },

    /// The server did not answer, or refused.
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    #[error("cannot {action} {location}{}", name_doubt(*.may_be_done))]
    Server {
        /// The operation, such as "change".
        action: &'static str,
        /// The address of the server.
        location: String,
        /// Whether the change may have been done, once: it was sent, and its answer did not arrive,
        /// or it was not acknowledged and could not be taken back. The caller can repeat the call, or
        /// read the result with [`restore`](crate::blocking::TimedStorage::restore). Otherwise
        /// nothing has changed.
        may_be_done: bool,
        /// The client's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// Too few replicas acknowledged the change in time. It was taken back: the session does not
    /// have the new value.
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    #[error(
        "{acknowledged} of {wanted} replicas of {location} acknowledged the change in time{}",
        name_loss(*.earlier_may_be_lost)
    )]
    NotAcknowledged {
        /// The address of the server.
        location: String,
        /// The number of replicas that the handle asks for.
        wanted: u32,
        /// The number of replicas that have the change.
        acknowledged: u32,
        /// Whether the value that the session held before may be lost, so that another session can
        /// hold it: another session has taken it meanwhile, or too few replicas acknowledged that
        /// the change was taken back, and one of them takes over.
        earlier_may_be_lost: bool,
    },

    /// A thread or a runtime could not be started.
    #[error("cannot start a thread")]
    Thread {
        /// The error of the operating system.
        source: io::Error,
    },

    /// There is no Tokio runtime for a guard or a server, or it shut down before the operation began.
    #[error("there is no running Tokio runtime")]
    ShuttingDown,

    /// The fencing tokens have reached the largest number that JSON tools keep exactly. Claims
    /// alone never reach it: an entry or the lock file was edited by hand.
    #[error("no fencing token is left above the tokens in {}", path.display())]
    TokensExhausted {
        /// The data file.
        path: PathBuf,
    },
}

impl Error {
    /// Whether the lock was held, so that a retry can succeed.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        matches!(self, Self::Locked { .. })
    }

    /// For `map_err`: adds the operation and the path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn hard_link(path: &Path) -> Self {
        Self::NotPrivate {
            path: path.to_owned(),
            reason: "it has a second name (a hard link); remove one of the names",
        }
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

fn name_holder(holder: Option<u32>) -> String {
    match holder {
        Some(pid) if pid == std::process::id() => format!("this process ({pid})"),
        Some(pid) => format!("process {pid}"),
        None => "another process".to_owned(),
    }
}

#[cfg(feature = "redis")]
fn name_doubt(may_be_done: bool) -> &'static str {
    if may_be_done {
        "; the change may have been done"
    } else {
        ""
    }
}

#[cfg(feature = "redis")]
fn name_loss(earlier_may_be_lost: bool) -> &'static str {
    if earlier_may_be_lost {
        "; the earlier value may be lost"
    } else {
        ""
    }
}

fn name_wait(waited: Duration) -> String {
    if waited.is_zero() {
        String::new()
    } else {
        format!(" (waited {waited:?})")
    }
}
