use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Bound, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;

use super::SnapshotStorage;
use super::backend::{self, Intent, Stamp, StreamChange};
use super::handle_memory::HandleMemory;
use crate::conversation::Message;
use crate::{AgentId, AgentInfo, AgentSnapshot, Error};

/// Keeps snapshots in memory: for tests, and for agents that need not survive their process.
///
/// Clones share their contents. Dropping the last clone drops the contents.
///
/// ```
/// use agent_snapshot::{AgentId, AgentSnapshot, MemoryStorage, SnapshotStorage};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
/// let storage = MemoryStorage::new();
/// let snapshot = AgentSnapshot::new(AgentId::new("worker_007")?);
/// storage.save(&snapshot).await?;
/// let clone = storage.clone();
/// assert_eq!(clone.load(&snapshot.agent_id).await?, Some(snapshot));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct MemoryStorage {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    agents: Mutex<BTreeMap<AgentId, AgentSlot>>,
    memory: HandleMemory,
}

#[derive(Clone, Default)]
struct AgentSlot {
    parts: Option<StoredParts>,
    epoch_floor: u64,
}

/// The encoded parts, as every backend stores them: tests with this storage also test the encoding.
#[derive(Clone)]
struct StoredParts {
    stamp: Stamp,
    body: String,
    head: String,
    messages: Vec<String>,
    labels: String,
    changed: SystemTime,
}

impl MemoryStorage {
    /// An empty storage.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A copy of the contents that shares nothing with this storage.
    #[must_use]
    pub fn backup(&self) -> Self {
        let copy = Self::new();
        copy.lock().clone_from(&self.lock());
        copy
    }

    /// Replaces the contents by those of a [`backup`](Self::backup), as a failover or a restored
    /// backup does to a server: a writer that has committed more gets
    /// [`Error::Rewound`]. For tests.
    ///
    /// ```
    /// use agent_snapshot::{AgentId, AgentSnapshot, MemoryStorage, SnapshotStorage};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), agent_snapshot::Error> {
    /// let storage = MemoryStorage::new();
    /// let empty = storage.backup();
    /// let mut snapshot = AgentSnapshot::new(AgentId::new("worker_007")?);
    /// storage.save(&snapshot).await?;
    /// storage.rewind_to(&empty);
    /// snapshot.tick_index += 1;
    /// assert!(storage.save(&snapshot).await.unwrap_err().is_rewound());
    /// # Ok(())
    /// # }
    /// ```
    pub fn rewind_to(&self, backup: &Self) {
        let contents = backup.lock().clone();
        *self.lock() = contents;
    }

    /// Makes the last save of an agent look older. For tests of
    /// [`expire`](SnapshotStorage::expire).
    pub fn age(&self, agent: &AgentId, by: Duration) {
        if let Some(parts) = self
            .lock()
            .get_mut(agent)
            .and_then(|slot| slot.parts.as_mut())
        {
            parts.changed = parts.changed.checked_sub(by).unwrap_or(UNIX_EPOCH);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<AgentId, AgentSlot>> {
        // All steps that can panic come before the change of a slot, so a slot is never changed in
        // part.
        let agents = self.shared.agents.lock();
        agents.unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, snapshot: &AgentSnapshot, intent: &Intent) -> Result<(), Error> {
        let mut agents = self.lock();
        let slot = agents.get(&snapshot.agent_id);
        let stored = slot
            .and_then(|slot| slot.parts.as_ref())
            .map(|parts| &parts.stamp);
        let floor = slot.map_or(0, |slot| slot.epoch_floor);
        let Some(plan) = backend::judge(snapshot, stored, floor, intent)? else {
            if let Some(stamp) = stored {
                self.shared.memory.note(snapshot, stamp);
            }
            return Ok(());
        };
        self.shared.memory.note(snapshot, &plan.stamp);
        let slot = agents.entry(snapshot.agent_id.clone()).or_default();
        let parts = slot.parts.get_or_insert_with(|| StoredParts {
            stamp: plan.stamp.clone(),
            body: String::new(),
            head: String::new(),
            messages: Vec::new(),
            labels: String::new(),
            changed: UNIX_EPOCH,
        });
        if plan.stream == StreamChange::Replace {
            parts.messages.clear();
        }
        parts.messages.extend(plan.messages);
        parts.stamp = plan.stamp;
        parts.body = plan.body;
        parts.labels = plan.labels;
        parts.changed = SystemTime::now();
        if let Some(head) = plan.head {
            parts.head = head;
        }
        Ok(())
    }
}

impl AgentSlot {
    fn clear(&mut self) {
        if let Some(parts) = self.parts.take() {
            self.epoch_floor = self.epoch_floor.max(parts.stamp.epoch);
        }
    }
}

impl StoredParts {
    fn messages(&self, range: Range<u64>) -> &[String] {
        let end = range.end.clamp(self.stamp.stream_start, self.stamp.next);
        let start = range.start.clamp(self.stamp.stream_start, end);
        let index = |seq: u64| (seq - self.stamp.stream_start) as usize;
        self.messages
            .get(index(start)..index(end))
            .unwrap_or_default()
    }
}

#[async_trait]
impl SnapshotStorage for MemoryStorage {
    async fn save(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        let intent = self.shared.memory.save_intent(snapshot);
        self.write(snapshot, &intent)
    }

    async fn overwrite(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        self.write(snapshot, &Intent::Overwrite)
    }

    async fn load(&self, agent: &AgentId) -> Result<Option<AgentSnapshot>, Error> {
        let agents = self.lock();
        let Some(parts) = agents.get(agent).and_then(|slot| slot.parts.as_ref()) else {
            return Ok(None);
        };
        let StoredParts {
            stamp, body, head, ..
        } = parts;
        let view = parts.messages(stamp.first..stamp.next);
        let snapshot = backend::assemble(agent, "memory", stamp, body, head, view)?;
        self.shared.memory.note(&snapshot, stamp);
        Ok(Some(snapshot))
    }

    async fn delete(&self, agent: &AgentId) -> Result<(), Error> {
        self.shared.memory.note_delete(agent);
        if let Some(slot) = self.lock().get_mut(agent) {
            slot.clear();
        }
        Ok(())
    }

    async fn page(&self, after: Option<&AgentId>, limit: usize) -> Result<Vec<AgentInfo>, Error> {
        let agents = self.lock();
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let stored = agents
            .range::<AgentId, _>((start, Bound::Unbounded))
            .filter_map(|(agent, slot)| Some((agent, slot.parts.as_ref()?)));
        let info = |(agent, parts): (&AgentId, &StoredParts)| {
            let messages: usize = parts.messages.iter().map(String::len).sum();
            let bytes = messages + parts.body.len() + parts.head.len();
            AgentInfo::from_parts(
                agent.clone(),
                Some(&parts.stamp),
                Some(&parts.labels),
                bytes as u64,
                parts.changed,
            )
        };
        Ok(stored.take(limit).map(info).collect())
    }

    async fn expire(&self, older_than: Duration) -> Result<Vec<AgentId>, Error> {
        let mut expired = Vec::new();
        for (agent, slot) in self.lock().iter_mut() {
            let age = slot.parts.as_ref().map(|parts| parts.changed.elapsed());
            if age.is_some_and(|age| age.unwrap_or_default() >= older_than) {
                self.shared.memory.note_delete(agent);
                slot.clear();
                expired.push(agent.clone());
            }
        }
        Ok(expired)
    }

    async fn cap_stream(&self, agent: &AgentId, keep: u64) -> Result<u64, Error> {
        let mut agents = self.lock();
        let Some(parts) = agents.get_mut(agent).and_then(|slot| slot.parts.as_mut()) else {
            return Ok(0);
        };
        let start = parts.stamp.capped_start(keep);
        let removed = start - parts.stamp.stream_start;
        parts.messages.drain(..removed as usize);
        parts.stamp.stream_start = start;
        Ok(removed)
    }

    async fn list(&self) -> Result<Vec<AgentId>, Error> {
        Ok(self
            .lock()
            .iter()
            .filter(|(_, slot)| slot.parts.is_some())
            .map(|(agent, _)| agent.clone())
            .collect())
    }

    async fn stream(
        &self,
        agent: &AgentId,
        range: Range<u64>,
    ) -> Result<Vec<(u64, Message)>, Error> {
        let agents = self.lock();
        let Some(parts) = agents.get(agent).and_then(|slot| slot.parts.as_ref()) else {
            return Ok(Vec::new());
        };
        let first = range.start.max(parts.stamp.stream_start);
        backend::decode_messages(agent, "memory", first, parts.messages(range))
    }
}

impl fmt::Debug for MemoryStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStorage")
            .field("agents", &self.lock().len())
            .finish()
    }
}
