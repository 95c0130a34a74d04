//! A program with its arguments and variables, and the wrapper in front of it.

use std::collections::BTreeMap;
use std::fmt;

/// A program with its arguments, as a profile defines it.
///
/// ```
/// use exec_core::CommandConfig;
///
/// let mut command = CommandConfig::new("npx", ["-y", "@openai/codex@latest", "exec"]);
/// command.env.insert("NO_COLOR".to_owned(), "1".to_owned());
/// assert_eq!(command.args.len(), 3);
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct CommandConfig {
    /// The program: a name that is looked up on `PATH`, or a path (relative to the workspace).
    pub binary: String,
    /// The arguments.
    pub args: Vec<String>,
    /// Variables to add to the child's environment. They may replace inherited ones, but not those
    /// that the service sets (`NORMALIZED_EXECUTION_*`, `PWD`).
    pub env: BTreeMap<String, String>,
}

impl CommandConfig {
    /// A command without variables.
    #[must_use]
    pub fn new<A: Into<String>>(
        binary: impl Into<String>,
        args: impl IntoIterator<Item = A>,
    ) -> Self {
        Self {
            binary: binary.into(),
            args: args.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
        }
    }
}

/// Shows the names of the variables, not their values.
impl fmt::Debug for CommandConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandConfig")
            .field("binary", &self.binary)
            .field("args", &self.args)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .finish()
    }
}

/// A command that runs the agent's command, such as `systemd-run --scope …` or `nice`.
///
/// The agent's program and arguments are appended to the arguments of the wrapper. The wrapper
/// then has to find the agent's program, which may exist only inside a sandbox.
///
/// ```
/// use exec_core::Wrapper;
///
/// let wrapper = Wrapper {
///     binary: "nice".to_owned(),
///     args: vec!["-n".to_owned(), "10".to_owned()],
/// };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrapper {
    /// The wrapping program.
    pub binary: String,
    /// Its own arguments.
    pub args: Vec<String>,
}
