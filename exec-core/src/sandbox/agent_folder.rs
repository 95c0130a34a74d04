use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A folder that an agent itself needs, such as `~/.claude`: for its settings, its login and its
/// sessions. In a [`Sandbox`](crate::Sandbox) the agent may change it. It is created with mode 0700
/// if it does not exist.
///
/// ```
/// use exec_core::{AgentFolder, Sandbox};
///
/// let folder = AgentFolder::new("~/.codex").or_variable("CODEX_HOME");
/// let sandbox = Sandbox::new().agent_folder(folder);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentFolder {
    path: PathBuf,
    variable: Option<String>,
    below: PathBuf,
}

impl AgentFolder {
    /// A folder with this path, which is absolute or begins with `~`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            variable: None,
            below: PathBuf::new(),
        }
    }

    /// If the agent's environment has this variable, its value is the folder.
    #[must_use]
    pub fn or_variable(self, name: impl Into<String>) -> Self {
        self.or_below(name, "")
    }

    /// If the agent's environment has this variable, the folder is `below` its value.
    #[must_use]
    pub fn or_below(mut self, name: impl Into<String>, below: impl Into<PathBuf>) -> Self {
        self.variable = Some(name.into());
        self.below = below.into();
        self
    }

    pub(super) fn path<'a>(&self, variable: impl Fn(&str) -> Option<&'a OsStr>) -> PathBuf {
        let named = self.variable.as_deref().and_then(variable);
        match named.filter(|value| !value.is_empty()) {
            // `join("")` would add a slash.
            Some(value) if self.below.as_os_str().is_empty() => PathBuf::from(value),
            Some(value) => Path::new(value).join(&self.below),
            None => self.path.clone(),
        }
    }
}
