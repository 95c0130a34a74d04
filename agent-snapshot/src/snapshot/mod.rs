//! The stored data: the state of one agent as plain data.

mod agent_id;
mod agent_snapshot;
mod checked_json;
mod event;
mod history;
mod lineage;
mod reply;
mod status;

pub use agent_id::AgentId;
#[cfg(feature = "file")]
pub(crate) use agent_snapshot::SCHEMA_VERSION;
pub use agent_snapshot::{AgentSnapshot, Memory};
pub use event::Event;
pub use history::History;
pub(crate) use lineage::{Ancestor, Lineage};
pub use reply::{Reply, ToolIntent};
pub use status::Status;
