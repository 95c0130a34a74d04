use xxhash_rust::xxh3::xxh3_128;

use super::{
    Offload, SessionId, SessionManager,
    session_record::{Pending, Stored},
};
use crate::{Error, History};

/// What became of an ended conversation.
#[derive(Debug)]
#[non_exhaustive]
pub enum Offloaded {
    /// There was nothing to offload, or no memory engine to take it.
    Nothing,
    /// Long-term memory acknowledged it.
    Done,
    /// Long-term memory did not take it, for this reason. It is queued in the storage, and
    /// offered again by [`offload_pending`](SessionManager::offload_pending) and
    /// [`expire_idle`](SessionManager::expire_idle).
    Queued(Error),
}

// An ended conversation is queued by the save that ends it: the session's record names the
// part of the stream. It leaves the queue by the save after the acknowledgement, and the
// messages are deleted after that. A crash anywhere in between repeats a step.
impl SessionManager {
    /// Offers queued conversations to long-term memory again, and returns what it did not
    /// take.
    ///
    /// # Errors
    ///
    /// When the sessions cannot be listed. What goes wrong with one of them is in the answer.
    ///
    /// # Cancel safety
    ///
    /// What was acknowledged is done; call it again.
    pub async fn offload_pending(&self) -> Result<Vec<(SessionId, Error)>, Error> {
        let mut failed = Vec::new();
        for id in self.ids().await? {
            match self.deliver(&id).await {
                Ok(Offloaded::Queued(error)) | Err(error) => failed.push((id, error)),
                Ok(_) => {}
            }
        }
        Ok(failed)
    }

    pub(super) async fn deliver(&self, id: &SessionId) -> Result<Offloaded, Error> {
        let mut outcome = Offloaded::Nothing;
        loop {
            let Some(mut stored) = self.load_any(id).await? else {
                return Ok(outcome);
            };
            let Some(pending) = stored.record.pending.first() else {
                if stored.record.ended.is_none() {
                    return Ok(outcome);
                }
                // The storage remembers the epoch when the session is deleted: a commit that
                // was on its way cannot bring it back to life. Not earlier, because a higher
                // epoch wins over an equal tick, and so over a message stored meanwhile.
                stored.snapshot.epoch += 1;
                if self.save(&stored).await? {
                    self.storage().delete(id.agent()).await?;
                    return Ok(outcome);
                }
                continue;
            };
            if let Err(error) = self.offer(id, &stored, pending).await? {
                return Ok(Offloaded::Queued(error));
            }
            outcome = Offloaded::Done;
            self.acknowledge(id, pending.from).await?;
        }
    }

    /// The inner error is the memory engine's.
    async fn offer(
        &self,
        id: &SessionId,
        stored: &Stored,
        pending: &Pending,
    ) -> Result<Result<(), Error>, Error> {
        let failed = |source| Error::Memory {
            what: format!("the conversation of session {id}"),
            source,
        };
        let Some((engine, timeout)) = self.engine() else {
            return Ok(Err(failed("this process has no memory engine".into())));
        };
        let mut messages = pending.pinned.clone();
        messages.extend(self.stream(id, pending.from, pending.to).await?);
        let offload = Offload {
            key: format!("{id}/{}", pending.from),
            session: id.clone(),
            user: stored.record.user.clone(),
            reason: pending.reason,
            ended: pending.ended,
            messages,
        };
        Ok(
            match tokio::time::timeout(timeout, engine.offload(&offload)).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(source)) => Err(failed(source)),
                Err(_) => Err(failed("the memory engine took too long".into())),
            },
        )
    }

    async fn acknowledge(&self, id: &SessionId, from: u64) -> Result<(), Error> {
        loop {
            let Some(mut stored) = self.load_any(id).await? else {
                return Ok(());
            };
            let queued = stored.record.pending.len();
            stored.record.pending.retain(|pending| pending.from != from);
            if stored.record.pending.len() == queued {
                return Ok(());
            }
            if stored.record.pending.is_empty() && stored.record.ended.is_none() {
                self.forget_past(id, &mut stored).await?;
            }
            // The time of the last turn, not of this: being offloaded keeps nobody awake.
            if self.save_at(&stored, stored.snapshot.timestamp).await? {
                return Ok(());
            }
        }
    }

    /// Starts the stream at the current conversation: a history with another past replaces
    /// the stored one.
    async fn forget_past(&self, id: &SessionId, stored: &mut Stored) -> Result<(), Error> {
        let history = &stored.snapshot.memory.short_term_history;
        let start = stored.record.start;
        let messages = self.stream(id, start, history.next_seq()).await?;
        let (pinned, summary) = (history.pinned().to_vec(), history.summary().cloned());
        let base = xxh3_128(format!("{id} from {start}").as_bytes());
        let mut fresh = History::from_parts(pinned, summary, start, base);
        fresh.extend(messages);
        fresh.drop_front((history.first_seq() - start) as usize);
        stored.snapshot.memory.short_term_history = fresh;
        Ok(())
    }
}
