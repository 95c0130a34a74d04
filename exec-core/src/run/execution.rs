//! The handle of one execution.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::live_execution::{ExecutionEnd, LiveExecution, Progress, StopManner};
use crate::shared::process_tree::PROCESS_LIST;
use crate::{
    Error, EventStream, ExecutionContext, ExecutionId, ExecutionKind, ExitReport, OutputStream,
    Sandbox, SessionId, StopOutcome, StopReport, StoppedBy,
};

/// A handle of one launch of an agent.
///
/// Cheap to clone. Dropping it, even the last clone, does not affect the execution: it continues, is
/// found by its session id, and is supervised to its end.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, service) = doctest::open("exec sleep 60");
/// # let request = doctest::request("go");
/// use exec_core::StopOutcome;
///
/// let execution = service.launch(request).await?;
/// println!("{} has process {}", execution.id(), execution.process_id());
/// assert_eq!(execution.usage().await?.processes, 1);
///
/// let outcome = execution.stop().await?;
/// assert!(matches!(outcome, StopOutcome::Stopped(_)));
/// assert!(!execution.wait().await?.is_success());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Execution {
    pub(crate) live: Arc<LiveExecution>,
}

/// A started execution, as [`start_new_chat`](crate::ExecutionService::start_new_chat) and
/// [`send_follow_up`](crate::ExecutionService::send_follow_up) return it.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, service) = doctest::open("cat");
/// # let request = doctest::request("go");
/// use exec_core::ExecutionKind;
///
/// let result = service.start_new_chat(request).await?;
/// assert_eq!(result.kind, ExecutionKind::New);
/// println!("{} started at {:?}", result.session_id, result.started_at);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExecutionResult {
    /// The session. If the agent reports its own id later, this one stays an alias.
    pub session_id: SessionId,
    /// The process that was started; `None` if it has already ended.
    pub process_id: Option<u32>,
    /// When the process was started.
    pub started_at: SystemTime,
    /// The compound project id of the request.
    pub project_id: String,
    /// New or follow-up.
    pub kind: ExecutionKind,
}

/// The resources that a process tree uses; see [`Execution::usage`].
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, execution) = doctest::launch("exec sleep 60").await;
/// let usage = execution.usage().await?;
/// println!("{} processes, {} bytes", usage.processes, usage.resident_bytes);
/// # execution.stop().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TreeUsage {
    /// The number of processes; in a sandbox, two of them carry the agent.
    pub processes: usize,
    /// The CPU time of these processes and, on Linux, of the children they have waited for.
    pub cpu_time: Duration,
    /// The sum of the resident memory; memory that processes share counts more than once.
    pub resident_bytes: u64,
}

impl Execution {
    /// The id of this launch.
    pub fn id(&self) -> &ExecutionId {
        &self.live.id
    }

    /// The session: the minted id until the agent's own id is known.
    pub fn session_id(&self) -> SessionId {
        self.live.session_id()
    }

    /// The sandbox that is enforced, with real paths and the agent's own folders; `None` if the
    /// agent has all rights of the user.
    pub fn sandbox(&self) -> Option<&Sandbox> {
        self.live.sandbox.as_ref()
    }

    /// The id of the process that was started. In a sandbox that is bubblewrap, which runs the agent.
    pub fn process_id(&self) -> u32 {
        self.live.process_id
    }

    /// When the process was started.
    pub fn started_at(&self) -> SystemTime {
        self.live.started_at
    }

    /// New or follow-up.
    pub fn kind(&self) -> ExecutionKind {
        self.live.kind
    }

    /// The profile, project and workspace of the request.
    pub fn context(&self) -> &ExecutionContext {
        &self.live.context
    }

    /// The file with the raw bytes of a stream, if the service has a
    /// [`log_dir`](crate::ExecutionServiceBuilder::log_dir).
    pub fn log_path(&self, stream: OutputStream) -> Option<&Path> {
        let [stdout, stderr] = self.live.log_paths.as_ref()?;
        Some(match stream {
            OutputStream::Stdout => stdout,
            OutputStream::Stderr => stderr,
        })
    }

    /// The events from the first one on, also after the end of the execution.
    pub fn events(&self) -> EventStream {
        self.live.log.subscribe()
    }

    /// Waits until the session id is known: the agent has reported it, the timeout has passed, or
    /// the agent has ended. The id of a follow-up is known at once, and so is an id that the agent
    /// takes as an argument.
    ///
    /// If the agent reports its own id only after the timeout, [`session_id`](Self::session_id)
    /// changes, and the id that this call has returned stays an alias for stop, follow-up and
    /// lookup.
    ///
    /// # Errors
    ///
    /// [`Error::ShuttingDown`] if the runtime of the execution is shutting down.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future has no effect.
    pub async fn resolved(&self) -> Result<SessionId, Error> {
        self.wait_for(|progress| progress.resolved).await?;
        Ok(self.session_id())
    }

    /// Waits until the execution has ended: the child, and every process of its tree that could be
    /// ended.
    ///
    /// # Errors
    ///
    /// [`Error::ShuttingDown`] if the runtime of the execution is shutting down.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future has no effect.
    pub async fn wait(&self) -> Result<Arc<ExitReport>, Error> {
        let progress = self.wait_for(|progress| progress.end.is_some()).await?;
        let end = progress.end.ok_or(Error::ShuttingDown)?;
        Ok(end.exit)
    }

    /// How the execution ended; `None` while it runs.
    pub fn exit_report(&self) -> Option<Arc<ExitReport>> {
        let progress = self.live.progress.borrow();
        progress.end.as_ref().map(|end| Arc::clone(&end.exit))
    }

    /// Ends the whole process tree by the [`StopLadder`](crate::StopLadder). Returns when no process
    /// of it is left, or with [`Error::StillAlive`]. The running turn of a live session is cancelled
    /// first, and open permission requests are settled.
    ///
    /// # Errors
    ///
    /// - [`Error::StillAlive`] if processes could not be ended. Until the agent itself ends, a later
    ///   call returns the same process ids and sends no signal. The end of the agent starts one more
    ///   stop; a later call returns the processes that are left then, or `NotFound`.
    /// - [`Error::ShuttingDown`] if the runtime of the execution is shutting down.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once the future was polled, the stop continues even if the future is dropped.
    pub async fn stop(&self) -> Result<StopOutcome, Error> {
        let asked = Instant::now();
        let has_ended = {
            let progress = self.live.progress.borrow();
            progress.end.is_some() && progress.survivors.is_empty()
        };
        if has_ended {
            return Ok(StopOutcome::NotFound);
        }
        self.live.ask_to_stop(StoppedBy::Caller, StopManner::Ladder);
        let end = self.stopped().await?;
        Ok(StopOutcome::Stopped(StopReport {
            processes: end.processes,
            level: end.level,
            took: asked.elapsed(),
            exit: end.exit,
        }))
    }

    /// The resources that the process tree uses now; zero after its end.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the processes of the machine cannot be listed.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future has no effect.
    pub async fn usage(&self) -> Result<TreeUsage, Error> {
        let roots = slice::from_ref(&self.live.root);
        let scan = self.live.scanner.scan(roots).await;
        let table = scan.map_err(Error::io("read", Path::new(PROCESS_LIST)))?;
        let mut usage = TreeUsage::default();
        for process in table.tree(roots, &HashSet::new()) {
            usage.processes += 1;
            usage.cpu_time += process.cpu_time;
            usage.resident_bytes += process.resident_bytes;
        }
        Ok(usage)
    }

    /// Waits for the end of a stop that was asked for.
    pub(crate) async fn stopped(&self) -> Result<ExecutionEnd, Error> {
        let progress = self
            .wait_for(|progress| progress.end.is_some() || !progress.survivors.is_empty())
            .await?;
        if !progress.survivors.is_empty() {
            return Err(Error::StillAlive {
                session: self.session_id(),
                pids: progress.survivors,
            });
        }
        progress.end.ok_or(Error::ShuttingDown)
    }

    pub(crate) fn result(&self) -> ExecutionResult {
        let child_ended = self.live.progress.borrow().child_ended;
        ExecutionResult {
            session_id: self.session_id(),
            process_id: (!child_ended).then_some(self.process_id()),
            started_at: self.started_at(),
            project_id: self.context().project_id.clone(),
            kind: self.kind(),
        }
    }

    async fn wait_for(&self, reached: impl Fn(&Progress) -> bool) -> Result<Progress, Error> {
        let mut progress = self.live.progress.subscribe();
        let progress = progress
            .wait_for(|progress| progress.abandoned || reached(progress))
            .await
            .map_err(|_| Error::ShuttingDown)?;
        if progress.abandoned {
            return Err(Error::ShuttingDown);
        }
        Ok(progress.clone())
    }
}

impl fmt::Debug for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Execution")
            .field("id", &self.id())
            .field("session_id", &self.session_id())
            .field("process_id", &self.process_id())
            .finish_non_exhaustive()
    }
}
