//! Delivers ended conversations to long-term memory.
//!
//! Every step is one save or one idempotent call, and every step is derived from what the storage
//! has. So any process can continue after a crash:
//!
//! | step | storage afterwards | a crash before the next step |
//! |---|---|---|
//! | 1. the save that ends the conversation queues it | `pending` names its part of the stream | the conversation is offered later |
//! | 2. the engine takes it | the same | it is offered again, with the same key |
//! | 3. `pending` loses the entry | a live session: the stream starts at the current conversation | an ended session is deleted later |
//! | 4. the ended session is deleted | nothing | |
//!
//! `pending` is a queue: only its first entry is offered, and a failure stops the delivery, so
//! that the engine receives the conversations of a session in order.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_128;

use super::session_record::{PendingOffload, SessionRecord, StoredSession};
use super::session_store::SaveOutcome;
use super::{SessionId, SessionManager};
use crate::History;
use crate::conversation::{Error, Offload};

/// Whether long-term memory has an ended conversation.
///
/// ```
/// use std::sync::Arc;
///
/// use agent_snapshot::MemoryStorage;
/// use agent_snapshot::conversation::{Offloaded, SessionManager, StateManager};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::conversation::Error> {
/// let storage = Arc::new(MemoryStorage::new());
/// let sessions = SessionManager::new(storage, StateManager::new(10_000));
/// let session = sessions.create("alice", None).await?;
/// match sessions.destroy(session.id()).await? {
///     Offloaded::Nothing => {} // no memory engine, and no message
///     Offloaded::Done => println!("remembered"),
///     Offloaded::Queued(error) => println!("will be offered again: {error}"),
///     _ => {}
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Offloaded {
    /// The conversation had no message, or the manager has no memory engine.
    Nothing,
    /// Long-term memory acknowledged it.
    Done,
    /// Long-term memory did not take it, for this reason. It is queued in the storage;
    /// [`offload_pending`](SessionManager::offload_pending) and
    /// [`expire_idle`](SessionManager::expire_idle) offer it again.
    Queued(Error),
}

impl SessionManager {
    /// Offers the queued conversations to long-term memory again, and returns the failures.
    ///
    /// # Errors
    ///
    /// [`Error::Storage`] if the sessions cannot be listed. The failure of a single session is in
    /// the answer.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: acknowledged conversations have left the queue. Call it again for the rest.
    pub async fn offload_pending(&self) -> Result<Vec<(SessionId, Error)>, Error> {
        let mut failed = Vec::new();
        for id in self.store().ids().await? {
            match self.deliver(&id).await {
                Ok(Offloaded::Queued(error)) | Err(error) => failed.push((id, error)),
                Ok(_) => {}
            }
        }
        Ok(failed)
    }

    /// Takes the steps that are left for a session; the module documentation lists them.
    pub(super) async fn deliver(&self, id: &SessionId) -> Result<Offloaded, Error> {
        let mut outcome = Offloaded::Nothing;
        while let Some(stored) = self.store().load_any(id).await? {
            if let Some(pending) = stored.record.pending.first() {
                match self.offer(id, &stored, pending).await {
                    Ok(()) => outcome = Offloaded::Done,
                    Err(error @ Error::Memory { .. }) => return Ok(Offloaded::Queued(error)),
                    Err(error) => return Err(error),
                }
                self.acknowledge(id, &stored.record, pending.from).await?;
            } else if stored.record.ended.is_none()
                || self.store().delete(stored).await? == SaveOutcome::Saved
            {
                break;
            }
        }
        Ok(outcome)
    }

    /// Offers a conversation. It succeeds, too, if another process has delivered it meanwhile.
    async fn offer(
        &self,
        id: &SessionId,
        stored: &StoredSession,
        pending: &PendingOffload,
    ) -> Result<(), Error> {
        let failed = |source| Error::Memory {
            action: format!("store the conversation of session {id}"),
            source,
        };
        let Some((engine, timeout)) = self.engine() else {
            return Err(failed("this process has no memory engine".into()));
        };
        let stream = self.store().stream(id, pending.from..pending.to).await;
        // Race: another process delivers the conversation, and its acknowledgement deletes messages
        // before they are read here. The rest has the same key, so an engine could replace the whole
        // conversation by it. The messages are complete if the conversation is still queued.
        let current = self.store().load_any(id).await?;
        let is_queued = current.is_some_and(|current| {
            let mut queued = current.record.pending.iter();
            current.record.incarnation == stored.record.incarnation
                && queued.any(|queued| queued.from == pending.from)
        });
        if !is_queued {
            return Ok(());
        }
        let mut messages = pending.pinned.clone();
        messages.extend(stream?.into_iter().map(|(_, message)| message));
        let offload = Offload {
            key: stored.record.conversation_key(id.as_str(), pending.from),
            session: id.clone(),
            user: stored.record.user.clone(),
            reason: pending.reason,
            ended: pending.ended,
            messages,
        };
        tokio::time::timeout(timeout, engine.offload(&offload))
            .await
            .map_err(|_| failed(timed_out(timeout).into()))?
            .map_err(failed)
    }

    /// Removes a conversation of the session `offered` from the queue.
    async fn acknowledge(
        &self,
        id: &SessionId,
        offered: &SessionRecord,
        from: u64,
    ) -> Result<(), Error> {
        while let Some(mut stored) = self.store().load_any(id).await? {
            if stored.record.incarnation != offered.incarnation {
                // Another process has acknowledged it, and the id is in use again.
                break;
            }
            let queued = stored.record.pending.len();
            stored.record.pending.retain(|pending| pending.from != from);
            if stored.record.pending.len() == queued {
                break;
            }
            if stored.record.pending.is_empty() && stored.record.ended.is_none() {
                self.drop_past(id, &mut stored).await?;
            }
            // With the time of the last commit: an offload is no activity of the user.
            let timestamp = stored.snapshot.timestamp;
            if self.store().save_at(&stored, timestamp).await? == SaveOutcome::Saved {
                break;
            }
        }
        Ok(())
    }

    /// Starts the stream at the current conversation, which deletes what came before.
    ///
    /// A storage replaces its stream if the saved history does not continue it. So the same
    /// messages are put into a history with another base link.
    pub(super) async fn drop_past(
        &self,
        id: &SessionId,
        stored: &mut StoredSession,
    ) -> Result<(), Error> {
        let range = stored.record.start..stored.next_seq();
        let messages = self.store().stream(id, range.clone()).await?;
        let start = messages.first().map_or(range.end, |(seq, _)| *seq);
        let history = &mut stored.snapshot.memory.short_term_history;
        let (pinned, summary) = (history.pinned().to_vec(), history.summary().cloned());
        let base = xxh3_128(format!("{id} from {start}").as_bytes());
        let mut fresh = History::from_parts(pinned, summary, start, base);
        fresh.extend(messages.into_iter().map(|(_, message)| message));
        // The stream starts behind the view if another process has reset the session since it was
        // loaded. The save then conflicts.
        fresh.drop_front(history.first_seq().saturating_sub(start) as usize);
        *history = fresh;
        Ok(())
    }
}

/// The cause of an [`Error::Memory`].
pub(super) fn timed_out(timeout: Duration) -> String {
    format!("the memory engine did not answer within {timeout:?}")
}
