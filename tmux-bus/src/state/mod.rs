//! The state of an agent, by what its screen and its title show. Pure: screens in, readings out.

mod agent_state;
pub(crate) mod decoration;
mod explanation;
pub(crate) mod hook_report;
pub(crate) mod input_line;
#[cfg(test)]
mod recorded_screens;
pub(crate) mod screen;
pub(crate) mod screen_reading;

pub use agent_state::{AgentState, Evidence, EvidenceSource};
pub use explanation::{Explanation, TriedRule};
