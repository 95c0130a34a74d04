//! The public behaviour of timed-store, one file per behaviour.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr
)]

#[cfg(feature = "tokio")]
mod async_store;
mod claims;
mod clauses;
mod corrupt;
mod files;
mod golden;
mod kills;
mod leases;
mod locks;
mod model;
#[cfg(target_os = "linux")]
mod namespaces;
mod operations;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod redis_referee;
#[cfg(feature = "redis")]
mod redis_server;
mod referee;
mod slots;
mod support;
mod waiting;
mod worker;
