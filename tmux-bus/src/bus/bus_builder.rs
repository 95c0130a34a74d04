use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::bus::{Bus, BusSender};
use crate::Error;
use crate::cluster::cluster_record::ClusterRecord;
use crate::cluster::{ClusterConfig, frame};
use crate::log::MessageLogger;
use crate::pane::caller_pane;
use crate::pane::pane_info::PaneInfo;
use crate::shared::private_file;
use crate::tmux::session_folder::{SessionFolder, runtime_dir};
use crate::tmux::tmux_program::TmuxProgram;
use crate::vocabulary::AskReport;

/// The name of a sender outside of all panes.
const USER: &str = "user";

/// Characters of the longest name of a sender outside of all panes.
const MAX_NAME: usize = 100;

/// Called with each ask that begins.
pub(super) type OnStart = Arc<dyn Fn(&AskReport) + Send + Sync>;

/// Options for a [`Bus`].
///
/// ```no_run
/// use tmux_bus::Bus;
/// use tmux_bus::vocabulary::Request;
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), tmux_bus::Error> {
/// let bus = Bus::builder().config("config/cc-cluster.yaml").sender("ci").connect().await?;
/// let reply = bus.call(Request::Status {}).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
#[must_use = "nothing is connected until `connect`"]
pub struct BusBuilder {
    config: Option<PathBuf>,
    folder: Option<PathBuf>,
    runtime_dir: Option<PathBuf>,
    sender: Option<String>,
    command: Option<PathBuf>,
    on_start: Option<OnStart>,
}

impl fmt::Debug for BusBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BusBuilder")
            .field("config", &self.config)
            .field("folder", &self.folder)
            .field("sender", &self.sender)
            .finish_non_exhaustive()
    }
}

impl BusBuilder {
    /// Finds the cluster by its configuration file.
    pub fn config(mut self, path: impl Into<PathBuf>) -> Self {
        self.config = Some(path.into());
        self
    }

    /// Finds the cluster by the folder of its session, see
    /// [`ClusterManager::folder`](crate::ClusterManager::folder): for clusters that were made in code.
    /// In a pane the variable `TMUX_BUS_FOLDER` has it. A configuration file has priority.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Sets the folder for sockets, see
    /// [`ClusterBuilder::runtime_dir`](crate::ClusterBuilder::runtime_dir).
    pub fn runtime_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.runtime_dir = Some(dir.into());
        self
    }

    /// Sets the name of a sender outside of all panes; the default is `user`. In the pane of an
    /// agent the name must be that of the agent.
    pub fn sender(mut self, name: impl Into<String>) -> Self {
        self.sender = Some(name.into());
        self
    }

    /// Sets the command `tmux-bus`, which carries out asks in the background; the default is the
    /// one that the cluster was started with.
    pub fn command(mut self, command: impl Into<PathBuf>) -> Self {
        self.command = Some(command.into());
        self
    }

    /// Calls a function with each ask that begins, before its answer is waited for.
    pub fn on_start(mut self, call: impl Fn(&AskReport) + Send + Sync + 'static) -> Self {
        self.on_start = Some(Arc::new(call));
        self
    }

    /// Finds the cluster and the sender.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`]. [`Error::NotTheSender`] if this process runs in the pane of another
    /// agent than the sender, or outside of the pane of the agent that the sender names.
    /// [`Error::NoCluster`] without a configuration and without a folder. [`Error::Io`],
    /// [`Error::NotPrivate`], and as [`ClusterConfig::load`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes no agent.
    pub async fn connect(self) -> Result<Bus, Error> {
        let (session, folder) = self.session_folder()?;
        let socket = folder.join("tmux");
        let not_running = || Error::NotRunning {
            session: session.clone(),
            socket: socket.clone(),
        };
        match private_file::check_folder(&folder) {
            Err(error) if error.is_not_found() => return Err(not_running()),
            checked => checked?,
        }
        let record = ClusterRecord::load(&folder)?.ok_or_else(not_running)?;
        let tmux = TmuxProgram {
            program: record.tmux.clone(),
            socket: socket.clone(),
        };
        let target = format!("={}", record.session);
        let args = ["list-panes", "-s", "-t", &target, "-F", PaneInfo::FORMAT];
        let panes = match tmux.run(&args).await {
            Err(Error::TmuxFailed { .. }) => return Err(not_running()),
            panes => PaneInfo::parse_list(&panes?),
        };
        let config = record.config();
        let caller = caller_pane::find(&panes, record.pid_namespace.as_deref());
        let sender = sender(&config, caller, self.sender);
        let sender = sender.inspect_err(|error| {
            // The name of the agent that tried, if it is one.
            let name = caller.map_or(USER, |pane| pane.agent.as_str());
            if let Ok(logger) = MessageLogger::open(&record.log) {
                logger.log_refusal(name, "", error);
            }
        })?;
        Ok(Bus::new(
            folder,
            record,
            config,
            sender,
            self.command,
            self.on_start,
        ))
    }

    /// The name of the session, if it is known, and its folder.
    fn session_folder(&self) -> Result<(String, PathBuf), Error> {
        if let Some(config) = &self.config {
            let config = ClusterConfig::load(config)?;
            let base = self.runtime_dir.clone().unwrap_or_else(runtime_dir);
            let base = std::path::absolute(&base).map_err(Error::io("make absolute", &base))?;
            let folder = SessionFolder::new(&base, &config.session_name, &config.path);
            return Ok((config.session_name, folder.path().to_owned()));
        }
        let Some(folder) = &self.folder else {
            return Err(Error::NoCluster);
        };
        // The processes in the background have another current folder.
        let folder = std::path::absolute(folder).map_err(Error::io("make absolute", folder))?;
        let name = folder.file_name().unwrap_or(Path::new("").as_os_str());
        Ok((name.to_string_lossy().into_owned(), folder))
    }
}

/// The proven sender.
fn sender(
    config: &ClusterConfig,
    caller: Option<&PaneInfo>,
    claimed: Option<String>,
) -> Result<BusSender, Error> {
    let refused = |claimed: String, reason: String| Err(Error::NotTheSender { claimed, reason });
    match (caller, claimed) {
        (Some(pane), Some(claimed)) if claimed != pane.agent => {
            let reason = format!("this process belongs to agent `{}`", pane.agent);
            refused(claimed, reason)
        }
        (Some(pane), _) => Ok(BusSender {
            name: pane.agent.clone(),
            is_agent: true,
        }),
        (None, Some(claimed)) if config.agents.iter().any(|agent| agent.name == claimed) => {
            let reason = "it is an agent, and this process does not belong to it".to_owned();
            refused(claimed, reason)
        }
        (None, Some(claimed)) if !is_name(&claimed) => {
            refused(claimed, "it is not a name".to_owned())
        }
        (None, claimed) => Ok(BusSender {
            name: claimed.unwrap_or_else(|| USER.to_owned()),
            is_agent: false,
        }),
    }
}

/// Whether a text can stand for a sender in the log, which people read line by line.
fn is_name(text: &str) -> bool {
    let is_line = frame::neutral(text) == text && !text.contains(['\n', '\t']);
    is_line && (1..=MAX_NAME).contains(&text.chars().count())
}
