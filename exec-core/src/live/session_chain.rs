//! The processes of one live session, one after the other.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::watch;

use super::live_session::SessionHandle;
use crate::run::LiveExecution;

/// What the processes of one live session share: which of them is the latest.
///
/// Every link of a process has the chain, so the chain holds the processes weakly.
pub(crate) struct SessionChain {
    state: watch::Sender<ChainState>,
    handle: Mutex<Weak<ChainHandle>>,
}

/// Exists as long as there is a `LiveSession` of any process of the session. It keeps the handle of the
/// latest process, which has the messages that wait: a caller with an older handle only must not lose
/// them. Earlier processes are not kept, because each has a log.
#[derive(Default)]
pub(super) struct ChainHandle {
    latest: Mutex<Option<Arc<SessionHandle>>>,
}

struct ChainState {
    latest: Weak<LiveExecution>,
    /// Whether the latest process is replaced when it dies.
    is_supervised: bool,
    /// How many restarts are opening the session. Invariant: one begins only while `is_supervised`, so
    /// a close either prevents it or sees it.
    openings: usize,
}

/// A restart that opens the session. Dropping it ends the opening.
pub(super) struct ChainOpening<'a> {
    chain: &'a SessionChain,
    ended: &'a Arc<LiveExecution>,
}

impl SessionChain {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: watch::Sender::new(ChainState {
                latest: Weak::new(),
                is_supervised: false,
                openings: 0,
            }),
            handle: Mutex::new(Weak::new()),
        })
    }

    /// All callers share one handle.
    pub(super) fn handle(&self) -> Arc<ChainHandle> {
        let mut handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        handle.upgrade().unwrap_or_else(|| {
            let new = Arc::new(ChainHandle::default());
            *handle = Arc::downgrade(&new);
            new
        })
    }

    pub(super) fn set_latest(&self, execution: &Arc<LiveExecution>, is_supervised: bool) {
        self.state.send_modify(|state| {
            state.latest = Arc::downgrade(execution);
            state.is_supervised = is_supervised;
        });
    }

    /// No restart follows, whichever process is the latest.
    pub(super) fn end(&self) {
        self.state.send_modify(|state| state.is_supervised = false);
    }

    pub(super) fn latest(&self) -> Option<Arc<LiveExecution>> {
        self.state.borrow().latest.upgrade()
    }

    /// No process follows this one. Without effect if one has followed already.
    pub(super) fn end_with(&self, execution: &Arc<LiveExecution>) {
        self.state.send_if_modified(|state| {
            let is_change = state.is_supervised && is(&state.latest, execution);
            state.is_supervised &= !is_change;
            is_change
        });
    }

    /// Begins a restart of this process; `None` if it must not be replaced.
    pub(super) fn begin_opening<'a>(
        &'a self,
        ended: &'a Arc<LiveExecution>,
    ) -> Option<ChainOpening<'a>> {
        let begun = self.state.send_if_modified(|state| {
            let is_wanted = state.is_supervised && is(&state.latest, ended);
            state.openings += usize::from(is_wanted);
            is_wanted
        });
        begun.then(|| ChainOpening { chain: self, ended })
    }

    /// Waits until no restart opens the session.
    pub(super) async fn no_restart_opens(&self) {
        let mut state = self.state.subscribe();
        // The sender is in `self`, so the channel is not closed.
        let _ = state.wait_for(|state| state.openings == 0).await;
    }

    /// Whether no process has followed this one.
    pub(super) fn is_latest(&self, execution: &Arc<LiveExecution>) -> bool {
        is(&self.state.borrow().latest, execution)
    }

    /// Waits until this process must not be replaced: the session was closed, or another process has
    /// followed.
    pub(super) async fn ended_with(&self, execution: &Arc<LiveExecution>) {
        let mut state = self.state.subscribe();
        let has_ended = |state: &ChainState| !state.is_supervised || !is(&state.latest, execution);
        // The sender is in `self`, so the channel is not closed.
        let _ = state.wait_for(has_ended).await;
    }

    /// Waits for a process that follows this one; `None` if none will.
    pub(super) async fn next_after(
        &self,
        execution: &Arc<LiveExecution>,
    ) -> Option<Arc<LiveExecution>> {
        let mut state = self.state.subscribe();
        let has_moved = |state: &ChainState| !state.is_supervised || !is(&state.latest, execution);
        let state = state.wait_for(has_moved).await.ok()?;
        match is(&state.latest, execution) {
            true => None,
            false => state.latest.upgrade(),
        }
    }
}

impl ChainHandle {
    /// Keeps the handle if it is that of the latest process.
    pub(super) fn keep(&self, chain: &SessionChain, handle: &Arc<SessionHandle>) {
        let former = {
            let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
            // Under the lock: a process that becomes the latest is kept after the check.
            match chain.is_latest(&handle.execution) {
                true => latest.replace(Arc::clone(handle)),
                false => None,
            }
        };
        // Its drop takes the lock of its link.
        drop(former);
    }
}

impl ChainOpening<'_> {
    /// The process that was opened is the latest. `false` if the session was closed during the
    /// opening: the process must be ended.
    pub(super) fn succeed(&self, next: &Arc<LiveExecution>) -> bool {
        self.chain.state.send_if_modified(|state| {
            let is_wanted = state.is_supervised && is(&state.latest, self.ended);
            if is_wanted {
                state.latest = Arc::downgrade(next);
            }
            is_wanted
        })
    }
}

impl Drop for ChainOpening<'_> {
    fn drop(&mut self) {
        let state = &self.chain.state;
        state.send_modify(|state| state.openings -= 1);
    }
}

fn is(latest: &Weak<LiveExecution>, execution: &Arc<LiveExecution>) -> bool {
    std::ptr::eq(latest.as_ptr(), Arc::as_ptr(execution))
}
