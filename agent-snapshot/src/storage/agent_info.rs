use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use super::backend::Stamp;
use crate::{AgentId, AgentSnapshot, Position};

/// An agent in a list: what an operator needs to know, without the session.
///
/// ```
/// use agent_snapshot::{AgentId, AgentSnapshot, MemoryStorage, SnapshotStorage};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
/// let storage = MemoryStorage::new();
/// let mut snapshot = AgentSnapshot::new(AgentId::new("worker_007")?);
/// snapshot.labels.insert("project".into(), "atlas".into());
/// storage.save(&snapshot).await?;
/// let page = storage.page(None, 100).await?;
/// assert_eq!(page[0].agent, snapshot.agent_id);
/// assert_eq!(page[0].labels["project"], "atlas");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AgentInfo {
    /// The agent.
    pub agent: AgentId,
    /// The stored tick and the number of messages; `None` if the data is damaged.
    pub position: Option<Position>,
    /// The number of messages in the stream.
    pub messages: u64,
    /// The size of the stored texts in bytes.
    pub bytes: u64,
    /// The time of the last save, by the clock of the server or, for files and SQLite, of the
    /// machine that saved. For files it is the time of the last write, so `compact`, `close` and
    /// `cap_stream` of a `FileStorage` change it too.
    pub changed: SystemTime,
    /// `AgentSnapshot::labels`.
    pub labels: BTreeMap<String, String>,
}

impl AgentInfo {
    /// An agent whose data cannot be read.
    #[must_use]
    pub fn new(agent: AgentId) -> Self {
        Self {
            agent,
            position: None,
            messages: 0,
            bytes: 0,
            changed: UNIX_EPOCH,
            labels: BTreeMap::new(),
        }
    }

    /// The entry of an agent whose whole snapshot was read.
    pub(crate) fn of(snapshot: &AgentSnapshot) -> Self {
        let position = Position::of(snapshot);
        Self {
            position: Some(position),
            messages: position.messages,
            bytes: snapshot.to_json().map_or(0, |json| json.len() as u64),
            changed: snapshot.timestamp(),
            labels: snapshot.labels.clone(),
            ..Self::new(snapshot.agent_id.clone())
        }
    }

    /// The entry of an agent from its stored parts.
    pub(crate) fn from_parts(
        agent: AgentId,
        stamp: Option<&Stamp>,
        labels: Option<&str>,
        bytes: u64,
        changed: SystemTime,
    ) -> Self {
        Self {
            position: stamp.map(Position::from),
            messages: stamp.map_or(0, |stamp| stamp.next - stamp.stream_start),
            bytes,
            changed,
            labels: labels
                .and_then(|labels| serde_json::from_str(labels).ok())
                .unwrap_or_default(),
            ..Self::new(agent)
        }
    }
}
