use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use super::{
    EndReason, MemoryEngine, Message, Role, Session, SessionId, StateManager, Summarizer,
    offload::Offloaded,
    session_record::{Pending, Record, Stored, millis},
};
use crate::{Error, SnapshotStorage, Status};

/// Maps sessions to their conversations, over any [`SnapshotStorage`].
///
/// Keeps no session itself: each is read from the storage when it is asked for, and whoever
/// commits first wins the tick, so any process on the same storage can take the next turn.
/// Does nothing in the background. Clones are cheap and share the storage.
///
/// ```
/// use std::sync::Arc;
///
/// use agent_snapshot::{
///     MemoryStorage,
///     conversation::{Message, SessionManager, StateManager},
/// };
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
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
    storage: Arc<dyn SnapshotStorage>,
    state: StateManager,
    memory: Option<Arc<dyn MemoryEngine>>,
    memory_timeout: Duration,
    summarizer: Option<Arc<dyn Summarizer>>,
    idle_timeout: Duration,
    summarizing: Arc<Mutex<HashSet<SessionId>>>,
}

/// A session in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// The session's name.
    pub id: SessionId,
    /// Whose session it is.
    pub user: String,
    /// When it was created, in milliseconds since 1970.
    pub created: u64,
    /// When it was last changed, in milliseconds since 1970.
    pub last_active: u64,
}

/// What [`SessionManager::expire_idle`] did.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Expired {
    /// The sessions that were ended.
    pub ended: Vec<SessionId>,
    /// What went wrong, session by session: the rest was done all the same. A conversation
    /// that long-term memory did not take is still queued.
    pub failed: Vec<(SessionId, Error)>,
}

impl SessionManager {
    /// Sessions in `storage`, kept within the window of `state`.
    #[must_use]
    pub fn new(storage: Arc<dyn SnapshotStorage>, state: StateManager) -> Self {
        Self {
            storage,
            state,
            memory: None,
            memory_timeout: Duration::from_secs(30),
            summarizer: None,
            idle_timeout: Duration::from_secs(30 * 60),
            summarizing: Arc::default(),
        }
    }

    /// Long-term memory: gets each conversation when it ends. All processes on a storage must
    /// have one, or none: a session that one without it ends is gone.
    #[must_use]
    pub fn memory(mut self, engine: impl MemoryEngine + 'static) -> Self {
        self.memory = Some(Arc::new(engine));
        self
    }

    /// How long a call of the memory engine may take, 30 seconds if not set.
    #[must_use]
    pub fn memory_timeout(mut self, timeout: Duration) -> Self {
        self.memory_timeout = timeout;
        self
    }

    /// Summarises what is about to leave the window.
    #[must_use]
    pub fn summarizer(mut self, summarizer: impl Summarizer + 'static) -> Self {
        self.summarizer = Some(Arc::new(summarizer));
        self
    }

    /// After how long without a commit a session is idle, 30 minutes if not set.
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// Creates a session for a user, with a system prompt to which long-term memory may add.
    ///
    /// # Errors
    ///
    /// [`Error::OverLimit`] when the prompt does not fit, storage errors. A memory engine that
    /// fails is no error: see [`Session::memory_error`].
    ///
    /// # Cancel safety
    ///
    /// A session that nobody knows of may be left; it ends as idle.
    pub async fn create(&self, user: &str, prompt: Option<&str>) -> Result<Session, Error> {
        self.create_as(&SessionId::random()?, user, prompt).await
    }

    /// Creates a session under a name of the caller's, such as the id of a chat thread.
    ///
    /// # Errors
    ///
    /// [`Error::SessionExists`] when there is one of this name, be it since a moment ago by
    /// another process, or an ended one that long-term memory has yet to take; else as
    /// [`create`](Self::create).
    ///
    /// # Cancel safety
    ///
    /// The session may have been created.
    pub async fn create_as(
        &self,
        id: &SessionId,
        user: &str,
        prompt: Option<&str>,
    ) -> Result<Session, Error> {
        let exists = || Error::SessionExists {
            session: id.to_string(),
        };
        if self.load_any(id).await?.is_some() {
            return Err(exists());
        }
        let record = Record {
            user: user.to_owned(),
            created: millis(SystemTime::now()),
            prompt: prompt.map(str::to_owned),
            start: 0,
            ended: None,
            pending: Vec::new(),
        };
        let mut stored = Stored::new(id, record);
        let (pinned, error) = self.first_prompt(&stored.record).await?;
        stored.snapshot.memory.short_term_history.pin(pinned);
        stored.snapshot = stored.next()?;
        let mut saved = self.storage.save(&stored.snapshot).await;
        // The epoch of a session that ended under this name outlives it: whoever still holds the
        // old session must not write to the new one.
        if let Err(Error::Conflict { stored_epoch, .. }) = saved
            && stored_epoch > stored.snapshot.epoch
        {
            stored.snapshot.epoch = stored_epoch;
            saved = self.storage.save(&stored.snapshot).await;
        }
        match saved {
            Err(error) if error.is_conflict() => return Err(exists()),
            saved => saved?,
        }
        Ok(Session::new(self.clone(), id.clone(), stored)?.with_memory_error(error))
    }

    /// Reads a session.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownSession`] when there is none of this name, or it has ended; storage
    /// errors.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn get(&self, id: &SessionId) -> Result<Session, Error> {
        Session::new(self.clone(), id.clone(), self.load(id).await?)
    }

    /// Lists the sessions, by their names. Reads each of them whole.
    ///
    /// # Errors
    ///
    /// Storage errors; one damaged session is one.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn list(&self) -> Result<Vec<SessionInfo>, Error> {
        let mut sessions = Vec::new();
        for id in self.ids().await? {
            let Some(stored) = self.load_any(&id).await? else {
                continue;
            };
            if stored.record.ended.is_none() {
                sessions.push(SessionInfo {
                    id,
                    user: stored.record.user,
                    created: stored.record.created,
                    last_active: stored.snapshot.timestamp,
                });
            }
        }
        Ok(sessions)
    }

    /// Reads the full history of the session's conversation, whatever was trimmed from view:
    /// the system prompt, and every message since the session was created or reset.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn full_history(&self, id: &SessionId) -> Result<Vec<Message>, Error> {
        let stored = self.load(id).await?;
        let history = &stored.snapshot.memory.short_term_history;
        let mut messages = prompt_of(&stored);
        messages.extend(
            self.stream(id, stored.record.start, history.next_seq())
                .await?,
        );
        Ok(messages)
    }

    /// Ends the conversation and starts another one in the same session, with a fresh system
    /// prompt. The old one goes to long-term memory.
    ///
    /// Both happen in one save, so the prompt is made first, from what long-term memory knew
    /// before: a crash leaves the session as it was, or reset with the old conversation queued.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create) and [`get`](Self::get). A memory engine that fails is no
    /// error: the conversation stays queued.
    ///
    /// # Cancel safety
    ///
    /// The session may or may not be reset; the old conversation is queued if it is.
    pub async fn reset(&self, id: &SessionId) -> Result<Session, Error> {
        let (pinned, error) = self.first_prompt(&self.load(id).await?.record).await?;
        loop {
            let mut stored = self.load(id).await?;
            self.enqueue(&mut stored, EndReason::Reset);
            let history = &mut stored.snapshot.memory.short_term_history;
            stored.record.start = history.next_seq();
            history.drop_front(history.tail_len());
            history.set_summary(None);
            history.pin(pinned.clone());
            if self.save(&stored).await? {
                break;
            }
        }
        if let Offloaded::Queued(error) = self.deliver(id).await? {
            tracing::warn!(session = %id, %error, "long-term memory did not take a conversation");
        }
        Ok(self.get(id).await?.with_memory_error(error))
    }

    /// Ends a session. Its conversation goes to long-term memory and is deleted once it is
    /// acknowledged there.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get). A memory engine that fails is no error: see [`Offloaded`].
    ///
    /// # Cancel safety
    ///
    /// The session may or may not have ended; the conversation is queued if it has.
    pub async fn destroy(&self, id: &SessionId) -> Result<Offloaded, Error> {
        self.end(id, EndReason::Destroyed, None).await?;
        self.deliver(id).await
    }

    /// Ends the sessions that nobody committed to since the idle timeout before `now`, and
    /// offers queued conversations to long-term memory again. To be called now and then: it reads
    /// every session whole.
    ///
    /// # Errors
    ///
    /// When the sessions cannot be listed. What goes wrong with one of them is in the answer.
    ///
    /// # Cancel safety
    ///
    /// What was done is done; call it again.
    pub async fn expire_idle(&self, now: SystemTime) -> Result<Expired, Error> {
        let cutoff = millis(now).saturating_sub(self.idle_timeout.as_millis() as u64);
        let mut expired = Expired::default();
        for id in self.ids().await? {
            match self.expire(&id, cutoff).await {
                Ok(Found::InUse) => continue,
                Ok(Found::Queued) => {}
                Ok(Found::Idle) => expired.ended.push(id.clone()),
                // Somebody else ended it just now.
                Err(Error::UnknownSession { .. }) => continue,
                Err(error) => {
                    expired.failed.push((id, error));
                    continue;
                }
            }
            match self.deliver(&id).await {
                Ok(Offloaded::Queued(error)) | Err(error) => expired.failed.push((id, error)),
                Ok(_) => {}
            }
        }
        Ok(expired)
    }

    /// Ends the session if it is idle.
    async fn expire(&self, id: &SessionId, cutoff: u64) -> Result<Found, Error> {
        let Some(stored) = self.load_any(id).await? else {
            return Ok(Found::InUse);
        };
        if stored.record.ended.is_none()
            && stored.snapshot.timestamp <= cutoff
            && self.end(id, EndReason::Idle, Some(cutoff)).await?
        {
            return Ok(Found::Idle);
        }
        let queued = stored.record.ended.is_some() || !stored.record.pending.is_empty();
        Ok(if queued { Found::Queued } else { Found::InUse })
    }

    /// Marks a session as ended, unless it was used after `cutoff`.
    async fn end(
        &self,
        id: &SessionId,
        reason: EndReason,
        cutoff: Option<u64>,
    ) -> Result<bool, Error> {
        loop {
            let mut stored = self.load(id).await?;
            if cutoff.is_some_and(|cutoff| stored.snapshot.timestamp > cutoff) {
                return Ok(false);
            }
            self.enqueue(&mut stored, reason);
            stored.record.ended = Some(reason);
            stored.snapshot.status = Status::STOPPED;
            if self.save(&stored).await? {
                return Ok(true);
            }
        }
    }

    fn enqueue(&self, stored: &mut Stored, reason: EndReason) {
        let (from, to) = (
            stored.record.start,
            stored.snapshot.memory.short_term_history.next_seq(),
        );
        if self.memory.is_none() || from == to {
            return;
        }
        let pinned = prompt_of(stored);
        stored.record.pending.push(Pending {
            from,
            to,
            reason,
            ended: millis(SystemTime::now()),
            pinned,
        });
    }

    /// The system prompt of a new conversation, and why long-term memory added nothing.
    async fn first_prompt(&self, record: &Record) -> Result<(Vec<Message>, Option<Error>), Error> {
        let (known, error) = match self.bootstrap(&record.user).await {
            Ok(known) => (known, None),
            Err(error) => {
                tracing::warn!(user = record.user, %error, "starting without long-term memory");
                (None, Some(error))
            }
        };
        let prompt = record.prompt.as_deref().unwrap_or_default();
        let known = known.unwrap_or_default();
        let known = self.state.fit_text(&known, self.state.room() / 8);
        let text = match (prompt.is_empty(), known.is_empty()) {
            (true, true) => return Ok((Vec::new(), error)),
            (false, false) => format!("{prompt}\n\n{known}"),
            _ => format!("{prompt}{known}"),
        };
        let mut list = self.state.open(crate::History::new())?;
        let message = self.state.append(&mut list, Message::system(text))?;
        Ok((vec![message.clone()], error))
    }

    async fn bootstrap(&self, user: &str) -> Result<Option<String>, Error> {
        let Some(engine) = &self.memory else {
            return Ok(None);
        };
        let failed = |source| Error::Memory {
            what: format!("what is known of user {user:?}"),
            source,
        };
        tokio::time::timeout(self.memory_timeout, engine.bootstrap(user))
            .await
            .map_err(|_| failed("the memory engine took too long".into()))?
            .map_err(failed)
    }

    pub(super) async fn ids(&self) -> Result<Vec<SessionId>, Error> {
        let agents = self.storage.list().await?;
        Ok(agents
            .into_iter()
            .filter_map(SessionId::from_agent)
            .collect())
    }

    /// A session that has not ended.
    pub(super) async fn load(&self, id: &SessionId) -> Result<Stored, Error> {
        match self.load_any(id).await? {
            Some(stored) if stored.record.ended.is_none() => Ok(stored),
            _ => Err(Error::UnknownSession {
                session: id.to_string(),
            }),
        }
    }

    pub(super) async fn load_any(&self, id: &SessionId) -> Result<Option<Stored>, Error> {
        let snapshot = self.storage.load(id.agent()).await?;
        snapshot.map(Stored::read).transpose()
    }

    /// Saves a changed session; `false` when somebody else was faster.
    pub(super) async fn save(&self, stored: &Stored) -> Result<bool, Error> {
        self.save_at(stored, millis(SystemTime::now())).await
    }

    pub(super) async fn save_at(&self, stored: &Stored, timestamp: u64) -> Result<bool, Error> {
        let mut next = stored.next()?;
        next.timestamp = timestamp;
        match self.storage.save(&next).await {
            Ok(()) => Ok(true),
            Err(error) if error.is_conflict() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Messages of the stream by their numbers; that one is missing is an error.
    pub(super) async fn stream(
        &self,
        id: &SessionId,
        from: u64,
        to: u64,
    ) -> Result<Vec<Message>, Error> {
        let messages = self.storage.history(id.agent(), from..to).await?;
        if messages.len() as u64 != to - from {
            return Err(Error::Damaged {
                agent: id.agent().clone(),
                place: "the stream of messages".into(),
                reason: format!("{} of {} messages are there", messages.len(), to - from),
            });
        }
        Ok(messages.into_iter().map(|(_, message)| message).collect())
    }

    pub(super) fn state(&self) -> &StateManager {
        &self.state
    }

    pub(super) fn storage(&self) -> &dyn SnapshotStorage {
        &*self.storage
    }

    pub(super) fn engine(&self) -> Option<(&dyn MemoryEngine, Duration)> {
        Some((&**self.memory.as_ref()?, self.memory_timeout))
    }

    pub(super) fn summarizing(&self) -> Option<Arc<dyn Summarizer>> {
        self.summarizer.clone()
    }

    /// The right to make the one summary of a session; `None` while another one is made.
    pub(super) fn begin_summary(&self, id: &SessionId) -> Option<SummaryTurn> {
        let mut summarizing = self
            .summarizing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        summarizing.insert(id.clone()).then(|| SummaryTurn {
            sessions: self.summarizing.clone(),
            id: id.clone(),
        })
    }
}

/// What [`SessionManager::expire_idle`] has to do about a session.
enum Found {
    /// Nothing; most are, and need not be read again.
    InUse,
    /// A conversation waits for long-term memory, or an ended session for being deleted.
    Queued,
    /// It is ended now.
    Idle,
}

/// Ends when it is dropped, so also when the summary is given up.
pub(super) struct SummaryTurn {
    sessions: Arc<Mutex<HashSet<SessionId>>>,
    id: SessionId,
}

impl Drop for SummaryTurn {
    fn drop(&mut self) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.remove(&self.id);
    }
}

/// The pinned messages without the user message of a cut turn, which is in the stream.
fn prompt_of(stored: &Stored) -> Vec<Message> {
    let pinned = stored.snapshot.memory.short_term_history.pinned();
    let prompt = pinned.iter().filter(|message| message.role == Role::System);
    prompt.cloned().collect()
}

impl fmt::Debug for SessionManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionManager")
            .field("storage", &self.storage)
            .field("state", &self.state)
            .field("idle_timeout", &self.idle_timeout)
            .finish_non_exhaustive()
    }
}
