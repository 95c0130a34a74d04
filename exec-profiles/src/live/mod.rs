//! The protocols of live sessions.

mod acp;
mod json_rpc;
