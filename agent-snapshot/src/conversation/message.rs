use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// Who speaks in a [`Message`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Role {
    /// Instructions and summaries.
    System,
    /// The person, or whatever asks.
    User,
    /// The model.
    Assistant,
    /// Results of tool calls.
    Tool,
}

/// One entry of a conversation.
///
/// `id` and `timestamp` are optional: an entry that was read without them stays without.
/// Fields that this version does not know are kept in `extra`.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Message {
    /// Unique within its conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// When the message was made, as text (RFC 3339 where this crate makes it).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
    /// Who speaks.
    pub role: Role,
    /// The text, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Tool calls that an assistant message asks for.
    #[serde(
        default,
        deserialize_with = "null_is_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub tool_calls: Vec<ToolCallRequest>,
    /// Results that a tool message brings.
    #[serde(
        default,
        deserialize_with = "null_is_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub tool_results: Vec<ToolCallResult>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A call that an assistant message asks for.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolCallRequest {
    /// Links the call with its [`ToolCallResult`]. Empty until
    /// [`StateManager::append`](super::StateManager::append) mints one.
    #[serde(default, deserialize_with = "null_is_default")]
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The tool's arguments: an object, or null for none.
    #[serde(default)]
    pub args: Value,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// What a tool answered.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolCallResult {
    /// The [`ToolCallRequest::id`] that this answers.
    pub tool_call_id: String,
    /// The tool's value.
    #[serde(default)]
    pub result: Value,
    /// Whether `result` describes a failure.
    #[serde(default)]
    pub is_error: bool,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message with a role and nothing else.
    #[must_use]
    pub fn new(role: Role) -> Self {
        Self {
            id: None,
            timestamp: None,
            role,
            content: None,
            tool_calls: Vec::new(),
            tool_results: Vec::new(),
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

    fn text(role: Role, content: impl Into<String>) -> Self {
        Self {
            content: Some(content.into()),
            ..Self::new(role)
        }
    }
}

impl ToolCallRequest {
    /// A call of `name` with `args`. An empty `id` is replaced by a minted one when the
    /// message is appended to a conversation.
    #[must_use]
    pub fn new(id: impl Into<String>, name: impl Into<String>, args: Value) -> Self {
        Self {
            id: id.into(),
            name: name.into(),
            args,
            extra: Map::new(),
        }
    }
}

impl ToolCallResult {
    /// The successful answer to the call `tool_call_id`.
    #[must_use]
    pub fn new(tool_call_id: impl Into<String>, result: Value) -> Self {
        Self {
            tool_call_id: tool_call_id.into(),
            result,
            is_error: false,
            extra: Map::new(),
        }
    }

    /// The failure of the call `tool_call_id`.
    #[must_use]
    pub fn error(tool_call_id: impl Into<String>, result: Value) -> Self {
        Self {
            is_error: true,
            ..Self::new(tool_call_id, result)
        }
    }
}

/// Other writers say `null` where we leave a field out.
fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

// Conversations are private: no text, argument or result reaches a log by way of `Debug`.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.id)
            .field("role", &self.role)
            .field("content_bytes", &self.content.as_ref().map(String::len))
            .field("tool_calls", &self.tool_calls)
            .field("tool_results", &self.tool_results)
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
            .finish_non_exhaustive()
    }
}
