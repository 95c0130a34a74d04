//! The agent side: hydration, and ticks that save before they answer.

mod agent_state;
mod tick;

pub use agent_state::{AgentState, Recovery};
pub use tick::Tick;
