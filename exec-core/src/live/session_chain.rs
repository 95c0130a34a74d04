//! The processes of one live session, one after the other.

use std::sync::{Arc, Weak};

use tokio::sync::watch;

use crate::run::LiveExecution;

/// What the processes of one live session share: which of them is the latest.
///
/// Every link of a process has the chain, so the chain holds the processes weakly.
pub(crate) struct SessionChain {
    state: watch::Sender<ChainState>,
}

struct ChainState {
    latest: Weak<LiveExecution>,
    /// Whether the latest process is replaced when it dies.
    is_supervised: bool,
}

impl SessionChain {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: watch::Sender::new(ChainState {
                latest: Weak::new(),
                is_supervised: false,
            }),
        })
    }

    pub(super) fn set_latest(&self, execution: &Arc<LiveExecution>, is_supervised: bool) {
        self.state.send_modify(|state| {
            state.latest = Arc::downgrade(execution);
            state.is_supervised = is_supervised;
        });
    }

    /// No process follows this one. Without effect if one has followed already.
    pub(super) fn end_with(&self, execution: &Arc<LiveExecution>) {
        self.state.send_if_modified(|state| {
            let is_change = state.is_supervised && is(&state.latest, execution);
            state.is_supervised &= !is_change;
            is_change
        });
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

fn is(latest: &Weak<LiveExecution>, execution: &Arc<LiveExecution>) -> bool {
    std::ptr::eq(latest.as_ptr(), Arc::as_ptr(execution))
}
