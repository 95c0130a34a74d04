//! The end of a host: all executions are stopped at the same time.

use std::slice;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::execution_service::ServiceInner;
use crate::process::{StoppedTree, TAG_VARIABLE, deadline_after, stop_tree};
use crate::records::LiveRecord;
use crate::run::StopManner;
use crate::shared::process_tree::{ProcessScanner, TreeEnder, TreeRoot};
use crate::{Error, Execution, ExecutionService, StopLadder, StopOutcome, StoppedBy};

/// The result of [`ExecutionService::shutdown`].
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, service) = doctest::open("exec sleep 60");
/// # let request = doctest::request("go");
/// use std::time::Duration;
///
/// service.launch(request).await?;
/// let report = service.shutdown(Duration::from_secs(10)).await;
/// assert_eq!((report.executions, report.processes), (1, 1));
/// assert!(report.survivors.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// How many executions were stopped.
    pub executions: usize,
    /// How many processes they had.
    pub processes: usize,
    /// Processes that could not be ended: they belong to another user, or the kernel holds them.
    pub survivors: Vec<u32>,
}

/// Stops all executions of a service when it is dropped; see
/// [`ExecutionService::shutdown_on_drop`].
///
/// Dropping it blocks the thread until the processes have ended, also inside a runtime.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, service) = doctest::open("exec sleep 60");
/// # let request = doctest::request("go");
/// use std::time::Duration;
///
/// let guard = service.shutdown_on_drop(Duration::from_secs(10));
/// let execution = service.launch(request).await?;
/// drop(guard); // an early return and a panic drop it, too
/// assert!(!execution.wait().await?.is_success());
/// # Ok(())
/// # }
/// ```
#[must_use = "the executions are stopped when the guard is dropped"]
#[derive(Debug)]
pub struct ShutdownGuard {
    service: ExecutionService,
    limit: Duration,
}

impl ExecutionService {
    /// Stops all executions at the same time, each by its ladder, and refuses launches from now on.
    /// After `limit`, the remaining processes are killed. Returns when no process is left, or at most ten
    /// seconds after `limit` with the processes that could not be ended.
    ///
    /// Call it before the host ends: agents are in process groups of their own, so a signal to the
    /// host does not reach them. See [`termination_signal`](crate::termination_signal).
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: if the future is dropped, launches stay refused and the stops continue, but
    /// nothing is killed after `limit`. Call it again to continue.
    pub async fn shutdown(&self, limit: Duration) -> ShutdownReport {
        self.inner().close();
        let deadline = deadline_after(limit);
        let mut stops = JoinSet::new();
        for execution in self.executions() {
            stops.spawn(async move {
                match tokio::time::timeout_at(deadline, execution.stop()).await {
                    Ok(stopped) => stopped,
                    Err(_) => {
                        execution.live.ask_to_kill();
                        execution.stop().await
                    }
                }
            });
        }
        let mut report = ShutdownReport::default();
        for stopped in stops.join_all().await {
            match stopped {
                Ok(StopOutcome::Stopped(stopped)) => {
                    report.executions += 1;
                    report.processes += stopped.processes;
                }
                Ok(StopOutcome::NotFound) => {}
                Err(Error::StillAlive { pids, .. }) => report.survivors.extend(pids),
                Err(error) => tracing::error!(%error, "cannot stop an execution"),
            }
        }
        report.survivors.sort_unstable();
        tracing::debug!(?report, "shut down");
        report
    }

    /// A guard that stops all executions when it is dropped: at the end of the host's main function,
    /// after an early return, or during a panic. Without it, dropping stops nothing.
    ///
    /// The guard works without the runtime of the executions, so it may outlive it. It takes the
    /// steps of each ladder and kills after `limit`, as [`shutdown`](Self::shutdown) does.
    pub fn shutdown_on_drop(&self, limit: Duration) -> ShutdownGuard {
        ShutdownGuard {
            service: self.clone(),
            limit,
        }
    }
}

impl ServiceInner {
    /// Refuses launches from now on. After the return, every execution is in the registry.
    fn close(&self) {
        // Waits for launches that are between the check and the entry in the registry.
        *self.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
        self.waits.close();
    }
}

impl Drop for ShutdownGuard {
    fn drop(&mut self) {
        self.service.inner().close();
        let service = self.service.inner();
        let executions = self.service.executions();
        let mut abandoned = service.owner.live_records();
        abandoned.retain(|record| {
            let mut live = executions.iter();
            live.all(|execution| *execution.id() != record.execution_id)
        });
        if executions.is_empty() && abandoned.is_empty() {
            return;
        }
        let (ladder, limit) = (service.settings.stop_ladder.clone(), self.limit);
        let supervised = executions.clone();
        // A thread with a runtime of its own: this thread may belong to a runtime, whose tasks do
        // not run while it is blocked, or whose runtime is already gone.
        let thread = std::thread::Builder::new().name("exec-core shutdown".to_owned());
        let spawned = thread.spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let ended = end_all(executions, abandoned, ladder, limit);
            runtime
                .enable_all()
                .build()
                .map(|runtime| runtime.block_on(ended))
        });
        match spawned.map(std::thread::JoinHandle::join) {
            Ok(Ok(Ok(()))) => return,
            Ok(Ok(Err(error))) | Err(error) => {
                tracing::error!(%error, "cannot stop the executions");
            }
            Ok(Err(_)) => tracing::error!("the shutdown panicked"),
        }
        // Out of threads, descriptors or memory: the supervisors may still be able to.
        for execution in supervised {
            execution.live.ask_to_kill();
        }
    }
}

/// `abandoned`: executions whose runtime, and with it their supervisor, is gone.
async fn end_all(
    executions: Vec<Execution>,
    abandoned: Vec<LiveRecord>,
    ladder: StopLadder,
    limit: Duration,
) {
    // Not the scanner of the service: its lock may be held by a task that does not run.
    let scanner = Arc::new(ProcessScanner::new(TAG_VARIABLE));
    let deadline = deadline_after(limit);
    let mut stops = JoinSet::new();
    for execution in executions {
        let (live, scanner) = (execution.live, Arc::clone(&scanner));
        stops.spawn(async move {
            live.ask_to_stop(StoppedBy::Caller, StopManner::Outside);
            end_tree(&live.root, &live.ladder, &scanner, deadline).await
        });
    }
    for record in abandoned {
        let (ladder, scanner) = (ladder.clone(), Arc::clone(&scanner));
        stops.spawn(async move { end_tree(&record.root(), &ladder, &scanner, deadline).await });
    }
    for tree in stops.join_all().await {
        if !tree.survivors.is_empty() {
            tracing::error!(pids = ?tree.survivors, "processes are still alive");
        }
    }
}

async fn end_tree(
    root: &TreeRoot,
    ladder: &StopLadder,
    scanner: &ProcessScanner,
    deadline: Instant,
) -> StoppedTree {
    let tree = TreeEnder::new(scanner, slice::from_ref(root));
    let kill_now = tokio::time::sleep_until(deadline);
    stop_tree(tree, ladder, |_| {}, kill_now).await
}
