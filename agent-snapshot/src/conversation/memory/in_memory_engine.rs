use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::memory_engine::digest;
use super::{MemoryEngine, Offload};

/// A [`MemoryEngine`] that keeps conversations in memory. Clones share their contents.
///
/// [`bootstrap`](MemoryEngine::bootstrap) returns how the last five conversations of the user
/// began and ended.
///
/// ```
/// use std::sync::Arc;
///
/// use agent_snapshot::MemoryStorage;
/// use agent_snapshot::conversation::{InMemoryEngine, Message, SessionManager, StateManager};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::conversation::Error> {
/// let engine = InMemoryEngine::new();
/// let storage = Arc::new(MemoryStorage::new());
/// let sessions = SessionManager::new(storage, StateManager::new(10_000)).memory(engine.clone());
///
/// let mut session = sessions.create("alice", None).await?;
/// session.append(Message::user("I like green tea."))?;
/// session.commit().await?;
/// sessions.destroy(session.id()).await?;
/// assert_eq!(engine.offloads()[0].user, "alice");
///
/// let next = sessions.create("alice", None).await?;
/// let prompt = next.messages().next().unwrap();
/// assert!(prompt.content.as_deref().unwrap().contains("green tea"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct InMemoryEngine {
    offloads: Arc<Mutex<BTreeMap<String, Offload>>>,
}

impl InMemoryEngine {
    /// An empty engine.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The conversations, each once.
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
        Ok(digest(self.lock().values(), user))
    }
}

impl fmt::Debug for InMemoryEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemoryEngine")
            .field("offloads", &self.lock().len())
            .finish()
    }
}
