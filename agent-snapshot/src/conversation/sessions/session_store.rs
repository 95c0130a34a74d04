use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use super::SessionId;
use super::session_record::StoredSession;
use crate::conversation::timestamps::to_millis;
use crate::conversation::{Error, Message};
use crate::{AgentSnapshot, SnapshotStorage};

/// Sessions in a [`SnapshotStorage`].
#[derive(Clone, Debug)]
pub(super) struct SessionStore {
    storage: Arc<dyn SnapshotStorage>,
}

/// The outcome of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SaveOutcome {
    Saved,
    /// Another process saved first: load again.
    Lost,
}

impl SessionStore {
    pub(super) fn new(storage: Arc<dyn SnapshotStorage>) -> Self {
        Self { storage }
    }

    /// All sessions, including ended ones.
    pub(super) async fn ids(&self) -> Result<Vec<SessionId>, Error> {
        let agents = self.storage.list().await?;
        Ok(agents
            .into_iter()
            .filter_map(SessionId::from_agent)
            .collect())
    }

    /// A session that has not ended.
    pub(super) async fn load(&self, id: &SessionId) -> Result<StoredSession, Error> {
        match self.load_any(id).await? {
            Some(stored) if stored.record.ended.is_none() => Ok(stored),
            _ => Err(Error::UnknownSession {
                session: id.clone(),
            }),
        }
    }

    /// A session, ended or not.
    pub(super) async fn load_any(&self, id: &SessionId) -> Result<Option<StoredSession>, Error> {
        let snapshot = self.storage.load(id.agent()).await?;
        snapshot
            .map(|snapshot| StoredSession::read(id, snapshot))
            .transpose()
    }

    /// Saves a session that was changed since it was loaded.
    pub(super) async fn save(&self, stored: &StoredSession) -> Result<SaveOutcome, Error> {
        self.save_at(stored, to_millis(SystemTime::now())).await
    }

    /// Saves a session with a time of its own as that of its last activity.
    pub(super) async fn save_at(
        &self,
        stored: &StoredSession,
        timestamp: u64,
    ) -> Result<SaveOutcome, Error> {
        let mut next = stored.next()?;
        next.timestamp = timestamp;
        self.swap(&next).await
    }

    /// Compare-and-swap: saves only if no other process has saved since the snapshot before
    /// `next` was loaded. Every writer adds one to the tick that it loaded, and the storage
    /// refuses a tick that is not higher than the stored one.
    pub(super) async fn swap(&self, next: &AgentSnapshot) -> Result<SaveOutcome, Error> {
        outcome(self.storage.save(next).await)
    }

    /// Saves the first snapshot of a new session; `Lost` if the id is in use.
    pub(super) async fn insert(&self, first: &mut AgentSnapshot) -> Result<SaveOutcome, Error> {
        let saved = self.storage.save(first).await;
        // An ended session of this id leaves its epoch in the storage. The new session takes the
        // epoch over, so that its saves pass and the saves of the old session do not.
        if let Err(crate::Error::Conflict { stored_epoch, .. }) = saved
            && stored_epoch > first.epoch
        {
            first.epoch = stored_epoch;
            return self.swap(first).await;
        }
        outcome(saved)
    }

    /// Deletes an ended session; `Lost` if it was changed since it was loaded.
    ///
    /// A commit that is under way must not create the session again, so the epoch is raised first:
    /// the storage remembers it and refuses the commit. Not earlier than here, because a higher
    /// epoch wins over an equal tick, and so over messages that another process has stored.
    ///
    /// **Limit.** The delete itself has no condition: if this process pauses before it, another one
    /// may delete the session and create it again. The storage has no conditional delete, and ended
    /// sessions that stay as tombstones would make every list longer for ever.
    pub(super) async fn delete(&self, mut stored: StoredSession) -> Result<SaveOutcome, Error> {
        stored.snapshot.epoch += 1;
        let swap = self.save(&stored).await?;
        if swap == SaveOutcome::Saved {
            self.storage.delete(&stored.snapshot.agent_id).await?;
        }
        Ok(swap)
    }

    /// The messages of the stream with the numbers `range`. The oldest ones are missing if an
    /// operator has capped the stream; any other missing one is an error.
    pub(super) async fn stream(
        &self,
        id: &SessionId,
        range: Range<u64>,
    ) -> Result<Vec<(u64, Message)>, Error> {
        let messages = self.storage.stream(id.agent(), range.clone()).await?;
        let first = messages.first().map_or(range.end, |(seq, _)| *seq);
        let expected = range.end.saturating_sub(first);
        if messages.len() as u64 != expected {
            let found = messages.len();
            return Err(Error::DamagedSession {
                session: id.clone(),
                reason: format!("its stream has {found} of {expected} messages"),
            });
        }
        Ok(messages)
    }
}

fn outcome(saved: Result<(), crate::Error>) -> Result<SaveOutcome, Error> {
    match saved {
        Ok(()) => Ok(SaveOutcome::Saved),
        Err(error) if error.is_conflict() => Ok(SaveOutcome::Lost),
        Err(error) => Err(error.into()),
    }
}
