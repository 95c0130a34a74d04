use std::fmt;
use std::path::PathBuf;

use crate::SessionId;

/// Something about the file that was put right, and that somebody should know of.
///
/// See [`Builder::on_incident`](crate::Builder::on_incident).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Incident {
    /// The file was corrupt. A copy was kept, and work goes on with what could be saved.
    Recovered {
        /// The data file.
        path: PathBuf,
        /// The corrupt file as it was.
        copy: PathBuf,
        /// How many entries were saved.
        saved: usize,
        /// What was wrong with it.
        reason: String,
    },
    /// An entry was dropped, because nobody could have told when it ends.
    UnreadableStamp {
        /// The data file.
        path: PathBuf,
        /// Whose entry it was.
        session: SessionId,
        /// What stood in the place of the time stamp.
        stamp: String,
    },
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
                "`{}` was corrupt ({reason}); a copy is in `{}`, and {saved} entries were saved",
                path.display(),
                copy.display()
            ),
            Self::UnreadableStamp {
                path,
                session,
                stamp,
            } => write!(
                f,
                "the entry of session `{session}` in `{}` was dropped: `{stamp}` is not a time",
                path.display()
            ),
        }
    }
}
