#![doc = include_str!("../README.md")]

/// Modules that other crates of this workspace have too, byte for byte.
mod shared {
    pub(crate) mod json_lines;
    pub(crate) mod kernel_lock;
    pub(crate) mod private_file;
}

mod agent_id;
mod agent_state;
mod encode;
mod error;
mod event;
#[cfg(feature = "file")]
mod file;
mod history;
mod memory;
mod open;
#[cfg(any(feature = "file", feature = "sqlite"))]
mod private;
#[cfg(feature = "redis")]
mod redis;
mod reply;
mod snapshot;
#[cfg(feature = "sqlite")]
mod sqlite;
mod status;
mod storage;
#[cfg(any(feature = "sqlite", feature = "redis"))]
mod swap;
mod tick;

pub mod backend;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod conversation;

pub use agent_id::AgentId;
pub use agent_state::{AgentState, Recovery};
pub use error::Error;
pub use event::Event;
#[cfg(feature = "file")]
pub use file::{FileStorage, FileStorageBuilder};
pub use history::History;
pub use memory::MemoryStorage;
pub use open::open_storage;
#[cfg(feature = "redis")]
pub use redis::{RedisStorage, RedisStorageBuilder};
pub use reply::{Reply, ToolIntent};
pub use snapshot::{AgentSnapshot, Memory, SCHEMA_VERSION};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStorage;
pub use status::Status;
pub use storage::SnapshotStorage;
pub use tick::Tick;
