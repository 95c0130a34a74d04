use std::fmt;
use std::path::{Path, PathBuf};

use crate::SessionId;

/// Damage that an operation found, and that may have cost entries.
///
/// Incidents go to `tracing` as errors, to the result of the operation
/// ([`Entries::incidents`](crate::Entries::incidents), [`Lease::incidents`](crate::Lease::incidents))
/// and to the handler of
/// [`TimedStorageBuilder::on_incident`](crate::TimedStorageBuilder::on_incident). After an operation
/// with another result, [`take_incidents`](crate::blocking::TimedStorage::take_incidents) has them.
///
/// ```
/// use timed_store::{Incident, blocking::TimedStorage};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("operators.json");
/// let store = TimedStorage::<String>::builder(path)
///     .on_incident(|incident| match incident {
///         Incident::Recovered { copy, .. } => eprintln!("see {}", copy.display()),
///         other => eprintln!("{other}"),
///     })
///     .open()?;
/// # store.restore()?;
/// # Ok::<(), timed_store::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Incident {
    /// The file was corrupt. A copy was kept, and the store continues with the whole entries.
    Recovered {
        /// The data file.
        path: PathBuf,
        /// The copy of the corrupt file.
        copy: PathBuf,
        /// How many entries were recovered.
        saved: usize,
        /// The damage.
        reason: String,
    },
    /// The file is corrupt, and the operation did not repair it: a reader could not, or it is the
    /// other file of the store (slots, or no slot). The operation continues with the whole entries.
    Damaged {
        /// The file.
        path: PathBuf,
        /// How many entries are whole.
        saved: usize,
        /// The damage.
        reason: String,
    },
    /// An entry does not count because its timestamp cannot be parsed: it would never expire. The next
    /// change of its file removes it.
    UnreadableTimestamp {
        /// The data file.
        path: PathBuf,
        /// The session of the entry.
        session: SessionId,
        /// The text in place of the timestamp.
        timestamp: String,
    },
}

impl Incident {
    /// The damaged file.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Recovered { path, .. }
            | Self::Damaged { path, .. }
            | Self::UnreadableTimestamp { path, .. } => path,
        }
    }
}

impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recovered {
                path,
                copy,
                saved,
                reason,
            } => write!(
                f,
                "{} was corrupt ({reason}); {saved} entries were recovered, and a copy is in {}",
                path.display(),
                copy.display()
            ),
            Self::Damaged {
                path,
                saved,
                reason,
            } => write!(
                f,
                "{} is corrupt ({reason}); {saved} entries can be read",
                path.display()
            ),
            Self::UnreadableTimestamp {
                path,
                session,
                timestamp,
            } => write!(
                f,
                "the entry of session `{session}` in {} does not count: `{timestamp}` is not a time",
                path.display()
            ),
        }
    }
}
