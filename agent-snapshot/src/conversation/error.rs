use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;

use super::{Provider, SessionId};

/// Why an operation failed.
///
/// A failed operation changes nothing, unless its documentation says otherwise.
///
/// ```
/// use agent_snapshot::History;
/// use agent_snapshot::conversation::{Error, Message, StateManager, ToolCallRequest};
/// use serde_json::json;
///
/// let state = StateManager::new(10_000);
/// let call = ToolCallRequest::new("call_1", "search", json!({}));
/// let asked = Message::assistant("").with_tool_calls(vec![call]);
/// let history: History = [Message::user("Look it up."), asked].into_iter().collect();
/// let mut conversation = state.conversation(history)?;
///
/// let next = Message::user("Are you there?");
/// match state.append(&mut conversation, next.clone()) {
///     // The process that ran the tool died: no result will come.
///     Err(Error::OpenCalls { .. }) => {
///         state.abort_open_calls(&mut conversation);
///         state.append(&mut conversation, next)?;
///     }
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An id is invalid.
    #[error("invalid {what} {value:?}: {reason}")]
    Invalid {
        /// The kind of id.
        what: &'static str,
        /// The id, cut to 64 characters.
        value: String,
        /// The rule that it breaks.
        reason: String,
    },

    /// The conversation already has a message with this id: it was appended before.
    #[error("message {id:?} is already in the conversation")]
    DuplicateMessage {
        /// The id of the message.
        id: String,
    },

    /// The list has two tool calls with this id: [`repair`](super::repair()) renames one. An append
    /// renames it by itself.
    #[error("tool call {call:?} is already in the conversation")]
    DuplicateCall {
        /// The id of the call.
        call: String,
    },

    /// The conversation has no tool call for this result.
    #[error("result for tool call {call:?}, which is not in the conversation")]
    UnknownCall {
        /// The id of the call.
        call: String,
    },

    /// The tool call already has a result: discard the second one.
    #[error("tool call {call:?} already has a result")]
    AlreadyAnswered {
        /// The id of the call.
        call: String,
    },

    /// Tool calls have no result yet, and only results may follow: append them, or abort the
    /// calls.
    #[error("tool calls have no result yet: {}", .calls.join(", "))]
    OpenCalls {
        /// The ids of the calls.
        calls: Vec<String>,
    },

    /// No provider accepts the message, wherever it stands.
    #[error("invalid message: {reason}")]
    InvalidMessage {
        /// The rule that it breaks.
        reason: &'static str,
    },

    /// A request without messages: at least one must have contents, beside system messages.
    #[error("the request has no message beside system messages")]
    EmptyRequest,

    /// The JSON is not in the format of the provider.
    #[error("cannot read the JSON of {provider}: {reason}")]
    UnreadableJson {
        /// The provider.
        provider: Provider,
        /// The rule that it breaks.
        reason: String,
    },

    /// The messages that no trim removes exceed the token budget: shorten the newest one.
    #[error("{needed} tokens exceed the budget of {budget} by {over}")]
    OverLimit {
        /// Tokens of the prompt, the newest user message and the newest exchange.
        needed: usize,
        /// Tokens that the messages may take: see
        /// [`StateManager::budget`](super::StateManager::budget).
        budget: usize,
        /// The difference of the two.
        over: usize,
    },

    /// The summariser failed, timed out, or returned an empty text.
    #[error("cannot summarise the conversation")]
    Summary {
        /// The cause.
        source: Box<dyn StdError + Send + Sync>,
    },

    /// The summary was made for another state of the conversation: begin a new one.
    #[error("the summary does not fit the conversation: {reason}")]
    SummaryRejected {
        /// Why it does not fit.
        reason: &'static str,
    },

    /// The memory engine failed or timed out.
    #[error("long-term memory cannot {action}")]
    Memory {
        /// The operation, such as "recall user".
        action: String,
        /// The cause.
        source: Box<dyn StdError + Send + Sync>,
    },

    /// The session does not exist, or has ended.
    #[error("session {session} does not exist or has ended")]
    UnknownSession {
        /// The id of the session.
        session: SessionId,
    },

    /// The id is in use: choose another one, or get the session.
    #[error("session {session} already exists")]
    SessionExists {
        /// The id of the session.
        session: SessionId,
    },

    /// Another process has reset the session. The uncommitted messages belong to a conversation
    /// that has ended: get the session again.
    #[error("session {session} was reset by another process")]
    SessionReset {
        /// The id of the session.
        session: SessionId,
    },

    /// Other processes committed first, many times in a row: try again later.
    #[error("session {session} is busy: other processes keep committing first")]
    Busy {
        /// The id of the session.
        session: SessionId,
    },

    /// The storage returned data that is not a session of this crate. It was not changed.
    #[error("session {session} is damaged: {reason}")]
    DamagedSession {
        /// The id of the session.
        session: SessionId,
        /// The check that failed.
        reason: String,
    },

    /// The storage failed.
    #[error("the storage of the sessions failed")]
    Storage {
        /// The error of the storage.
        #[from]
        source: crate::Error,
    },

    /// A file operation failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The operation, such as "read".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },

    /// The file or folder is refused: another user could have written it, or could change it.
    #[error("refusing {}: {reason}", path.display())]
    NotPrivate {
        /// The file or folder.
        path: PathBuf,
        /// The rule that it breaks, and the remedy.
        reason: &'static str,
    },

    /// A line in the file of the memory engine is not an [`Offload`](super::Offload).
    #[error("cannot read {}, line {line}", path.display())]
    DamagedLine {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// The cause.
        source: Box<dyn StdError + Send + Sync>,
    },
}

impl Error {
    /// Whether stored data cannot be read.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        match self {
            Self::DamagedSession { .. } | Self::DamagedLine { .. } => true,
            Self::Storage { source } => source.is_damaged(),
            _ => false,
        }
    }
}
