use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::SessionId;
use crate::AgentSnapshot;
use crate::conversation::timestamps::{to_millis, unix_millis};
use crate::conversation::{EndReason, Error, Message, Role};

/// The part of a session that is not messages: the field `session` of its snapshot.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct SessionRecord {
    pub(super) user: String,
    #[serde(with = "unix_millis")]
    pub(super) created: SystemTime,
    /// Random, and another one for each session that had this id, one after the other. Empty for a
    /// session of version 0.1.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) incarnation: String,
    /// The system prompt of the caller, without what long-term memory added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) prompt: Option<String>,
    /// The sequence number of the first message after the last reset. It identifies the
    /// conversation within the session.
    #[serde(default)]
    pub(super) start: u64,
    /// Set when the session has ended; it is then deleted as soon as `pending` is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ended: Option<EndReason>,
    /// The conversations that long-term memory has not acknowledged, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) pending: Vec<PendingOffload>,
}

impl SessionRecord {
    /// Identifies the conversation that starts at `start`, among all sessions that had this id.
    pub(super) fn conversation_key(&self, id: &str, start: u64) -> String {
        match &*self.incarnation {
            "" => format!("{id}/{start}"),
            incarnation => format!("{id}/{incarnation}/{start}"),
        }
    }
}

/// An ended conversation: the messages of the stream with the numbers `from..to`.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct PendingOffload {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) reason: EndReason,
    #[serde(with = "unix_millis")]
    pub(super) ended: SystemTime,
    /// The system prompt, which is not in the stream.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) pinned: Vec<Message>,
}

/// A session as the storage has it.
#[derive(Clone)]
pub(super) struct StoredSession {
    pub(super) snapshot: AgentSnapshot,
    pub(super) record: SessionRecord,
}

const FIELD: &str = "session";

impl StoredSession {
    pub(super) fn new(id: &SessionId, record: SessionRecord) -> Self {
        Self {
            snapshot: AgentSnapshot::new(id.agent().clone()),
            record,
        }
    }

    pub(super) fn read(id: &SessionId, snapshot: AgentSnapshot) -> Result<Self, Error> {
        let damaged = |reason: String| Error::DamagedSession {
            session: id.clone(),
            reason,
        };
        let field = snapshot.extra.get(FIELD);
        let field = field.ok_or_else(|| damaged("its snapshot has no field `session`".into()))?;
        let record = SessionRecord::deserialize(field)
            .map_err(|error| damaged(format!("cannot read the field `session`: {error}")))?;
        Ok(Self { snapshot, record })
    }

    /// The snapshot that follows this one: one tick later, with the record.
    pub(super) fn next(&self) -> Result<AgentSnapshot, Error> {
        let mut next = self.snapshot.clone();
        next.tick_index += 1;
        next.revision = 0;
        next.timestamp = to_millis(SystemTime::now());
        let record = serde_json::to_value(&self.record);
        let record = record.map_err(|source| crate::Error::Encode {
            what: "the record of a session".into(),
            source: source.into(),
        })?;
        next.extra.insert(FIELD.into(), record);
        Ok(next)
    }

    /// Identifies the conversation: another one after each reset.
    pub(super) fn key(&self) -> String {
        let id = self.snapshot.agent_id.as_str();
        self.record.conversation_key(id, self.record.start)
    }

    /// The sequence number after the newest message.
    pub(super) fn next_seq(&self) -> u64 {
        self.snapshot.memory.short_term_history.next_seq()
    }

    /// The system prompt: the pinned messages without the anchor, which is in the stream.
    pub(super) fn prompt(&self) -> Vec<Message> {
        let pinned = self.snapshot.memory.short_term_history.pinned();
        let prompt = pinned.iter().filter(|message| message.role == Role::System);
        prompt.cloned().collect()
    }
}
