use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::{
    AgentId, Error, Event, History, Reply, Status, ToolIntent,
    conversation::Message,
    encode::{Extra, encode},
};

/// The newest schema version that this crate writes and reads.
pub const SCHEMA_VERSION: u64 = 1;

/// Everything that an agent needs to come back to life: the one contract between an agent
/// and its storage.
///
/// Serialises to the specification's JSON. Keys beyond it appear only when they say
/// something, so a plain snapshot has exactly the specified keys; unknown keys are kept.
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
    /// Whose state this is.
    pub agent_id: AgentId,
    /// Logical clock: one more for each tick. 0 before the first.
    pub tick_index: u64,
    /// When the snapshot was made, in milliseconds since 1970.
    pub timestamp: u64,
    /// What the state machine is doing.
    pub status: Status,
    /// History and variables.
    pub memory: Memory,
    /// Events that are not handled yet, oldest first.
    #[serde(default)]
    pub event_queue_backup: Vec<Event>,
    /// Raised by each hydration; a save with an older one is refused. Absent means 0.
    #[serde(default)]
    pub epoch: u64,
    /// Who raised the epoch, so that two at once do not take each other for a repeat.
    #[serde(default)]
    pub holder: Option<String>,
    /// Counts the saves between two ticks (events accepted, tool intents). Absent means 0.
    #[serde(default)]
    pub revision: u64,
    /// Replies that were saved but not confirmed as sent.
    #[serde(default)]
    pub outbox: Vec<Reply>,
    /// Tools that were about to run.
    #[serde(default)]
    pub tool_intents: Vec<ToolIntent>,
    /// Absent means 1.
    #[serde(default = "first_version", deserialize_with = "known_version")]
    schema_version: u64,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// What the agent remembers.
#[derive(Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Memory {
    /// The conversation inside the context window.
    pub short_term_history: History,
    /// The agent's own variables.
    pub working_variables: Map<String, Value>,
    /// Fields that this version does not know.
    pub extra: Map<String, Value>,
}

impl AgentSnapshot {
    /// The blank state: tick 0, nothing remembered, time stamp 0.
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
            schema_version: SCHEMA_VERSION,
            extra: Map::new(),
        }
    }

    /// Reads a snapshot.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedVersion`] when a newer version of this crate wrote it,
    /// [`Error::Decode`] when it is not a snapshot.
    pub fn from_json(json: &str) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Probe {
            #[serde(default = "first_version")]
            schema_version: u64,
        }
        let decode = |source| Error::Decode {
            what: "an agent snapshot".into(),
            source,
        };
        // First, so that what a newer version writes is refused for the right reason.
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
    /// [`Error::Encode`] when a value cannot be written.
    pub fn to_json(&self) -> Result<String, Error> {
        self.encode(&Out::new(self, Messages::Written))
    }

    /// The snapshot without its messages and what belongs to them.
    pub(crate) fn state_json(&self) -> Result<String, Error> {
        self.encode(&Out::new(self, Messages::LeftOut))
    }

    fn encode(&self, out: &Out<'_>) -> Result<String, Error> {
        let plain = self.extra.is_empty()
            && self.memory.extra.is_empty()
            && self
                .event_queue_backup
                .iter()
                .all(|event| event.extra.is_empty())
            && self.outbox.iter().all(|reply| reply.extra.is_empty())
            && self
                .tool_intents
                .iter()
                .all(|intent| intent.extra.is_empty());
        let extra = if plain { Extra::None } else { Extra::Some };
        let what = || format!("the snapshot of agent {}", self.agent_id);
        // The messages may be left out of `out`, and then nothing would notice.
        let taken = ["short_term_history", "history_window"];
        if let Some(key) = taken
            .into_iter()
            .find(|key| self.memory.extra.contains_key(*key))
        {
            let reason = format!("memory.extra has a field called {key}");
            return Err(Error::Encode {
                what: what(),
                source: serde::ser::Error::custom(reason),
            });
        }
        encode::<Self>(out, extra, what)
    }

    /// The version of the format; 1 when the snapshot does not say.
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

/// Where the listed messages stand in the stream. Left out when they are all of it.
#[derive(Serialize, Deserialize)]
struct Window {
    #[serde(default)]
    pinned: usize,
    #[serde(default)]
    summary: bool,
    #[serde(default)]
    first: u64,
    /// Stands for what was dropped, so that the stream can go on.
    #[serde(default = "no_link")]
    link: String,
}

fn no_link() -> String {
    "0".to_owned()
}

/// What is written, borrowed from a snapshot.
#[derive(Serialize)]
struct Out<'a> {
    agent_id: &'a AgentId,
    tick_index: u64,
    timestamp: u64,
    status: &'a Status,
    memory: MemoryOut<'a>,
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
    #[serde(skip_serializing_if = "is_first_version")]
    schema_version: u64,
    #[serde(flatten)]
    extra: &'a Map<String, Value>,
}

struct MemoryOut<'a>(&'a Memory, Messages);

#[derive(Clone, Copy, PartialEq)]
enum Messages {
    Written,
    LeftOut,
}

impl<'a> Out<'a> {
    fn new(snapshot: &'a AgentSnapshot, messages: Messages) -> Self {
        Self {
            agent_id: &snapshot.agent_id,
            tick_index: snapshot.tick_index,
            timestamp: snapshot.timestamp,
            status: &snapshot.status,
            memory: MemoryOut(&snapshot.memory, messages),
            event_queue_backup: &snapshot.event_queue_backup,
            epoch: snapshot.epoch,
            holder: snapshot.holder.as_deref(),
            revision: snapshot.revision,
            outbox: &snapshot.outbox,
            tool_intents: &snapshot.tool_intents,
            schema_version: snapshot.schema_version,
            extra: &snapshot.extra,
        }
    }
}

impl Serialize for AgentSnapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Out::new(self, Messages::Written).serialize(serializer)
    }
}

impl Serialize for Memory {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        MemoryOut(self, Messages::Written).serialize(serializer)
    }
}

impl Serialize for MemoryOut<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            short_term_history: Option<Vec<&'a Message>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            history_window: Option<Window>,
            working_variables: &'a Map<String, Value>,
            #[serde(flatten)]
            extra: &'a Map<String, Value>,
        }
        let Self(memory, messages) = *self;
        let history = &memory.short_term_history;
        let written = messages == Messages::Written;
        let whole = history.first_seq() == 0 && history.head().next().is_none();
        let history_window = if whole || !written {
            None
        } else {
            let link = history.first_link().map_err(serde::ser::Error::custom)?;
            Some(Window {
                pinned: history.pinned().len(),
                summary: history.summary().is_some(),
                first: history.first_seq(),
                link: format!("{link:032x}"),
            })
        };
        Fields {
            short_term_history: written.then(|| history.iter().collect()),
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
        struct In {
            #[serde(default)]
            short_term_history: Vec<Message>,
            history_window: Option<Window>,
            #[serde(default)]
            working_variables: Map<String, Value>,
            #[serde(flatten)]
            extra: Map<String, Value>,
        }
        let In {
            short_term_history: mut messages,
            history_window,
            working_variables,
            extra,
        } = In::deserialize(deserializer)?;
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
