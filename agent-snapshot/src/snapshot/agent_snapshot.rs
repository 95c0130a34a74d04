use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::checked_json::{UnknownFields, encode};
use super::{AgentId, Event, History, Lineage, Reply, Status, ToolIntent};
use crate::Error;
use crate::conversation::Message;

/// The newest schema version that this crate writes and reads.
pub(crate) const SCHEMA_VERSION: u64 = 1;

/// The whole state of an agent: the contract between an agent and its storage.
///
/// Serialises to the JSON of the specification. Keys beyond it are absent when they are empty, so
/// a plain snapshot has exactly the specified keys. Unknown keys are kept.
///
/// ```
/// use agent_snapshot::AgentSnapshot;
///
/// let snapshot = AgentSnapshot::from_json(r#"{
///     "agent_id": "worker_007", "tick_index": 42, "timestamp": 1706582400000,
///     "status": "WAITING_FOR_EVENT",
///     "memory": {
///         "short_term_history": [{ "role": "user", "content": "hello" }],
///         "working_variables": { "retry_count": 0 }
///     },
///     "event_queue_backup": [{ "source": "mcp", "type": "task", "payload": "..." }]
/// }"#)?;
/// assert_eq!(snapshot.tick_index, 42);
/// assert_eq!(snapshot.memory.short_term_history.len(), 1);
/// # Ok::<(), agent_snapshot::Error>(())
/// ```
#[derive(Clone, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct AgentSnapshot {
    /// The agent of this state.
    pub agent_id: AgentId,
    /// Logical clock: grows by one with each tick, and is 0 before the first.
    pub tick_index: u64,
    /// Milliseconds since 1970.
    pub(crate) timestamp: u64,
    /// The state of the agent's state machine.
    pub status: Status,
    /// History and variables.
    pub memory: Memory,
    /// Events that are not handled yet, oldest first.
    #[serde(default)]
    pub event_queue_backup: Vec<Event>,
    /// Fencing token: each hydration raises it, and a save with a lower one is refused. Absent
    /// means 0.
    #[serde(default)]
    pub epoch: u64,
    /// Random id of the hydration that raised the epoch. Two simultaneous hydrations differ in
    /// it, so that neither takes the save of the other for a repeat of its own.
    #[serde(default)]
    pub holder: Option<String>,
    /// Counts the saves between two ticks (accepted events, tool intents). Absent means 0.
    #[serde(default)]
    pub revision: u64,
    /// Replies that were saved but not confirmed as sent.
    #[serde(default)]
    pub outbox: Vec<Reply>,
    /// Tool calls whose tick is not committed.
    #[serde(default)]
    pub tool_intents: Vec<ToolIntent>,
    /// Short texts by which operators find agents: a project, a user, a team. A list of agents
    /// shows them without reading the snapshots.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Absent means 1.
    #[serde(default = "first_version", deserialize_with = "known_version")]
    schema_version: u64,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
    #[serde(skip)]
    pub(crate) lineage: Lineage,
}

/// The memory of an agent.
///
/// ```
/// use agent_snapshot::conversation::Message;
/// use agent_snapshot::{AgentId, AgentSnapshot};
///
/// let mut snapshot = AgentSnapshot::new(AgentId::new("worker_007")?);
/// snapshot.memory.short_term_history.push(Message::user("hello"));
/// snapshot.memory.working_variables.insert("retry_count".into(), 0.into());
/// assert!(snapshot.to_json()?.contains(r#""working_variables":{"retry_count":0}"#));
/// # Ok::<(), agent_snapshot::Error>(())
/// ```
#[derive(Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Memory {
    /// The messages that the model sees.
    pub short_term_history: History,
    /// The variables of the agent.
    pub working_variables: Map<String, Value>,
    /// Fields that this version does not know.
    pub extra: Map<String, Value>,
}

impl AgentSnapshot {
    /// The blank state: tick 0, empty memory, time stamp 1970.
    #[must_use]
    pub fn new(agent_id: AgentId) -> Self {
        Self {
            agent_id,
            tick_index: 0,
            timestamp: 0,
            status: Status::default(),
            memory: Memory::default(),
            event_queue_backup: Vec::new(),
            epoch: 0,
            holder: None,
            revision: 0,
            outbox: Vec::new(),
            tool_intents: Vec::new(),
            labels: BTreeMap::new(),
            schema_version: SCHEMA_VERSION,
            extra: Map::new(),
            lineage: Lineage::default(),
        }
    }

    /// Reads a snapshot.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedVersion`] if a newer version of this crate wrote it,
    /// [`Error::Decode`] if the text is not a snapshot.
    pub fn from_json(json: &str) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Probe {
            #[serde(default = "first_version")]
            schema_version: u64,
        }
        let decode = |source: serde_json::Error| Error::Decode {
            what: "an agent snapshot".into(),
            source: source.into(),
        };
        // The version comes first: JSON of a newer version may not parse as a snapshot at all,
        // and the caller should learn the reason.
        let probe: Probe = serde_json::from_str(json).map_err(decode)?;
        if probe.schema_version > SCHEMA_VERSION {
            return Err(Error::UnsupportedVersion {
                what: "the agent snapshot".into(),
                found: probe.schema_version,
                supported: SCHEMA_VERSION,
            });
        }
        serde_json::from_str(json).map_err(decode)
    }

    /// Writes the snapshot as one line of JSON.
    ///
    /// # Errors
    ///
    /// [`Error::Encode`] if the JSON could not be read again: a value is nested too deeply, or an
    /// unknown field has the name of a known one.
    pub fn to_json(&self) -> Result<String, Error> {
        self.encode(MessageList::Included)
    }

    /// The snapshot without its messages: the *body* of [`backend`](crate::backend).
    pub(crate) fn body_json(&self) -> Result<String, Error> {
        self.encode(MessageList::LeftOut)
    }

    fn encode(&self, messages: MessageList) -> Result<String, Error> {
        let what = || format!("the snapshot of agent {}", self.agent_id);
        // Without the messages, reading the JSON back would not find a repeated name.
        let taken = ["short_term_history", "history_window"];
        let repeated = taken
            .into_iter()
            .find(|key| self.memory.extra.contains_key(*key));
        if let Some(key) = repeated {
            return Err(Error::Encode {
                what: what(),
                source: format!("memory.extra has a field called {key}").into(),
            });
        }
        let unknown_fields = UnknownFields::present_if(self.has_unknown_fields());
        encode::<Self>(&SnapshotJson::new(self, messages), unknown_fields, what)
    }

    fn has_unknown_fields(&self) -> bool {
        let in_events = self.event_queue_backup.iter().map(|event| &event.extra);
        let in_replies = self.outbox.iter().map(|reply| &reply.extra);
        let in_intents = self.tool_intents.iter().map(|intent| &intent.extra);
        [&self.extra, &self.memory.extra]
            .into_iter()
            .chain(in_events)
            .chain(in_replies)
            .chain(in_intents)
            .any(|extra| !extra.is_empty())
    }

    /// A copy that stands for this object: a save of the copy is a save of the object.
    #[cfg(feature = "file")]
    pub(crate) fn copy_of_same_object(&self) -> Self {
        Self {
            lineage: self.lineage.share(),
            ..self.clone()
        }
    }

    /// The time at which the snapshot was made, to the millisecond.
    #[must_use]
    pub fn timestamp(&self) -> SystemTime {
        let since = Duration::from_millis(self.timestamp);
        UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH)
    }

    /// Sets the time at which the snapshot was made. Fractions of a millisecond are cut off,
    /// because the JSON has no room for them; a time before 1970 becomes 1970.
    pub fn set_timestamp(&mut self, time: SystemTime) {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.timestamp = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    }

    /// The version of the format; 1 if the JSON has none.
    #[must_use]
    pub fn schema_version(&self) -> u64 {
        self.schema_version
    }
}

impl fmt::Debug for AgentSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentSnapshot")
            .field("agent_id", &self.agent_id)
            .field("tick_index", &self.tick_index)
            .field("revision", &self.revision)
            .field("epoch", &self.epoch)
            .field("status", &self.status)
            .field("history", &self.memory.short_term_history)
            .field("events", &self.event_queue_backup.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("short_term_history", &self.short_term_history)
            .field("working_variables", &self.working_variables.len())
            .finish_non_exhaustive()
    }
}

/// The position of the listed messages in the stream. Absent if the list is the whole stream.
#[derive(Serialize, Deserialize)]
struct HistoryWindow {
    #[serde(default)]
    pinned: usize,
    #[serde(default)]
    summary: bool,
    #[serde(default)]
    first: u64,
    /// Digest of the messages before `first`, so that a save can continue the stream.
    #[serde(default = "no_link")]
    link: String,
}

fn no_link() -> String {
    "0".to_owned()
}

/// The JSON of a snapshot, borrowed.
#[derive(Serialize)]
struct SnapshotJson<'a> {
    agent_id: &'a AgentId,
    tick_index: u64,
    timestamp: u64,
    status: &'a Status,
    memory: MemoryJson<'a>,
    event_queue_backup: &'a [Event],
    #[serde(skip_serializing_if = "is_zero")]
    epoch: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<&'a str>,
    #[serde(skip_serializing_if = "is_zero")]
    revision: u64,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    outbox: &'a [Reply],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tool_intents: &'a [ToolIntent],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "is_first_version")]
    schema_version: u64,
    #[serde(flatten)]
    extra: &'a Map<String, Value>,
}

struct MemoryJson<'a>(&'a Memory, MessageList);

#[derive(Clone, Copy, PartialEq)]
enum MessageList {
    Included,
    LeftOut,
}

impl<'a> SnapshotJson<'a> {
    fn new(snapshot: &'a AgentSnapshot, messages: MessageList) -> Self {
        Self {
            agent_id: &snapshot.agent_id,
            tick_index: snapshot.tick_index,
            timestamp: snapshot.timestamp,
            status: &snapshot.status,
            memory: MemoryJson(&snapshot.memory, messages),
            event_queue_backup: &snapshot.event_queue_backup,
            epoch: snapshot.epoch,
            holder: snapshot.holder.as_deref(),
            revision: snapshot.revision,
            outbox: &snapshot.outbox,
            tool_intents: &snapshot.tool_intents,
            labels: &snapshot.labels,
            schema_version: snapshot.schema_version,
            extra: &snapshot.extra,
        }
    }
}

impl Serialize for AgentSnapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        SnapshotJson::new(self, MessageList::Included).serialize(serializer)
    }
}

impl Serialize for Memory {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        MemoryJson(self, MessageList::Included).serialize(serializer)
    }
}

impl Serialize for MemoryJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            short_term_history: Option<Vec<&'a Message>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            history_window: Option<HistoryWindow>,
            working_variables: &'a Map<String, Value>,
            #[serde(flatten)]
            extra: &'a Map<String, Value>,
        }
        let Self(memory, messages) = *self;
        let history = &memory.short_term_history;
        let included = messages == MessageList::Included;
        let is_whole_stream = history.first_seq() == 0 && history.head().next().is_none();
        let history_window = if is_whole_stream || !included {
            None
        } else {
            let link = history.first_link().map_err(serde::ser::Error::custom)?;
            Some(HistoryWindow {
                pinned: history.pinned().len(),
                summary: history.summary().is_some(),
                first: history.first_seq(),
                link: format!("{link:032x}"),
            })
        };
        Fields {
            short_term_history: included.then(|| history.iter().collect()),
            history_window,
            working_variables: &memory.working_variables,
            extra: &memory.extra,
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Memory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;
        #[derive(Deserialize)]
        struct Fields {
            #[serde(default)]
            short_term_history: Vec<Message>,
            history_window: Option<HistoryWindow>,
            #[serde(default)]
            working_variables: Map<String, Value>,
            #[serde(flatten)]
            extra: Map<String, Value>,
        }
        let Fields {
            short_term_history: mut messages,
            history_window,
            working_variables,
            extra,
        } = Fields::deserialize(deserializer)?;
        let short_term_history = match history_window {
            None => messages.into_iter().collect(),
            Some(window) => {
                let head = window.pinned.saturating_add(usize::from(window.summary));
                if messages.len() < head {
                    return Err(D::Error::custom(
                        "history_window names more messages than there are",
                    ));
                }
                let tail = messages.split_off(head);
                let summary = if window.summary { messages.pop() } else { None };
                let base = u128::from_str_radix(&window.link, 16)
                    .map_err(|_| D::Error::custom("history_window.link is not hexadecimal"))?;
                if window.first.checked_add(tail.len() as u64).is_none() {
                    return Err(D::Error::custom("history_window.first is too large"));
                }
                let mut history = History::from_parts(messages, summary, window.first, base);
                history.extend(tail);
                history
            }
        };
        Ok(Self {
            short_term_history,
            working_variables,
            extra,
        })
    }
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

fn first_version() -> u64 {
    1
}

fn is_first_version(version: &u64) -> bool {
    *version == 1
}

fn known_version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let version = u64::deserialize(deserializer)?;
    if version > SCHEMA_VERSION {
        return Err(serde::de::Error::custom(format_args!(
            "schema version {version} is newer than {SCHEMA_VERSION}"
        )));
    }
    Ok(version)
}
