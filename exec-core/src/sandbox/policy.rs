use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::AgentFolder;

/// The files that an agent may change, read and not see. Enforced by bubblewrap.
///
/// A path is absolute, or begins with `~` (the agent's home folder) or `{workspace}`. Links are
/// followed at the launch, and the rule applies to the real path. Of two paths, one inside the
/// other, the deeper one decides: a folder to `hide` can be inside one to `write`, and the other
/// way round.
///
/// | | rule |
/// |---|---|
/// | `write` | must exist; not `/`, not the home folder or a folder around it, not below `/proc`, `/dev` or `/sys` |
/// | `read` | must exist; the default is everything. A list hides all other files, except for the workspace and the system's programs and libraries (`/usr`, `/bin`, `/sbin`, `/lib*`) |
/// | `hide` | a folder is empty, a file cannot be opened. A path that does not exist is created in a folder that the agent may change, so that it can be covered: as an empty file, or as a folder if it ends in `/`. Elsewhere it is left out |
/// | the same path twice | refused if one of the two is `hide`; `write` wins over `read` |
/// | a link inside a folder to `write` | refused if a path of `write` or `read` leads out of that folder by it |
/// | `/tmp`, `/var/tmp` | private and empty, unless named; `TMPDIR` is `/tmp` if it cannot be written |
/// | `/proc`, `/dev` | private, with the processes of the sandbox and the harmless devices. If the host is root, `/proc` is read-only, and the agent cannot use a sandbox of its own |
///
/// A path that breaks its rule refuses the launch with [`Error::Sandbox`](crate::Error::Sandbox).
/// The agent's processes are in a pid namespace: they end with the agent. They have no
/// capabilities, also as root. The network is not restricted, and neither are sockets that the
/// agent can see.
///
/// [`Execution::sandbox`](crate::Execution::sandbox) returns what is enforced: the same type, with
/// real paths and the agent's own folders.
///
/// ```
/// use exec_core::{ProcessParameters, Sandbox};
///
/// let mut parameters = ProcessParameters::new(["exec", "--json"]);
/// let sandbox = Sandbox::new().write("~/.cargo/registry").hide("~/.ssh").hide("{workspace}/.env");
/// parameters.sandbox = Some(sandbox);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Sandbox {
    /// The files and folders that the agent may change; by default the workspace.
    pub write: Vec<PathBuf>,
    /// The files and folders that the agent may read.
    pub read: ReadAccess,
    /// The files and folders that the agent does not see.
    pub hide: Vec<PathBuf>,
    /// The folders that the agent itself needs; may be changed.
    #[serde(skip)]
    pub agent_folders: Vec<AgentFolder>,
}

/// The files that an agent in a [`Sandbox`] may read; in files `"all"` or a list of paths.
///
/// ```
/// use exec_core::{ReadAccess, Sandbox};
///
/// let sandbox = Sandbox::new().read_only(["/etc", "~/.gitconfig"]);
/// assert_eq!(sandbox.read, ReadAccess::Only(vec!["/etc".into(), "~/.gitconfig".into()]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ReadForm", into = "ReadForm")]
pub enum ReadAccess {
    /// All files that the user may read.
    #[default]
    All,
    /// These, and the files that the agent may change.
    Only(Vec<PathBuf>),
}

impl Sandbox {
    /// The workspace can be changed, everything can be read.
    #[must_use]
    pub fn new() -> Self {
        Self {
            write: vec!["{workspace}".into()],
            read: ReadAccess::All,
            hide: Vec::new(),
            agent_folders: Vec::new(),
        }
    }

    /// Only the agent's own folders can be changed, everything can be read.
    #[must_use]
    pub fn read_only_workspace() -> Self {
        Self {
            write: Vec::new(),
            ..Self::new()
        }
    }

    /// Adds a file or folder that the agent may change.
    #[must_use]
    pub fn write(mut self, path: impl Into<PathBuf>) -> Self {
        self.write.push(path.into());
        self
    }

    /// Adds a file or folder that the agent does not see.
    #[must_use]
    pub fn hide(mut self, path: impl Into<PathBuf>) -> Self {
        self.hide.push(path.into());
        self
    }

    /// Sets the files and folders that the agent may read, in place of all.
    #[must_use]
    pub fn read_only<P: Into<PathBuf>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        self.read = ReadAccess::Only(paths.into_iter().map(Into::into).collect());
        self
    }

    /// Adds a folder that the agent itself needs.
    #[must_use]
    pub fn agent_folder(mut self, folder: AgentFolder) -> Self {
        self.agent_folders.push(folder);
        self
    }

    /// Whether it can be written as JSON: all paths are UTF-8.
    pub(crate) fn is_utf8(&self) -> bool {
        let read: &[PathBuf] = match &self.read {
            ReadAccess::All => &[],
            ReadAccess::Only(paths) => paths,
        };
        let mut paths = self.write.iter().chain(read).chain(&self.hide);
        paths.all(|path| path.to_str().is_some())
    }
}

impl Default for Sandbox {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum ReadForm {
    Word(String),
    Paths(Vec<PathBuf>),
}

impl TryFrom<ReadForm> for ReadAccess {
    type Error = &'static str;

    fn try_from(form: ReadForm) -> Result<Self, Self::Error> {
        match form {
            ReadForm::Word(word) if word == "all" => Ok(Self::All),
            ReadForm::Word(_) => Err("`read` is \"all\" or a list of paths"),
            ReadForm::Paths(paths) => Ok(Self::Only(paths)),
        }
    }
}

impl From<ReadAccess> for ReadForm {
    fn from(read: ReadAccess) -> Self {
        match read {
            ReadAccess::All => Self::Word("all".to_owned()),
            ReadAccess::Only(paths) => Self::Paths(paths),
        }
    }
}
