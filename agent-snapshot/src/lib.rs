// The program in the README needs the feature.
#![cfg_attr(any(feature = "file", not(doctest)), doc = include_str!("../README.md"))]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(unix))]
compile_error!("agent-snapshot needs Unix: flock, file owners and modes, atomic rename");

// The users of a storage. They depend on the trait, never on a backend.
mod agent;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod conversation;

// The stored data. It depends on no storage.
mod snapshot;

// The storages: the trait, the parts that backends share, the backends.
#[cfg(feature = "file")]
mod file;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;
mod storage;

mod error;

/// Modules that other crates of this workspace have too, byte for byte.
mod shared {
    pub(crate) mod json_lines;
    pub(crate) mod kernel_lock;
    pub(crate) mod private_file;
}

pub use agent::{AgentState, Recovery, Tick};
pub use error::Error;
#[cfg(feature = "file")]
pub use file::{FileStorage, FileStorageBuilder};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresStorage, PostgresStorageBuilder, Tls};
#[cfg(feature = "redis")]
pub use redis::{RedisStorage, RedisStorageBuilder};
pub use snapshot::{AgentId, AgentSnapshot, Event, History, Memory, Reply, Status, ToolIntent};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteStorage, SqliteStorageBuilder};
pub use storage::{
    AgentInfo, CopyReport, MemoryStorage, Position, SnapshotStorage, StorageLoader, backend, copy,
    fork, open_storage, verify,
};
#[cfg(feature = "file")]
pub use storage::{backup, restore};
