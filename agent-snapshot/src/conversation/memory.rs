use std::{
    collections::BTreeMap,
    error::Error as StdError,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{Message, Role, SessionId};

/// Long-term memory: takes whole conversations when they end, and says what it knows of a
/// user when one starts.
#[async_trait]
pub trait MemoryEngine: Send + Sync {
    /// Takes over a conversation that has ended. `Ok` means that it is safe here: its copy in
    /// the session's storage is deleted afterwards.
    ///
    /// May be called again for the same [`key`](Offload::key) when an answer was lost: take
    /// that as the same conversation.
    ///
    /// # Errors
    ///
    /// Any; the conversation stays queued and is offered again.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped when it takes too long, and the call repeated later.
    async fn offload(&self, offload: &Offload) -> Result<(), Box<dyn StdError + Send + Sync>>;

    /// What a new session should know about its user; it becomes part of the first system
    /// prompt.
    ///
    /// # Errors
    ///
    /// Any; the session starts without.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped when it takes too long.
    async fn bootstrap(
        &self,
        user: &str,
    ) -> Result<Option<String>, Box<dyn StdError + Send + Sync>>;
}

/// Why a conversation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum EndReason {
    /// The session goes on with an empty conversation.
    Reset,
    /// The session was destroyed.
    Destroyed,
    /// Nobody used the session for too long.
    Idle,
}

/// A conversation that has ended, whole.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Offload {
    /// The same whenever this conversation is offered, and never that of another.
    pub key: String,
    /// The session.
    pub session: SessionId,
    /// Whose session it is.
    pub user: String,
    /// Why it ended.
    pub reason: EndReason,
    /// When it ended, in milliseconds since 1970.
    pub ended: u64,
    /// The system prompt, and every message, whatever was trimmed from view.
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

/// Keeps conversations in memory. Clones share their contents.
///
/// [`bootstrap`](MemoryEngine::bootstrap) tells how the user's last five conversations began
/// and ended.
#[derive(Clone, Default)]
pub struct InMemoryEngine {
    offloads: Arc<Mutex<BTreeMap<String, Offload>>>,
}

impl InMemoryEngine {
    /// An engine that knows nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What was offloaded, each conversation once.
    #[must_use]
    pub fn offloads(&self) -> Vec<Offload> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Offload>> {
        self.offloads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl MemoryEngine for InMemoryEngine {
    async fn offload(&self, offload: &Offload) -> Result<(), Box<dyn StdError + Send + Sync>> {
        self.lock().insert(offload.key.clone(), offload.clone());
        Ok(())
    }

    async fn bootstrap(
        &self,
        user: &str,
    ) -> Result<Option<String>, Box<dyn StdError + Send + Sync>> {
        let offloads = self.lock();
        let mut own: Vec<&Offload> = offloads.values().filter(|o| o.user == user).collect();
        own.sort_by_key(|offload| offload.ended);
        Ok(digest(&own))
    }
}

impl fmt::Debug for InMemoryEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemoryEngine")
            .field("offloads", &self.lock().len())
            .finish()
    }
}

/// How the last conversations began and ended, oldest first.
pub(super) fn digest(offloads: &[&Offload]) -> Option<String> {
    const CONVERSATIONS: usize = 5;
    let mut text = String::from("Earlier conversations with this user:");
    let before = text.len();
    for offload in &offloads[offloads.len().saturating_sub(CONVERSATIONS)..] {
        let said = |role| {
            let own = move |m: &&Message| m.role == role;
            offload
                .messages
                .iter()
                .filter(own)
                .filter_map(|m| m.content.as_deref())
        };
        let asked = said(Role::User).next();
        let answered = said(Role::Assistant).next_back();
        if let Some(asked) = asked {
            text.push_str("\n- user: ");
            text.push_str(&excerpt(asked));
        }
        if let Some(answered) = answered.filter(|_| asked.is_some()) {
            text.push_str("\n  assistant: ");
            text.push_str(&excerpt(answered));
        }
    }
    (text.len() > before).then_some(text)
}

/// The start of a text, in one line.
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
