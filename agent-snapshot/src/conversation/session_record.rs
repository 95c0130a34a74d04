use std::{
    fmt,
    str::FromStr,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use super::{EndReason, Message};
use crate::{AgentId, AgentSnapshot, Error};

/// The name of a session.
///
/// A session is an agent in the storage, under this name with `session.` in front.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(AgentId);

const PREFIX: &str = "session.";

impl SessionId {
    /// Checks a name that came from outside.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidAgentId`] for what is no [`AgentId`], or longer than 56 bytes.
    pub fn new(id: impl AsRef<str>) -> Result<Self, Error> {
        let id = id.as_ref();
        if id.is_empty() {
            return AgentId::new(id).map(Self);
        }
        AgentId::new(format!("{PREFIX}{id}")).map(Self)
    }

    pub(super) fn random() -> Result<Self, Error> {
        Self::new(Uuid::new_v4().to_string())
    }

    pub(super) fn from_agent(agent: AgentId) -> Option<Self> {
        agent.as_str().starts_with(PREFIX).then_some(Self(agent))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.as_str()[PREFIX.len()..]
    }

    /// The agent under which the storage keeps the session.
    #[must_use]
    pub fn agent(&self) -> &AgentId {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SessionId {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        Self::new(s)
    }
}

impl Serialize for SessionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for SessionId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// What is stored with a session's messages, as the snapshot's field `session`.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) user: String,
    /// Milliseconds since 1970.
    pub(super) created: u64,
    /// The system prompt without what long-term memory added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) prompt: Option<String>,
    /// The number of the first message after the last reset.
    #[serde(default)]
    pub(super) start: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ended: Option<EndReason>,
    /// Conversations that long-term memory has not acknowledged, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) pending: Vec<Pending>,
}

/// An ended conversation: its messages are those of the stream with these numbers.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Pending {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) reason: EndReason,
    pub(super) ended: u64,
    /// The pinned messages, which are not in the stream.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) pinned: Vec<Message>,
}

/// A session as it is in the storage.
#[derive(Clone)]
pub(super) struct Stored {
    pub(super) snapshot: AgentSnapshot,
    pub(super) record: Record,
}

const FIELD: &str = "session";

impl Stored {
    pub(super) fn new(id: &SessionId, record: Record) -> Self {
        Self {
            snapshot: AgentSnapshot::new(id.agent().clone()),
            record,
        }
    }

    pub(super) fn read(snapshot: AgentSnapshot) -> Result<Self, Error> {
        let damaged = |reason: String| Error::Damaged {
            agent: snapshot.agent_id.clone(),
            place: "the session's record".into(),
            reason,
        };
        let Some(field) = snapshot.extra.get(FIELD) else {
            return Err(damaged("the snapshot has no field `session`".into()));
        };
        let record = Record::deserialize(field).map_err(|error| damaged(error.to_string()))?;
        Ok(Self { snapshot, record })
    }

    /// The snapshot to be saved on top of this one.
    pub(super) fn next(&self) -> Result<AgentSnapshot, Error> {
        let mut next = self.snapshot.clone();
        next.tick_index += 1;
        next.revision = 0;
        next.timestamp = millis(SystemTime::now());
        let record = serde_json::to_value(&self.record).map_err(|source| Error::Encode {
            what: "a session's record".into(),
            source,
        })?;
        next.extra.insert(FIELD.into(), record);
        Ok(next)
    }

    /// Tells this conversation from those before the last reset, and from other sessions'.
    pub(super) fn key(&self) -> String {
        format!("{}/{}", self.snapshot.agent_id, self.record.start)
    }
}

pub(super) fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
