//! The shared state of one execution.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Instant, SystemTime};

use tokio::sync::watch;

use super::activity::Activity;
use super::run_tracker::RunTracker;
use crate::budget::{BudgetMeter, BudgetVerdict};
use crate::live::{LiveControl, LiveLink};
use crate::output::EventLog;
use crate::records::{HistoryEvent, OwnerJournal};
use crate::shared::process_tree::{ProcessScanner, TreeRoot};
use crate::{
    ActiveExecutionRegistry, AgentEvent, EventKind, ExecutionContext, ExecutionId, ExecutionKind,
    ExitReport, History, Sandbox, SessionId, StopLadder, StopLevel, StoppedBy,
};

/// The state that the handles, the supervisor and the pumps of one execution share.
pub(crate) struct LiveExecution {
    pub(crate) id: ExecutionId,
    pub(crate) kind: ExecutionKind,
    pub(crate) context: ExecutionContext,
    pub(crate) process_id: u32,
    pub(crate) started_at: SystemTime,
    /// `started_at` on the monotonic clock.
    pub(crate) start_instant: Instant,
    pub(crate) log: EventLog,
    pub(crate) log_paths: Option<[PathBuf; 2]>,
    pub(crate) input_log_path: Option<PathBuf>,
    /// What is enforced; `None` without a sandbox.
    pub(crate) sandbox: Option<Sandbox>,
    pub(crate) root: TreeRoot,
    pub(crate) registry: Arc<ActiveExecutionRegistry>,
    pub(crate) scanner: Arc<ProcessScanner>,
    pub(crate) history: Arc<History>,
    /// Weak: a handle of an execution must not keep the journal and the watcher of its service.
    pub(crate) owner: Weak<OwnerJournal>,
    /// Invariant: changed only under the lock of the registry, so that both change in one step.
    pub(crate) session: Mutex<CurrentSession>,
    /// Whether the profile reads events from the output.
    pub(crate) has_parser: bool,
    /// `None` without budgets.
    pub(crate) budget: Option<Mutex<BudgetMeter>>,
    pub(crate) activity: Arc<Activity>,
    /// Shared with the engine of a live session.
    pub(crate) run: Arc<Mutex<RunTracker>>,
    /// The protocol of a live session.
    pub(crate) link: Option<LiveLink>,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) stop_asked: watch::Sender<Option<StopRequest>>,
    pub(crate) ladder: StopLadder,
}

/// A request to stop an execution.
#[derive(Clone, Copy)]
pub(crate) struct StopRequest {
    pub(crate) by: StoppedBy,
    pub(crate) manner: StopManner,
}

/// How an execution is stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopManner {
    /// The supervisor takes the steps of the ladder.
    Ladder,
    /// The supervisor kills at once, or breaks off the steps.
    Kill,
    /// Another thread ends the tree. The supervisor closes standard input and waits for the end.
    Outside,
    /// As `Ladder`. If the agent ends with its input, it was not stopped, but has ended by itself.
    Close,
}

pub(crate) struct CurrentSession {
    pub(crate) id: SessionId,
    pub(crate) state: IdState,
    /// Whether the agent continues another session than the one that it was asked for.
    pub(crate) is_another: bool,
}

/// How far the id of a session is known. See the theory in `session_resolution.rs`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdState {
    /// A minted id; the agent's own id is awaited.
    Open,
    /// A minted id that callers no longer wait for. The agent can still replace it.
    Settled,
    /// The id that the agent has reported: it does not change again.
    Reported,
}

/// How far an execution has come.
#[derive(Clone, Default)]
pub(crate) struct Progress {
    /// The session id is final.
    pub(crate) resolved: bool,
    /// The child has ended; processes that it started may not have.
    pub(crate) child_ended: bool,
    /// Processes that a stop could not end.
    pub(crate) survivors: Vec<u32>,
    pub(crate) end: Option<ExecutionEnd>,
    /// The supervisor was dropped and will not report the end.
    pub(crate) abandoned: bool,
}

#[derive(Clone)]
pub(crate) struct ExecutionEnd {
    pub(crate) exit: Arc<ExitReport>,
    pub(crate) processes: usize,
    pub(crate) level: StopLevel,
}

impl LiveExecution {
    pub(crate) fn control(&self) -> Option<LiveControl<'_>> {
        let link = self.link.as_ref()?;
        Some(LiveControl {
            execution: self,
            link,
        })
    }

    pub(crate) fn session_id(&self) -> SessionId {
        self.registry.hold(|| self.lock_session().id.clone())
    }

    /// The first request to stop decides by whom the execution was stopped.
    pub(crate) fn ask_to_stop(&self, by: StoppedBy, manner: StopManner) {
        self.stop_asked.send_if_modified(|asked| {
            let first = asked.is_none();
            asked.get_or_insert(StopRequest { by, manner });
            first
        });
    }

    /// Breaks off the steps of a stop that is under way.
    pub(crate) fn ask_to_kill(&self) {
        self.ask_to_stop(StoppedBy::Caller, StopManner::Kill);
        self.stop_asked.send_modify(|asked| {
            if let Some(request) = asked {
                request.manner = StopManner::Kill;
            }
        });
    }

    /// Waits until the steps of the stop are to be broken off.
    pub(crate) async fn kill_asked(&self) {
        let mut stop_asked = self.stop_asked.subscribe();
        let is_kill = |asked: &Option<StopRequest>| {
            asked.is_some_and(|request| request.manner == StopManner::Kill)
        };
        // The sender is in `self`, so the channel is not closed.
        let _ = stop_asked.wait_for(is_kill).await;
    }

    /// The agent has reported its session id. Resolves the id of a new chat; compares the id of a
    /// follow-up, once. Returns the event to publish.
    pub(crate) fn agent_reported(&self, native_id: &str) -> Option<EventKind> {
        match self.kind {
            ExecutionKind::New => self.resolve(Some(native_id)),
            ExecutionKind::FollowUp => {
                let asked = self.registry.hold(|| {
                    let mut session = self.lock_session();
                    let first = session.state != IdState::Reported;
                    session.state = IdState::Reported;
                    session.is_another |= first && session.id.native_id() != native_id;
                    first.then(|| session.id.native_id().to_owned())
                })?;
                if asked == native_id {
                    return None;
                }
                tracing::warn!(%asked, reported = native_id, "the agent continues another session");
                Some(EventKind::SessionMismatch {
                    asked,
                    reported: native_id.to_owned(),
                })
            }
        }
    }

    /// Makes the session id known: the agent's own id, or the minted one if that is not known in
    /// time. A minted id is replaced by the agent's own one at any time. Returns the event to
    /// publish if there is a change.
    ///
    /// Lock order: the registry, then the session. See the theory in `session_resolution.rs`.
    pub(crate) fn resolve(&self, native_id: Option<&str>) -> Option<EventKind> {
        let old = self.session_id();
        let new = match native_id {
            None => old.clone(),
            Some(native_id) => match old.with_native_id(native_id) {
                Ok(new) => new,
                Err(error) => {
                    tracing::warn!(%error, "the agent's session id cannot be used");
                    return None;
                }
            },
        };
        let (mut has_changed, mut is_news) = (false, false);
        let renamed = self.registry.rename_if(&old, &new, || {
            let mut session = self.lock_session();
            let before = session.state;
            let after = match native_id {
                Some(_) => IdState::Reported,
                None => IdState::Settled,
            };
            // The id can have changed since `old` was read: only another report does that.
            if before == IdState::Reported || before == after || session.id != old {
                return false;
            }
            has_changed = true;
            is_news = before == IdState::Open || session.id != new;
            session.state = after;
            session.id = new.clone();
            true
        });
        if let Err(error) = renamed {
            tracing::warn!(%error, "the agent's session id is that of another live execution");
            return None;
        }
        if has_changed {
            // Also if the agent confirms the minted id: a recovery resumes no other id than one that the
            // agent knows.
            let reported = native_id.is_some();
            if reported
                && let Some(owner) = self.owner.upgrade()
                && let Err(error) = owner.resolved(&self.id, &new)
            {
                tracing::error!(%error, "cannot record the session id");
            }
            let resolved = HistoryEvent::Resolved {
                session_id: new.clone(),
                reported,
            };
            self.history.write(&self.id, resolved);
        }
        if !is_news {
            return None;
        }
        tracing::debug!(session_id = %new, "session id resolved");
        self.progress
            .send_modify(|progress| progress.resolved = true);
        self.with_budget(|budget| budget.rename_session(&new));
        Some(EventKind::SessionResolved { session_id: new })
    }

    /// Counts the events of the agent. Requests a stop if a budget is exceeded, and returns the
    /// events to publish.
    pub(crate) fn count(&self, events: &[AgentEvent]) -> Vec<EventKind> {
        let counted = self.with_budget(|budget| budget.observe(events));
        counted.map_or_else(Vec::new, |verdicts| self.obey(verdicts))
    }

    /// Enforces the budgets of wall time, and keeps those of groups up to date. Never returns.
    pub(crate) async fn watch_budgets(&self) {
        let Some(moved) = self.with_budget(|budget| budget.moved()) else {
            return std::future::pending().await;
        };
        loop {
            let tick = self.with_budget(|budget| budget.next_tick()).flatten();
            let ticking = async {
                match tick {
                    Some(tick) => tokio::time::sleep_until(tick).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = ticking => {}
                () = moved.notified() => continue,
            }
            let verdicts = self.with_budget(BudgetMeter::tick).unwrap_or_default();
            for event in self.obey(verdicts) {
                self.log.push(event);
            }
        }
    }

    fn obey(&self, verdicts: Vec<BudgetVerdict>) -> Vec<EventKind> {
        let obeyed = verdicts.into_iter().map(|verdict| match verdict {
            BudgetVerdict::Warning(notice) => {
                tracing::warn!(budget = %notice, "a budget is nearly used");
                EventKind::BudgetWarning(notice)
            }
            BudgetVerdict::Exceeded(notice) => {
                tracing::warn!(budget = %notice, "a budget is exceeded");
                self.ask_to_stop(StoppedBy::Budget, StopManner::Ladder);
                EventKind::BudgetExceeded(notice)
            }
        });
        obeyed.collect()
    }

    pub(crate) fn with_budget<T>(&self, act: impl FnOnce(&mut BudgetMeter) -> T) -> Option<T> {
        let budget = self.budget.as_ref()?;
        Some(act(&mut budget
            .lock()
            .unwrap_or_else(PoisonError::into_inner)))
    }

    /// Whether the agent itself knows the session by its id: a follow-up can continue it.
    pub(crate) fn is_session_known(&self) -> bool {
        let is_reported = self.lock_session().state == IdState::Reported;
        self.kind == ExecutionKind::FollowUp || is_reported
    }

    pub(crate) fn continues_another_session(&self) -> bool {
        self.lock_session().is_another
    }

    /// What is known of the run. The lock is held for the events of one line at most.
    pub(crate) fn run(&self) -> MutexGuard<'_, RunTracker> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_session(&self) -> MutexGuard<'_, CurrentSession> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
