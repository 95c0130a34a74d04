//! Public behaviour, a file for each.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    missing_docs
)]

#[cfg(feature = "conformance")]
mod conformance;
mod conversation;
mod conversation_generated;
mod conversation_memory;
mod conversation_provider;
mod conversation_rules;
mod conversation_sessions;
mod conversation_summary;
mod conversation_tokens;
mod conversation_window;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod redis_server;
mod snapshot;
