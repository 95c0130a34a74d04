//! Long-term memory: where conversations go when they end.

mod in_memory_engine;
#[cfg(feature = "file")]
mod json_lines_engine;
mod memory_engine;

pub use in_memory_engine::InMemoryEngine;
#[cfg(feature = "file")]
pub use json_lines_engine::JsonLinesEngine;
pub use memory_engine::{EndReason, MemoryEngine, Offload};
