// The README's program is an async one.
#![cfg_attr(any(feature = "tokio", not(doctest)), doc = include_str!("../README.md"))]

#[cfg(not(unix))]
compile_error!("timed-store needs Unix: flock, file owners and modes, atomic rename");

/// Modules that other crates of this workspace have too, byte for byte.
mod shared {
    pub(crate) mod fifo_lock;
    pub(crate) mod kernel_lock;
    pub(crate) mod private_file;
}

mod error;
mod session;

mod claim;
mod entries;
mod incident;
mod process;
mod state;

mod file;
mod format;
mod lines;
mod location;
mod lock;
mod queue;
mod salvage;
mod scan;
mod stamp;

mod builder;
mod clock;
mod config;
mod core;
#[cfg(feature = "tokio")]
mod storage;

pub mod blocking;

pub use builder::Builder;
pub use claim::{Claim, Lease};
pub use clock::ManualClock;
pub use entries::{Entries, Entry, Transaction};
pub use error::Error;
pub use file::Durability;
pub use incident::Incident;
pub use lock::LockPolicy;
pub use process::Process;
pub use session::SessionId;
#[cfg(feature = "tokio")]
pub use storage::TimedStorage;
