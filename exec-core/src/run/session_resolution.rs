//! How the session id of a new chat becomes known.
//!
//! # Theory
//!
//! A new chat starts with a minted id. The agent's own id, if it has one, arrives from one of
//! these sources:
//!
//! 1. a line of standard output ([`SessionIdResolver`](crate::SessionIdResolver), or a
//!    `SessionStarted` event of the parser; both are called by the line handler);
//! 2. a file that the agent writes ([`SessionIdLookup`], called here);
//! 3. neither in time: callers stop waiting, and the minted id is used until the agent reports
//!    another one.
//!
//! States ([`IdState`](super::live_execution::IdState)): *open* (minted, awaited), *settled*
//! (minted, no longer awaited), *reported* (the agent's own). The states change in this order only.
//! Source 3 settles an open id. Sources 1 and 2 replace an open id, source 1 a settled id, too: an
//! agent can print its id only after its model has answered, which can take longer than any
//! timeout. A lookup in files ends at the timeout, because after it the next launch may look for
//! its own file in the same folder.
//!
//! **Invariant.** The id in the registry and the id of the execution change in one step, under the
//! lock of the registry ([`LiveExecution::resolve`]): at any moment the session is registered under
//! exactly one id, and every former id is an alias of it. A `stop_execution` with any of them finds
//! the execution. Every change publishes one
//! [`SessionResolved`](crate::EventKind::SessionResolved) event: at most two per execution.
//!
//! **Races.**
//! - Two sources answer at the same time: both call `resolve`, and the second call sees `Reported`.
//! - The child ends before the next look of the lookup: [`SessionResolution::resolve_at_end`] asks it
//!   once more, after the pipes were drained.
//! - Two launches in the same workspace look for new files: either could take the other's file.
//!   So only one launch of a profile at a time looks at a workspace ([`LookupSlots`]). The slot is
//!   released when the id is known; if the id is not known in time, only when the agent ends,
//!   because a slow agent may still write its file.
//!
//! **Example.** Two launches of one profile in one workspace:
//!
//! | launch A | launch B |
//! |---|---|
//! | takes the slot, notes the files, starts | waits for the slot |
//! | the agent writes `sessions/7`; `resolve("7")` releases the slot | |
//! | | takes the slot, notes the files (with `7`), starts |
//! | | the agent writes `sessions/8`; `resolve("8")` |

use std::collections::HashMap;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use super::live_execution::LiveExecution;
use crate::{SessionIdLookup, SessionResolutionContext};

/// Makes the id of one session final, together with the line handler.
pub(crate) struct SessionResolution {
    pub(crate) lookup: Option<RunningLookup>,
    pub(crate) timeout: Duration,
}

pub(crate) struct RunningLookup {
    pub(crate) lookup: Box<dyn SessionIdLookup>,
    pub(crate) context: SessionResolutionContext,
    pub(crate) _slot: LookupSlot,
}

impl SessionResolution {
    /// Runs until the id is known or the timeout has passed.
    pub(crate) async fn run(&mut self, execution: &LiveExecution) {
        let mut progress = execution.progress.subscribe();
        let found = tokio::select! {
            _ = progress.wait_for(|progress| progress.resolved) => true,
            () = look_up(self.lookup.as_mut(), execution) => true,
            () = tokio::time::sleep(self.timeout) => false,
        };
        if found {
            self.lookup = None;
        } else if let Some(event) = execution.resolve(None) {
            tracing::warn!("no session id of the agent in time, the minted one is used");
            execution.log.push(event);
        }
    }

    /// To be called when the child has ended: callers wait no longer.
    pub(crate) fn resolve_at_end(&mut self, execution: &LiveExecution) {
        if execution.progress.borrow().resolved {
            return;
        }
        let found = self
            .lookup
            .as_mut()
            .and_then(|running| running.lookup.last_look(&running.context))
            .and_then(|native_id| execution.resolve(Some(&native_id)));
        if let Some(event) = found.or_else(|| execution.resolve(None)) {
            execution.log.push(event);
        }
    }
}

/// Returns only when the lookup has made the id final.
async fn look_up(running: Option<&mut RunningLookup>, execution: &LiveExecution) {
    if let Some(running) = running
        && let Some(native_id) = running.lookup.resolve_session_id(&running.context).await
        && let Some(event) = execution.resolve(Some(&native_id))
    {
        execution.log.push(event);
        return;
    }
    pending::<()>().await;
}

/// Lets one launch of a profile at a time look for its session id in a workspace.
#[derive(Debug, Default)]
pub(crate) struct LookupSlots {
    /// By profile and workspace.
    slots: Mutex<HashMap<(String, PathBuf), SlotLock>>,
}

type SlotLock = Arc<tokio::sync::Mutex<()>>;

/// The right to look for a session id. Dropping it admits the next launch.
#[derive(Debug)]
pub(crate) struct LookupSlot {
    _guard: OwnedMutexGuard<()>,
}

impl LookupSlots {
    /// Waits for the slot, first come, first served; `None` after the timeout.
    pub(crate) async fn take(
        &self,
        profile: &str,
        workspace: &Path,
        timeout: Duration,
    ) -> Option<LookupSlot> {
        let slot = {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            slots.retain(|_, slot| Arc::strong_count(slot) > 1);
            let key = (profile.to_owned(), workspace.to_owned());
            Arc::clone(slots.entry(key).or_default())
        };
        let taken = tokio::time::timeout(timeout, slot.lock_owned()).await;
        Some(LookupSlot {
            _guard: taken.ok()?,
        })
    }
}
