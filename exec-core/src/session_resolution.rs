use std::collections::HashMap;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use crate::execution::ExecutionState;
use crate::{SessionIdLookup, SessionResolutionContext};

/// How the id of one session is found, apart from standard output.
pub(crate) struct Resolution {
    pub(crate) lookup: Option<Lookup>,
    pub(crate) timeout: Duration,
}

pub(crate) struct Lookup {
    pub(crate) lookup: Box<dyn SessionIdLookup>,
    pub(crate) context: SessionResolutionContext,
    /// Let go when the id is known, and otherwise only when the agent has ended: one that is
    /// merely late may still write its file.
    pub(crate) _turn: Turn,
}

impl Resolution {
    /// Runs until the id is final.
    pub(crate) async fn run(&mut self, state: &ExecutionState) {
        let mut progress = state.progress.subscribe();
        let found = tokio::select! {
            _ = progress.wait_for(|progress| progress.settled) => true,
            () = look(self.lookup.as_mut(), state) => true,
            () = tokio::time::sleep(self.timeout) => false,
        };
        if found {
            self.lookup = None;
        } else if let Some(event) = state.settle(None) {
            tracing::warn!("the agent's session id is not known in time, the minted one stays");
            state.log.push(event);
        }
    }

    /// The agent has ended: whatever is known now is final.
    pub(crate) fn last_look(&mut self, state: &ExecutionState) {
        if state.progress.borrow().settled {
            return;
        }
        let found = self
            .lookup
            .as_mut()
            .and_then(|lookup| lookup.lookup.last_look(&lookup.context))
            .and_then(|agent_id| state.settle(Some(&agent_id)));
        if let Some(event) = found.or_else(|| state.settle(None)) {
            state.log.push(event);
        }
    }
}

/// Returns only when the lookup has settled the id.
async fn look(lookup: Option<&mut Lookup>, state: &ExecutionState) {
    if let Some(Lookup {
        lookup, context, ..
    }) = lookup
        && let Some(agent_id) = lookup.resolve_session_id(context).await
        && let Some(event) = state.settle(Some(&agent_id))
    {
        state.log.push(event);
        return;
    }
    pending::<()>().await;
}

/// Lets one launch at a time look for its session in a workspace.
///
/// What a lookup sees in the file system does not say which launch it belongs to. If only one is
/// looking, it does.
#[derive(Debug, Default)]
pub(crate) struct LookupTurns {
    /// By profile and workspace.
    turns: Mutex<HashMap<(String, PathBuf), TurnLock>>,
}

type TurnLock = Arc<tokio::sync::Mutex<()>>;

/// While this is held, no other launch of the profile looks at the same workspace.
#[derive(Debug)]
pub(crate) struct Turn {
    _guard: OwnedMutexGuard<()>,
}

impl LookupTurns {
    /// Waits for the turn; `None` if it does not come in time.
    pub(crate) async fn take(
        &self,
        profile: &str,
        workspace: &Path,
        timeout: Duration,
    ) -> Option<Turn> {
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            let key = (profile.to_owned(), workspace.to_owned());
            Arc::clone(turns.entry(key).or_default())
        };
        let guard = tokio::time::timeout(timeout, turn.lock_owned())
            .await
            .ok()?;
        Some(Turn { _guard: guard })
    }
}
