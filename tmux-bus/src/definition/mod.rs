//! What is known about agent programs, as data.

pub(crate) mod agent_definition;
pub(crate) mod agent_definitions;
pub(crate) mod hook_rules;
pub(crate) mod pattern;
pub(crate) mod screen_rules;
mod toml_merge;
