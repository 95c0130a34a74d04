use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::OnceCell;

use super::agent_config::AgentConfig;
use super::cluster_config::ClusterConfig;
use super::cluster_manager::{Cluster, ClusterAgent, ClusterManager};
use super::primer;
use super::reconciler::{self, Reconciler, StartResults};
use crate::Error;
use crate::bus::courier;
use crate::definition::agent_definition::AgentDefinition;
use crate::definition::agent_definitions::AgentDefinitions;
use crate::inbox::Inbox;
use crate::log::MessageLogger;
use crate::pane::PaneId;
use crate::timing::STOP_GRACE;
use crate::tmux::Server;
use crate::tmux::ServerBuilder;

/// The smallest pane, in columns and rows, with its border. Wide, because agents wrap lines at the edge
/// of the pane.
const MIN_PANE: (usize, usize) = (120, 41);

/// The option of a pane with the name of the definition that its agent was started with.
pub(super) const DEFINITION_OPTION: &str = "@tmux_bus_definition";

/// The option of a pane with the digest of the configuration that its agent was started with.
pub(super) const DIGEST_OPTION: &str = "@tmux_bus_digest";

/// Options for starting or finding a cluster.
///
/// ```no_run
/// use tmux_bus::{ClusterConfig, ClusterManager};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = ClusterConfig::load("config/cc-cluster.yaml")?;
/// let cluster = ClusterManager::builder(config)
///     .startup_question("Are you ready?")
///     .log_file("/home/me/logs/team.jsonl")
///     .start()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "nothing is started until `start`"]
pub struct ClusterBuilder {
    config: ClusterConfig,
    server: ServerBuilder,
    question: Option<String>,
    dialogs: Option<Duration>,
    definitions: Option<PathBuf>,
    log: Option<PathBuf>,
    command: Option<PathBuf>,
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
    pub(super) fn new(config: ClusterConfig) -> Self {
        let server = Server::builder(&config.session_name).key(&config.path);
        Self {
            config,
            server,
            question: None,
            dialogs: None,
            definitions: None,
            log: None,
            command: None,
        }
    }

    /// Sets the folder for sockets; the default is that of [`ServerBuilder::runtime_dir`].
    pub fn runtime_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.server = self.server.runtime_dir(dir);
        self
    }

    /// Sets the tmux program; the default is that of [`ServerBuilder::program`].
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.server = self.server.program(program);
        self
    }

    /// Sets a question for each agent at its start: it is ready when it has answered. The default is no
    /// question: it is ready when it is idle. A known agent is asked only when it is idle and its input line
    /// is empty.
    pub fn startup_question(mut self, question: impl Into<String>) -> Self {
        self.question = Some(question.into());
        self
    }

    /// Sets how long a person may take to answer the dialogs of an agent at its start, such as whether to
    /// trust the folder; the default is not to wait. Each dialog is a `tracing` warning with the command that
    /// shows it. This time does not count for the timeout of the agent.
    pub fn wait_for_dialogs(mut self, limit: Duration) -> Self {
        self.dialogs = Some(limit);
        self
    }

    /// Sets a TOML file with definitions of agent programs, in place of the one that the configuration names;
    /// the default is none.
    ///
    /// The file must be private. A table with a mistake is left out and reported in
    /// [`ClusterConfig::warnings`] of [`ClusterManager::config`], or in the error about an agent that is not
    /// known without it; a built-in definition then counts.
    ///
    /// # The file
    ///
    #[doc = include_str!("../../docs/agent-definitions.md")]
    pub fn agent_definitions(mut self, path: impl Into<PathBuf>) -> Self {
        self.definitions = Some(path.into());
        self
    }

    /// Sets the file of the log; the default is `logs/messages.jsonl` in the base folder of the
    /// configuration.
    pub fn log_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.log = Some(path.into());
        self
    }

    /// Sets the command `tmux-bus`, by which the agents talk to each other; the default is the one on `PATH`, or beside
    /// this program. Its folder is added to the end of the agents' `PATH`, and a short text behind their personality
    /// tells them how to use it. Without a command they are told nothing.
    pub fn command(mut self, command: impl Into<PathBuf>) -> Self {
        self.command = Some(command.into());
        self
    }

    /// The inbox of the cluster, which need not run. Its folder is `inbox-<session name>` beside the log. It belongs to the
    /// configuration that uses it first; another one with the same session name and the same log is refused.
    #[must_use]
    pub fn inbox(&self) -> Inbox {
        let log = self.log_path();
        let folder = format!("inbox-{}", self.config.session_name);
        let agents = self.config.agents.iter().map(|agent| agent.name.clone());
        let path = &self.config.path;
        let owner = path.strip_prefix(&self.config.base_dir).unwrap_or(path);
        Inbox::new(
            log.with_file_name(folder),
            owner.to_owned(),
            self.config.inbox,
            agents.collect(),
        )
    }

    /// Starts all agents in parallel and returns when all are ready.
    ///
    /// # Errors
    ///
    /// [`Error::NotReady`] for an agent that is not ready within its timeout, or that shows a dialog. Its
    /// [`partial`](Error::partial) is the text on its screen. The other agents are waited for, and the
    /// cluster stays up, so that a person can answer: [`attach`](Self::attach) finds it,
    /// [`ClusterManager::stop`] ends it. [`Error::AlreadyRunning`], [`Error::Config`] for an agent program
    /// that is not known, [`Error::NotPrivate`] and [`Error::Io`] for the file of definitions,
    /// [`Error::Invalid`] if the [`inbox`](Self::inbox) belongs to another configuration, and as
    /// [`ServerBuilder::start`].
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: the session stays; [`attach`](Self::attach) and [`ClusterManager::stop`] end
    /// it.
    pub async fn start(mut self) -> Result<ClusterManager, Error> {
        let (columns, rows) = window_size(self.config.agents.len());
        let logger = self.logger()?;
        let definitions = self.load_definitions()?;
        // Before the session exists.
        self.resolve(&definitions, &BTreeMap::new())?;
        let server = self.server.clone().size(columns, rows).start().await?;
        let (cluster, launched) = match self.reconcile(&server, logger, &definitions).await {
            Ok(started) => started,
            Err(error) => {
                if let Err(error) = server.stop(STOP_GRACE).await {
                    tracing::warn!(%error, "cannot stop a cluster that did not start");
                }
                return Err(error);
            }
        };
        let ready = reconciler::wait_until_ready(&cluster, launched).await;
        // Also if an agent is not ready: the cluster runs, and messages can wait for the others.
        let cluster = with_courier(cluster).await;
        ready.map(|()| cluster)
    }

    /// Attaches to a cluster that another process started, and brings it to this configuration: an agent that was added
    /// is started, one whose command, environment, personality, working folder or program has changed is restarted, one
    /// that was removed is stopped. The other agents are not touched. Returns when the started agents are ready.
    ///
    /// The messages in the inbox of an agent that was removed become dead letters.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`], [`Error::Config`] for an agent program that is not known, [`Error::NotReady`] as
    /// [`start`](Self::start), [`Error::StillAlive`] if the processes of an agent did not end, and as
    /// [`ServerBuilder::attach`].
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: some agents may not be started or stopped yet; call it again to continue.
    pub async fn attach(mut self) -> Result<ClusterManager, Error> {
        let logger = self.logger()?;
        let definitions = self.load_definitions()?;
        let server = self.server.clone().attach().await?;
        let (cluster, launched) = self.reconcile(&server, logger, &definitions).await?;
        let ready = reconciler::wait_until_ready(&cluster, launched).await;
        // Also if an agent is not ready: the cluster runs, and messages can wait for the others.
        let cluster = with_courier(cluster).await;
        ready.map(|()| cluster)
    }

    /// As [`attach`](Self::attach), and leaves all agents as they are: for a process that only sends messages or
    /// looks, such as a command inside of a pane. An agent of the configuration that has no pane is a `tracing`
    /// warning; calls that name it fail with [`Error::UnknownAgent`].
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`], [`Error::Config`] for an agent program that is not known, and as
    /// [`ServerBuilder::attach`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes no agent.
    pub async fn attach_unchanged(mut self) -> Result<ClusterManager, Error> {
        let logger = self.logger()?;
        let definitions = self.load_definitions()?;
        let server = self.server.clone().attach().await?;
        // Fills the table of panes.
        server.control().list_panes_and_exits().await?;
        let running = reconciler::running_agents(&server).await?;
        for agent in &self.config.agents {
            if !running.contains_key(&agent.name) {
                tracing::warn!(agent = %agent.name, "this agent has no pane in the running cluster");
            }
        }
        let names = running
            .iter()
            .map(|(agent, running)| (agent.as_str(), running.definition.as_str()))
            .collect();
        let definitions = self.resolve(&definitions, &names)?;
        let panes = running
            .into_iter()
            .map(|(agent, found)| (agent, found.pane));
        let cluster = self.cluster(&server, logger, definitions, panes.collect())?;
        Ok(ClusterManager::new(cluster))
    }

    /// Starts, restarts and stops agents; they need not be ready yet.
    async fn reconcile(
        self,
        server: &Server,
        logger: MessageLogger,
        known: &AgentDefinitions,
    ) -> Result<(Arc<Cluster>, StartResults), Error> {
        let config = self.config.clone();
        self.inbox().check_owner()?;
        let reconciler = Reconciler::lock(server, &config).await?;
        let definitions = self.resolve(known, &BTreeMap::new())?;
        let unchanged = reconciler.unchanged(&definitions)?;
        let names = unchanged
            .iter()
            .map(|(agent, running)| (*agent, running.definition.as_str()))
            .collect();
        let definitions = self.resolve(known, &names)?;
        let panes = reconciler.create_panes().await?;
        server.control().list_panes_and_exits().await?;
        let cluster = self.cluster(server, logger, definitions, panes)?;
        // Before the agents start: they may use the command at once.
        cluster.store_record()?;
        let agents = config.agents.iter().map(|agent| agent.name.clone());
        let changed: Vec<_> = agents
            .filter(|agent| !unchanged.contains_key(agent.as_str()))
            .collect();
        let launched = reconciler.apply(&cluster, &changed).await?;
        Ok((cluster, launched))
    }

    fn cluster(
        self,
        server: &Server,
        logger: MessageLogger,
        definitions: Vec<Arc<AgentDefinition>>,
        panes: BTreeMap<String, PaneId>,
    ) -> Result<Arc<Cluster>, Error> {
        let command = match &self.command {
            Some(command) => {
                Some(std::path::absolute(command).map_err(Error::io("make absolute", command))?)
            }
            None => primer::find_command(),
        };
        let mut agents = BTreeMap::new();
        for (agent, definition) in self.config.agents.iter().zip(definitions) {
            let cluster_agent = ClusterAgent {
                definition,
                monitor: Mutex::default(),
            };
            if let Some(pane) = panes.get(&agent.name) {
                cluster_agent.set_pane(server.control(), *pane);
            }
            agents.insert(agent.name.clone(), cluster_agent);
        }
        Ok(Arc::new(Cluster {
            definitions: self
                .definitions
                .clone()
                .or(self.config.agent_definitions.clone()),
            inbox: self.inbox(),
            config: self.config,
            server: server.clone(),
            logger,
            command,
            question: self.question,
            dialogs: self.dialogs,
            agents,
            own_agent: OnceCell::new(),
        }))
    }

    /// The known agent programs. Mistakes of the user's file become warnings.
    fn load_definitions(&mut self) -> Result<AgentDefinitions, Error> {
        let file = self.definitions.as_ref();
        let Some(path) = file.or(self.config.agent_definitions.as_ref()) else {
            return AgentDefinitions::builtin();
        };
        let (definitions, mistakes) = AgentDefinitions::load(path)?;
        for mistake in mistakes {
            tracing::warn!("{mistake}");
            self.config.warnings.push(mistake.to_string());
        }
        Ok(definitions)
    }

    /// The definition of each agent of the configuration. `running` has the names of the definitions that agents
    /// were started with, by agent: the process that started one can have chosen another command.
    fn resolve(
        &self,
        definitions: &AgentDefinitions,
        running: &BTreeMap<&str, &str>,
    ) -> Result<Vec<Arc<AgentDefinition>>, Error> {
        let find = |agent: &AgentConfig| {
            let running = running.get(agent.name.as_str());
            if let Some(definition) = running.and_then(|name| definitions.get(name)) {
                return Ok(Arc::clone(definition));
            }
            let by_command = || definitions.name_for(agent.command.as_deref());
            let name = agent.agent.as_deref().unwrap_or_else(by_command);
            let found = definitions.get(name).filter(|definition| {
                let has_program = !definition.commands.is_empty() || definition.command.is_some();
                agent.command.is_some() || has_program
            });
            found.cloned().ok_or_else(|| Error::Config {
                path: self.config.path.clone(),
                position: format!("agent `{}`", agent.name),
                reason: match definitions.get(name) {
                    Some(_) => format!("a `{name}` agent needs a command"),
                    None => definitions.unknown(name),
                },
            })
        };
        self.config.agents.iter().map(find).collect()
    }

    fn logger(&self) -> Result<MessageLogger, Error> {
        MessageLogger::open(self.log_path())
    }

    fn log_path(&self) -> PathBuf {
        let default = || self.config.base_dir.join(MessageLogger::DEFAULT_PATH);
        self.log.clone().unwrap_or_else(default)
    }
}

/// The messages that wait are delivered also if no program of the user does so.
async fn with_courier(cluster: Arc<Cluster>) -> ClusterManager {
    let command = cluster.command.clone();
    let cluster = ClusterManager::new(cluster);
    courier::start_if_needed(&cluster, command.as_deref()).await;
    cluster
}

/// The size of a window in which the `tiled` layout of tmux gives each pane its smallest size.
fn window_size(panes: usize) -> (u16, u16) {
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
    (size(columns, MIN_PANE.0), size(rows, MIN_PANE.1))
}
