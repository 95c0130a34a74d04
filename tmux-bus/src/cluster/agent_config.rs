//! The configuration of one agent.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Error;
use crate::definition::agent_definition::AgentDefinition;
use crate::timing::ANSWER_TIMEOUT;
use crate::tmux::launch::{Launch, shell_quote};
use crate::tmux::session_folder::fnv1a;

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
/// ```
/// use std::time::Duration;
/// use tmux_bus::AgentConfig;
///
/// let coder = AgentConfig::new("coder")
///     .agent("claude")
///     .personality_text("You write code. Every answer contains CODER OK.")
///     .timeout(Duration::from_secs(120));
/// assert_eq!(coder.marker, "CODER OK");
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
    /// The personality itself, in place of the file.
    pub personality_text: Option<String>,
    /// The marker in every answer, unique in the cluster.
    pub marker: String,
    /// Position in the layout. Panes are addressed by their ids only.
    pub pane_index: u32,
    /// The agent program by name, such as `codex`: what is known about its screen and its hooks.
    /// `None`: by the command; `plain` for a command that no definition names.
    pub agent: Option<String>,
    /// The command line for `sh`. `None`: the program of [`agent`](Self::agent); without that, Claude
    /// Code. Only Claude Code then gets the personality, appended to its system prompt; other commands find it in the
    /// file that the variable `TMUX_BUS_PERSONALITY` names.
    pub command: Option<String>,
    /// Time limit for becoming ready and for an answer.
    pub timeout: Duration,
    /// Additional environment variables.
    pub env: BTreeMap<String, String>,
    /// The agents that this one may send messages to. `None`: all of them. A refusal is logged.
    pub may_message: Option<Vec<String>>,
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
            .field("may_message", &self.may_message)
            .finish_non_exhaustive()
    }
}

impl AgentConfig {
    /// An agent for [`ClusterConfig::builder`](crate::ClusterConfig::builder): Claude Code without a personality, with
    /// the time limit of the specification, 30 s. Its role is its name, its marker the name in capital letters and
    /// `OK`: `MIDDLE MANAGER OK` for `middle_manager`.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        let capitals = name.to_uppercase();
        let words = capitals.split(|c: char| !c.is_alphanumeric());
        let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
        Self {
            role: AgentRole::from(name.as_str()),
            marker: format!("{} OK", words.join(" ")).trim().to_owned(),
            name,
            personality_prompt_path: PathBuf::new(),
            personality_text: Some(String::new()),
            pane_index: 0,
            agent: None,
            command: None,
            timeout: ANSWER_TIMEOUT,
            env: BTreeMap::new(),
            may_message: None,
        }
    }

    /// Sets the role.
    #[must_use]
    pub fn role(mut self, role: AgentRole) -> Self {
        self.role = role;
        self
    }

    /// Sets the personality, which a file in the private folder of the cluster holds for the program.
    #[must_use]
    pub fn personality_text(mut self, text: impl Into<String>) -> Self {
        self.personality_text = Some(text.into());
        self
    }

    /// Sets the file with the personality.
    #[must_use]
    pub fn personality_prompt_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.personality_prompt_path = path.into();
        self.personality_text = None;
        self
    }

    /// Sets the marker in every answer.
    #[must_use]
    pub fn marker(mut self, marker: impl Into<String>) -> Self {
        self.marker = marker.into();
        self
    }

    /// Sets the agent program by name, such as `codex`.
    #[must_use]
    pub fn agent(mut self, program: impl Into<String>) -> Self {
        self.agent = Some(program.into());
        self
    }

    /// Sets the command line for `sh`.
    #[must_use]
    pub fn command(mut self, command: impl Into<String>) -> Self {
        self.command = Some(command.into());
        self
    }

    /// Sets the time limit for becoming ready and for an answer.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Sets the agents that this one may send messages to; the default is all of them.
    #[must_use]
    pub fn may_message<T: Into<String>>(mut self, agents: impl IntoIterator<Item = T>) -> Self {
        self.may_message = Some(agents.into_iter().map(Into::into).collect());
        self
    }

    /// Whether the configuration allows messages to this agent.
    pub(crate) fn allows(&self, to: &str) -> bool {
        let receivers = self.may_message.as_ref();
        receivers.is_none_or(|receivers| receivers.iter().any(|receiver| receiver == to))
    }

    /// A digest of all that decides how the program is started, for the comparison with a later configuration.
    pub(super) fn digest(
        &self,
        work_dir: &Path,
        definition: &AgentDefinition,
    ) -> Result<String, Error> {
        let path = &self.personality_prompt_path;
        let personality = match &self.personality_text {
            Some(text) => text.clone().into_bytes(),
            None => fs::read(path).map_err(Error::io("read", path))?,
        };
        let command = self.command.as_ref().or(definition.command.as_ref());
        let env = self.env.iter().flat_map(|(name, value)| [name, value]);
        let mut parts = vec![
            definition.name.as_bytes(),
            command.map_or(b"".as_slice(), |command| command.as_bytes()),
            work_dir.as_os_str().as_encoded_bytes(),
            &personality,
        ];
        parts.extend(env.map(String::as_bytes));
        let mut bytes = Vec::new();
        for part in parts {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part);
        }
        Ok(format!("{:016x}", fnv1a(&bytes)))
    }

    /// How the program is started; `personality` is the file with its personality.
    pub(super) fn launch(
        &self,
        work_dir: &Path,
        definition: &AgentDefinition,
        personality: &Path,
    ) -> Launch {
        let command = match (&self.command, &definition.command) {
            (Some(command), _) => command.clone(),
            (None, Some(command)) => {
                let personality = shell_quote(&personality.to_string_lossy());
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
