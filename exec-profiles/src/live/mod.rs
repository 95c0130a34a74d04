//! The protocols of live sessions: sans-I/O drivers.

mod acp;
mod acp_messages;
mod claude;
mod codex;
mod codex_usage;
mod json_rpc;

pub(crate) use acp::AcpDriver;
pub(crate) use claude::ClaudeDriver;
pub(crate) use codex::CodexDriver;

/// Stands for paths that are not all known. No rule for a folder allows it, and a rule that forbids
/// a path asks, because the path is below it.
const ANY_PATH: &str = "/";
