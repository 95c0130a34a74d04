use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::Part;

/// The author of a [`Message`].
///
/// ```
/// use agent_snapshot::conversation::Role;
///
/// assert_eq!(serde_json::to_string(&Role::Assistant)?, r#""assistant""#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Role {
    /// Instructions and summaries.
    System,
    /// The person or program that asks.
    User,
    /// The model.
    Assistant,
    /// The tools: results of calls.
    Tool,
}

/// One message of a conversation.
///
/// Messages are stored exactly as they were read: `id` and `timestamp` stay absent where they are
/// absent, and fields that this version does not know are kept in `extra`.
///
/// ```
/// use agent_snapshot::conversation::Message;
///
/// let text = r#"{"role":"user","content":"hello","priority":"high"}"#;
/// let message: Message = serde_json::from_str(text)?;
/// assert_eq!(message.content, Message::user("hello").content);
/// assert_eq!(message.extra["priority"], "high");
/// assert_eq!(serde_json::to_string(&message)?, text);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Message {
    /// Unique within the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// When the message was created. Text, because it must survive a round trip byte for byte;
    /// this crate writes RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
    /// The author.
    pub role: Role,
    /// The text, if any. If `parts` has texts, this is all of them, joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Tool calls that an assistant message requests.
    #[serde(
        default,
        deserialize_with = "null_is_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub tool_calls: Vec<ToolCallRequest>,
    /// Results that a tool message carries.
    #[serde(
        default,
        deserialize_with = "null_is_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub tool_results: Vec<ToolCallResult>,
    /// Images, documents, reasoning and data of a provider, in order: see [`Part`].
    #[serde(
        default,
        deserialize_with = "null_is_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub parts: Vec<Part>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A tool call that an assistant message requests.
///
/// ```
/// use agent_snapshot::conversation::{Message, ToolCallRequest};
/// use serde_json::json;
///
/// let call = ToolCallRequest::new("call_1", "read_file", json!({"path": "main.rs"}));
/// let message = Message::assistant("Reading.").with_tool_calls(vec![call]);
/// assert_eq!(message.tool_calls[0].name, "read_file");
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolCallRequest {
    /// Links the call with its [`ToolCallResult`].
    /// [`StateManager::append`](super::StateManager::append) replaces an empty id, and an id that is
    /// in use, by a new one.
    #[serde(default, deserialize_with = "null_is_default")]
    pub id: String,
    /// The name of the tool.
    pub name: String,
    /// The arguments: an object, or null for none.
    #[serde(default)]
    pub args: Value,
    /// The ids that the call had before it was renamed, because another call had the same id. A
    /// result with such an id belongs to this call while it is open.
    #[serde(
        default,
        deserialize_with = "null_is_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub former_ids: Vec<String>,
    /// Fields of providers (see [`Part`]), and fields that this version does not know.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The result of a tool call.
///
/// ```
/// use agent_snapshot::conversation::ToolCallResult;
/// use serde_json::json;
///
/// let result = ToolCallResult::error("call_1", json!("no such file"));
/// assert!(result.is_error);
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolCallResult {
    /// The [`ToolCallRequest::id`] of the call.
    pub tool_call_id: String,
    /// The value that the tool returned.
    #[serde(default)]
    pub result: Value,
    /// Whether `result` describes a failure.
    #[serde(default)]
    pub is_error: bool,
    /// Texts, images and documents that the tool returned beside `result`. They are sent behind it;
    /// a null `result` is then not sent.
    #[serde(
        default,
        deserialize_with = "null_is_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub parts: Vec<Part>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message with a role and no contents.
    #[must_use]
    pub fn new(role: Role) -> Self {
        Self {
            id: None,
            timestamp: None,
            role,
            content: None,
            tool_calls: Vec::new(),
            tool_results: Vec::new(),
            parts: Vec::new(),
            extra: Map::new(),
        }
    }

    /// A system message.
    #[must_use]
    pub fn system(content: impl Into<String>) -> Self {
        Self::text(Role::System, content)
    }

    /// A user message.
    #[must_use]
    pub fn user(content: impl Into<String>) -> Self {
        Self::text(Role::User, content)
    }

    /// An assistant message without tool calls.
    #[must_use]
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::text(Role::Assistant, content)
    }

    /// A tool message with the results of one or more calls.
    #[must_use]
    pub fn tool(results: Vec<ToolCallResult>) -> Self {
        Self {
            tool_results: results,
            ..Self::new(Role::Tool)
        }
    }

    /// The same message with tool calls.
    #[must_use]
    pub fn with_tool_calls(mut self, calls: Vec<ToolCallRequest>) -> Self {
        self.tool_calls = calls;
        self
    }

    /// The same message with `parts` behind the parts that it has.
    ///
    /// If there are text parts then, and the message has another text, the latter becomes the first
    /// text part: see [`Part`].
    #[must_use]
    pub fn with_parts(mut self, parts: Vec<Part>) -> Self {
        self.join_texts();
        let joined = self.has_text_parts();
        self.parts.extend(parts);
        if joined {
            self.content = Some(self.texts().collect());
        }
        self.join_texts();
        self
    }

    fn text(role: Role, content: impl Into<String>) -> Self {
        Self {
            content: Some(content.into()),
            ..Self::new(role)
        }
    }
}

impl ToolCallRequest {
    /// A call of the tool `name` with `args`. An empty `id` is replaced by a new one when the
    /// message is appended to a conversation.
    #[must_use]
    pub fn new(id: impl Into<String>, name: impl Into<String>, args: Value) -> Self {
        Self {
            id: id.into(),
            name: name.into(),
            args,
            former_ids: Vec::new(),
            extra: Map::new(),
        }
    }
}

impl ToolCallResult {
    /// The result of the call `tool_call_id`, which succeeded.
    #[must_use]
    pub fn new(tool_call_id: impl Into<String>, result: Value) -> Self {
        Self {
            tool_call_id: tool_call_id.into(),
            result,
            is_error: false,
            parts: Vec::new(),
            extra: Map::new(),
        }
    }

    /// The result of the call `tool_call_id`, which failed.
    #[must_use]
    pub fn error(tool_call_id: impl Into<String>, result: Value) -> Self {
        Self {
            is_error: true,
            ..Self::new(tool_call_id, result)
        }
    }

    /// The same result with texts, images or documents.
    #[must_use]
    pub fn with_parts(mut self, parts: Vec<Part>) -> Self {
        self.parts.extend(parts);
        self
    }
}

/// Other programs write `null` where this crate leaves a field out.
fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

// Conversations are private: `Debug` must not put a text, an argument or a result into a log.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.id)
            .field("role", &self.role)
            .field("content_bytes", &self.content.as_ref().map(String::len))
            .field("tool_calls", &self.tool_calls)
            .field("tool_results", &self.tool_results)
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ToolCallRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolCallRequest")
            .field("id", &self.id)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ToolCallResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolCallResult")
            .field("tool_call_id", &self.tool_call_id)
            .field("is_error", &self.is_error)
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}
