//! The storage trait, the parts that backends share, and the storage in memory.

pub mod backend;
#[cfg(any(feature = "sqlite", feature = "redis"))]
mod compare_and_swap;
mod memory_storage;
mod open_storage;
#[cfg(any(feature = "file", feature = "sqlite", feature = "redis"))]
mod run_blocking;
mod snapshot_storage;
mod stamp;

#[cfg(any(feature = "sqlite", feature = "redis"))]
pub(crate) use compare_and_swap::{CompareAndSwap, StampCache, StoredStamp, Swap, save_by_swap};
pub use memory_storage::MemoryStorage;
pub use open_storage::open_storage;
#[cfg(feature = "redis")]
pub(crate) use open_storage::without_password;
#[cfg(any(feature = "file", feature = "sqlite"))]
pub(crate) use run_blocking::run_blocking;
#[cfg(feature = "redis")]
pub(crate) use run_blocking::task_result;
pub use snapshot_storage::SnapshotStorage;
