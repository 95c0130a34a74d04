//! The cluster's configuration file.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};

use crate::{
    error::{Error, Result},
    launch::{Launch, shell_quote},
    marker::Marker,
    server::check_session_name,
};

/// What an agent is for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProcessRole {
    /// Speaks with the user and answers for everything.
    GrandBoss,
    /// Takes tasks apart and looks after their progress.
    MiddleManager,
    /// Writes code and documents.
    SpecialistCodingWriting,
    /// Investigates and analyses.
    SpecialistResearchAnalysis,
    /// Tests.
    SpecialistTesting,
    /// A role of one's own.
    Other(String),
}

impl ProcessRole {
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

impl fmt::Display for ProcessRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<&str> for ProcessRole {
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

/// One agent of a cluster.
#[derive(Clone)]
#[non_exhaustive]
pub struct ProcessConfig {
    /// Its name, by which others address it.
    pub name: String,
    /// What it is for.
    pub role: ProcessRole,
    /// The file with its personality.
    pub personality_prompt_path: PathBuf,
    /// What its answers contain.
    pub marker: String,
    /// Its place in the layout. Panes are addressed by their ids only.
    pub pane_index: u32,
    /// The shell command line that starts it, if not Claude Code.
    pub command: Option<String>,
    /// How long it may take to get ready, and to answer.
    pub timeout: Duration,
    /// Its additional environment.
    pub env: BTreeMap<String, String>,
}

impl fmt::Debug for ProcessConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessConfig")
            .field("name", &self.name)
            .field("role", &self.role)
            .field("personality_prompt_path", &self.personality_prompt_path)
            .field("marker", &self.marker)
            .field("pane_index", &self.pane_index)
            .field("timeout", &self.timeout)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl ProcessConfig {
    /// How the agent is started.
    pub(crate) fn launch(&self, work_dir: &Path) -> Launch {
        let command = self.command.clone().unwrap_or_else(|| {
            let prompt = shell_quote(&self.personality_prompt_path.to_string_lossy());
            // Claude Code refuses to run inside itself, which its own variable tells it.
            format!("unset CLAUDECODE; exec claude --append-system-prompt \"$(cat {prompt})\"")
        });
        let launch = Launch::new(command).work_dir(work_dir);
        self.env
            .iter()
            .fold(launch, |launch, (name, value)| launch.env(name, value))
    }
}

/// A cluster as its file describes it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClusterConfig {
    /// The file itself.
    pub path: PathBuf,
    /// The folder that relative paths start from: the file's, or that one's parent if the file
    /// stands in a folder called `config`.
    pub base_dir: PathBuf,
    /// The cluster's name.
    pub name: String,
    /// The name of its tmux session.
    pub session_name: String,
    /// The folder in which its agents work.
    pub work_dir: PathBuf,
    /// Its agents, in the order of the layout.
    pub agents: Vec<ProcessConfig>,
    /// What is odd but not wrong. Each is a `tracing` warning too.
    pub warnings: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cluster: ClusterSection,
    agents: Spanned<Vec<AgentSection>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterSection {
    name: String,
    session_name: Spanned<String>,
    work_dir: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentSection {
    name: Spanned<String>,
    role: String,
    personality_prompt_path: Spanned<PathBuf>,
    marker: Spanned<String>,
    pane_index: Spanned<u32>,
    #[serde(default)]
    command: Option<String>,
    #[serde(default)]
    timeout_s: Option<Spanned<f64>>,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

impl ClusterConfig {
    /// Reads and checks a configuration file.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when it cannot be read; [`Error::Config`] with the place when a key is
    /// missing or unknown, a name, marker or `pane_index` occurs twice, or a prompt file is missing.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let given = path.as_ref();
        let path = given
            .canonicalize()
            .map_err(|source| Error::file("read", given, source))?;
        let text =
            fs::read_to_string(&path).map_err(|source| Error::file("read", &path, source))?;
        Reader { path }.read(&text)
    }
}

struct Reader {
    path: PathBuf,
}

impl Reader {
    fn read(&self, text: &str) -> Result<ClusterConfig> {
        let file: File = serde_saphyr::from_str(text).map_err(|error| {
            let error = error.without_snippet();
            Error::Config {
                path: self.path.clone(),
                place: error.location().map_or_else(|| "file".to_owned(), place),
                reason: error.to_string(),
            }
        })?;
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        let base_dir = match folder.parent() {
            Some(parent) if folder.ends_with("config") => parent,
            _ => folder,
        };
        let mut warnings = Vec::new();
        let session = &file.cluster.session_name;
        check_session_name(&session.value)
            .map_err(|error| self.wrong(session.defined, error.to_string()))?;
        let work_dir = self.work_dir(&file.cluster.work_dir, base_dir, &mut warnings)?;
        if file.agents.value.is_empty() {
            return Err(self.wrong(file.agents.defined, "there are no agents".into()));
        }
        self.check_unique(&file.agents.value)?;
        let mut agents = Vec::new();
        for agent in file.agents.value {
            agents.push(self.agent(agent, base_dir, &mut warnings)?);
        }
        agents.sort_by_key(|agent| agent.pane_index);
        for warning in &warnings {
            tracing::warn!(path = %self.path.display(), "{warning}");
        }
        Ok(ClusterConfig {
            path: self.path.clone(),
            base_dir: base_dir.to_owned(),
            name: file.cluster.name,
            session_name: file.cluster.session_name.value,
            work_dir,
            agents,
            warnings,
        })
    }

    fn work_dir(
        &self,
        given: &Spanned<String>,
        base: &Path,
        warnings: &mut Vec<String>,
    ) -> Result<PathBuf> {
        let mut text = given.value.as_str();
        if text == ".>" {
            warnings.push("work_dir: `.>` is read as `.`".to_owned());
            text = ".";
        }
        let dir = base.join(text);
        let dir = dir.canonicalize().map_err(|error| {
            self.wrong(
                given.defined,
                format!("work_dir {}: {error}", dir.display()),
            )
        })?;
        if !dir.is_dir() {
            return Err(self.wrong(
                given.defined,
                format!("work_dir {} is not a folder", dir.display()),
            ));
        }
        Ok(dir)
    }

    fn check_unique(&self, agents: &[AgentSection]) -> Result<()> {
        for (i, agent) in agents.iter().enumerate() {
            for other in &agents[..i] {
                let twice = |what: &str, value: &str| format!("{what} `{value}` is given twice");
                if agent.name.value == other.name.value {
                    return Err(self.wrong(agent.name.defined, twice("name", &agent.name.value)));
                }
                if agent.marker.value == other.marker.value {
                    return Err(
                        self.wrong(agent.marker.defined, twice("marker", &agent.marker.value))
                    );
                }
                if agent.pane_index.value == other.pane_index.value {
                    return Err(self.wrong(
                        agent.pane_index.defined,
                        twice("pane_index", &agent.pane_index.value.to_string()),
                    ));
                }
            }
        }
        Ok(())
    }

    fn agent(
        &self,
        agent: AgentSection,
        base: &Path,
        warnings: &mut Vec<String>,
    ) -> Result<ProcessConfig> {
        let name = agent.name.value;
        if name.is_empty() || name.contains(char::is_control) || name.contains(char::is_whitespace)
        {
            return Err(self.wrong(
                agent.name.defined,
                format!("name `{name}`: it must have characters other than spaces only"),
            ));
        }
        Marker::new(&agent.marker.value)
            .map_err(|error| self.wrong(agent.marker.defined, error.to_string()))?;
        let path = base.join(&agent.personality_prompt_path.value);
        let prompt = fs::read_to_string(&path).map_err(|error| {
            let reason = format!(
                "the prompt file {} of agent `{name}`: {error}",
                path.display()
            );
            self.wrong(agent.personality_prompt_path.defined, reason)
        })?;
        if !prompt.contains(&agent.marker.value) {
            warnings.push(format!(
                "the prompt file {} of agent `{name}` does not mention its marker `{}`",
                path.display(),
                agent.marker.value
            ));
        }
        let timeout = match agent.timeout_s {
            None => crate::pane_io::DEFAULT_TIMEOUT,
            Some(seconds) => Duration::try_from_secs_f64(seconds.value)
                .ok()
                .filter(|timeout| !timeout.is_zero())
                .ok_or_else(|| {
                    self.wrong(
                        seconds.defined,
                        format!("timeout_s `{}` is not a time", seconds.value),
                    )
                })?,
        };
        if let Some(key) = agent
            .env
            .keys()
            .find(|key| key.is_empty() || key.contains(['=', '\0']))
        {
            return Err(self.wrong(
                agent.name.defined,
                format!("env of agent `{name}`: `{key}` is not a variable's name"),
            ));
        }
        Ok(ProcessConfig {
            name,
            role: ProcessRole::from(agent.role.as_str()),
            personality_prompt_path: path,
            marker: agent.marker.value,
            pane_index: agent.pane_index.value,
            command: agent.command,
            timeout,
            env: agent.env,
        })
    }

    fn wrong(&self, at: Location, reason: String) -> Error {
        Error::Config {
            path: self.path.clone(),
            place: place(at),
            reason,
        }
    }
}

fn place(at: Location) -> String {
    format!("line {}, column {}", at.line(), at.column())
}
