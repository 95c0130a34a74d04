//! Conversations: the messages that a model sees, kept within its context window.
//!
//! | type | task |
//! |---|---|
//! | [`StateManager`] | appends to, counts and trims one [`Conversation`]; stateless |
//! | [`SessionManager`] | [`Session`]s of many users, in any [`SnapshotStorage`](crate::SnapshotStorage) |
//! | [`TokenCounter`] | counts tokens: [`Estimator`] for any language, `OpenAiCounter` exactly (feature `openai`) |
//! | [`Summarizer`] | summarises the messages that leave the view |
//! | [`MemoryEngine`] | long-term memory: receives a conversation when it ends, and recalls what it knows of the user when a conversation starts |
//! | [`Part`] | images, documents, reasoning with its signature, and data of a provider in a [`Message`] |
//! | [`Provider`] | makes request JSON of messages and messages of response JSON: Anthropic, OpenAI (both APIs), Gemini |
//! | [`repair()`] | makes a list of messages acceptable for all providers |
//!
//! # The view and the stream
//!
//! Every message gets a number and stays in the *stream*, the append-only log in the storage, until
//! long-term memory has it. The *history*, or view, is the part that the model sees now: the
//! *pinned* system prompt, at most one *summary*, and the *tail*, which are the newest messages of
//! the stream. Trimming moves the *cut* forward. It changes the view, never the stream.
//!
//! ```text
//!  stream     0   1   2   3   4   5 │ 6   7   8   9
//!             └── out of view ────┘ │ └── tail ───┘
//!                      │           cut      │
//!                 summarised                │
//!                      ▼                    ▼
//!  view  [pinned]  [summary]          6   7   8   9
//! ```
//!
//! [`Session::messages`] returns the view, [`SessionManager::stream`] the stream.
//!
//! The module has [an error enum of its own](Error), because its callers, who talk to a model, can
//! act on other errors than the callers of a storage.
//!
//! # Guarantees
//!
//! 1. All providers accept a list that went through [`StateManager::append`] and
//!    [`StateManager::trim`], as soon as its calls have results: a call and its result stay or
//!    leave together, and the first message is a user message.
//! 2. Such a list is within the window of the model, with enough tokens left for the answer. Text is
//!    counted by the [`TokenCounter`]; images and documents are estimated by the formula of the
//!    provider, and [`Conversation::estimated_tokens`] is their part.
//! 3. Trimming removes nothing from the stream.
//! 4. A failed operation changes nothing.
//! 5. A message that [`Session::commit`] has stored is never lost: not to another process that
//!    works on the same session, not to a summary that is made at the same time, and not at the end of
//!    the session before long-term memory has acknowledged the conversation.
//!
//! # Example
//!
//! A turn with a tool call. Runnable programs: `conversation_window` (trimming and summaries) and
//! `conversation_sessions` (sessions and long-term memory) in the folder
//! [`examples`](https://docs.rs/crate/agent-snapshot/latest/source/examples/) of this crate.
//!
//! ```
//! use std::sync::Arc;
//!
//! use agent_snapshot::MemoryStorage;
//! use agent_snapshot::conversation::{
//!     Message, Provider, SessionManager, StateManager, ToolCallRequest, ToolCallResult,
//! };
//! use serde_json::json;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), agent_snapshot::conversation::Error> {
//! let storage = Arc::new(MemoryStorage::new());
//! let sessions = SessionManager::new(storage, StateManager::new(200_000));
//! let mut session = sessions.create("alice", Some("You are a coding agent.")).await?;
//!
//! session.append(Message::user("What does main.rs do?"))?;
//! let call = ToolCallRequest::new("", "read_file", json!({"path": "main.rs"}));
//! let asked = session.append(Message::assistant("").with_tool_calls(vec![call]))?;
//! let call_id = asked.tool_calls[0].id.clone(); // append made it, because it was empty
//! session.commit().await?; // before the tool runs: after a crash, the call is seen as open
//!
//! let result = ToolCallResult::new(call_id, json!("fn main() {}"));
//! session.append(Message::tool(vec![result]))?;
//! session.commit().await?;
//! let request = Provider::Anthropic.request(session.messages())?;
//! assert_eq!(request["messages"].as_array().unwrap().len(), 3);
//! # Ok(())
//! # }
//! ```

mod error;
mod memory;
mod message;
mod part;
mod provider;
mod sessions;
mod timestamps;
mod tokens;
mod view;

pub use error::Error;
#[cfg(feature = "file")]
#[cfg_attr(docsrs, doc(cfg(feature = "file")))]
pub use memory::JsonLinesEngine;
pub use memory::{EndReason, InMemoryEngine, MemoryEngine, Offload};
pub use message::{Message, Role, ToolCallRequest, ToolCallResult};
pub use part::{Part, Source};
pub use provider::{AbortedCall, Provider, Repaired, repair};
pub use sessions::{
    Committed, Expired, Offloaded, Session, SessionId, SessionInfo, SessionManager, SummaryOutcome,
};
#[cfg(feature = "openai")]
#[cfg_attr(docsrs, doc(cfg(feature = "openai")))]
pub use tokens::OpenAiCounter;
pub use tokens::{Estimator, TokenCounter};
pub use view::{
    Conversation, StateManager, Summarizer, Summary, SummaryJob, SummaryRequest, Trimmed,
};
