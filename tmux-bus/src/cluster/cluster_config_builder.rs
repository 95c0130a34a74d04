use std::fmt;
use std::path::PathBuf;

use super::agent_config::AgentConfig;
use super::cluster_config::{ClusterConfig, check_env, check_limits, check_name};
use crate::Error;
use crate::answer::marker::Marker;
use crate::inbox::InboxLimits;
use crate::tmux::server_builder::check_session_name;

/// Makes a [`ClusterConfig`] in code, without a file and without personality files.
///
/// ```
/// use tmux_bus::{AgentConfig, ClusterConfig, ClusterManager};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let echo = "while printf '> '; read -r x; do echo \"heard: $x\"; echo ECHO OK; done";
/// let config = ClusterConfig::builder("team")
///     .work_dir(dir.path())
///     .agent(AgentConfig::new("echo").command(echo))
///     .build()?;
/// let cluster = ClusterManager::builder(config).runtime_dir(dir.path()).start().await?;
/// let answer = cluster.outsider("user").send_to("echo", "hello").await?;
/// assert_eq!(answer, "heard: hello\nECHO OK");
/// cluster.stop().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "nothing is checked until `build`"]
pub struct ClusterConfigBuilder {
    name: String,
    session_name: Option<String>,
    work_dir: PathBuf,
    agent_definitions: Option<PathBuf>,
    agents: Vec<AgentConfig>,
    inbox: InboxLimits,
}

impl fmt::Debug for ClusterConfigBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterConfigBuilder")
            .field("name", &self.name)
            .field("agents", &self.agents)
            .finish_non_exhaustive()
    }
}

impl ClusterConfigBuilder {
    pub(super) fn new(name: String) -> Self {
        Self {
            name,
            session_name: None,
            work_dir: PathBuf::from("."),
            agent_definitions: None,
            agents: Vec::new(),
            inbox: InboxLimits::default(),
        }
    }

    /// Sets the name of the tmux session; the default is the name of the cluster.
    pub fn session_name(mut self, name: impl Into<String>) -> Self {
        self.session_name = Some(name.into());
        self
    }

    /// Sets the working folder of the agents; the default is the current one. Clusters of the same
    /// session name with different folders are different clusters, and the log is in this folder.
    pub fn work_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.work_dir = dir.into();
        self
    }

    /// Sets the file with definitions of agent programs, see
    /// [`ClusterBuilder::agent_definitions`](crate::ClusterBuilder::agent_definitions).
    pub fn agent_definitions(mut self, path: impl Into<PathBuf>) -> Self {
        self.agent_definitions = Some(path.into());
        self
    }

    /// Adds an agent. The order is that of the layout.
    pub fn agent(mut self, agent: AgentConfig) -> Self {
        self.agents.push(agent);
        self
    }

    /// Sets the bounds of the inbox.
    pub fn inbox(mut self, limits: InboxLimits) -> Self {
        self.inbox = limits;
        self
    }

    /// Checks and returns the configuration.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if there is no agent, or a name, marker, variable or limit is not allowed
    /// or not unique; [`Error::Invalid`] for the name of the session; [`Error::Io`] if the working
    /// folder does not exist.
    pub fn build(mut self) -> Result<ClusterConfig, Error> {
        let session_name = self.session_name.clone().unwrap_or(self.name.clone());
        check_session_name(&session_name)?;
        let found = self.work_dir.canonicalize();
        let work_dir = found.map_err(Error::io("find", &self.work_dir))?;
        let wrong = |position: String, reason: String| Error::Config {
            path: work_dir.clone(),
            position,
            reason,
        };
        let cluster = || format!("cluster `{}`", self.name);
        if self.agents.is_empty() {
            return Err(wrong(cluster(), "there are no agents".to_owned()));
        }
        check_limits(&self.inbox).map_err(|reason| wrong(cluster(), reason))?;
        for (index, agent) in self.agents.iter().enumerate() {
            let at = |reason| wrong(format!("agent `{}`", agent.name), reason);
            check_name(&agent.name).map_err(at)?;
            check_env(&agent.name, &agent.env).map_err(at)?;
            Marker::new(&agent.marker).map_err(|error| at(error.to_string()))?;
            let earlier = &self.agents[..index];
            if earlier.iter().any(|other| other.name == agent.name) {
                return Err(at(format!("name `{}` is not unique", agent.name)));
            }
            if earlier.iter().any(|other| other.marker == agent.marker) {
                return Err(at(format!("marker `{}` is not unique", agent.marker)));
            }
        }
        for agent in &self.agents {
            let receivers = agent.may_message.iter().flatten();
            for receiver in receivers {
                if !self.agents.iter().any(|other| other.name == *receiver) {
                    let reason = format!("may_message: there is no agent `{receiver}`");
                    return Err(wrong(format!("agent `{}`", agent.name), reason));
                }
            }
        }
        for (index, agent) in (0..).zip(&mut self.agents) {
            agent.pane_index = index;
        }
        Ok(ClusterConfig {
            path: work_dir.clone(),
            base_dir: work_dir.clone(),
            name: self.name,
            session_name,
            agent_definitions: self.agent_definitions.map(|path| work_dir.join(path)),
            work_dir,
            agents: self.agents,
            inbox: self.inbox,
            warnings: Vec::new(),
        })
    }
}
