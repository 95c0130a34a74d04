use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use super::agent::Agent;
use super::agent_config::AgentConfig;
use super::agent_monitor::{AgentMonitor, Observation, until};
use super::cluster_builder::ClusterBuilder;
use super::cluster_config::ClusterConfig;
use super::cluster_record::ClusterRecord;
use super::cluster_status::{AgentStatus, ClusterStatus};
use super::owed_answer::OwedAnswer;
use super::readiness::{self, Readiness, Unready};
use super::reconciler;
use super::stop_on_drop::StopOnDrop;
use crate::control::control_client::ControlClient;
use crate::definition::agent_definition::AgentDefinition;
use crate::inbox::{Deliverer, DeliveryEnd, Inbox};
use crate::log::MessageLogger;
use crate::pane::PaneId;
use crate::pane::PaneIo;
use crate::pane::caller_pane;
use crate::pane::pane_info::PaneInfo;
use crate::pane::pane_processes;
use crate::state::{AgentState, Explanation};
use crate::timing::STOP_GRACE;
use crate::tmux::Server;
use crate::{Error, PartialAnswer};

/// The agents of a configuration in the panes of one private tmux session.
///
/// Clones are cheap. Dropping the last one leaves the agents running; [`stop`](Self::stop) ends them, and
/// [`stop_on_drop`](Self::stop_on_drop) is a guard that does so.
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
///
#[doc = include_str!("../../docs/guarantees.md")]
#[derive(Clone)]
pub struct ClusterManager {
    cluster: Arc<Cluster>,
}

impl fmt::Debug for ClusterManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterManager")
            .field("server", &self.cluster.server)
            .field("agents", &self.cluster.agents.keys())
            .finish_non_exhaustive()
    }
}

pub(super) struct Cluster {
    pub(super) config: ClusterConfig,
    pub(super) server: Server,
    pub(super) logger: MessageLogger,
    /// The user's file of definitions.
    pub(super) definitions: Option<PathBuf>,
    /// The command `tmux-bus`.
    pub(super) command: Option<PathBuf>,
    pub(super) inbox: Inbox,
    pub(super) question: Option<String>,
    pub(super) dialogs: Option<Duration>,
    pub(super) agents: BTreeMap<String, ClusterAgent>,
    /// The agent in whose pane this process runs.
    pub(super) own_agent: OnceCell<Option<String>>,
}

/// An agent of the configuration.
pub(super) struct ClusterAgent {
    pub(super) definition: Arc<AgentDefinition>,
    /// Set when its pane is known.
    pub(super) monitor: Mutex<Option<AgentMonitor>>,
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

    /// Attaches to a running cluster with the default options, and starts, restarts and stops agents whose configuration
    /// has changed, see [`ClusterBuilder::attach`].
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

    /// The folder of the session, which has the socket and ends with the session. By it
    /// [`BusBuilder::folder`](crate::BusBuilder::folder) and `tmux-bus --folder` find a cluster that has no
    /// configuration file.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.cluster.server.folder().path()
    }

    /// The log of the messages of this cluster.
    #[must_use]
    pub fn logger(&self) -> &MessageLogger {
        &self.cluster.logger
    }

    /// Messages that are left for the agents.
    #[must_use]
    pub fn inbox(&self) -> &Inbox {
        &self.cluster.inbox
    }

    /// Delivers the messages of the [`inbox`](Self::inbox), each when its receiver is idle, until the future is dropped.
    ///
    /// One process of the cluster delivers at a time; the others wait here, and the first of them takes over when it
    /// ends. A message is typed as by [`Agent::post_to`], and logged: never into a draft, a dialog or an approval, and
    /// not while the agent works. A program without rules is idle when it shows a prompt. The messages of an agent that
    /// has ended wait for its restart; those of an agent without a pane wait until it has one. Files and agents are
    /// watched by events.
    ///
    /// ```no_run
    /// use tmux_bus::{ClusterConfig, ClusterManager, Error};
    ///
    /// async fn postman(config: ClusterConfig) -> Result<(), Error> {
    ///     loop {
    ///         let builder = ClusterManager::builder(config.clone());
    ///         let cluster = builder.attach_unchanged().await?;
    ///         match cluster.deliver_inbox().await {
    ///             Err(Error::ServerGone { .. }) => continue,
    ///             ended => return ended,
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::ServerGone`] if the session has ended, [`Error::Io`] and [`Error::NotPrivate`] for the files of the inbox.
    /// Undelivered messages still wait.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a message that is being typed is typed to its end, and recorded, by a task of its own.
    pub async fn deliver_inbox(&self) -> Result<(), Error> {
        self.deliver(DeliveryEnd::Never).await
    }

    /// As [`deliver_inbox`](Self::deliver_inbox), until no message waits. A message for an agent that stays busy or has
    /// ended waits until it expires.
    ///
    /// # Errors
    ///
    /// As [`deliver_inbox`](Self::deliver_inbox).
    ///
    /// # Cancel safety
    ///
    /// As [`deliver_inbox`](Self::deliver_inbox).
    pub async fn deliver_inbox_until_empty(&self) -> Result<(), Error> {
        self.deliver(DeliveryEnd::Empty).await
    }

    async fn deliver(&self, end: DeliveryEnd) -> Result<(), Error> {
        let deliverer = Deliverer {
            cluster: self.clone(),
            inbox: self.cluster.inbox.clone(),
            end,
        };
        deliverer.run().await
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
        Ok(self.monitor(agent)?.pane())
    }

    pub(crate) fn monitor(&self, agent: &str) -> Result<AgentMonitor, Error> {
        self.cluster.monitor(agent)
    }

    /// What is known about the program of an agent.
    pub(super) fn definition(&self, agent: &str) -> Option<&Arc<AgentDefinition>> {
        Some(&self.cluster.agents.get(agent)?.definition)
    }

    /// Looks for panes of agents that had none when this process attached, or whose pane was closed since.
    pub(crate) async fn find_panes(&self) -> Result<(), Error> {
        self.cluster.find_panes().await
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
        Ok(Agent::new(name, true, self.clone()))
    }

    /// A sender that is not an agent of the cluster, such as the user. Its messages are logged; no
    /// agent can send to it.
    #[must_use]
    pub fn outsider(&self, name: impl Into<String>) -> Agent {
        Agent::new(name.into(), false, self.clone())
    }

    /// A sender that may have been an agent, and may not be one any more.
    pub(crate) fn sender(&self, name: &str, is_agent: bool) -> Agent {
        Agent::new(name.to_owned(), is_agent, self.clone())
    }

    /// The agent in whose pane this process runs, or that has started it.
    pub(super) async fn own_agent(&self) -> Result<Option<&str>, Error> {
        let cluster = &self.cluster;
        let find = || async {
            let panes = cluster.server.control().list_panes_and_exits().await?;
            let record = ClusterRecord::load(self.folder())?;
            let namespace = record.and_then(|record| record.pid_namespace);
            let pane = caller_pane::find(&panes, namespace.as_deref());
            Ok::<_, Error>(pane.map(|pane| pane.agent.clone()))
        };
        Ok(cluster.own_agent.get_or_try_init(find).await?.as_deref())
    }

    pub(super) fn agent_config(&self, agent: &str) -> Result<&AgentConfig, Error> {
        self.cluster.agent_config(agent)
    }

    /// The state of the agents, with its evidence. An agent that printed something just now and looks idle
    /// is observed until it is quiet, at most for 2 s.
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
        let mut observing = JoinSet::new();
        for (name, agent) in &self.cluster.agents {
            let Some(monitor) = agent.monitor() else {
                continue;
            };
            let name = name.clone();
            observing.spawn(async move { (name, monitor.observe().await) });
        }
        let mut observed = BTreeMap::new();
        while let Some(done) = observing.join_next().await {
            let (name, seen) = done.map_err(|error| Error::unfinished("status", &error))?;
            observed.insert(name, seen?);
        }
        let mut agents = Vec::new();
        for agent in &self.cluster.config.agents {
            if let Some(seen) = observed.remove(&agent.name) {
                agents.push(self.agent_status(agent, seen, &infos)?);
            }
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
        seen: Observation,
        infos: &[PaneInfo],
    ) -> Result<AgentStatus, Error> {
        let monitor = self.monitor(&agent.name)?;
        let pane = monitor.pane();
        let panes = self.cluster.server.control().panes();
        let info = infos.iter().find(|info| info.id == pane);
        // The system updates the time of the terminal device on output, within some seconds.
        let terminal = info.and_then(|info| fs::metadata(&info.tty).ok()?.modified().ok());
        Ok(AgentStatus {
            name: agent.name.clone(),
            role: agent.role.clone(),
            pane,
            definition: monitor.definition().name.clone(),
            state: seen.state,
            evidence: seen.evidence,
            exit: seen.exit,
            busy: panes.lock(pane).is_some_and(|lock| lock.is_held())
                || OwedAnswer::is_owed(self.pane_io().folder(), pane),
            last_activity: panes.last_output(pane).max(terminal),
        })
    }

    /// How the state of an agent is found: its screen, the rules that were tried, and the one that matched.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAgent`], [`Error::ServerGone`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn explain(&self, agent: &str) -> Result<Explanation, Error> {
        let monitor = self.monitor(agent)?;
        let seen = monitor.observe().await?;
        let needs_advice = seen.state.needs_a_person() || seen.exit.is_some();
        let advice = needs_advice.then(|| readiness::advice(&seen, &self.cluster.server));
        Ok(Explanation {
            agent: agent.to_owned(),
            definition: monitor.definition().name.clone(),
            advice,
            title: seen.screen.title.clone(),
            screen: seen.screen.text(),
            state: seen.state,
            evidence: seen.evidence,
            tried: seen.tried,
        })
    }

    /// Waits until an agent is in a state. Wakes by its output, its hooks and its end.
    ///
    /// # Errors
    ///
    /// [`Error::StateTimeout`] with the state and the screen at the end, [`Error::PaneDied`] if its program
    /// ends while another state is waited for, [`Error::UnknownAgent`], [`Error::ServerGone`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn wait_for(
        &self,
        agent: &str,
        state: AgentState,
        timeout: Duration,
    ) -> Result<(), Error> {
        let monitor = self.monitor(agent)?;
        let is_reached = |seen: &Observation| seen.state == state;
        let seen = match monitor.wait_until(until(timeout), is_reached).await? {
            Ok(_) => return Ok(()),
            Err(seen) => seen,
        };
        let (pane, screen) = (monitor.pane(), PartialAnswer::new(seen.screen.text()));
        Err(match seen.exit {
            Some(exit) => Error::PaneDied {
                pane,
                exit,
                partial: screen,
            },
            None => Error::StateTimeout {
                pane,
                wanted: state,
                found: seen.state,
                after: timeout,
                screen,
            },
        })
    }

    /// A guard that stops the cluster when it is dropped, also by a panic or an early return.
    #[must_use = "dropping the guard stops the cluster"]
    pub fn stop_on_drop(self) -> StopOnDrop {
        StopOnDrop::new(self)
    }

    pub(super) fn server(&self) -> &Server {
        &self.cluster.server
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
        end_program(&self.cluster.server, pane).await?;
        self.cluster.start_agent(agent).await
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

impl ClusterAgent {
    fn monitor(&self) -> Option<AgentMonitor> {
        let monitor = self.monitor.lock().unwrap_or_else(PoisonError::into_inner);
        monitor.clone()
    }

    /// The pane of an agent stays the same until it is closed; then the next attach makes another one.
    pub(super) fn set_pane(&self, control: &ControlClient, pane: PaneId) {
        let mut monitor = self.monitor.lock().unwrap_or_else(PoisonError::into_inner);
        if monitor.as_ref().is_none_or(|known| known.pane() != pane) {
            let definition = Arc::clone(&self.definition);
            *monitor = Some(AgentMonitor::new(control.clone(), pane, definition));
        }
    }
}

impl Cluster {
    fn agent_config(&self, name: &str) -> Result<&AgentConfig, Error> {
        let mut agents = self.config.agents.iter();
        let agent = agents.find(|agent| agent.name == name);
        agent.ok_or_else(|| self.unknown(name))
    }

    pub(super) fn monitor(&self, agent: &str) -> Result<AgentMonitor, Error> {
        let monitor = self.agents.get(agent).and_then(ClusterAgent::monitor);
        monitor.ok_or_else(|| self.unknown(agent))
    }

    fn unknown(&self, name: &str) -> Error {
        let agents = self.config.agents.iter().map(|agent| agent.name.clone());
        Error::UnknownAgent {
            name: name.to_owned(),
            known: agents
                .filter(|agent| self.agents[agent].monitor().is_some())
                .collect(),
        }
    }

    async fn find_panes(&self) -> Result<(), Error> {
        let control = self.server.control();
        control.list_panes_and_exits().await?;
        for (name, running) in reconciler::running_agents(&self.server).await? {
            if let Some(agent) = self.agents.get(&name) {
                agent.set_pane(control, running.pane);
            }
        }
        Ok(())
    }

    /// Starts the program of an agent and waits until it is ready.
    pub(super) async fn start_agent(&self, name: &str) -> Result<(), Error> {
        self.launch_agent(name).await?;
        self.wait_until_ready(name).await
    }

    /// Starts the program of an agent, with the hooks of its definition.
    pub(super) async fn launch_agent(&self, name: &str) -> Result<(), Error> {
        let (agent, monitor) = (self.agent_config(name)?, self.monitor(name)?);
        let launched = self.launch(agent, &monitor).await;
        launched.map_err(|error| not_ready(name, error.into()))
    }

    pub(super) async fn wait_until_ready(&self, name: &str) -> Result<(), Error> {
        let monitor = self.monitor(name)?;
        let readiness = Readiness {
            server: &self.server,
            monitor: &monitor,
            agent: self.agent_config(name)?,
            question: self.question.as_deref(),
            dialogs: self.dialogs,
        };
        let ready = readiness.wait().await;
        ready.map_err(|unready| not_ready(name, unready))
    }
}

/// Ends the program in a pane with all its processes.
pub(super) async fn end_program(server: &Server, pane: PaneId) -> Result<(), Error> {
    let mut infos = server.control().list_panes_and_exits().await?;
    infos.retain(|info| info.id == pane);
    let pids = pane_processes::end(&infos, STOP_GRACE).await;
    if !pids.is_empty() {
        return Err(Error::StillAlive {
            session: server.session().to_owned(),
            pids,
        });
    }
    // Race: tmux up to 3.7 crashes if the next program is started before the clients have got the last
    // output of this one. The list waits for the end, and its reply follows that output.
    server.control().list_panes_and_exits().await?;
    Ok(())
}

fn not_ready(agent: &str, unready: Unready) -> Error {
    Error::NotReady {
        agent: agent.to_owned(),
        advice: unready.advice,
        others: Vec::new(),
        source: Box::new(unready.source),
    }
}
