//! Public behaviour, one file for each.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    missing_docs
)]

#[cfg(feature = "conformance")]
mod conformance;
#[cfg(feature = "conformance")]
mod conformance_broken;
mod conversation;
#[cfg(feature = "file")]
mod conversation_crash;
mod conversation_generated;
mod conversation_memory;
mod conversation_parts;
mod conversation_provider;
mod conversation_rules;
mod conversation_sessions;
mod conversation_summary;
mod conversation_tokens;
mod conversation_window;
mod copy;
#[cfg(any(feature = "file", feature = "postgres", feature = "sqlite"))]
mod crash;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod cutting_proxy;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod deleted_twice;
#[cfg(feature = "file")]
mod file;
#[cfg(any(feature = "postgres-tls", feature = "redis"))]
mod free_port;
#[cfg(any(
    feature = "file",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite"
))]
mod kill_on_drop;
mod open;
#[cfg(feature = "postgres")]
mod pgbouncer;
#[cfg(feature = "postgres")]
mod pgbouncer_server;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod postgres_server;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod redis_server;
mod rewind;
mod runtime;
mod snapshot;
#[cfg(feature = "sqlite")]
mod sqlite;
