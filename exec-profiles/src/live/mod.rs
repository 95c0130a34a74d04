//! The protocols of live sessions: sans-I/O drivers.

mod acp;
mod acp_messages;
mod claude;
mod codex;
mod json_rpc;

pub(crate) use acp::AcpDriver;
pub(crate) use claude::ClaudeDriver;
pub(crate) use codex::CodexDriver;
