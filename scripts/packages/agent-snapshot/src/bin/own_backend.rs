//! A custom backend, written from the contract in the docs; it passes the conformance suite.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use agent_snapshot::backend::{HandleMemory, Stamp, StreamChange, assemble, decode_messages};
use agent_snapshot::conversation::Message;
use agent_snapshot::{AgentId, AgentSnapshot, Error, SnapshotStorage, conformance};
use async_trait::async_trait;

#[derive(Debug, Default)]
struct MapStorage {
    agents: Mutex<BTreeMap<AgentId, Kept>>,
    memory: HandleMemory,
}

/// The stored data of one agent.
#[derive(Debug, Default)]
struct Kept {
    /// The highest epoch of a snapshot that was deleted.
    epoch_floor: u64,
    stored: Option<Stored>,
}

#[derive(Debug)]
struct Stored {
    stamp: Stamp,
    body: String,
    head: String,
    stream: BTreeMap<u64, String>,
}

impl MapStorage {
    fn with<T>(&self, agent: &AgentId, job: impl FnOnce(&mut Kept) -> T) -> T {
        let mut map = self.agents.lock().expect("nothing panics while it is locked");
        job(map.entry(agent.clone()).or_default())
    }
}

#[async_trait]
impl SnapshotStorage for MapStorage {
    async fn save(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        self.with(&snapshot.agent_id, |kept| {
            let stamp = kept.stored.as_ref().map(|stored| &stored.stamp);
            let Some(write) = self.memory.plan(snapshot, stamp, kept.epoch_floor)? else {
                return Ok(());
            };
            let (mut stream, head) = match (kept.stored.take(), write.stream) {
                (Some(old), StreamChange::Append) => (old.stream, write.head.unwrap_or(old.head)),
                _ => (BTreeMap::new(), write.head.unwrap_or_default()),
            };
            stream.extend((write.from..).zip(write.messages));
            let (stamp, body) = (write.stamp, write.body);
            self.memory.note(snapshot, &stamp);
            kept.stored = Some(Stored { stamp, body, head, stream });
            Ok(())
        })
    }

    async fn load(&self, agent: &AgentId) -> Result<Option<AgentSnapshot>, Error> {
        self.with(agent, |kept| {
            let Some(stored) = &kept.stored else {
                return Ok(None);
            };
            let in_view = stored.stream.range(stored.stamp.first..stored.stamp.next);
            let messages = in_view.map(|(_, message)| message);
            let snapshot =
                assemble(agent, "the map", &stored.stamp, &stored.body, &stored.head, messages)?;
            self.memory.note(&snapshot, &stored.stamp);
            Ok(Some(snapshot))
        })
    }

    async fn delete(&self, agent: &AgentId) -> Result<(), Error> {
        self.memory.note_delete(agent);
        self.with(agent, |kept| {
            if let Some(stored) = kept.stored.take() {
                kept.epoch_floor = kept.epoch_floor.max(stored.stamp.epoch);
            }
            Ok(())
        })
    }

    async fn list(&self) -> Result<Vec<AgentId>, Error> {
        let map = self.agents.lock().expect("nothing panics while it is locked");
        let agents = map.iter().filter(|(_, kept)| kept.stored.is_some());
        Ok(agents.map(|(agent, _)| agent.clone()).collect())
    }

    async fn stream(
        &self,
        agent: &AgentId,
        range: Range<u64>,
    ) -> Result<Vec<(u64, Message)>, Error> {
        self.with(agent, |kept| {
            let Some(stored) = &kept.stored else {
                return Ok(Vec::new());
            };
            let first = range.start.max(stored.stamp.stream_start);
            let last = range.end.min(stored.stamp.next).max(first);
            let messages = stored.stream.range(first..last).map(|(_, message)| message);
            decode_messages(agent, "the map", first, messages)
        })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let report = conformance::run(async || Arc::new(MapStorage::default())).await;
    assert!(report.passed(), "{report}");
    println!("{} clauses hold", report.outcomes.len());
}
