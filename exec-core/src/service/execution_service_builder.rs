//! The settings of a service.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::admission::AdmissionRules;
use crate::run::WatchdogLimits;
use crate::{Error, ExecutionService, MemoryPolicy, PriceTable, ProfileSource, StopLadder};

/// The settings of an [`ExecutionService`].
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let profiles = doctest::Script("cat");
/// use std::time::Duration;
/// use exec_core::{ExecutionService, StopAction, StopLadder};
///
/// let service = ExecutionService::builder(profiles)
///     .state_dir(folder.path())
///     .host_name("my-host")
///     .stop_ladder(StopLadder::kill_at_once().then(StopAction::Interrupt, Duration::from_secs(3)))
///     .stop_after_silence(Duration::from_secs(600))
///     .open()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is opened until `open`"]
pub struct ExecutionServiceBuilder {
    profiles: Box<dyn ProfileSource>,
    settings: ServiceSettings,
}

pub(crate) struct ServiceSettings {
    /// Empty if the environment names no default.
    pub(crate) state_dir: PathBuf,
    pub(crate) host_name: String,
    pub(crate) log_dir: Option<PathBuf>,
    pub(crate) memory_policy: MemoryPolicy,
    pub(crate) max_line_bytes: usize,
    pub(crate) resolution_timeout: Duration,
    pub(crate) stop_ladder: StopLadder,
    pub(crate) watchdogs: WatchdogLimits,
    pub(crate) end_with_host: bool,
    pub(crate) admission: AdmissionRules,
    pub(crate) prices: Option<Arc<PriceTable>>,
}

impl ExecutionServiceBuilder {
    pub(crate) fn new(profiles: Box<dyn ProfileSource>) -> Self {
        let settings = ServiceSettings {
            state_dir: default_state_dir().unwrap_or_default(),
            host_name: default_host_name(),
            log_dir: None,
            memory_policy: MemoryPolicy::default(),
            max_line_bytes: 8 << 20,
            resolution_timeout: Duration::from_secs(30),
            stop_ladder: StopLadder::default(),
            watchdogs: WatchdogLimits::default(),
            end_with_host: false,
            admission: AdmissionRules::default(),
            prices: None,
        };
        Self { profiles, settings }
    }

    /// Sets the folder for the records of live executions and the history; the default is
    /// `$XDG_STATE_HOME/exec-core`, or `$HOME/.local/state/exec-core` without that variable.
    pub fn state_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.state_dir = path.into();
        self
    }

    /// Sets the name of this host program; the default is the file name of the running program.
    /// `reap_orphans` ends executions of earlier runs under the same name.
    pub fn host_name(mut self, name: impl Into<String>) -> Self {
        self.settings.host_name = name.into();
        self
    }

    /// Sets the folder for the raw output of each execution, two files with every byte; a live session
    /// has a third one with its input. The default is to write no files.
    pub fn log_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.log_dir = Some(path.into());
        self
    }

    /// Sets the memory bound of events; the default is 16 MiB, and the oldest are dropped.
    pub fn memory_policy(mut self, policy: MemoryPolicy) -> Self {
        self.settings.memory_policy = policy;
        self
    }

    /// Sets the length of the longest line that is delivered whole; the default is 8 MiB.
    pub fn max_line_bytes(mut self, bytes: usize) -> Self {
        self.settings.max_line_bytes = bytes;
        self
    }

    /// Sets how long to wait for the agent's own session id before the minted one becomes final; the
    /// default is 30 seconds.
    pub fn session_id_resolution_timeout(mut self, timeout: Duration) -> Self {
        self.settings.resolution_timeout = timeout;
        self
    }

    /// Sets the ladder for executions whose profile has none; the default is `TERM`, five seconds,
    /// `KILL`.
    pub fn stop_ladder(mut self, ladder: StopLadder) -> Self {
        self.settings.stop_ladder = ladder;
        self
    }

    /// Sets after how much time without output an execution is stopped; the default is never. A live
    /// session may be silent while it is idle, waits for a permission or has reached a usage limit.
    pub fn stop_after_silence(mut self, limit: Duration) -> Self {
        self.settings.watchdogs.no_output = Some(limit);
        self
    }

    /// Sets how long an execution may live after its agent has reported the end of its run, before
    /// it is stopped; the default is for ever.
    pub fn stop_after_finish(mut self, limit: Duration) -> Self {
        self.settings.watchdogs.after_finish = Some(limit);
        self
    }

    /// Ends the executions as soon as this process has ended, for whatever reason; the default is to
    /// leave them to [`reap_orphans`](ExecutionService::reap_orphans) of the next run.
    ///
    /// The first launch starts a watcher: a `/bin/sh` that reads a pipe of this process, and that
    /// needs `grep` and `sleep`. At the end of the pipe it sends `TERM` to all processes of the live
    /// executions, and `KILL` two seconds later. A watcher that dies is reported as an error by
    /// `tracing`, and replaced. If there is none and it cannot be started, a launch fails with
    /// [`Error::Io`].
    ///
    /// An execution in a [`Sandbox`](crate::Sandbox) is killed by the kernel at the same moment, also
    /// if the watcher was killed, too.
    ///
    /// Executions also end when the runtime has ended and the last handle of the service is dropped.
    /// A child that this process forks without an exec must not keep the pipe open.
    pub fn end_with_host(mut self) -> Self {
        self.settings.end_with_host = true;
        self
    }

    /// Sets how many executions may run at the same time, at least one; the default is any number.
    ///
    /// The number holds for all services that share the state folder and have set it, in all
    /// processes; they should set the same number. Further launches wait, first come, first served:
    /// see [`ExecutionService::waiting`]. The place of an execution is free when it has ended or its
    /// host has died. The agents of a host that was killed do not count, not even when they are
    /// [adopted](ExecutionService::recover): end them by [`end_with_host`](Self::end_with_host), or
    /// after the restart by [`reap_orphans`](ExecutionService::reap_orphans).
    pub fn max_running(mut self, executions: usize) -> Self {
        self.settings.admission.max_running = Some(executions.max(1));
        self
    }

    /// Sets how many bytes of memory must be free for a launch; the default is any number.
    ///
    /// The free memory is what the kernel estimates as available (`MemAvailable`) when the launch is
    /// the next one. It is not reserved: agents that have just started may not have taken theirs.
    pub fn min_free_memory(mut self, bytes: u64) -> Self {
        self.settings.admission.min_free_memory = Some(bytes);
        self
    }

    /// Sets the prices of models, for the [cost budgets](crate::Budget::cost_usd) of agents that
    /// report no cost; the default is none. A reported cost comes first.
    pub fn price_table(mut self, prices: PriceTable) -> Self {
        self.settings.prices = Some(Arc::new(prices));
        self
    }

    /// Creates the state folder, if it does not exist, and the service.
    ///
    /// # Errors
    ///
    /// - [`Error::NoStateFolder`] if no folder was given and the environment does not name one.
    /// - [`Error::NotPrivate`] if another user can write to the folder.
    /// - [`Error::Io`] if the folder cannot be used.
    pub fn open(self) -> Result<ExecutionService, Error> {
        if self.settings.state_dir.as_os_str().is_empty() {
            return Err(Error::NoStateFolder);
        }
        ExecutionService::with_settings(self.profiles, self.settings)
    }
}

impl std::fmt::Debug for ExecutionServiceBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecutionServiceBuilder")
            .field("state_dir", &self.settings.state_dir)
            .field("memory_policy", &self.settings.memory_policy)
            .finish_non_exhaustive()
    }
}

fn default_state_dir() -> Option<PathBuf> {
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    Some(base?.join("exec-core"))
}

fn default_host_name() -> String {
    std::env::current_exe()
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .unwrap_or_else(|| "unknown".to_owned())
}
