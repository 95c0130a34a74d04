//! The storage trait, the parts that backends share, and the storage in memory.

mod agent_info;
pub mod backend;
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
mod compare_and_swap;
mod copy;
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

pub use agent_info::AgentInfo;
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
pub(crate) use compare_and_swap::{
    CompareAndSwap, StampCache, StoredStamp, Swap, overwrite_by_swap, save_by_swap,
};
pub use copy::{CopyReport, copy, fork, verify};
#[cfg(feature = "file")]
pub use copy::{backup, restore};
pub use memory_storage::MemoryStorage;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) use open_storage::without_password;
pub use open_storage::{StorageLoader, open_storage};
pub use position::Position;
#[cfg(any(feature = "file", feature = "sqlite"))]
pub(crate) use run_blocking::run_blocking;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) use run_blocking::task_result;
pub use snapshot_storage::SnapshotStorage;
