//! A cluster of agents, one a pane.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::task::JoinSet;

use crate::{
    agent::Agent,
    config::{ClusterConfig, ProcessConfig, ProcessRole},
    error::{Error, Exit, Result},
    message_log::MessageLogger,
    octal::{quote, quote_literal},
    pane::PaneId,
    pane_io::PaneIo,
    process, ready,
    server::{Server, ServerBuilder},
};

/// How long programs may take to end when they are asked to.
const GRACE: Duration = Duration::from_secs(3);

/// The least size of a pane. Wide, because agents break their lines at the pane's edge.
const PANE: (usize, usize) = (120, 40);

/// How a cluster is started or found.
#[derive(Clone)]
pub struct ClusterBuilder {
    config: ClusterConfig,
    server: ServerBuilder,
    question: Option<String>,
    log: Option<PathBuf>,
}

impl fmt::Debug for ClusterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterBuilder")
            .field("config", &self.config)
            .field("server", &self.server)
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}

impl ClusterBuilder {
    /// The folder for sockets, see [`ServerBuilder::runtime_dir`].
    #[must_use]
    pub fn runtime_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.server = self.server.runtime_dir(dir);
        self
    }

    /// The tmux program, see [`ServerBuilder::program`].
    #[must_use]
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.server = self.server.program(program);
        self
    }

    /// A question that each agent is asked when it starts: it is ready when it has answered. Without
    /// one it is ready when it shows its prompt.
    #[must_use]
    pub fn startup_question(mut self, question: impl Into<String>) -> Self {
        self.question = Some(question.into());
        self
    }

    /// The log's file. The default is `logs/messages.jsonl` in the configuration's base folder.
    #[must_use]
    pub fn log_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.log = Some(path.into());
        self
    }

    /// Starts all agents in parallel and returns when all are ready.
    ///
    /// # Errors
    ///
    /// [`Error::NotReady`] for an agent that did not get ready within its timeout; all others are
    /// then stopped again. [`Error::AlreadyRunning`], and as [`ServerBuilder::start`].
    ///
    /// # Cancel safety
    ///
    /// Dropped half way, the session stays; [`attach`](Self::attach) and
    /// [`ClusterManager::stop`] end it.
    pub async fn start(self) -> Result<ClusterManager> {
        let (columns, rows) = window(self.config.agents.len());
        let logger = self.logger()?;
        let server = self.server.size(columns, rows).start().await?;
        let cluster = Inner::new(self.config, server, logger, self.question);
        match cluster.start_agents().await {
            Ok(cluster) => Ok(cluster),
            Err((server, error)) => {
                if let Err(stopping) = server.stop(GRACE).await {
                    tracing::warn!(error = %stopping, "a cluster that did not start could not be stopped");
                }
                Err(error)
            }
        }
    }

    /// Attaches to a cluster that another process started.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`], [`Error::UnknownAgent`] when an agent of the configuration has no pane
    /// there, and as [`ServerBuilder::attach`].
    ///
    /// # Cancel safety
    ///
    /// Changes nothing.
    pub async fn attach(self) -> Result<ClusterManager> {
        let logger = self.logger()?;
        let server = self.server.attach().await?;
        let found: BTreeMap<String, PaneId> = server
            .panes()
            .await?
            .into_iter()
            .filter(|p| !p.agent.is_empty())
            .map(|p| (p.agent, p.id))
            .collect();
        if let Some(missing) = self
            .config
            .agents
            .iter()
            .find(|agent| !found.contains_key(&agent.name))
        {
            return Err(Error::UnknownAgent {
                name: missing.name.clone(),
                known: found.into_keys().collect(),
            });
        }
        Ok(Inner::new(self.config, server, logger, self.question).with_panes(found))
    }

    fn logger(&self) -> Result<MessageLogger> {
        let path = self
            .log
            .clone()
            .unwrap_or_else(|| self.config.base_dir.join(MessageLogger::DEFAULT_PATH));
        MessageLogger::new(path)
    }
}

/// The agents of a configuration in the panes of one private tmux session.
///
/// Clones are cheap. Dropping the last one leaves the agents running; [`stop`](Self::stop) ends them.
#[derive(Clone)]
pub struct ClusterManager {
    inner: Arc<Inner>,
}

impl fmt::Debug for ClusterManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterManager")
            .field("server", &self.inner.server)
            .field("panes", &self.inner.panes)
            .finish_non_exhaustive()
    }
}

struct Inner {
    config: ClusterConfig,
    server: Server,
    logger: MessageLogger,
    question: Option<String>,
    panes: BTreeMap<String, PaneId>,
}

/// The state of a cluster.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClusterStatus {
    /// The session's name.
    pub session: String,
    /// The private socket: `tmux -S <socket> attach` shows the agents to a person.
    pub socket: PathBuf,
    /// The agents, in the order of the layout.
    pub agents: Vec<AgentStatus>,
}

/// The state of an agent.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AgentStatus {
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: ProcessRole,
    /// Its pane.
    pub pane: PaneId,
    /// Whether its program runs.
    pub alive: bool,
    /// How its program ended, if it did.
    pub exit: Option<Exit>,
    /// Whether someone, in any process, sends to it or waits for its answer.
    pub busy: bool,
    /// When it last printed something, as far as this process or the system knows.
    pub last_activity: Option<SystemTime>,
}

impl ClusterManager {
    /// How to start or find a cluster.
    #[must_use]
    pub fn builder(config: ClusterConfig) -> ClusterBuilder {
        let server = Server::builder(&config.session_name).key(&config.path);
        ClusterBuilder {
            config,
            server,
            question: None,
            log: None,
        }
    }

    /// Starts a cluster with the defaults, see [`ClusterBuilder::start`].
    ///
    /// # Errors
    ///
    /// As [`ClusterBuilder::start`].
    ///
    /// # Cancel safety
    ///
    /// As [`ClusterBuilder::start`].
    pub async fn start(config: ClusterConfig) -> Result<Self> {
        Self::builder(config).start().await
    }

    /// Attaches to a running cluster with the defaults, see [`ClusterBuilder::attach`].
    ///
    /// # Errors
    ///
    /// As [`ClusterBuilder::attach`].
    ///
    /// # Cancel safety
    ///
    /// As [`ClusterBuilder::attach`].
    pub async fn attach(config: ClusterConfig) -> Result<Self> {
        Self::builder(config).attach().await
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &ClusterConfig {
        &self.inner.config
    }

    /// The private socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        self.inner.server.socket()
    }

    /// The log of this cluster's messages.
    #[must_use]
    pub fn logger(&self) -> &MessageLogger {
        &self.inner.logger
    }

    /// Sends to panes and reads answers, without the log.
    #[must_use]
    pub fn pane_io(&self) -> PaneIo {
        self.inner.server.pane_io()
    }

    /// The pane of an agent. It stays the same when the agent is restarted.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAgent`] with the names that are known.
    pub fn get_pane(&self, agent: &str) -> Result<PaneId> {
        self.inner
            .panes
            .get(agent)
            .copied()
            .ok_or_else(|| self.unknown(agent))
    }

    /// The marker of an agent.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAgent`] with the names that are known.
    pub fn get_marker(&self, agent: &str) -> Result<&str> {
        Ok(&self.process(agent)?.marker)
    }

    /// An agent, to send in its name.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAgent`] with the names that are known.
    pub fn agent(&self, name: &str) -> Result<Agent> {
        let name = self.process(name)?.name.clone();
        Ok(Agent::new(name, self.clone()))
    }

    /// A sender who is none of the agents, such as the user: it asks and is logged as they are,
    /// but nobody can send to it.
    #[must_use]
    pub fn outsider(&self, name: impl Into<String>) -> Agent {
        Agent::new(name.into(), self.clone())
    }

    pub(crate) fn process(&self, agent: &str) -> Result<&ProcessConfig> {
        self.inner
            .config
            .agents
            .iter()
            .find(|a| a.name == agent)
            .ok_or_else(|| self.unknown(agent))
    }

    fn unknown(&self, agent: &str) -> Error {
        let known = self
            .inner
            .config
            .agents
            .iter()
            .map(|agent| agent.name.clone())
            .collect();
        Error::UnknownAgent {
            name: agent.to_owned(),
            known,
        }
    }

    /// How the agents are.
    ///
    /// # Errors
    ///
    /// [`Error::ServerGone`] when the session has ended.
    ///
    /// # Cancel safety
    ///
    /// Changes nothing.
    pub async fn status(&self) -> Result<ClusterStatus> {
        let infos = self.inner.server.panes().await?;
        let known = self.inner.server.control().panes();
        let mut agents = Vec::new();
        for agent in &self.inner.config.agents {
            let pane = self.get_pane(&agent.name)?;
            let info = infos.iter().find(|info| info.id == pane);
            let exit = match (info, known.target(pane)) {
                (Some(_), Some(target)) => target.exit,
                _ => Some(Exit::Unknown),
            };
            // The system notes the time of the last output on the terminal itself, to some seconds.
            let terminal = info.and_then(|info| std::fs::metadata(&info.tty).ok()?.modified().ok());
            agents.push(AgentStatus {
                name: agent.name.clone(),
                role: agent.role.clone(),
                pane,
                alive: exit.is_none(),
                exit,
                busy: known.queue(pane).is_some_and(|queue| queue.is_busy()),
                last_activity: known.last_output(pane).max(terminal),
            });
        }
        Ok(ClusterStatus {
            session: self.inner.server.session().to_owned(),
            socket: self.inner.server.socket().to_owned(),
            agents,
        })
    }

    /// Ends an agent's program with all its processes, starts it again in its pane, and returns when
    /// it is ready, or when a sender that waited for the pane has got to it. Who waits for an answer
    /// of it gets [`Error::PaneDied`].
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAgent`], [`Error::NotReady`], [`Error::Survivors`].
    ///
    /// # Cancel safety
    ///
    /// Dropped half way, the agent may be stopped or not ready; calling it again starts it anew.
    pub async fn restart(&self, agent: &str) -> Result<()> {
        let pane = self.get_pane(agent)?;
        let mut infos = self.inner.server.panes().await?;
        infos.retain(|info| info.id == pane);
        let pids = process::end(&infos, GRACE).await;
        if !pids.is_empty() {
            return Err(Error::Survivors {
                session: self.inner.server.session().to_owned(),
                pids,
            });
        }
        self.inner.start_agent(agent, pane).await
    }

    /// Ends all agents, first gently, then their processes, then the session, and removes its folder
    /// with the socket. Returns when they are gone. A cluster that is gone already is not an error.
    ///
    /// # Errors
    ///
    /// As [`Server::stop`].
    ///
    /// # Cancel safety
    ///
    /// Dropped half way, some agents may still run; calling it again goes on.
    pub async fn stop(&self) -> Result<()> {
        self.inner.server.stop(GRACE).await
    }
}

impl Inner {
    fn new(
        config: ClusterConfig,
        server: Server,
        logger: MessageLogger,
        question: Option<String>,
    ) -> Self {
        Self {
            config,
            server,
            logger,
            question,
            panes: BTreeMap::new(),
        }
    }

    fn with_panes(mut self, panes: BTreeMap<String, PaneId>) -> ClusterManager {
        self.panes = panes;
        ClusterManager {
            inner: Arc::new(self),
        }
    }

    /// Creates all panes first, so that none is resized later, and starts all agents at once.
    async fn start_agents(mut self) -> Result<ClusterManager, (Server, Error)> {
        let server = self.server.clone();
        let fail = |error| (server.clone(), error);
        self.panes = self.create_panes().await.map_err(fail)?;
        let inner = Arc::new(self);
        let mut starting = JoinSet::new();
        for (agent, pane) in inner.panes.clone() {
            let inner = Arc::clone(&inner);
            starting.spawn(async move { inner.start_agent(&agent, pane).await });
        }
        while let Some(started) = starting.join_next().await {
            started
                .unwrap_or_else(|error| Err(Error::failed("start", error.to_string())))
                .map_err(fail)?;
        }
        Ok(ClusterManager { inner })
    }

    async fn create_panes(&self) -> Result<BTreeMap<String, PaneId>> {
        let mut panes = BTreeMap::new();
        for agent in &self.config.agents {
            let pane = self.server.create_pane().await?;
            let line = format!(
                "set-option -p -t {pane} @tmux_bus_agent {}",
                quote(&agent.name)
            );
            self.server.control().one("set-option", line).await?;
            let title = format!("select-pane -t {pane} -T {}", quote_literal(&agent.name));
            self.server.control().one("select-pane", title).await?;
            panes.insert(agent.name.clone(), pane);
        }
        Ok(panes)
    }

    async fn start_agent(&self, name: &str, pane: PaneId) -> Result<()> {
        let Some(agent) = self.config.agents.iter().find(|agent| agent.name == name) else {
            return Ok(());
        };
        let started = async {
            self.server
                .launch(pane, &agent.launch(&self.config.work_dir))
                .await?;
            ready::wait(&self.server, pane, agent, self.question.as_deref()).await
        };
        started.await.map_err(|source| Error::NotReady {
            agent: name.to_owned(),
            source: Box::new(source),
        })
    }
}

/// The size of a window that gives each of so many panes its room in tmux's `tiled` layout.
fn window(panes: usize) -> (u16, u16) {
    let (mut rows, mut columns) = (1, 1);
    while rows * columns < panes {
        rows += 1;
        if rows * columns < panes {
            columns += 1;
        }
    }
    let size = |count: usize, each: usize| {
        u16::try_from(count * (each + 1))
            .unwrap_or(u16::MAX)
            .min(9_999)
    };
    (size(columns, PANE.0), size(rows, PANE.1))
}
