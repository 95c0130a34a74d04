//! Conversations: what the model sees, kept within its window.
//!
//! | type | what it does |
//! |---|---|
//! | [`StateManager`] | appends, counts and trims one conversation; stateless |
//! | [`SessionManager`] | many users' sessions in any [`SnapshotStorage`](crate::SnapshotStorage) |
//! | [`TokenCounter`] | [`Estimator`] for any language, `OpenAiCounter` exactly (feature `openai`) |
//! | [`Summarizer`] | what leaves the window is summarised, if there is one |
//! | [`MemoryEngine`] | gets the full history when a conversation ends, and knows the user when one starts |
//! | [`anthropic_request`], [`openai_request`] | the list as request JSON |
//! | [`repair()`] | makes a list of whatever origin acceptable |
//!
//! # What holds
//!
//! 1. A list that went through [`StateManager::append`] and [`StateManager::trim`] is refused
//!    by neither provider, once its open calls are answered: calls and their results stay or
//!    go together, and the first to speak is a user.
//! 2. It is within the model's window, with room for the answer.
//! 3. Trimming changes the *view*, what the model sees. The *full history* is an append-only
//!    stream in the same storage: see [`SessionManager::full_history`].
//! 4. An error changes nothing.
//! 5. What [`Session::commit`] has stored is never lost: not to another process on the same
//!    session, not to a summary made meanwhile, and not when the session ends, before
//!    long-term memory has acknowledged it.
//!
//! A turn with tools, from the user's question to the answer:
//!
//! ```
//! use std::sync::Arc;
//!
//! use agent_snapshot::{
//!     MemoryStorage,
//!     conversation::{
//!         Message, SessionManager, StateManager, ToolCallRequest, ToolCallResult,
//!         anthropic_request,
//!     },
//! };
//! use serde_json::json;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), agent_snapshot::Error> {
//! let storage = Arc::new(MemoryStorage::new());
//! let sessions = SessionManager::new(storage, StateManager::new(200_000));
//! let mut session = sessions.create("alice", Some("You are a coding agent.")).await?;
//!
//! session.append(Message::user("What does main.rs do?"))?;
//! let call = ToolCallRequest::new("", "read_file", json!({"path": "main.rs"}));
//! let asked = session.append(Message::assistant("").with_tool_calls(vec![call]))?;
//! let call_id = asked.tool_calls[0].id.clone(); // minted
//! session.commit().await?; // before the tool runs: a crash is seen afterwards
//!
//! let result = ToolCallResult::new(call_id, json!("fn main() {}"));
//! session.append(Message::tool(vec![result]))?;
//! session.commit().await?;
//! let request = anthropic_request(session.messages())?;
//! assert_eq!(request["messages"].as_array().unwrap().len(), 3);
//! # Ok(())
//! # }
//! ```

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
