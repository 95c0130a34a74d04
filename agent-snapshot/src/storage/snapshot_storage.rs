use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::conversation::Message;
use crate::{AgentId, AgentInfo, AgentSnapshot, Error};

/// A storage for snapshots.
///
/// # Contract
///
/// 1. `load` of an agent that was never saved, or was deleted, is `None`.
/// 2. `load` returns the snapshot of the last successful `save`, including unknown fields.
/// 3. `load` of data that cannot be read is an error that names the data, never `None`: a blank
///    agent would overwrite the good state. `save` does not overwrite damaged data; only `delete`
///    removes it or puts it aside.
/// 4. After `save` has returned, the snapshot is durable, as the documentation of the backend
///    defines it. A save is visible as a whole or not at all.
/// 5. `save` of a snapshot that is not newer than the stored one is [`Error::Conflict`] and
///    changes nothing. A snapshot is newer if it has the same epoch and a higher
///    (`tick_index`, `revision`), or a higher epoch and not a lower (`tick_index`, `revision`).
/// 6. Repeating the same save succeeds, because the answer to the first one may have been lost.
/// 7. `save` with an epoch lower than the stored one is [`Error::Conflict`], also after `delete`.
///    `save` and `load` never raise an epoch themselves.
/// 8. `delete` removes the snapshot and its stream. It succeeds if nothing is stored. Any tick
///    may be saved afterwards.
/// 9. `list` returns each agent that has a snapshot once, in ascending order.
/// 10. A `save` whose history continues the stored stream appends to it: the cost depends on the
///     new messages, not on the stored ones. A `save` with another history replaces the stream that
///     the same snapshot object loaded or saved before.
/// 11. `stream` reads the stream, including messages out of view. Numbers that the stream does
///     not have are left out. If nothing is stored, the result is empty.
/// 12. Agents do not affect each other.
/// 13. After `close` the data is at rest. Every later call is [`Error::Closed`] or works as
///     before. `close` may be repeated.
/// 14. A call whose future is dropped takes effect as a whole or not at all.
/// 15. A `save` never removes stored messages that its snapshot object did not load or save before:
///     it is [`Error::Rewound`] and changes nothing. So is a `save` to a storage that has an older
///     state than the snapshot object loaded from it or saved to it. `overwrite` is the explicit
///     way to save all the same.
/// 16. `page` returns the agents of `list`, in the same order. `expire` deletes the agents whose last
///     save is older, and no other. `cap_stream` removes only messages out of view, oldest first;
///     afterwards saves and loads work as before.
///
/// A storage needs `save`, `load`, `delete` and `list`. The other methods have a default, which
/// answers [`Error::Unsupported`] where only the backend could do the work; the clauses about them
/// then do not apply.
///
/// The conformance suite (feature `conformance`) checks the rules, except the cost in rule 10 and
/// the durability in rule 4, which need benches and crash tests. [`backend`](crate::backend) has
/// the parts that every implementation needs.
///
/// ```
/// use std::sync::Arc;
/// use agent_snapshot::{AgentId, AgentSnapshot, MemoryStorage, SnapshotStorage};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
/// let storage: Arc<dyn SnapshotStorage> = Arc::new(MemoryStorage::new());
/// let agent = AgentId::new("worker_007")?;
/// assert_eq!(storage.load(&agent).await?, None);
/// storage.save(&AgentSnapshot::new(agent.clone())).await?;
/// assert_eq!(storage.list().await?, [agent.clone()]);
/// storage.delete(&agent).await?;
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait SnapshotStorage: Debug + Send + Sync {
    /// Stores a snapshot durably.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`] (rules 5 and 7), [`Error::Rewound`] (rule 15), [`Error::Damaged`]
    /// (rule 3), [`Error::Encode`] if the snapshot could not be read again, [`Error::Io`] or
    /// [`Error::Storage`] if the backend fails; then the same save may be repeated.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the save takes effect as a whole or not at all. The same save may be repeated.
    async fn save(&self, snapshot: &AgentSnapshot) -> Result<(), Error>;

    /// Reads the last snapshot.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] or [`Error::UnsupportedVersion`] if the stored data cannot be read,
    /// [`Error::Io`] or [`Error::Storage`] if the backend fails.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a load does not change the stored state.
    async fn load(&self, agent: &AgentId) -> Result<Option<AgentSnapshot>, Error>;

    /// Removes an agent and its stream.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] or [`Error::Storage`] if the backend fails; the agent may be deleted then.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the delete takes effect as a whole or not at all. It may be repeated.
    async fn delete(&self, agent: &AgentId) -> Result<(), Error>;

    /// The agents that have a snapshot, in ascending order.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] or [`Error::Storage`] if the backend fails.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a list changes nothing.
    async fn list(&self) -> Result<Vec<AgentId>, Error>;

    /// Stores a snapshot durably, also if the storage has a state that the snapshot does not
    /// continue. The stored stream is then replaced by the messages that the snapshot has in memory.
    ///
    /// For a caller that got [`Error::Rewound`] and decided against the stored state. Fencing still
    /// applies: rules 5 to 7 are those of [`save`](Self::save).
    ///
    /// # Errors
    ///
    /// As [`save`](Self::save), without [`Error::Rewound`]; [`Error::Unsupported`] by default.
    ///
    /// # Cancel safety
    ///
    /// As [`save`](Self::save).
    async fn overwrite(&self, _snapshot: &AgentSnapshot) -> Result<(), Error> {
        Err(Error::Unsupported { what: "overwrite" })
    }

    /// Reads messages of the stream by their sequence numbers.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load); [`Error::Unsupported`] by default.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: reading changes nothing.
    async fn stream(
        &self,
        _agent: &AgentId,
        _range: Range<u64>,
    ) -> Result<Vec<(u64, Message)>, Error> {
        Err(Error::Unsupported { what: "stream" })
    }

    /// A page of the list: up to `limit` agents after `after`, in ascending order, with what a
    /// backend knows about them without reading their messages. The default loads each of them.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] or [`Error::Storage`] if the backend fails. A damaged agent is an entry without
    /// a position.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: reading changes nothing.
    async fn page(&self, after: Option<&AgentId>, limit: usize) -> Result<Vec<AgentInfo>, Error> {
        let mut page = Vec::new();
        for agent in self.list().await? {
            if page.len() >= limit {
                break;
            }
            if after.is_some_and(|after| agent <= *after) {
                continue;
            }
            match self.load(&agent).await {
                Ok(Some(snapshot)) => page.push(AgentInfo::of(&snapshot)),
                Ok(None) => {}
                Err(error) if error.is_damaged() => page.push(AgentInfo::new(agent)),
                Err(error) => return Err(error),
            }
        }
        Ok(page)
    }

    /// Deletes the agents that were not saved for `older_than`, and returns them.
    ///
    /// The check and the delete of an agent are one atomic step, so an agent that saves meanwhile
    /// is kept. As after a [`delete`](Self::delete), the epoch stays. An agent is kept if the backend
    /// sees that it is damaged; a server does not read the messages, and so does not see damage in
    /// them.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] or [`Error::Storage`] if the backend fails; some agents may be deleted then.
    /// [`Error::Unsupported`] by default.
    ///
    /// A storage on a server sends the call again if its answer was lost. Agents that the first one
    /// deleted are then not in the result. A save through the same handle between the delete and its
    /// answer is [`Error::Rewound`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: each agent is deleted or kept. It may be repeated.
    async fn expire(&self, _older_than: Duration) -> Result<Vec<AgentId>, Error> {
        Err(Error::Unsupported { what: "expire" })
    }

    /// Removes the oldest messages of a stream until `keep` are left, and returns how many were
    /// removed. Messages in view are never removed. A writer is not affected.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load); [`Error::Unsupported`] by default.
    ///
    /// A storage on a server sends the call again if its answer was lost. The result does not count
    /// the messages that the first one removed.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the messages are removed as a whole or not at all. It may be repeated.
    async fn cap_stream(&self, _agent: &AgentId, _keep: u64) -> Result<u64, Error> {
        Err(Error::Unsupported { what: "cap_stream" })
    }

    /// Brings the data to rest: `FileStorage` compacts its logs into the JSON files,
    /// `SqliteStorage` closes the database. The default does nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] or [`Error::Storage`] if the backend fails.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is lost. Call it again until it returns.
    async fn close(&self) -> Result<(), Error> {
        Ok(())
    }
}

#[async_trait]
impl<S: SnapshotStorage + ?Sized> SnapshotStorage for Arc<S> {
    async fn save(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        (**self).save(snapshot).await
    }

    async fn load(&self, agent: &AgentId) -> Result<Option<AgentSnapshot>, Error> {
        (**self).load(agent).await
    }

    async fn delete(&self, agent: &AgentId) -> Result<(), Error> {
        (**self).delete(agent).await
    }

    async fn list(&self) -> Result<Vec<AgentId>, Error> {
        (**self).list().await
    }

    async fn overwrite(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        (**self).overwrite(snapshot).await
    }

    async fn stream(
        &self,
        agent: &AgentId,
        range: Range<u64>,
    ) -> Result<Vec<(u64, Message)>, Error> {
        (**self).stream(agent, range).await
    }

    async fn page(&self, after: Option<&AgentId>, limit: usize) -> Result<Vec<AgentInfo>, Error> {
        (**self).page(after, limit).await
    }

    async fn expire(&self, older_than: Duration) -> Result<Vec<AgentId>, Error> {
        (**self).expire(older_than).await
    }

    async fn cap_stream(&self, agent: &AgentId, keep: u64) -> Result<u64, Error> {
        (**self).cap_stream(agent, keep).await
    }

    async fn close(&self) -> Result<(), Error> {
        (**self).close().await
    }
}
