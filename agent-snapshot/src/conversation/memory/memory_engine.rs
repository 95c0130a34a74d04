use std::error::Error as StdError;
use std::fmt;
use std::time::SystemTime;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::conversation::timestamps::unix_millis;
use crate::conversation::{Message, Role, SessionId};

/// Long-term memory: receives whole conversations when they end, and recalls what it knows of a
/// user when a session starts.
///
/// ```
/// use std::error::Error;
///
/// use agent_snapshot::conversation::{MemoryEngine, Offload};
///
/// struct Log;
///
/// #[async_trait::async_trait]
/// impl MemoryEngine for Log {
///     async fn offload(&self, offload: &Offload) -> Result<(), Box<dyn Error + Send + Sync>> {
///         println!("{}: {} messages", offload.user, offload.messages.len());
///         Ok(())
///     }
///
///     async fn bootstrap(&self, _: &str) -> Result<Option<String>, Box<dyn Error + Send + Sync>> {
///         Ok(None)
///     }
/// }
/// ```
#[async_trait]
pub trait MemoryEngine: Send + Sync {
    /// Stores a conversation that has ended. After `Ok`, its copy in the storage of the session
    /// is deleted.
    ///
    /// Must be idempotent by [`key`](Offload::key): the call is repeated if its answer was lost.
    ///
    /// # Errors
    ///
    /// Any error. The conversation stays queued and is offered again.
    ///
    /// # Cancel safety
    ///
    /// Must be cancel safe: the future is dropped when it takes longer than
    /// [`memory_timeout`](crate::conversation::SessionManager::memory_timeout), and the call is
    /// repeated later.
    async fn offload(&self, offload: &Offload) -> Result<(), Box<dyn StdError + Send + Sync>>;

    /// Returns the knowledge about a user for a new session. It becomes part of the system prompt.
    ///
    /// # Errors
    ///
    /// Any error. The session starts without it.
    ///
    /// # Cancel safety
    ///
    /// Must be cancel safe: the future is dropped when it takes longer than
    /// [`memory_timeout`](crate::conversation::SessionManager::memory_timeout).
    async fn bootstrap(
        &self,
        user: &str,
    ) -> Result<Option<String>, Box<dyn StdError + Send + Sync>>;
}

/// Why a conversation ended.
///
/// ```
/// use agent_snapshot::conversation::EndReason;
///
/// assert_eq!(serde_json::to_string(&EndReason::Idle)?, r#""idle""#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum EndReason {
    /// The session was reset, and continues with an empty conversation.
    Reset,
    /// The session was destroyed.
    Destroyed,
    /// The session had no commit for longer than its idle timeout.
    Idle,
}

/// A conversation that has ended, with all of its messages.
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
///
/// use agent_snapshot::conversation::Offload;
///
/// let line = r#"{"key":"demo/0","session":"demo","user":"alice","reason":"reset",
///     "ended":1706582400000,"messages":[{"role":"user","content":"hello"}]}"#;
/// let offload: Offload = serde_json::from_str(line)?;
/// assert_eq!(offload.ended, UNIX_EPOCH + Duration::from_secs(1_706_582_400));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Offload {
    /// Identifies the conversation: the same each time it is offered, and unique.
    pub key: String,
    /// The session.
    pub session: SessionId,
    /// The user of the session.
    pub user: String,
    /// Why the conversation ended.
    pub reason: EndReason,
    /// When the conversation ended. Milliseconds since 1970 in JSON.
    #[serde(with = "unix_millis")]
    pub ended: SystemTime,
    /// The system prompt and all messages, including messages that a trim removed from view.
    pub messages: Vec<Message>,
}

impl fmt::Debug for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offload")
            .field("key", &self.key)
            .field("reason", &self.reason)
            .field("messages", &self.messages.len())
            .finish_non_exhaustive()
    }
}

/// How the newest conversations of a user began and ended, oldest first.
pub(super) fn digest<'a>(
    offloads: impl IntoIterator<Item = &'a Offload>,
    user: &str,
) -> Option<String> {
    const CONVERSATIONS: usize = 5;
    let own = offloads.into_iter().filter(|offload| offload.user == user);
    let mut own: Vec<&Offload> = own.collect();
    own.sort_by_key(|offload| offload.ended);
    let mut text = String::new();
    for offload in &own[own.len().saturating_sub(CONVERSATIONS)..] {
        let said = |role| {
            let messages = offload.messages.iter().filter(move |m| m.role == role);
            messages.filter_map(|m| m.content.as_deref())
        };
        let Some(asked) = said(Role::User).next() else {
            continue;
        };
        text.push_str("\n- user: ");
        text.push_str(&excerpt(asked));
        if let Some(answered) = said(Role::Assistant).next_back() {
            text.push_str("\n  assistant: ");
            text.push_str(&excerpt(answered));
        }
    }
    (!text.is_empty()).then(|| format!("Earlier conversations with this user:{text}"))
}

/// The start of a text, on one line.
fn excerpt(text: &str) -> String {
    const CHARACTERS: usize = 200;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut chars = line.chars();
    let mut start: String = chars.by_ref().take(CHARACTERS).collect();
    if chars.next().is_some() {
        start.push('…');
    }
    start
}
