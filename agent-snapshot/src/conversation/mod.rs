//! Conversations: the messages that a model sees.

mod message;

pub use message::{Message, Role, ToolCallRequest, ToolCallResult};
