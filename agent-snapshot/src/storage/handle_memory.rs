use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::backend::{Intent, SavePlan, Stamp, judge};
use crate::snapshot::Ancestor;
use crate::{AgentId, AgentSnapshot, Error};

/// The part of an opened storage that knows which snapshots were loaded from it or saved to it.
/// With it a storage notices that it went back in time (rule 15 of the contract).
///
/// Each opened storage has one. It plans the saves, notes each save and load, and notes a delete
/// before it begins:
///
/// ```
/// use agent_snapshot::backend::HandleMemory;
/// use agent_snapshot::{AgentId, AgentSnapshot};
///
/// let memory = HandleMemory::default();
/// let mut snapshot = AgentSnapshot::new(AgentId::new("worker_007")?);
/// let first = memory.plan(&snapshot, None, 0)?.expect("nothing is stored yet");
/// memory.note(&snapshot, &first.stamp); // after the parts were written
///
/// snapshot.tick_index += 1;
/// // The server was flushed, so there is no stamp.
/// assert!(memory.plan(&snapshot, None, 0).unwrap_err().is_rewound());
/// # Ok::<(), agent_snapshot::Error>(())
/// ```
pub struct HandleMemory(Mutex<Handle>);

struct Handle {
    /// Unique in this process. Clones of a storage share it.
    id: u64,
    /// How often each agent was deleted through this handle: a snapshot from before a delete has no
    /// ancestor after it.
    deletes: HashMap<AgentId, u64>,
}

/// Beyond this the handle gets a new id: every snapshot loses its ancestor once.
const MAX_DELETES: usize = 10_000;

impl HandleMemory {
    fn lock(&self) -> MutexGuard<'_, Handle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, agent: &AgentId) -> (u64, u64) {
        let handle = self.lock();
        let deletes = handle.deletes.get(agent).copied().unwrap_or_default();
        (handle.id, deletes)
    }

    /// The intent of a plain save.
    pub(crate) fn save_intent(&self, snapshot: &AgentSnapshot) -> Intent {
        let agent = &snapshot.agent_id;
        let ancestor = snapshot.lineage.ancestor();
        Intent::Save(
            ancestor.filter(|ancestor| {
                ancestor.agent == *agent && ancestor.handle == self.handle(agent)
            }),
        )
    }

    /// As [`plan`](crate::backend::plan), with the knowledge of this storage.
    ///
    /// # Errors
    ///
    /// As [`plan`](crate::backend::plan).
    pub fn plan(
        &self,
        snapshot: &AgentSnapshot,
        stored: Option<&Stamp>,
        epoch_floor: u64,
    ) -> Result<Option<SavePlan>, Error> {
        judge(snapshot, stored, epoch_floor, &self.save_intent(snapshot))
    }

    /// Notes that `snapshot` was loaded or saved with this stamp.
    pub fn note(&self, snapshot: &AgentSnapshot, stamp: &Stamp) {
        snapshot.lineage.set_ancestor(Ancestor {
            handle: self.handle(&snapshot.agent_id),
            agent: snapshot.agent_id.clone(),
            position: stamp.into(),
            digest: stamp.digest,
        });
    }

    /// Notes that a delete begins.
    pub fn note_delete(&self, agent: &AgentId) {
        let mut handle = self.lock();
        if handle.deletes.len() >= MAX_DELETES && !handle.deletes.contains_key(agent) {
            *handle = Handle::default();
        }
        *handle.deletes.entry(agent.clone()).or_default() += 1;
    }
}

impl fmt::Debug for HandleMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandleMemory").finish_non_exhaustive()
    }
}

impl Default for HandleMemory {
    fn default() -> Self {
        Self(Mutex::new(Handle::default()))
    }
}

impl Default for Handle {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            deletes: HashMap::new(),
        }
    }
}
