//! The view: the messages that the model sees, kept within its context window.

mod conversation;
mod pairing;
mod state_manager;
mod summary;
mod window;

pub use conversation::Conversation;
pub(super) use pairing::{Ids, Pairing, rename_calls};
pub use state_manager::{StateManager, Trimmed};
pub use summary::{Summarizer, Summary, SummaryJob, SummaryRequest};
