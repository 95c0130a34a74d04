//! The protocols of live sessions.

mod acp;
mod claude;
mod codex;
mod json_rpc;
