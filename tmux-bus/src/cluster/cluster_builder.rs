use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::task::JoinSet;

use super::cluster_config::ClusterConfig;
use super::cluster_manager::{Cluster, ClusterManager};
use crate::Error;
use crate::control::quoting::{quote, quote_literal};
use crate::log::MessageLogger;
use crate::pane::PaneId;
use crate::timing::STOP_GRACE;
use crate::tmux::Server;
use crate::tmux::ServerBuilder;

/// The smallest pane, in columns and rows. Wide, because agents wrap lines at the edge of the pane.
const MIN_PANE: (usize, usize) = (120, 40);

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
    pub(super) fn new(config: ClusterConfig) -> Self {
        let server = Server::builder(&config.session_name).key(&config.path);
        Self {
            config,
            server,
            question: None,
            log: None,
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
    /// question: it is ready when it shows its prompt.
    pub fn startup_question(mut self, question: impl Into<String>) -> Self {
        self.question = Some(question.into());
        self
    }

    /// Sets the file of the log; the default is `logs/messages.jsonl` in the base folder of the
    /// configuration.
    pub fn log_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.log = Some(path.into());
        self
    }

    /// Starts all agents in parallel and returns when all are ready.
    ///
    /// # Errors
    ///
    /// [`Error::NotReady`] for an agent that is not ready within its timeout; the others are then
    /// stopped again. [`Error::AlreadyRunning`], and as [`ServerBuilder::start`].
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: the session stays; [`attach`](Self::attach) and [`ClusterManager::stop`] end
    /// it.
    pub async fn start(self) -> Result<ClusterManager, Error> {
        let (columns, rows) = window_size(self.config.agents.len());
        let logger = self.logger()?;
        let server = self.server.size(columns, rows).start().await?;
        let started = start_agents(self.config, server.clone(), logger, self.question).await;
        if started.is_err()
            && let Err(error) = server.stop(STOP_GRACE).await
        {
            tracing::warn!(%error, "cannot stop a cluster that did not start");
        }
        started
    }

    /// Attaches to a cluster that another process started.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`], [`Error::UnknownAgent`] if an agent of the configuration has no pane
    /// there, and as [`ServerBuilder::attach`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn attach(self) -> Result<ClusterManager, Error> {
        let logger = self.logger()?;
        let server = self.server.attach().await?;
        let infos = server.control().list_panes_and_exits().await?;
        let panes: BTreeMap<String, PaneId> = infos
            .into_iter()
            .filter(|info| !info.agent.is_empty())
            .map(|info| (info.agent, info.id))
            .collect();
        let mut agents = self.config.agents.iter();
        if let Some(missing) = agents.find(|agent| !panes.contains_key(&agent.name)) {
            return Err(Error::UnknownAgent {
                name: missing.name.clone(),
                known: panes.into_keys().collect(),
            });
        }
        Ok(ClusterManager::new(Arc::new(Cluster {
            config: self.config,
            server,
            logger,
            question: self.question,
            panes,
        })))
    }

    fn logger(&self) -> Result<MessageLogger, Error> {
        let default = || self.config.base_dir.join(MessageLogger::DEFAULT_PATH);
        MessageLogger::open(self.log.clone().unwrap_or_else(default))
    }
}

/// Creates all panes first, so that none is resized later, and starts all agents in parallel.
async fn start_agents(
    config: ClusterConfig,
    server: Server,
    logger: MessageLogger,
    question: Option<String>,
) -> Result<ClusterManager, Error> {
    let panes = create_panes(&config, &server).await?;
    let cluster = Arc::new(Cluster {
        config,
        server,
        logger,
        question,
        panes,
    });
    let mut starting = JoinSet::new();
    for (agent, pane) in cluster.panes.clone() {
        let cluster = Arc::clone(&cluster);
        starting.spawn(async move { cluster.start_agent(&agent, pane).await });
    }
    while let Some(started) = starting.join_next().await {
        started.unwrap_or_else(|error| Err(Error::unfinished("start", &error)))?;
    }
    Ok(ClusterManager::new(cluster))
}

async fn create_panes(
    config: &ClusterConfig,
    server: &Server,
) -> Result<BTreeMap<String, PaneId>, Error> {
    let mut panes = BTreeMap::new();
    for agent in &config.agents {
        let pane = server.create_pane().await?;
        let name = quote(&agent.name);
        let option = format!("set-option -p -t {pane} @tmux_bus_agent {name}");
        server.control().run_one("set-option", option).await?;
        let name = quote_literal(&agent.name);
        let title = format!("select-pane -t {pane} -T {name}");
        server.control().run_one("select-pane", title).await?;
        panes.insert(agent.name.clone(), pane);
    }
    Ok(panes)
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
