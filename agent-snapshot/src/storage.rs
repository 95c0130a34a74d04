use std::{fmt::Debug, ops::Range, sync::Arc};

use async_trait::async_trait;

use crate::{AgentId, AgentSnapshot, Error, conversation::Message};

/// Where snapshots are kept.
///
/// # Contract
///
/// 1. `load` of an agent that was never saved, or was deleted, is `None`.
/// 2. `load` gives back what the last successful `save` was given: equal, unknown fields
///    included.
/// 3. `load` of something that cannot be read is an error that names it, never `None`: a
///    blank agent would overwrite the good state. Damaged data is kept, and `save` does not
///    overwrite it; only `delete` clears it, or puts it aside.
/// 4. When `save` has returned, the snapshot is durable, as the backend's documented setting
///    says. It is visible whole or not at all.
/// 5. `save` of a snapshot that is not newer than the stored one is [`Error::Conflict`] and
///    changes nothing. Newer means: the same epoch and a higher
///    (`tick_index`, `revision`), or a higher epoch and not a lower one of those.
/// 6. Repeating the very same save is a success, because the first answer may have been
///    lost.
/// 7. `save` with an epoch lower than the stored one is [`Error::Conflict`], also after
///    `delete`. `save` and `load` themselves never raise an epoch.
/// 8. `delete` removes the snapshot and its stream, and succeeds when there is none. Any tick
///    may be saved afterwards.
/// 9. `list` names each agent that has a snapshot once, in ascending order.
/// 10. A `save` whose history continues the stored stream appends to it: the cost is what was
///     pushed, not what is there. One whose history does not continue it replaces the stream.
/// 11. `history` reads the stream, what is out of view included; numbers that the stream does
///     not hold are left out. Nothing stored is an empty answer.
/// 12. Agents do not affect each other.
/// 13. After `close` the data is at rest; every later call is [`Error::Closed`] or works as
///     before. `close` may be repeated.
/// 14. A call whose future is dropped has taken place or has not, whole.
///
/// The conformance suite (feature `conformance`) checks them, but for the cost in rule 10 and
/// the durability in rule 4, which need benches and crash tests; [`backend`](crate::backend) has
/// the parts that every implementation needs.
#[async_trait]
pub trait SnapshotStorage: Debug + Send + Sync {
    /// Stores a snapshot durably.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`] (rules 5 and 7), [`Error::Damaged`] (rule 3), or
    /// [`Error::Storage`], after which the same save may be repeated.
    ///
    /// # Cancel safety
    ///
    /// Rule 14; repeating the same save afterwards is right.
    async fn save(&self, snapshot: &AgentSnapshot) -> Result<(), Error>;

    /// Reads the last snapshot.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] when there is one that cannot be read, [`Error::Storage`] when the
    /// backend fails.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    async fn load(&self, agent: &AgentId) -> Result<Option<AgentSnapshot>, Error>;

    /// Forgets an agent, its stream included.
    ///
    /// # Errors
    ///
    /// [`Error::Storage`] when the backend fails.
    ///
    /// # Cancel safety
    ///
    /// Rule 14; repeating it is right.
    async fn delete(&self, agent: &AgentId) -> Result<(), Error>;

    /// Names the agents that have a snapshot, in ascending order.
    ///
    /// # Errors
    ///
    /// [`Error::Storage`] when the backend fails.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    async fn list(&self) -> Result<Vec<AgentId>, Error>;

    /// Reads messages of the stream by their sequence numbers.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    async fn history(
        &self,
        agent: &AgentId,
        range: Range<u64>,
    ) -> Result<Vec<(u64, Message)>, Error>;

    /// Brings the data to rest (`FileStorage` folds its logs into plain JSON).
    ///
    /// # Errors
    ///
    /// [`Error::Storage`] when the backend fails.
    ///
    /// # Cancel safety
    ///
    /// Repeat it until it returns.
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

    async fn history(
        &self,
        agent: &AgentId,
        range: Range<u64>,
    ) -> Result<Vec<(u64, Message)>, Error> {
        (**self).history(agent, range).await
    }

    async fn close(&self) -> Result<(), Error> {
        (**self).close().await
    }
}
