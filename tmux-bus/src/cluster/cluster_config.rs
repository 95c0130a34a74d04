use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};

use super::agent_config::{AgentConfig, AgentRole};
use super::cluster_config_builder::ClusterConfigBuilder;
use crate::Error;
use crate::answer::marker::Marker;
use crate::inbox::{InboxLimits, MAX_LEFT_MESSAGE};
use crate::timing::ANSWER_TIMEOUT;
use crate::tmux::server_builder::check_session_name;

/// The configuration of a cluster, read from a YAML file or made by [`builder`](Self::builder).
///
/// ```
/// use tmux_bus::{AgentRole, ClusterConfig};
///
/// let dir = tempfile::tempdir()?;
/// std::fs::write(dir.path().join("boss.txt"), "Every answer contains GRAND BOSS OK.")?;
/// std::fs::write(dir.path().join("team.yaml"), r#"
/// cluster: { name: team, session_name: team, work_dir: "." }
/// agents:
///   - name: grand_boss
///     role: grand_boss
///     personality_prompt_path: boss.txt
///     marker: GRAND BOSS OK
///     pane_index: 0
/// "#)?;
/// let config = ClusterConfig::load(dir.path().join("team.yaml"))?;
/// assert_eq!(config.agents[0].role, AgentRole::GrandBoss);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClusterConfig {
    /// The file; the working folder for a configuration in code. It is a part of the identity of the cluster.
    pub path: PathBuf,
    /// The base of relative paths: the folder of the file, or its parent if that folder is called
    /// `config`.
    pub base_dir: PathBuf,
    /// The name of the cluster.
    pub name: String,
    /// The name of the tmux session.
    pub session_name: String,
    /// The working folder of the agents.
    pub work_dir: PathBuf,
    /// The user's file with definitions of agent programs; see [`ClusterBuilder::agent_definitions`].
    ///
    /// [`ClusterBuilder::agent_definitions`]: crate::ClusterBuilder::agent_definitions
    pub agent_definitions: Option<PathBuf>,
    /// The agents, in the order of the layout.
    pub agents: Vec<AgentConfig>,
    /// Bounds of the inbox.
    pub inbox: InboxLimits,
    /// Likely mistakes that are not errors. Each is a `tracing` warning too.
    pub warnings: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    cluster: ClusterSection,
    agents: Spanned<Vec<AgentSection>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterSection {
    name: String,
    session_name: Spanned<String>,
    work_dir: Spanned<String>,
    #[serde(default)]
    agent_definitions: Option<PathBuf>,
    #[serde(default)]
    inbox: Option<Spanned<InboxSection>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct InboxSection {
    #[serde(default)]
    max_message_bytes: Option<usize>,
    #[serde(default)]
    max_messages: Option<usize>,
    #[serde(default)]
    keep_days: Option<f64>,
}

impl InboxSection {
    fn limits(&self) -> Result<InboxLimits, String> {
        let mut limits = InboxLimits::default();
        if let Some(bytes) = self.max_message_bytes {
            limits.max_message_bytes = bytes;
        }
        if let Some(messages) = self.max_messages {
            limits.max_messages = messages;
        }
        if let Some(days) = self.keep_days {
            let keep = Duration::try_from_secs_f64(days * 24.0 * 3600.0);
            limits.keep = keep.map_err(|_| format!("keep_days `{days}` is not a duration"))?;
        }
        check_limits(&limits)?;
        Ok(limits)
    }
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
    agent: Option<String>,
    #[serde(default)]
    command: Option<String>,
    #[serde(default)]
    timeout_s: Option<Spanned<f64>>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    may_message: Option<Vec<Spanned<String>>>,
}

impl ClusterConfig {
    /// A configuration in code, without a file.
    pub fn builder(name: impl Into<String>) -> ClusterConfigBuilder {
        ClusterConfigBuilder::new(name.into())
    }

    /// Reads and checks a configuration file.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it cannot be read; [`Error::Config`] with the position if a key is missing or
    /// unknown, a name, marker or `pane_index` is not unique, `may_message` names no
    /// agent, or a prompt file is missing.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let given = path.as_ref();
        let path = given.canonicalize().map_err(Error::io("read", given))?;
        let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        ConfigReader { path }.read(&text)
    }
}

struct ConfigReader {
    path: PathBuf,
}

impl ConfigReader {
    fn read(&self, text: &str) -> Result<ClusterConfig, Error> {
        let file: ConfigFile = serde_saphyr::from_str(text).map_err(|error| {
            let error = error.without_snippet();
            Error::Config {
                path: self.path.clone(),
                position: error.location().map_or_else(|| "file".to_owned(), position),
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
        let inbox = match &file.cluster.inbox {
            Some(inbox) => inbox
                .value
                .limits()
                .map_err(|reason| self.wrong(inbox.defined, reason))?,
            None => InboxLimits::default(),
        };
        if file.agents.value.is_empty() {
            return Err(self.wrong(file.agents.defined, "there are no agents".into()));
        }
        self.check_unique(&file.agents.value)?;
        self.check_receivers(&file.agents.value)?;
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
            agent_definitions: file
                .cluster
                .agent_definitions
                .map(|path| base_dir.join(path)),
            agents,
            inbox,
            warnings,
        })
    }

    fn work_dir(
        &self,
        given: &Spanned<String>,
        base: &Path,
        warnings: &mut Vec<String>,
    ) -> Result<PathBuf, Error> {
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

    fn check_unique(&self, agents: &[AgentSection]) -> Result<(), Error> {
        for (i, agent) in agents.iter().enumerate() {
            for other in &agents[..i] {
                let twice = |what: &str, value: &str| format!("{what} `{value}` is not unique");
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

    fn check_receivers(&self, agents: &[AgentSection]) -> Result<(), Error> {
        for receiver in agents
            .iter()
            .filter_map(|a| a.may_message.as_ref())
            .flatten()
        {
            if !agents
                .iter()
                .any(|agent| agent.name.value == receiver.value)
            {
                let reason = format!("may_message: there is no agent `{}`", receiver.value);
                return Err(self.wrong(receiver.defined, reason));
            }
        }
        Ok(())
    }

    fn agent(
        &self,
        agent: AgentSection,
        base: &Path,
        warnings: &mut Vec<String>,
    ) -> Result<AgentConfig, Error> {
        let name = agent.name.value;
        check_name(&name).map_err(|reason| self.wrong(agent.name.defined, reason))?;
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
            None => ANSWER_TIMEOUT,
            Some(seconds) => Duration::try_from_secs_f64(seconds.value)
                .ok()
                .filter(|timeout| !timeout.is_zero())
                .ok_or_else(|| {
                    self.wrong(
                        seconds.defined,
                        format!("timeout_s `{}` is not a duration", seconds.value),
                    )
                })?,
        };
        check_env(&name, &agent.env).map_err(|reason| self.wrong(agent.name.defined, reason))?;
        Ok(AgentConfig {
            name,
            role: AgentRole::from(agent.role.as_str()),
            personality_prompt_path: path,
            personality_text: None,
            marker: agent.marker.value,
            pane_index: agent.pane_index.value,
            agent: agent.agent,
            command: agent.command,
            timeout,
            env: agent.env,
            may_message: agent
                .may_message
                .map(|names| names.into_iter().map(|name| name.value).collect()),
        })
    }

    fn wrong(&self, at: Location, reason: String) -> Error {
        Error::Config {
            path: self.path.clone(),
            position: position(at),
            reason,
        }
    }
}

pub(super) fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.contains(char::is_control) || name.contains(char::is_whitespace) {
        return Err(format!(
            "name `{name}` must have at least one character, and no spaces"
        ));
    }
    Ok(())
}

pub(super) fn check_env(name: &str, env: &BTreeMap<String, String>) -> Result<(), String> {
    let is_wrong = |key: &&String| key.is_empty() || key.contains(['=', '\0']);
    match env.keys().find(is_wrong) {
        Some(key) => Err(format!(
            "env of agent `{name}`: `{key}` is not the name of a variable"
        )),
        None => Ok(()),
    }
}

pub(super) fn check_limits(limits: &InboxLimits) -> Result<(), String> {
    match limits.max_message_bytes > MAX_LEFT_MESSAGE {
        true => Err(format!(
            "max_message_bytes must be at most {MAX_LEFT_MESSAGE}"
        )),
        false => Ok(()),
    }
}

fn position(at: Location) -> String {
    format!("line {}, column {}", at.line(), at.column())
}
