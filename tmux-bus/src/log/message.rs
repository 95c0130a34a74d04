//! Messages between agents, and their form in the log.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A message from one agent to another. Its `Debug` does not show the content.
///
/// ```
/// use tmux_bus::Message;
///
/// let message = Message::new("grand_boss", "middle_manager", "Take this task apart.");
/// assert_eq!(message.to_agent, "middle_manager");
/// assert!(!format!("{message:?}").contains("task"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// The sender, such as `grand_boss`.
    pub from_agent: String,
    /// The receiver, such as `middle_manager`.
    pub to_agent: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// Creates a message.
    #[must_use]
    pub fn new(
        from_agent: impl Into<String>,
        to_agent: impl Into<String>,
        content: impl Into<String>,
    ) -> Self {
        Self {
            from_agent: from_agent.into(),
            to_agent: to_agent.into(),
            content: content.into(),
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("from_agent", &self.from_agent)
            .field("to_agent", &self.to_agent)
            .field("content", &format_args!("{} bytes", self.content.len()))
            .finish()
    }
}

/// The type of a log entry.
///
/// ```
/// use tmux_bus::MessageType;
///
/// assert_eq!(MessageType::Task.as_str(), "task");
/// assert_eq!(MessageType::from("praise"), MessageType::Other("praise".to_owned()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageType {
    /// A request.
    Task,
    /// A notice that expects no answer.
    Info,
    /// An answer.
    Result,
    /// A failure.
    Error,
    /// A type of another program.
    Other(String),
}

impl MessageType {
    /// The name in the log.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Task => "task",
            Self::Info => "info",
            Self::Result => "result",
            Self::Error => "error",
            Self::Other(name) => name,
        }
    }
}

impl From<&str> for MessageType {
    fn from(name: &str) -> Self {
        match name {
            "task" => Self::Task,
            "info" => Self::Info,
            "result" => Self::Result,
            "error" => Self::Error,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for MessageType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for MessageType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for MessageType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|name| Self::from(name.as_str()))
    }
}

/// One line of the log. Its `Debug` does not show the content.
///
/// ```
/// use tmux_bus::{MessageLogEntry, MessageType};
///
/// let line = r#"{"timestamp":"2026-02-01T10:30:00.123456","id":"msg-001",
///     "from":"grand_boss","to":"middle_manager","type":"task","content":"..."}"#;
/// let entry: MessageLogEntry = serde_json::from_str(line)?;
/// assert_eq!(entry.from_agent, "grand_boss");
/// assert_eq!(entry.message_type, MessageType::Task);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MessageLogEntry {
    /// Time in ISO 8601. Written in UTC; other programs write it without a zone, so it is text.
    pub timestamp: String,
    /// The id of the entry.
    pub id: String,
    /// The sender.
    #[serde(rename = "from", alias = "from_agent")]
    pub from_agent: String,
    /// The receiver.
    #[serde(rename = "to", alias = "to_agent")]
    pub to_agent: String,
    /// The type.
    #[serde(rename = "type")]
    pub message_type: MessageType,
    /// The text.
    pub content: String,
    /// The id of the entry that this one answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
}

impl fmt::Debug for MessageLogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageLogEntry")
            .field("timestamp", &self.timestamp)
            .field("id", &self.id)
            .field("from_agent", &self.from_agent)
            .field("to_agent", &self.to_agent)
            .field("message_type", &self.message_type)
            .field("content", &format_args!("{} bytes", self.content.len()))
            .field("reply_to", &self.reply_to)
            .finish()
    }
}
