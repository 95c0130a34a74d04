use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;

use crate::{
    AgentId, AgentSnapshot, Error,
    backend::{Stamp, Write, plan},
};

/// A backend that replaces one stamp by the next in an atomic step.
///
/// The rules are judged here, by [`plan`], so the backends need no logic of their own: they
/// only notice that the stamp is not the expected one any more.
#[async_trait]
pub(crate) trait Swap {
    /// Reads what is stored and checks that it can be loaded.
    async fn read(&self, agent: &AgentId) -> Result<Known, Error>;

    /// Writes if what is stored is still `known`, else says what is.
    async fn swap(&self, agent: &AgentId, known: &Known, write: Write) -> Result<Swapped, Error>;
}

/// What is stored for an agent, as far as the next save is concerned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) stamp: Option<Stamp>,
    pub(crate) epoch_floor: u64,
}

pub(crate) enum Swapped {
    Done,
    Changed(Known),
}

/// Remembers what is stored, so that a save is one step instead of two.
///
/// Only ever a guess: another process may have saved since, and then the swap says so.
#[derive(Default)]
pub(crate) struct Cache(Mutex<HashMap<AgentId, Known>>);

/// Some megabytes at most; a forgotten agent costs one more read.
const CACHED: usize = 10_000;

impl Cache {
    fn lock(&self) -> MutexGuard<'_, HashMap<AgentId, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, agent: &AgentId, known: Known) {
        let mut cache = self.lock();
        if cache.len() >= CACHED && !cache.contains_key(agent) {
            cache.clear();
        }
        cache.insert(agent.clone(), known);
    }

    pub(crate) fn forget(&self, agent: &AgentId) {
        self.lock().remove(agent);
    }
}

/// Saves by [`Swap`], from what is remembered or, failing that, from what is read.
pub(crate) async fn save(
    backend: &impl Swap,
    cache: &Cache,
    snapshot: &AgentSnapshot,
) -> Result<(), Error> {
    let agent = &snapshot.agent_id;
    let guess = cache.lock().get(agent).cloned();
    let mut certain = guess.is_none();
    let mut known = match guess {
        Some(known) => known,
        None => backend.read(agent).await?,
    };
    loop {
        match plan(snapshot, known.stamp.as_ref(), known.epoch_floor) {
            Ok(Some(write)) => {
                let stamp = write.stamp.clone();
                // Forgotten while the outcome is open: the call may be dropped or fail.
                cache.forget(agent);
                match backend.swap(agent, &known, write).await? {
                    Swapped::Done => {
                        known.stamp = Some(stamp);
                        cache.set(agent, known);
                        return Ok(());
                    }
                    Swapped::Changed(stored) => {
                        known = stored;
                        certain = true;
                    }
                }
            }
            Ok(None) if certain => {
                cache.set(agent, known);
                return Ok(());
            }
            Err(error) if certain || !error.is_conflict() => return Err(error),
            // A repeat or a conflict with something that is only remembered.
            Ok(None) | Err(_) => {
                cache.forget(agent);
                known = backend.read(agent).await?;
                certain = true;
            }
        }
    }
}
