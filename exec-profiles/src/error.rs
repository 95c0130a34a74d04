use std::fmt;
use std::io;
use std::path::PathBuf;

/// What can go wrong; each variant is something a caller can act on.
///
/// Nothing was changed when a function returns one of these. Values of environment variables and
/// prompts are never part of a message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The label of a profile or variant cannot be used.
    #[error("invalid label {label:?}: {reason}")]
    InvalidLabel {
        /// What was given.
        label: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The session's id is not one that the agent could have given out.
    #[error("{agent_id:?} cannot be resumed: {expected}")]
    NotAnAgentId {
        /// The last part of the session id.
        agent_id: String,
        /// What the agent's ids look like.
        expected: &'static str,
    },
    /// The profile has no arguments for a follow-up.
    #[error("the profile has no `follow_up_args`, so its sessions cannot be continued")]
    NoFollowUp,
    /// The prompt cannot be an argument of a command line.
    #[error("the prompt cannot be passed as an argument: {reason}")]
    PromptAsArgument {
        /// Why not, and what to do.
        reason: &'static str,
    },
    /// A template could not be filled in at the launch.
    #[error("{field}: {reason}")]
    Expand {
        /// The field of the profile, such as `env.API_KEY`.
        field: String,
        /// What is missing.
        reason: String,
    },
    /// The [`Launcher`](crate::Launcher) does not fit the profile's command.
    #[error("the launcher does not fit: {reason}")]
    Launcher {
        /// Why not.
        reason: String,
    },
    /// A file of profiles could not be read or written.
    #[error("cannot {action} {}", path.display())]
    File {
        /// `read`, `write` or `lock`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file of profiles is neither valid TOML nor valid JSON, or has no table of profiles.
    #[error("{} is not a file of profiles: {reason}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// One profile of the user is not valid.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// There is no file to save to or to load again.
    #[error("no file of profiles was loaded: call `load_user_file` first")]
    NoUserFile,
}

/// Not public: two crates whose `Result`s are both imported by a glob would hide each other's.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// A profile of the user that was left out, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EntryError {
    /// The file; `None` for a profile that was given in code.
    pub file: Option<PathBuf>,
    /// The profile's label.
    pub entry: String,
    /// Where in the profile, and what is wrong.
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
