#![cfg_attr(docsrs, feature(doc_cfg))]
// The README's program needs the async store.
#![cfg_attr(any(feature = "tokio", not(doctest)), doc = include_str!("../README.md"))]

#[cfg(not(unix))]
compile_error!("timed-store needs Unix: flock, file owners and modes, atomic rename");

// The store: its async and its blocking type.
pub mod blocking;
#[cfg(feature = "tokio")]
mod timed_storage;
mod timed_storage_builder;
mod timed_storage_macro;

// Types that the caller passes in and receives.
mod claim;
mod clock;
mod durability;
mod entries;
mod error;
mod incident;
mod lock_policy;
mod owner_process;
mod session_id;
mod transaction;
mod watch;

// The layers below, from the bottom: files (`disk`), their text (`format`), operations (`store`).
mod disk;
mod format;
#[cfg(feature = "redis")]
mod redis;
mod store;

/// Modules that other crates of this workspace contain too, byte for byte.
mod shared {
    pub(crate) mod fifo_lock;
    pub(crate) mod kernel_lock;
    pub(crate) mod private_file;
    pub(crate) mod proc_stat;
}

pub use claim::{Claim, Lease};
pub use clock::ManualClock;
pub use durability::Durability;
pub use entries::{Entries, Entry};
pub use error::Error;
pub use incident::Incident;
pub use lock_policy::LockPolicy;
pub use owner_process::OwnerProcess;
#[cfg(feature = "redis")]
pub use redis::RedisBuilder;
pub use session_id::SessionId;
#[cfg(feature = "tokio")]
pub use timed_storage::{KeepAlive, TimedStorage, Watch};
pub use timed_storage_builder::TimedStorageBuilder;
pub use transaction::Transaction;
pub use watch::Change;
