use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;

use crate::{
    AgentId, AgentSnapshot, Error, SnapshotStorage,
    backend::{self, Stamp, Stream},
    conversation::Message,
};

/// Keeps snapshots in memory: for tests, and for agents that need not survive.
///
/// Clones share their contents. Durable for as long as the process lives.
#[derive(Clone, Default)]
pub struct MemoryStorage {
    agents: Arc<Mutex<BTreeMap<AgentId, Slot>>>,
}

#[derive(Default)]
struct Slot {
    record: Option<Record>,
    epoch_floor: u64,
}

// The same encoded parts as everywhere: what goes through here would go through any backend.
struct Record {
    stamp: Stamp,
    state: String,
    head: String,
    messages: Vec<String>,
}

impl MemoryStorage {
    /// An empty storage.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<AgentId, Slot>> {
        // No step in here leaves a slot half changed, so a panic elsewhere does no harm.
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    fn messages(&self, range: Range<u64>) -> &[String] {
        let end = range.end.clamp(self.stamp.start, self.stamp.next);
        let start = range.start.clamp(self.stamp.start, end);
        let index = |seq: u64| (seq - self.stamp.start) as usize;
        self.messages
            .get(index(start)..index(end))
            .unwrap_or_default()
    }
}

#[async_trait]
impl SnapshotStorage for MemoryStorage {
    async fn save(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        let mut agents = self.lock();
        let slot = agents.get(&snapshot.agent_id);
        let stored = slot.and_then(|slot| slot.record.as_ref());
        let floor = slot.map_or(0, |slot| slot.epoch_floor);
        let Some(write) = backend::plan(snapshot, stored.map(|record| &record.stamp), floor)?
        else {
            return Ok(());
        };
        let slot = agents.entry(snapshot.agent_id.clone()).or_default();
        let record = slot.record.get_or_insert_with(|| Record {
            stamp: write.stamp.clone(),
            state: String::new(),
            head: String::new(),
            messages: Vec::new(),
        });
        if write.stream == Stream::Replace {
            record.messages.clear();
        }
        record.messages.extend(write.messages);
        record.stamp = write.stamp;
        record.state = write.state;
        if let Some(head) = write.head {
            record.head = head;
        }
        Ok(())
    }

    async fn load(&self, agent: &AgentId) -> Result<Option<AgentSnapshot>, Error> {
        let agents = self.lock();
        let Some(record) = agents.get(agent).and_then(|slot| slot.record.as_ref()) else {
            return Ok(None);
        };
        backend::assemble(
            agent,
            "memory",
            &record.stamp,
            &record.state,
            &record.head,
            record.messages(record.stamp.first..record.stamp.next),
        )
        .map(Some)
    }

    async fn delete(&self, agent: &AgentId) -> Result<(), Error> {
        if let Some(slot) = self.lock().get_mut(agent)
            && let Some(record) = slot.record.take()
        {
            slot.epoch_floor = slot.epoch_floor.max(record.stamp.epoch);
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<AgentId>, Error> {
        Ok(self
            .lock()
            .iter()
            .filter(|(_, slot)| slot.record.is_some())
            .map(|(agent, _)| agent.clone())
            .collect())
    }

    async fn history(
        &self,
        agent: &AgentId,
        range: Range<u64>,
    ) -> Result<Vec<(u64, Message)>, Error> {
        let agents = self.lock();
        let Some(record) = agents.get(agent).and_then(|slot| slot.record.as_ref()) else {
            return Ok(Vec::new());
        };
        let first = range.start.max(record.stamp.start);
        backend::decode_messages(agent, "memory", first, record.messages(range))
    }
}

impl fmt::Debug for MemoryStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStorage")
            .field("agents", &self.lock().len())
            .finish()
    }
}
