//! Conversations: what the model sees, kept within its window.

#[cfg(feature = "file")]
mod json_lines;
mod list;
mod memory;
mod message;
mod offload;
#[cfg(feature = "openai")]
mod openai;
mod pairing;
mod provider;
mod repair;
mod session;
mod session_record;
mod sessions;
mod state;
mod summary;
mod tokens;
mod window;

#[cfg(feature = "file")]
pub use json_lines::JsonLinesEngine;
pub use list::Conversation;
pub use memory::{EndReason, InMemoryEngine, MemoryEngine, Offload};
pub use message::{Message, Role, ToolCallRequest, ToolCallResult};
pub use offload::Offloaded;
#[cfg(feature = "openai")]
pub use openai::OpenAiCounter;
pub use provider::{anthropic_request, openai_request};
pub use repair::{AbortedCall, Repaired, repair};
pub use session::{Committed, Session, SummaryOutcome};
pub use session_record::SessionId;
pub use sessions::{Expired, SessionInfo, SessionManager};
pub use state::{StateManager, Trimmed};
pub use summary::{Summarizer, Summary, SummaryJob, SummaryRequest};
pub use tokens::{Estimator, TokenCounter};
