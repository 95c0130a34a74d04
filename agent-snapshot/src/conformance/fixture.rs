use std::sync::Arc;

use async_trait::async_trait;

use crate::{AgentId, Error, SnapshotStorage};

/// One empty location for the data of a backend.
///
/// The suite waits for each of these calls and cancels none.
///
/// ```
/// use std::sync::Arc;
/// use agent_snapshot::conformance::{self, Fixture};
/// use agent_snapshot::{Error, MemoryStorage, SnapshotStorage};
/// use async_trait::async_trait;
///
/// // Usually a temporary folder, a database or a key prefix.
/// struct SharedMemory(MemoryStorage);
///
/// #[async_trait]
/// impl Fixture for SharedMemory {
///     async fn open(&self) -> Result<Arc<dyn SnapshotStorage>, Error> {
///         Ok(Arc::new(self.0.clone()))
///     }
/// }
///
/// # #[tokio::main]
/// # async fn main() {
/// let report = conformance::run(async || SharedMemory(MemoryStorage::new())).await;
/// assert!(report.passed(), "{report}");
/// # }
/// ```
#[async_trait]
pub trait Fixture: Send + Sync {
    /// Opens the storage. Each call is another writer on the same data.
    ///
    /// # Errors
    ///
    /// Any error. The clause has then failed.
    async fn open(&self) -> Result<Arc<dyn SnapshotStorage>, Error>;

    /// Makes the stored data of `agent` unreadable, without the storage. `false` if the fixture
    /// cannot do it; then the clauses about damage do not apply.
    async fn damage(&self, _agent: &AgentId) -> bool {
        false
    }

    /// Keeps a copy of the stored data, without the storage. `false` if the fixture cannot do it;
    /// then the clauses about a storage that goes back in time do not apply.
    async fn back_up(&self) -> bool {
        false
    }

    /// Puts the copy of [`back_up`](Self::back_up) in the place of the stored data, without the
    /// storage and while it is open.
    async fn rewind(&self) {}

    /// Makes the last save of `agent` look an hour older, without the storage. `false` if the
    /// fixture cannot do it; then the clauses about old agents do not apply.
    async fn age_an_hour(&self, _agent: &AgentId) -> bool {
        false
    }
}

#[async_trait]
impl<S: SnapshotStorage + 'static> Fixture for Arc<S> {
    async fn open(&self) -> Result<Arc<dyn SnapshotStorage>, Error> {
        Ok(self.clone())
    }
}
