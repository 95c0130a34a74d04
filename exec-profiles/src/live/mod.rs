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

/// The path of a request whose paths are not all known. An `Allow` rule for a folder does not match
/// it. A `Deny` rule for a path turns into a question, because every path is below `/`.
const ANY_PATH: &str = "/";
