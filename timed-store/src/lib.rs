#![cfg_attr(docsrs, feature(doc_cfg))]
// The README's program needs the async store.
#![cfg_attr(any(feature = "tokio", not(doctest)), doc = include_str!("../README.md"))]

#[cfg(not(unix))]
compile_error!("timed-store needs Unix: flock, file owners and modes, atomic rename");

/// Modules that other crates of this workspace contain too, byte for byte.
mod shared {
    pub(crate) mod fifo_lock;
    pub(crate) mod kernel_lock;
    pub(crate) mod private_file;
    pub(crate) mod proc_stat;
}

mod error;
mod owner_process;
mod session_id;

mod claim;
mod durability;
mod entries;
mod incident;
mod lock_policy;
mod transaction;

mod builder;
mod clock;
mod config;
mod settings;

mod face;
#[cfg(feature = "tokio")]
mod timed_storage;

mod core;
mod file_backend;
mod runtime;
mod working_copy;

mod disk;
mod format;

pub mod blocking;

pub use builder::Builder;
pub use claim::{Claim, Lease};
pub use clock::ManualClock;
pub use durability::Durability;
pub use entries::{Entries, Entry};
pub use error::Error;
pub use incident::Incident;
pub use lock_policy::LockPolicy;
pub use owner_process::OwnerProcess;
pub use session_id::SessionId;
#[cfg(feature = "tokio")]
pub use timed_storage::TimedStorage;
pub use transaction::Transaction;
