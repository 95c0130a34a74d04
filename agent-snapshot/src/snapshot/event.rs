use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// An event that the agent has not handled yet.
///
/// ```
/// use agent_snapshot::Event;
/// use serde_json::json;
///
/// let event = Event::new("mcp", "task", json!({ "file": "report.txt" })).with_id("task-1");
/// let text = serde_json::to_string(&event)?;
/// assert!(text.contains(r#""type":"task""#));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Event {
    /// Identifies the event. An event without an id gets one when it is queued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The origin of the event.
    pub source: String,
    /// The kind of event (`type` in JSON).
    #[serde(rename = "type")]
    pub kind: String,
    /// The contents of the event.
    #[serde(default)]
    pub payload: Value,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Event {
    /// An event without an id.
    #[must_use]
    pub fn new(source: impl Into<String>, kind: impl Into<String>, payload: Value) -> Self {
        Self {
            id: None,
            source: source.into(),
            kind: kind.into(),
            payload,
            extra: Map::new(),
        }
    }

    /// The same event with an id.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("id", &self.id)
            .field("source", &self.source)
            .field("type", &self.kind)
            .finish_non_exhaustive()
    }
}
