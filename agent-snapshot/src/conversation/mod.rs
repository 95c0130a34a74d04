//! Conversations: what the model sees, kept within its window.

mod list;
mod message;
#[cfg(feature = "openai")]
mod openai;
mod pairing;
mod provider;
mod repair;
mod state;
mod summary;
mod tokens;
mod window;

pub use list::Conversation;
pub use message::{Message, Role, ToolCallRequest, ToolCallResult};
#[cfg(feature = "openai")]
pub use openai::OpenAiCounter;
pub use provider::{anthropic_request, openai_request};
pub use repair::{AbortedCall, Repaired, repair};
pub use state::{StateManager, Trimmed};
pub use summary::{Summarizer, Summary, SummaryJob, SummaryRequest};
pub use tokens::{Estimator, TokenCounter};
