//! The error of the crate, and the report of an invalid entry of the user file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::shared::private_file::FileError;

/// Why an operation failed.
///
/// A failed call leaves the registry unchanged. Messages never contain a prompt or the value of an
/// environment variable, except that the name of a binary is shown as it was expanded
/// (`binary = "${AGENT}"`).
///
/// ```
/// use exec_profiles::{Error, ProfileRegistry, UserProfile};
///
/// let registry = ProfileRegistry::new();
/// let error = registry.save_user_profile("codex", &UserProfile::default()).unwrap_err();
/// assert!(matches!(error, Error::NoUserFile));
/// assert_eq!(error.to_string(), "no user file is loaded: call `load_user_file` first");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The label of a profile or variant is invalid, or the native id of a session has a form that
    /// the agent never uses.
    #[error("invalid {what} {value:?}: {reason}")]
    Invalid {
        /// The kind of value: `label`, `variant`, `session id` or `failure rule`.
        what: &'static str,
        /// The value.
        value: String,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// The profile has no arguments for a follow-up.
    #[error("the profile has no `follow_up_args`: its sessions cannot be resumed")]
    NoFollowUp,
    /// The profile is for live sessions: it has no arguments for a single prompt.
    #[error("the profile has no `args`: it is for live sessions only")]
    LiveOnly,
    /// The prompt cannot be passed as a command-line argument.
    #[error("the prompt cannot be an argument: {reason}")]
    PromptAsArgument {
        /// The cause and a remedy.
        reason: &'static str,
    },
    /// A template of the profile could not be expanded at launch.
    #[error("{field}: {reason}")]
    Expand {
        /// The field of the profile, such as `env.API_KEY`.
        field: String,
        /// The missing or invalid part.
        reason: String,
    },
    /// The [`Launcher`](crate::Launcher) cannot start the profile's command.
    #[error("the launcher does not fit the command: {reason}")]
    Launcher {
        /// The mismatch.
        reason: String,
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
    /// The user file is neither valid TOML nor valid JSON, or it has no table of profiles.
    #[error("{}: {position}: {reason}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Line and column, or the key.
        position: String,
        /// The mistake.
        reason: String,
    },
    /// An entry of the user file is invalid.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// No user file is loaded, so there is nothing to save to or to reload.
    #[error("no user file is loaded: call `load_user_file` first")]
    NoUserFile,
}

impl Error {
    /// Converts the error of a file operation, for `map_err`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            action,
            path: path.to_owned(),
            source,
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

/// An invalid entry of the user file, with the reason.
///
/// ```
/// use exec_profiles::{Error, ProfileRegistry, UserProfile};
///
/// let folder = tempfile::tempdir()?;
/// let registry = ProfileRegistry::new();
/// registry.load_user_file(folder.path().join("profiles.toml"))?;
/// let mut profile = UserProfile::default();
/// profile.base = Some("claude".into());
/// let Err(Error::Entry(error)) = registry.save_user_profile("mine", &profile) else {
///     panic!("`claude` is not a label");
/// };
/// assert_eq!(error.entry, "mine");
/// assert!(error.reason.contains("claude-code"), "the reason lists the known labels: {error}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EntryError {
    /// The file; `None` for a profile that was passed to
    /// [`save_user_profile`](crate::ProfileRegistry::save_user_profile).
    pub file: Option<PathBuf>,
    /// The label of the profile.
    pub entry: String,
    /// The field and the mistake.
    pub reason: String,
}

impl fmt::Display for EntryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}: ", file.display())?;
        }
        write!(f, "profile {:?}: {}", self.entry, self.reason)
    }
}

impl std::error::Error for EntryError {}
