//! The configuration of one agent.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::definition::agent_definition::AgentDefinition;
use crate::tmux::launch::{Launch, shell_quote};

/// The role of an agent.
///
/// ```
/// use tmux_bus::AgentRole;
///
/// assert_eq!(AgentRole::from("grand_boss"), AgentRole::GrandBoss);
/// assert_eq!(AgentRole::from("librarian").as_str(), "librarian");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AgentRole {
    /// Speaks with the user and is responsible for the result.
    GrandBoss,
    /// Divides tasks and follows their progress.
    MiddleManager,
    /// Writes code and documents.
    SpecialistCodingWriting,
    /// Investigates and analyses.
    SpecialistResearchAnalysis,
    /// Tests.
    SpecialistTesting,
    /// A role that the specification does not name.
    Other(String),
}

impl AgentRole {
    /// The name in the configuration.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::GrandBoss => "grand_boss",
            Self::MiddleManager => "middle_manager",
            Self::SpecialistCodingWriting => "specialist_coding_writing",
            Self::SpecialistResearchAnalysis => "specialist_research_analysis",
            Self::SpecialistTesting => "specialist_testing",
            Self::Other(name) => name,
        }
    }
}

impl fmt::Display for AgentRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<&str> for AgentRole {
    fn from(name: &str) -> Self {
        match name {
            "grand_boss" => Self::GrandBoss,
            "middle_manager" => Self::MiddleManager,
            "specialist_coding_writing" => Self::SpecialistCodingWriting,
            "specialist_research_analysis" => Self::SpecialistResearchAnalysis,
            "specialist_testing" => Self::SpecialistTesting,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// One agent of a [`ClusterConfig`](crate::ClusterConfig). Its `Debug` shows neither the command nor
/// values of the environment.
///
/// ```no_run
/// use std::time::Duration;
/// use tmux_bus::ClusterConfig;
///
/// let mut config = ClusterConfig::load("config/cc-cluster.yaml")?;
/// for agent in &mut config.agents {
///     agent.command = Some("my-agent --quiet".to_owned());
///     agent.timeout = Duration::from_secs(120);
/// }
/// # Ok::<(), tmux_bus::Error>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct AgentConfig {
    /// The name, by which others address it.
    pub name: String,
    /// The role.
    pub role: AgentRole,
    /// The file with the personality.
    pub personality_prompt_path: PathBuf,
    /// The marker in every answer.
    pub marker: String,
    /// Position in the layout. Panes are addressed by their ids only.
    pub pane_index: u32,
    /// The agent program by name, such as `codex`: what is known about its screen and its hooks.
    /// `None`: by the command; `plain` for a command that no definition names.
    pub agent: Option<String>,
    /// The command line for `sh`. `None`: the program of [`agent`](Self::agent); without that, Claude
    /// Code. Only Claude Code then gets the personality, appended to its system prompt.
    pub command: Option<String>,
    /// Time limit for becoming ready and for an answer.
    pub timeout: Duration,
    /// Additional environment variables.
    pub env: BTreeMap<String, String>,
}

impl fmt::Debug for AgentConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentConfig")
            .field("name", &self.name)
            .field("role", &self.role)
            .field("personality_prompt_path", &self.personality_prompt_path)
            .field("marker", &self.marker)
            .field("pane_index", &self.pane_index)
            .field("agent", &self.agent)
            .field("timeout", &self.timeout)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl AgentConfig {
    pub(super) fn launch(&self, work_dir: &Path, definition: &AgentDefinition) -> Launch {
        let command = match (&self.command, &definition.command) {
            (Some(command), _) => command.clone(),
            (None, Some(command)) => {
                let personality = shell_quote(&self.personality_prompt_path.to_string_lossy());
                command.replace("{personality}", &personality)
            }
            (None, None) => definition.commands.first().cloned().unwrap_or_default(),
        };
        let launch = Launch::new(command).work_dir(work_dir);
        self.env
            .iter()
            .fold(launch, |launch, (name, value)| launch.env(name, value))
    }
}
