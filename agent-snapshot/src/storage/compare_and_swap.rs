//! Saves for backends that compare and swap a stamp.
//!
//! # Theory
//!
//! **Invariant.** A refusal or a repeat is reported only for a stamp that was read from the backend
//! during this call (`is_current`). A cached stamp may be outdated, so a refusal based on it proves
//! nothing. A successful swap proves that the cached stamp was current.
//!
//! **Races and how they end.**
//!
//! - Another process saves between our guess and our swap: the swap returns `Changed` with the
//!   current stamp, and the save is judged again. It ends as a conflict, or continues the stream of
//!   the other writer.
//! - Another process deletes the agent: the same, with no stamp and a higher epoch floor.
//! - The future is dropped, or the answer is lost, while the swap is under way: the outcome is
//!   unknown. The entry was removed before the swap, so the next save reads the stamp and, if the
//!   swap was done, recognises its repeat by the digest.
//!
//! **Example.** Processes A and B have cached tick 7. A saves tick 8. B saves its own tick 8: judged by
//! the cached tick 7 it is newer, the swap finds tick 8 and returns `Changed`; judged by that it is
//! a conflict, which B gets.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::backend::{Intent, SavePlan, Stamp, judge};
use super::handle_memory::HandleMemory;
use crate::{AgentId, AgentSnapshot, Error};

/// A backend that replaces one stamp by the next in an atomic step.
///
/// [`plan`] judges a save outside the backend, so the backend needs no logic of its own in SQL
/// or Lua: it only compares the stored stamp with the one that was judged.
#[async_trait]
pub(crate) trait CompareAndSwap {
    /// Reads the stored stamp and checks that the snapshot can be loaded.
    async fn read_stamp(&self, agent: &AgentId) -> Result<StoredStamp, Error>;

    /// Compare-and-swap: writes the plan only if the stored stamp equals `expected`; otherwise
    /// returns the current one.
    async fn swap(
        &self,
        agent: &AgentId,
        expected: &StoredStamp,
        plan: SavePlan,
    ) -> Result<Swap, Error>;
}

/// The stamp and the epoch floor that a storage has for an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredStamp {
    /// `None` if no snapshot is stored.
    pub(crate) stamp: Option<Stamp>,
    /// The highest epoch of a deleted snapshot.
    pub(crate) epoch_floor: u64,
}

/// The outcome of a compare-and-swap.
pub(crate) enum Swap {
    Done,
    /// The stored stamp differed. This is the current one.
    Changed(StoredStamp),
}

/// Remembers the stored stamps, so that a save is one step instead of a read and a write.
///
/// An entry is a guess: another process may have saved since. The swap finds out.
#[derive(Default)]
pub(crate) struct StampCache {
    stamps: Mutex<HashMap<AgentId, StoredStamp>>,
    memory: HandleMemory,
}

/// Some megabytes. An agent that was forgotten costs one more read.
const MAX_CACHED: usize = 10_000;

impl StampCache {
    fn lock(&self) -> MutexGuard<'_, HashMap<AgentId, StoredStamp>> {
        self.stamps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that `snapshot` was loaded or saved as `stored`.
    pub(crate) fn set(&self, snapshot: &AgentSnapshot, stored: StoredStamp) {
        let agent = &snapshot.agent_id;
        if let Some(stamp) = &stored.stamp {
            self.memory.note(snapshot, stamp);
        }
        let mut cache = self.lock();
        if cache.len() >= MAX_CACHED && !cache.contains_key(agent) {
            cache.clear();
        }
        cache.insert(agent.clone(), stored);
    }

    fn forget(&self, agent: &AgentId) {
        self.lock().remove(agent);
    }

    /// Notes that a delete of the agent begins.
    pub(crate) fn forget_deleted(&self, agent: &AgentId) {
        self.memory.note_delete(agent);
        self.forget(agent);
    }
}

/// Saves by compare-and-swap, starting from the cached stamp. See the theory above.
pub(crate) async fn save_by_swap(
    backend: &impl CompareAndSwap,
    cache: &StampCache,
    snapshot: &AgentSnapshot,
) -> Result<(), Error> {
    let intent = || cache.memory.save_intent(snapshot);
    swap_until_current(backend, cache, snapshot, intent).await
}

/// As [`save_by_swap`], but replaces a stored state that the snapshot does not continue.
pub(crate) async fn overwrite_by_swap(
    backend: &impl CompareAndSwap,
    cache: &StampCache,
    snapshot: &AgentSnapshot,
) -> Result<(), Error> {
    swap_until_current(backend, cache, snapshot, || Intent::Overwrite).await
}

async fn swap_until_current(
    backend: &impl CompareAndSwap,
    cache: &StampCache,
    snapshot: &AgentSnapshot,
    intent: impl Fn() -> Intent,
) -> Result<(), Error> {
    let agent = &snapshot.agent_id;
    let guess = cache.lock().get(agent).cloned();
    let mut is_current = guess.is_none();
    let mut stored = match guess {
        Some(stored) => stored,
        None => backend.read_stamp(agent).await?,
    };
    loop {
        // After the stamp was read: this handle may have deleted the agent in between.
        let intent = intent();
        match judge(snapshot, stored.stamp.as_ref(), stored.epoch_floor, &intent) {
            Ok(Some(plan)) => {
                let stamp = plan.stamp.clone();
                cache.forget(agent);
                match backend.swap(agent, &stored, plan).await? {
                    Swap::Done => {
                        stored.stamp = Some(stamp);
                        cache.set(snapshot, stored);
                        return Ok(());
                    }
                    Swap::Changed(current) => {
                        stored = current;
                        is_current = true;
                    }
                }
            }
            Ok(None) if is_current => {
                cache.set(snapshot, stored);
                return Ok(());
            }
            Err(error) if is_current || !(error.is_conflict() || error.is_rewound()) => {
                return Err(error);
            }
            Ok(None) | Err(_) => {
                cache.forget(agent);
                stored = backend.read_stamp(agent).await?;
                is_current = true;
            }
        }
    }
}
