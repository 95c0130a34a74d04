use std::io;
use std::path::PathBuf;

use crate::shared::private_file::FileError;
use crate::{AgentId, Position};

/// Why an operation failed.
///
/// Conversations have [an error of their own](crate::conversation::Error).
///
/// ```
/// use agent_snapshot::{AgentId, AgentSnapshot, Error, MemoryStorage, SnapshotStorage};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// let storage = MemoryStorage::new();
/// let mut snapshot = AgentSnapshot::new(AgentId::new("worker_007")?);
/// snapshot.tick_index = 2;
/// storage.save(&snapshot).await?;
/// snapshot.tick_index = 1;
/// let error = storage.save(&snapshot).await.unwrap_err();
/// assert!(error.is_conflict() && !error.is_fenced());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An id, an address or another argument is invalid.
    #[error("invalid {what} {value:?}: {reason}")]
    Invalid {
        /// The kind of argument.
        what: &'static str,
        /// The argument. A long id is cut, and an address has no password.
        value: String,
        /// The rule that it breaks.
        reason: String,
    },

    /// Another writer has saved this agent. Load it again, or stop.
    #[error(
        "agent {agent}: {}: tick {tick} (revision {revision}, epoch {epoch}) is refused, stored is tick {stored_tick} (revision {stored_revision}, epoch {stored_epoch})",
        conflict_text(*epoch, *stored_epoch)
    )]
    Conflict {
        /// The agent of the refused save.
        agent: AgentId,
        /// The refused tick.
        tick: u64,
        /// The refused revision within the tick.
        revision: u64,
        /// The refused epoch.
        epoch: u64,
        /// The tick in the storage.
        stored_tick: u64,
        /// The revision in the storage.
        stored_revision: u64,
        /// The epoch in the storage.
        stored_epoch: u64,
    },

    /// The storage is older than the state that this writer committed, or has a history that this
    /// writer does not know: after a failover, a restored backup, a flush, or a delete by another
    /// process. The save changed nothing. Load the stored state, or save over it with
    /// [`overwrite`](crate::SnapshotStorage::overwrite); an
    /// [`AgentState`](crate::AgentState::adopt_stored) has a call for each.
    #[error(
        "agent {agent}: the storage has {}, but this writer has {committed}",
        stored_text(.stored.as_ref())
    )]
    Rewound {
        /// The agent of the refused save.
        agent: AgentId,
        /// The last position that this writer loaded or saved; for a writer that did neither, the
        /// position of the refused save.
        committed: Position,
        /// The position in the storage; `None` if nothing is stored.
        stored: Option<Position>,
    },

    /// The storage does not have this operation.
    #[error("the storage does not support {what}")]
    Unsupported {
        /// The operation.
        what: &'static str,
    },

    /// Data is stored, but it cannot be read. It is left as it is, or kept aside by a delete; it
    /// is never overwritten.
    #[error("agent {agent}: {location} is damaged: {reason}")]
    Damaged {
        /// The agent of the data.
        agent: AgentId,
        /// The file, database or key.
        location: String,
        /// The check that failed.
        reason: String,
    },

    /// A newer version of this crate wrote the data.
    #[error("{what} has schema version {found}, but this version reads up to {supported}")]
    UnsupportedVersion {
        /// The snapshot, file or database.
        what: String,
        /// The version found.
        found: u64,
        /// The newest version that this crate reads.
        supported: u64,
    },

    /// A value cannot be written as JSON that can be read again.
    #[error("cannot encode {what}")]
    Encode {
        /// The value.
        what: String,
        /// The error of the encoder.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// A text is not the expected JSON.
    #[error("cannot decode {what}")]
    Decode {
        /// The expected value.
        what: String,
        /// The error of the decoder.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// A file operation failed.
    #[error("cannot {action} {}", .path.display())]
    Io {
        /// The operation, such as "read".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },

    /// The file or folder is refused: another user could have written it, or could change it.
    #[error("refusing {}: {reason}", .path.display())]
    NotPrivate {
        /// The file or folder.
        path: PathBuf,
        /// The rule that it breaks, and the remedy.
        reason: &'static str,
    },

    /// The database or server failed. The outcome of a save is unknown: repeat the same save.
    #[error("cannot {action} {location}")]
    Storage {
        /// The operation, such as "save to".
        action: &'static str,
        /// The database or server.
        location: String,
        /// The error of the driver.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// The storage was closed.
    #[error("the storage at {location} is closed")]
    Closed {
        /// The database.
        location: String,
    },

    /// The tokio runtime is shutting down. The outcome of a save is unknown.
    #[error("the runtime is shutting down")]
    ShuttingDown,

    /// An earlier commit failed or was cancelled, so its outcome is unknown. Call
    /// [`retry_commit`](crate::AgentState::retry_commit), or hydrate again.
    #[error("agent {agent}: the outcome of an earlier commit is unknown")]
    InDoubt {
        /// The agent of the commit.
        agent: AgentId,
    },
}

impl Error {
    pub(crate) fn invalid(what: &'static str, value: &str, reason: impl Into<String>) -> Self {
        Self::Invalid {
            what,
            value: value.to_owned(),
            reason: reason.into(),
        }
    }

    /// Whether another writer has saved the agent.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }

    /// Whether a later hydration has taken over the agent: this holder must stop.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Conflict { epoch, stored_epoch, .. } if epoch < stored_epoch)
    }

    /// Whether the storage went back in time: see [`Rewound`](Self::Rewound).
    #[must_use]
    pub fn is_rewound(&self) -> bool {
        matches!(self, Self::Rewound { .. })
    }

    /// Whether the storage does not have the operation.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Unsupported { .. })
    }

    /// Whether stored data cannot be read.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::UnsupportedVersion { .. })
    }

    /// Whether the backend failed ([`Io`](Self::Io) or [`Storage`](Self::Storage)). The outcome of
    /// a save is then unknown: repeat the same save.
    #[must_use]
    pub fn is_backend_failure(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Storage { .. })
    }
}

fn conflict_text(epoch: u64, stored: u64) -> &'static str {
    if epoch < stored {
        "another holder has taken over"
    } else {
        "another writer has saved this or a later tick"
    }
}

fn stored_text(stored: Option<&Position>) -> String {
    stored.map_or_else(|| "nothing".to_owned(), ToString::to_string)
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
