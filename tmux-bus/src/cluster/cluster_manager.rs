use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::agent::Agent;
use super::agent_config::AgentConfig;
use super::cluster_builder::ClusterBuilder;
use super::cluster_config::ClusterConfig;
use super::cluster_status::{AgentStatus, ClusterStatus};
use super::owed_answer::OwedAnswer;
use super::readiness;
use crate::log::MessageLogger;
use crate::pane::PaneId;
use crate::pane::PaneIo;
use crate::pane::pane_info::PaneInfo;
use crate::pane::pane_processes;
use crate::timing::STOP_GRACE;
use crate::tmux::Server;
use crate::{Error, Exit};

/// The agents of a configuration in the panes of one private tmux session.
///
/// Clones are cheap. Dropping the last one leaves the agents running; [`stop`](Self::stop) ends them.
///
/// ```
/// use tmux_bus::{ClusterConfig, ClusterManager};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # std::fs::write(dir.path().join("a.txt"), "Every answer contains A OK.")?;
/// # std::fs::write(dir.path().join("team.yaml"), r#"
/// # cluster: { name: team, session_name: team, work_dir: "." }
/// # agents:
/// #   - { name: a, role: x, personality_prompt_path: a.txt, marker: A OK, pane_index: 0,
/// #       command: "while printf '> '; read -r x; do echo A OK; done" }
/// # "#)?;
/// let config = ClusterConfig::load(dir.path().join("team.yaml"))?;
/// let cluster = ClusterManager::builder(config).runtime_dir(dir.path()).start().await?;
/// let answer = cluster.outsider("user").send_to("a", "Are you there?").await?;
/// assert_eq!(answer, "A OK");
/// cluster.stop().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ClusterManager {
    cluster: Arc<Cluster>,
}

impl fmt::Debug for ClusterManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterManager")
            .field("server", &self.cluster.server)
            .field("panes", &self.cluster.panes)
            .finish_non_exhaustive()
    }
}

pub(super) struct Cluster {
    pub(super) config: ClusterConfig,
    pub(super) server: Server,
    pub(super) logger: MessageLogger,
    pub(super) question: Option<String>,
    pub(super) panes: BTreeMap<String, PaneId>,
}

impl ClusterManager {
    pub(super) fn new(cluster: Arc<Cluster>) -> Self {
        Self { cluster }
    }

    /// Options for starting or finding a cluster.
    pub fn builder(config: ClusterConfig) -> ClusterBuilder {
        ClusterBuilder::new(config)
    }

    /// Starts a cluster with the default options, see [`ClusterBuilder::start`].
    ///
    /// # Errors
    ///
    /// As [`ClusterBuilder::start`].
    ///
    /// # Cancel safety
    ///
    /// As [`ClusterBuilder::start`].
    pub async fn start(config: ClusterConfig) -> Result<Self, Error> {
        Self::builder(config).start().await
    }

    /// Attaches to a running cluster with the default options, see [`ClusterBuilder::attach`].
    ///
    /// # Errors
    ///
    /// As [`ClusterBuilder::attach`].
    ///
    /// # Cancel safety
    ///
    /// As [`ClusterBuilder::attach`].
    pub async fn attach(config: ClusterConfig) -> Result<Self, Error> {
        Self::builder(config).attach().await
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &ClusterConfig {
        &self.cluster.config
    }

    /// The private socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        self.cluster.server.socket()
    }

    /// The log of the messages of this cluster.
    #[must_use]
    pub fn logger(&self) -> &MessageLogger {
        &self.cluster.logger
    }

    /// Sends to panes and reads answers, without the log.
    #[must_use]
    pub fn pane_io(&self) -> PaneIo {
        self.cluster.server.pane_io()
    }

    /// The pane of an agent. It stays the same when the agent is restarted.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAgent`] with the known names.
    pub fn get_pane(&self, agent: &str) -> Result<PaneId, Error> {
        let pane = self.cluster.panes.get(agent);
        pane.copied().ok_or_else(|| self.cluster.unknown(agent))
    }

    /// The marker of an agent.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAgent`] with the known names.
    pub fn get_marker(&self, agent: &str) -> Result<&str, Error> {
        Ok(&self.agent_config(agent)?.marker)
    }

    /// An agent, to send messages in its name.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAgent`] with the known names.
    pub fn agent(&self, name: &str) -> Result<Agent, Error> {
        let name = self.agent_config(name)?.name.clone();
        Ok(Agent::new(name, self.clone()))
    }

    /// A sender that is not an agent of the cluster, such as the user. Its messages are logged; no
    /// agent can send to it.
    #[must_use]
    pub fn outsider(&self, name: impl Into<String>) -> Agent {
        Agent::new(name.into(), self.clone())
    }

    pub(super) fn agent_config(&self, agent: &str) -> Result<&AgentConfig, Error> {
        self.cluster.agent_config(agent)
    }

    /// The state of the agents.
    ///
    /// # Errors
    ///
    /// [`Error::ServerGone`] if the session has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn status(&self) -> Result<ClusterStatus, Error> {
        let server = &self.cluster.server;
        let infos = server.control().list_panes_and_exits().await?;
        let mut agents = Vec::new();
        for agent in &self.cluster.config.agents {
            let pane = self.get_pane(&agent.name)?;
            let info = infos.iter().find(|info| info.id == pane);
            agents.push(self.agent_status(agent, pane, info));
        }
        Ok(ClusterStatus {
            session: server.session().to_owned(),
            socket: server.socket().to_owned(),
            agents,
        })
    }

    fn agent_status(
        &self,
        agent: &AgentConfig,
        pane: PaneId,
        info: Option<&PaneInfo>,
    ) -> AgentStatus {
        let panes = self.cluster.server.control().panes();
        let exit = match (info, panes.target(pane)) {
            (Some(_), Some(target)) => target.exit,
            _ => Some(Exit::Unknown),
        };
        // The system updates the time of the terminal device on output, within some seconds.
        let terminal = info.and_then(|info| fs::metadata(&info.tty).ok()?.modified().ok());
        AgentStatus {
            name: agent.name.clone(),
            role: agent.role.clone(),
            pane,
            exit,
            busy: panes.lock(pane).is_some_and(|lock| lock.is_held())
                || OwedAnswer::is_owed(self.pane_io().folder(), pane),
            last_activity: panes.last_output(pane).max(terminal),
        }
    }

    /// Ends the program of an agent with all its processes, starts it again in its pane, and returns
    /// when it is ready, or when a sender that waited for the pane has sent to it. A pending wait for
    /// its answer fails with [`Error::PaneDied`].
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAgent`], [`Error::NotReady`], [`Error::StillAlive`].
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: the agent may be stopped or not ready; call it again to start it.
    pub async fn restart(&self, agent: &str) -> Result<(), Error> {
        let pane = self.get_pane(agent)?;
        let server = &self.cluster.server;
        let mut infos = server.control().list_panes_and_exits().await?;
        infos.retain(|info| info.id == pane);
        let pids = pane_processes::end(&infos, STOP_GRACE).await;
        if !pids.is_empty() {
            return Err(Error::StillAlive {
                session: server.session().to_owned(),
                pids,
            });
        }
        self.cluster.start_agent(agent, pane).await
    }

    /// Gives up the answers that an agent still owes after timeouts, see [`Agent::send_to`]: the next message does not
    /// wait for them, in any process. For an agent that will not answer any more. A wait that is under way
    /// continues.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAgent`], [`Error::Io`].
    pub fn reset(&self, agent: &str) -> Result<(), Error> {
        let pane = self.get_pane(agent)?;
        OwedAnswer::settle_all(self.pane_io().folder(), pane)
    }

    /// The first characters of a message that an agent takes for a command.
    pub(super) fn special_first(&self, _agent: &str) -> &[char] {
        &[]
    }

    /// Ends all agents (SIGTERM, after 3 s SIGKILL) with all their processes, then the session, and
    /// removes its folder with the socket. Returns when they are gone. A cluster that is already gone
    /// is not an error.
    ///
    /// # Errors
    ///
    /// As [`Server::stop`].
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: some agents may still run; call it again to continue.
    pub async fn stop(&self) -> Result<(), Error> {
        self.cluster.server.stop(STOP_GRACE).await
    }
}

impl Cluster {
    fn agent_config(&self, name: &str) -> Result<&AgentConfig, Error> {
        let mut agents = self.config.agents.iter();
        let agent = agents.find(|agent| agent.name == name);
        agent.ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> Error {
        let agents = self.config.agents.iter();
        Error::UnknownAgent {
            name: name.to_owned(),
            known: agents.map(|agent| agent.name.clone()).collect(),
        }
    }

    /// Starts the program of an agent and waits until it is ready.
    pub(super) async fn start_agent(&self, name: &str, pane: PaneId) -> Result<(), Error> {
        let agent = self.agent_config(name)?;
        let launch = agent.launch(&self.config.work_dir);
        let started = async {
            self.server.launch(pane, &launch).await?;
            readiness::wait(&self.server, pane, agent, self.question.as_deref()).await
        };
        started.await.map_err(|source| Error::NotReady {
            agent: name.to_owned(),
            source: Box::new(source),
        })
    }
}
