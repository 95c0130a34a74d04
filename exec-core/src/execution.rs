use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;
use uuid::Uuid;

use crate::error::Result;
use crate::event_log::EventLog;
use crate::history::{History, What};
use crate::registry::ActiveExecutionRegistry;
use crate::shared::process_tree::{ProcessScanner, TreeRoot};
use crate::{
    Error, EventKind, EventStream, ExecutionContext, ExecutionKind, ExecutionResult, ExitReport,
    OutputStream, SessionId, StopLevel, StopOutcome, StopReport, StoppedBy,
};

/// A handle of one launch of an agent.
///
/// Cheap to clone. Dropping it, even the last one, does not touch the execution: it runs on, can
/// be looked up by its session, and is supervised to its end.
#[derive(Clone)]
pub struct Execution {
    pub(crate) state: Arc<ExecutionState>,
}

/// The live resources of a process tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TreeUsage {
    /// How many processes there are.
    pub processes: usize,
    /// Their CPU time, with that of the children they have waited for.
    pub cpu_time: Duration,
    /// Their resident memory, summed up: what they share counts more than once.
    pub resident_bytes: u64,
}

/// What the handle, the supervisor and the pumps share.
pub(crate) struct ExecutionState {
    pub(crate) id: Uuid,
    pub(crate) kind: ExecutionKind,
    pub(crate) context: ExecutionContext,
    pub(crate) process_id: u32,
    pub(crate) started_at: SystemTime,
    pub(crate) started: Instant,
    pub(crate) log: EventLog,
    pub(crate) log_paths: Option<[PathBuf; 2]>,
    pub(crate) root: TreeRoot,
    pub(crate) registry: Arc<ActiveExecutionRegistry>,
    pub(crate) scanner: Arc<ProcessScanner>,
    pub(crate) history: Arc<History>,
    /// Changed only while the registry is held, so that both change in one step.
    pub(crate) session: Mutex<Session>,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) stop_asked: watch::Sender<Option<StoppedBy>>,
}

pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) settled: bool,
}

/// How far an execution has come.
#[derive(Clone, Default)]
pub(crate) struct Progress {
    pub(crate) settled: bool,
    /// The process that was started is gone; its tools may not be.
    pub(crate) child_ended: bool,
    /// Processes that a stop could not end.
    pub(crate) survivors: Vec<u32>,
    pub(crate) ended: Option<Ended>,
    /// The supervisor is gone and will not report the end.
    pub(crate) abandoned: bool,
}

#[derive(Clone)]
pub(crate) struct Ended {
    pub(crate) exit: Arc<ExitReport>,
    pub(crate) processes: usize,
    pub(crate) level: StopLevel,
}

impl Execution {
    /// The id of this launch: what its processes carry as `NORMALIZED_EXECUTION_ID`.
    pub fn id(&self) -> String {
        self.state.id.to_string()
    }

    /// The session: the minted id until the agent's own is known.
    pub fn session_id(&self) -> SessionId {
        self.state.session_id()
    }

    /// The process that was started.
    pub fn process_id(&self) -> u32 {
        self.state.process_id
    }

    /// When it was started.
    pub fn started_at(&self) -> SystemTime {
        self.state.started_at
    }

    /// New or follow-up.
    pub fn kind(&self) -> ExecutionKind {
        self.state.kind
    }

    /// Who runs where.
    pub fn context(&self) -> &ExecutionContext {
        &self.state.context
    }

    /// The file with the raw bytes of a stream, if the service was told to write one.
    pub fn log_path(&self, stream: OutputStream) -> Option<&Path> {
        let [stdout, stderr] = self.state.log_paths.as_ref()?;
        Some(match stream {
            OutputStream::Stdout => stdout,
            OutputStream::Stderr => stderr,
        })
    }

    /// The events, from the first one on, however late this is called.
    pub fn events(&self) -> EventStream {
        self.state.log.subscribe()
    }

    /// Waits until the session's id is final: the agent has told it, the time is up, or the agent
    /// has ended. For a follow-up and for an id the agent was given, that is at once.
    ///
    /// # Errors
    /// [`Error::Abandoned`] if the runtime that supervises the execution is gone.
    ///
    /// # Cancel safety
    /// Waiting changes nothing.
    pub async fn resolved(&self) -> Result<SessionId> {
        self.wait_for(|progress| progress.settled).await?;
        Ok(self.session_id())
    }

    /// Waits until the whole process tree has ended.
    ///
    /// # Errors
    /// [`Error::Abandoned`] if the runtime that supervises the execution is gone.
    ///
    /// # Cancel safety
    /// Waiting changes nothing.
    pub async fn wait(&self) -> Result<Arc<ExitReport>> {
        let progress = self.wait_for(|progress| progress.ended.is_some()).await?;
        progress
            .ended
            .map(|ended| ended.exit)
            .ok_or_else(|| self.abandoned())
    }

    /// How it ended, if it has.
    pub fn exit_report(&self) -> Option<Arc<ExitReport>> {
        let progress = self.state.progress.borrow();
        progress.ended.as_ref().map(|ended| Arc::clone(&ended.exit))
    }

    /// Ends the whole process tree by the ladder, and returns when nothing of it is left.
    ///
    /// # Errors
    /// - [`Error::StillAlive`] if there are processes that cannot be ended.
    /// - [`Error::Abandoned`] if the runtime that supervises the execution is gone.
    ///
    /// # Cancel safety
    /// Once polled, the stop goes on even if the future is dropped.
    pub async fn stop(&self) -> Result<StopOutcome> {
        let asked = Instant::now();
        if self.exit_report().is_some() {
            return Ok(StopOutcome::NotFound);
        }
        self.state.ask_to_stop(StoppedBy::Caller);
        let progress = self
            .wait_for(|progress| progress.ended.is_some() || !progress.survivors.is_empty())
            .await?;
        if !progress.survivors.is_empty() {
            return Err(Error::StillAlive {
                session_id: self.session_id(),
                pids: progress.survivors,
            });
        }
        let Some(ended) = progress.ended else {
            return Err(self.abandoned());
        };
        Ok(StopOutcome::Stopped(StopReport {
            processes: ended.processes,
            level: ended.level,
            took: asked.elapsed(),
            exit: ended.exit,
        }))
    }

    /// What the process tree uses at this moment; all zeros once it has ended.
    ///
    /// # Errors
    /// [`Error::ProcessTable`] if `/proc` cannot be read.
    ///
    /// # Cancel safety
    /// Looking changes nothing.
    pub async fn usage(&self) -> Result<TreeUsage> {
        let roots = slice::from_ref(&self.state.root);
        let table = self
            .state
            .scanner
            .scan(roots)
            .await
            .map_err(|source| Error::ProcessTable { source })?;
        let mut usage = TreeUsage {
            processes: 0,
            cpu_time: Duration::ZERO,
            resident_bytes: 0,
        };
        let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
        for process in table.tree(roots, &HashSet::new()) {
            usage.processes += 1;
            usage.cpu_time +=
                Duration::from_millis(process.cpu_ticks.saturating_mul(1000) / ticks_per_second);
            usage.resident_bytes += process.resident_pages * rustix::param::page_size() as u64;
        }
        Ok(usage)
    }

    /// The answer that the specification gives to a start.
    pub(crate) fn result(&self) -> ExecutionResult {
        ExecutionResult {
            session_id: self.session_id(),
            process_id: (!self.state.progress.borrow().child_ended).then_some(self.process_id()),
            started_at: self.started_at(),
            project_id: self.context().project_id.clone(),
            kind: self.kind(),
        }
    }

    async fn wait_for(&self, mut reached: impl FnMut(&Progress) -> bool) -> Result<Progress> {
        let mut progress = self.state.progress.subscribe();
        let progress = progress
            .wait_for(|progress| progress.abandoned || reached(progress))
            .await
            .map_err(|_| self.abandoned())?;
        if progress.abandoned {
            return Err(self.abandoned());
        }
        Ok(progress.clone())
    }

    fn abandoned(&self) -> Error {
        Error::Abandoned {
            session_id: self.session_id(),
        }
    }
}

impl ExecutionState {
    pub(crate) fn session_id(&self) -> SessionId {
        self.registry.hold(|| self.lock_session().id.clone())
    }

    pub(crate) fn ask_to_stop(&self, by: StoppedBy) {
        self.stop_asked.send_if_modified(|asked| {
            let first = asked.is_none();
            asked.get_or_insert(by);
            first
        });
    }

    /// The agent has named its session: settles the id of a new chat, checks that of a follow-up.
    /// Gives the event that tells of it.
    pub(crate) fn agent_reported(&self, agent_id: &str) -> Option<EventKind> {
        match self.kind {
            ExecutionKind::New => self.settle(Some(agent_id)),
            ExecutionKind::FollowUp => {
                let asked = self.session_id().agent_id().to_owned();
                if asked == agent_id {
                    return None;
                }
                tracing::warn!(%asked, reported = agent_id, "the agent continues another session");
                Some(EventKind::SessionMismatch {
                    asked,
                    reported: agent_id.to_owned(),
                })
            }
        }
    }

    /// Makes the session's id final, with the agent's id if it is known. The first call that
    /// succeeds wins; only that one gives the event.
    pub(crate) fn settle(&self, agent_id: Option<&str>) -> Option<EventKind> {
        let old = self.session_id();
        let new = match agent_id
            .map(|agent_id| old.with_agent_id(agent_id))
            .transpose()
        {
            Ok(new) => new.unwrap_or_else(|| old.clone()),
            Err(error) => {
                tracing::warn!(%error, "the agent's session id cannot be used");
                return None;
            }
        };
        let mut first = false;
        let renamed = self.registry.rename_if(&old, &new, || {
            let mut session = self.lock_session();
            if session.settled {
                return false;
            }
            first = true;
            session.settled = true;
            session.id = new.clone();
            true
        });
        if let Err(error) = renamed {
            tracing::warn!(%error, "the agent's session id is that of another live execution");
            return None;
        }
        if !first {
            return None;
        }
        tracing::debug!(session_id = %new, "session id resolved");
        let session_id = new.clone();
        self.history
            .write(&self.id.to_string(), What::Resolved { session_id });
        self.progress
            .send_modify(|progress| progress.settled = true);
        Some(EventKind::SessionResolved { session_id: new })
    }

    pub(crate) fn lock_session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
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
