//! A storage of your own, written with the parts in `agent_snapshot::backend` and checked by the
//! conformance suite.
//!
//! ```sh
//! cargo run -p agent-snapshot --features conformance --example own_backend
//! ```
#![allow(clippy::print_stdout, reason = "printing is the purpose of an example")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_snapshot::backend::{
    HandleMemory, SavePlan, Stamp, StreamChange, assemble, decode_messages, plan_overwrite,
};
use agent_snapshot::conversation::Message;
use agent_snapshot::{AgentId, AgentSnapshot, Error, SnapshotStorage, conformance};
use async_trait::async_trait;

/// Keeps the parts of each agent in a table. A real backend has them in rows, keys or objects.
#[derive(Debug, Default)]
struct TableStorage {
    table: Mutex<BTreeMap<AgentId, Row>>,
    /// Which snapshots were loaded from here or saved here.
    memory: HandleMemory,
}

#[derive(Debug, Default)]
struct Row {
    /// The highest epoch of a deleted snapshot. It outlives the snapshot.
    epoch_floor: u64,
    parts: Option<Parts>,
}

#[derive(Debug)]
struct Parts {
    stamp: Stamp,
    body: String,
    head: String,
    stream: BTreeMap<u64, String>,
}

const LOCATION: &str = "the table";

impl TableStorage {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<AgentId, Row>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TableStorage {
    fn note(&self, snapshot: &AgentSnapshot, row: &Row) {
        if let Some(parts) = &row.parts {
            self.memory.note(snapshot, &parts.stamp);
        }
    }
}

impl Row {
    fn write(&mut self, plan: SavePlan) {
        let (mut stream, head) = match (self.parts.take(), plan.stream) {
            (Some(old), StreamChange::Append) => (old.stream, plan.head.unwrap_or(old.head)),
            _ => (BTreeMap::new(), plan.head.unwrap_or_default()),
        };
        stream.extend((plan.from..).zip(plan.messages));
        self.parts = Some(Parts {
            stamp: plan.stamp,
            body: plan.body,
            head,
            stream,
        });
    }
}

#[async_trait]
impl SnapshotStorage for TableStorage {
    // The lock makes the three steps of a save atomic: read the stamp, plan, write.
    async fn save(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        let mut table = self.lock();
        let row = table.entry(snapshot.agent_id.clone()).or_default();
        let stamp = row.parts.as_ref().map(|parts| &parts.stamp);
        if let Some(plan) = self.memory.plan(snapshot, stamp, row.epoch_floor)? {
            row.write(plan);
        }
        self.note(snapshot, row);
        Ok(())
    }

    // Optional: without it a caller cannot save over a state that it does not continue.
    async fn overwrite(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        let mut table = self.lock();
        let row = table.entry(snapshot.agent_id.clone()).or_default();
        let stamp = row.parts.as_ref().map(|parts| &parts.stamp);
        if let Some(plan) = plan_overwrite(snapshot, stamp, row.epoch_floor)? {
            row.write(plan);
        }
        self.note(snapshot, row);
        Ok(())
    }

    async fn load(&self, agent: &AgentId) -> Result<Option<AgentSnapshot>, Error> {
        let table = self.lock();
        let Some(parts) = table.get(agent).and_then(|row| row.parts.as_ref()) else {
            return Ok(None);
        };
        let view = parts.stream.range(parts.stamp.first..parts.stamp.next);
        let messages = view.map(|(_, json)| json);
        let Parts {
            stamp, body, head, ..
        } = parts;
        let snapshot = assemble(agent, LOCATION, stamp, body, head, messages)?;
        self.memory.note(&snapshot, stamp);
        Ok(Some(snapshot))
    }

    async fn delete(&self, agent: &AgentId) -> Result<(), Error> {
        self.memory.note_delete(agent);
        if let Some(row) = self.lock().get_mut(agent)
            && let Some(parts) = row.parts.take()
        {
            row.epoch_floor = row.epoch_floor.max(parts.stamp.epoch);
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<AgentId>, Error> {
        let table = self.lock();
        let stored = table.iter().filter(|(_, row)| row.parts.is_some());
        Ok(stored.map(|(agent, _)| agent.clone()).collect())
    }

    // Optional: the messages out of view.
    async fn stream(
        &self,
        agent: &AgentId,
        range: Range<u64>,
    ) -> Result<Vec<(u64, Message)>, Error> {
        let table = self.lock();
        let Some(parts) = table.get(agent).and_then(|row| row.parts.as_ref()) else {
            return Ok(Vec::new());
        };
        let first = range.start.max(parts.stamp.stream_start);
        let end = range.end.min(parts.stamp.next).max(first);
        let messages = parts.stream.range(first..end).map(|(_, json)| json);
        decode_messages(agent, LOCATION, first, messages)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let report = conformance::run(async || Arc::new(TableStorage::default())).await;
    println!("{report}");
    if report.passed() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
