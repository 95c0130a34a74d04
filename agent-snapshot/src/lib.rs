#![doc = include_str!("../README.md")]

mod agent_id;
mod error;
mod event;
mod history;
mod memory;
mod reply;
mod snapshot;
mod status;
mod storage;

pub mod backend;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod conversation;

pub use agent_id::AgentId;
pub use error::Error;
pub use event::Event;
pub use history::History;
pub use memory::MemoryStorage;
pub use reply::{Reply, ToolIntent};
pub use snapshot::{AgentSnapshot, Memory, SCHEMA_VERSION};
pub use status::Status;
pub use storage::SnapshotStorage;
