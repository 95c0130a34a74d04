//! The storage trait, the parts that backends share, and the storage in memory.

pub mod backend;
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
mod compare_and_swap;
mod handle_memory;
mod memory_storage;
mod open_storage;
mod position;
#[cfg(any(
    feature = "file",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite"
))]
mod run_blocking;
mod snapshot_storage;
mod stamp;

#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
pub(crate) use compare_and_swap::{
    CompareAndSwap, StampCache, StoredStamp, Swap, overwrite_by_swap, save_by_swap,
};
pub use memory_storage::MemoryStorage;
pub use open_storage::open_storage;
#[cfg(feature = "redis")]
pub(crate) use open_storage::without_password;
pub use position::Position;
#[cfg(any(feature = "file", feature = "sqlite"))]
pub(crate) use run_blocking::run_blocking;
#[cfg(feature = "redis")]
pub(crate) use run_blocking::task_result;
pub use snapshot_storage::SnapshotStorage;
