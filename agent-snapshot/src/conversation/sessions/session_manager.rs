use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::delivery::{Offloaded, timed_out};
use super::session_record::{PendingOffload, SessionRecord, StoredSession};
use super::session_store::{SaveOutcome, SessionStore};
use super::{Session, SessionId};
use crate::conversation::timestamps::{from_millis, to_millis};
use crate::conversation::{EndReason, Error, MemoryEngine, Message, StateManager, Summarizer};
use crate::{History, SnapshotStorage, Status};

/// Maps session ids to conversations, in any [`SnapshotStorage`].
///
/// It keeps no session itself: each is read from the storage when it is needed, so any process on
/// the same storage can take the next turn. It has no background task. Clones are cheap and share
/// the storage. Options are set before the first use.
///
/// ```
/// use std::sync::Arc;
///
/// use agent_snapshot::MemoryStorage;
/// use agent_snapshot::conversation::{Message, SessionManager, StateManager};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::conversation::Error> {
/// let storage = Arc::new(MemoryStorage::new());
/// let sessions = SessionManager::new(storage, StateManager::new(128_000));
///
/// let mut session = sessions.create("alice", Some("Be brief.")).await?;
/// session.append(Message::user("hello"))?;
/// session.append(Message::assistant("Hi."))?;
/// session.commit().await?;
///
/// let session = sessions.get(session.id()).await?;
/// assert_eq!(session.messages().count(), 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SessionManager {
    store: SessionStore,
    state: StateManager,
    memory: Option<Arc<dyn MemoryEngine>>,
    memory_timeout: Duration,
    pub(super) summarizer: Option<Arc<dyn Summarizer>>,
    idle_timeout: Duration,
    /// The sessions for which this process makes a summary at the moment.
    summarizing: Arc<Mutex<HashSet<SessionId>>>,
}

/// A session in the list of [`SessionManager::list`].
///
/// ```
/// # use std::sync::Arc;
/// # use agent_snapshot::MemoryStorage;
/// # use agent_snapshot::conversation::{SessionManager, StateManager};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::conversation::Error> {
/// # let storage = Arc::new(MemoryStorage::new());
/// # let sessions = SessionManager::new(storage, StateManager::new(10_000));
/// sessions.create("alice", None).await?;
/// let info = &sessions.list().await?[0];
/// assert_eq!(info.user, "alice");
/// assert!(info.created <= info.last_active);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// The id of the session.
    pub id: SessionId,
    /// The user of the session.
    pub user: String,
    /// When the session was created.
    pub created: SystemTime,
    /// When the session was last committed to.
    pub last_active: SystemTime,
}

/// The result of [`SessionManager::expire_idle`].
///
/// ```
/// # use std::sync::Arc;
/// # use agent_snapshot::MemoryStorage;
/// # use agent_snapshot::conversation::{SessionManager, StateManager};
/// use std::time::{Duration, SystemTime};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::conversation::Error> {
/// # let storage = Arc::new(MemoryStorage::new());
/// # let sessions = SessionManager::new(storage, StateManager::new(10_000));
/// let session = sessions.create("alice", None).await?;
/// let in_an_hour = SystemTime::now() + Duration::from_secs(3600);
/// let expired = sessions.expire_idle(in_an_hour).await?;
/// assert_eq!(expired.ended, [session.id().clone()]);
/// assert!(expired.failed.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Expired {
    /// The sessions that were ended.
    pub ended: Vec<SessionId>,
    /// The sessions for which something failed; the others were still handled. A conversation
    /// that long-term memory did not take is still queued.
    pub failed: Vec<(SessionId, Error)>,
}

impl SessionManager {
    /// Sessions in `storage`, kept within the budget of `state`.
    #[must_use]
    pub fn new(storage: Arc<dyn SnapshotStorage>, state: StateManager) -> Self {
        Self {
            store: SessionStore::new(storage),
            state,
            memory: None,
            memory_timeout: Duration::from_secs(30),
            summarizer: None,
            idle_timeout: Duration::from_secs(30 * 60),
            summarizing: Arc::default(),
        }
    }

    /// Sets the long-term memory, which receives each conversation when it ends; the default is
    /// none.
    ///
    /// Either all processes on a storage must have a memory engine, or none: a process without
    /// one deletes the conversations that it ends.
    #[must_use]
    pub fn memory(mut self, engine: impl MemoryEngine + 'static) -> Self {
        self.memory = Some(Arc::new(engine));
        self
    }

    /// Sets how long a call of the memory engine may take; the default is 30 seconds.
    #[must_use]
    pub fn memory_timeout(mut self, timeout: Duration) -> Self {
        self.memory_timeout = timeout;
        self
    }

    /// Sets the summariser of the messages that leave the view; the default is none.
    #[must_use]
    pub fn summarizer(mut self, summarizer: impl Summarizer + 'static) -> Self {
        self.summarizer = Some(Arc::new(summarizer));
        self
    }

    /// Sets how long a session may be without a commit before it counts as idle; the default is 30
    /// minutes.
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// Creates a session with a random id.
    ///
    /// The knowledge of long-term memory about the user is added to the system prompt.
    ///
    /// # Errors
    ///
    /// [`Error::OverLimit`] if the prompt exceeds the budget, [`Error::Storage`]. A failure of
    /// the memory engine is not an error: see [`Session::memory_error`].
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: the session may have been created, with an unknown id. It is ended when it
    /// becomes idle.
    pub async fn create(&self, user: &str, prompt: Option<&str>) -> Result<Session, Error> {
        self.create_as(&SessionId::random()?, user, prompt).await
    }

    /// Creates a session with an id of the caller, such as the id of a chat thread.
    ///
    /// # Errors
    ///
    /// [`Error::SessionExists`] if the id is in use, also by an ended session whose conversation
    /// long-term memory has not acknowledged yet. Otherwise as [`create`](Self::create).
    ///
    /// # Races
    ///
    /// If two processes delete the ended session of this id, and one of them pauses before its
    /// last call to the storage, that call deletes a session that was created in between. A new id
    /// for each session excludes this.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the session is created or not.
    pub async fn create_as(
        &self,
        id: &SessionId,
        user: &str,
        prompt: Option<&str>,
    ) -> Result<Session, Error> {
        let exists = || Error::SessionExists {
            session: id.clone(),
        };
        if self.store.load_any(id).await?.is_some() {
            return Err(exists());
        }
        let record = SessionRecord {
            user: user.to_owned(),
            created: SystemTime::now(),
            incarnation: Uuid::new_v4().to_string(),
            prompt: prompt.map(str::to_owned),
            start: 0,
            ended: None,
            pending: Vec::new(),
        };
        let mut stored = StoredSession::new(id, record);
        let (pinned, error) = self.first_prompt(&stored.record).await?;
        stored.snapshot.memory.short_term_history.pin(pinned);
        stored.snapshot = stored.next()?;
        if self.store.insert(&mut stored.snapshot).await? == SaveOutcome::Lost {
            return Err(exists());
        }
        Ok(Session::new(self.clone(), id.clone(), stored)?.with_memory_error(error))
    }

    /// Reads a session.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownSession`] if the session does not exist or has ended,
    /// [`Error::DamagedSession`], [`Error::Storage`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: reading changes nothing.
    pub async fn get(&self, id: &SessionId) -> Result<Session, Error> {
        Session::new(self.clone(), id.clone(), self.store.load(id).await?)
    }

    /// Lists the sessions, sorted by id. Reads every session.
    ///
    /// # Errors
    ///
    /// [`Error::DamagedSession`] if a single session is damaged, [`Error::Storage`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: reading changes nothing.
    pub async fn list(&self) -> Result<Vec<SessionInfo>, Error> {
        let mut sessions = Vec::new();
        for id in self.store.ids().await? {
            let Some(stored) = self.store.load_any(&id).await? else {
                continue;
            };
            if stored.record.ended.is_none() {
                sessions.push(SessionInfo {
                    id,
                    user: stored.record.user,
                    created: stored.record.created,
                    last_active: from_millis(stored.snapshot.timestamp),
                });
            }
        }
        Ok(sessions)
    }

    /// Reads the whole conversation from the stream, including messages that a trim removed from
    /// view: the system prompt, and every message since the session was created or reset, except
    /// messages that [`cap_stream`](SnapshotStorage::cap_stream) has deleted.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: reading changes nothing.
    pub async fn stream(&self, id: &SessionId) -> Result<Vec<Message>, Error> {
        loop {
            let stored = self.store.load(id).await?;
            let range = stored.record.start..stored.next_seq();
            let stream = self.store.stream(id, range).await;
            // Race: a reset or an end of the session between the two reads deletes messages.
            let current = self.store.load(id).await?.record;
            if (&current.incarnation, current.start)
                == (&stored.record.incarnation, stored.record.start)
            {
                let mut messages = stored.prompt();
                messages.extend(stream?.into_iter().map(|(_, message)| message));
                return Ok(messages);
            }
        }
    }

    /// Ends the conversation, offers it to long-term memory, and starts another one in the same
    /// session, with a new system prompt.
    ///
    /// One save does both. The new prompt is made before it, so it contains what long-term memory
    /// knew before it received this conversation.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create) and [`get`](Self::get). A failure of the memory engine is
    /// not an error: the conversation stays queued.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the session is reset or not. If it is, the old conversation is queued.
    pub async fn reset(&self, id: &SessionId) -> Result<Session, Error> {
        let record = self.store.load(id).await?.record;
        let (pinned, error) = self.first_prompt(&record).await?;
        loop {
            let mut stored = self.store.load(id).await?;
            self.enqueue(&mut stored, EndReason::Reset);
            stored.record.start = stored.next_seq();
            let history = &mut stored.snapshot.memory.short_term_history;
            history.drop_front(history.tail_len());
            history.set_summary(None);
            history.pin(pinned.clone());
            if stored.record.pending.is_empty() {
                self.drop_past(id, &mut stored).await?;
            }
            if self.store.save(&stored).await? == SaveOutcome::Saved {
                break;
            }
        }
        if let Offloaded::Queued(error) = self.deliver(id).await? {
            tracing::warn!(session = %id, %error, "long-term memory did not take a conversation");
        }
        Ok(self.get(id).await?.with_memory_error(error))
    }

    /// Ends a session and offers its conversation to long-term memory. The session is deleted
    /// when the conversation is acknowledged.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get). A failure of the memory engine is not an error: see
    /// [`Offloaded`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the session has ended or not. If it has, the conversation is queued.
    pub async fn destroy(&self, id: &SessionId) -> Result<Offloaded, Error> {
        self.end(id, EndReason::Destroyed, None).await?;
        self.deliver(id).await
    }

    /// Ends the sessions that were idle at `now`, and offers queued conversations to long-term
    /// memory again. Reads every session; call it from time to time.
    ///
    /// # Errors
    ///
    /// [`Error::Storage`] if the sessions cannot be listed. The failure of a single session is in
    /// the answer.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: each session was handled or not. Call it again for the rest.
    pub async fn expire_idle(&self, now: SystemTime) -> Result<Expired, Error> {
        let idle = u64::try_from(self.idle_timeout.as_millis()).unwrap_or(u64::MAX);
        let cutoff = to_millis(now).saturating_sub(idle);
        let mut expired = Expired::default();
        for id in self.store.ids().await? {
            if let Err(error) = self.expire(&id, cutoff, &mut expired.ended).await {
                expired.failed.push((id, error));
            }
        }
        Ok(expired)
    }

    /// Ends the session if it is idle, and delivers what it has queued. Most sessions are in use
    /// and have nothing queued: they are read once.
    async fn expire(
        &self,
        id: &SessionId,
        cutoff: u64,
        ended: &mut Vec<SessionId>,
    ) -> Result<(), Error> {
        let Some(stored) = self.store.load_any(id).await? else {
            return Ok(());
        };
        let record = stored.record;
        if record.ended.is_none() && stored.snapshot.timestamp <= cutoff {
            match self.end(id, EndReason::Idle, Some(cutoff)).await {
                Ok(true) => ended.push(id.clone()),
                Ok(false) => {}
                // Another process has ended it, and delivers it.
                Err(Error::UnknownSession { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        } else if record.ended.is_none() && record.pending.is_empty() {
            return Ok(());
        }
        match self.deliver(id).await? {
            Offloaded::Queued(error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Marks a session as ended and queues its conversation. `false`, and nothing is changed, if
    /// the session was active after `cutoff`.
    async fn end(
        &self,
        id: &SessionId,
        reason: EndReason,
        cutoff: Option<u64>,
    ) -> Result<bool, Error> {
        loop {
            let mut stored = self.store.load(id).await?;
            if cutoff.is_some_and(|cutoff| stored.snapshot.timestamp > cutoff) {
                return Ok(false);
            }
            self.enqueue(&mut stored, reason);
            stored.record.ended = Some(reason);
            stored.snapshot.status = Status::STOPPED;
            if self.store.save(&stored).await? == SaveOutcome::Saved {
                return Ok(true);
            }
        }
    }

    /// Queues the current conversation for long-term memory, unless it is empty.
    fn enqueue(&self, stored: &mut StoredSession, reason: EndReason) {
        let (from, to) = (stored.record.start, stored.next_seq());
        if self.memory.is_none() || from == to {
            return;
        }
        let pinned = stored.prompt();
        stored.record.pending.push(PendingOffload {
            from,
            to,
            reason,
            ended: SystemTime::now(),
            pinned,
        });
    }

    /// The system prompt of a new conversation, and why long-term memory added nothing to it.
    async fn first_prompt(
        &self,
        record: &SessionRecord,
    ) -> Result<(Vec<Message>, Option<Error>), Error> {
        let (known, error) = match self.bootstrap(&record.user).await {
            Ok(known) => (known.unwrap_or_default(), None),
            Err(error) => {
                tracing::warn!(user = record.user, %error, "starting without long-term memory");
                (String::new(), Some(error))
            }
        };
        let known = self.state.fit_text(&known, self.state.budget() / 8);
        let prompt = record.prompt.as_deref().unwrap_or_default();
        let parts = [prompt, known].into_iter().filter(|part| !part.is_empty());
        let text = parts.collect::<Vec<_>>().join("\n\n");
        if text.is_empty() {
            return Ok((Vec::new(), error));
        }
        // `append` checks the budget and sets id and time stamp, so the prompt goes through a
        // temporary conversation.
        let mut conversation = self.state.conversation(History::new())?;
        let message = self
            .state
            .append(&mut conversation, Message::system(text))?;
        Ok((vec![message.clone()], error))
    }

    async fn bootstrap(&self, user: &str) -> Result<Option<String>, Error> {
        let Some((engine, timeout)) = self.engine() else {
            return Ok(None);
        };
        let failed = |source| Error::Memory {
            action: format!("recall user {user:?}"),
            source,
        };
        tokio::time::timeout(timeout, engine.bootstrap(user))
            .await
            .map_err(|_| failed(timed_out(timeout).into()))?
            .map_err(failed)
    }

    pub(super) fn state(&self) -> &StateManager {
        &self.state
    }

    pub(super) fn store(&self) -> &SessionStore {
        &self.store
    }

    pub(super) fn engine(&self) -> Option<(&dyn MemoryEngine, Duration)> {
        Some((&**self.memory.as_ref()?, self.memory_timeout))
    }

    /// The right to make a summary of a session: a process makes one at a time.
    pub(super) fn summary_slot(&self, id: &SessionId) -> Result<SummarySlot, Error> {
        let summarizing = self.summarizing.lock();
        let mut summarizing = summarizing.unwrap_or_else(PoisonError::into_inner);
        if !summarizing.insert(id.clone()) {
            return Err(Error::SummaryRejected {
                reason: "another summary of this session is under way",
            });
        }
        Ok(SummarySlot {
            sessions: self.summarizing.clone(),
            id: id.clone(),
        })
    }
}

/// Frees the slot when it is dropped, also if the summary fails or is cancelled.
pub(super) struct SummarySlot {
    sessions: Arc<Mutex<HashSet<SessionId>>>,
    id: SessionId,
}

impl Drop for SummarySlot {
    fn drop(&mut self) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.remove(&self.id);
    }
}

impl fmt::Debug for SessionManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionManager")
            .field("store", &self.store)
            .field("state", &self.state)
            .field("idle_timeout", &self.idle_timeout)
            .finish_non_exhaustive()
    }
}
