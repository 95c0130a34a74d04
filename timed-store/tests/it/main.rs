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
mod corrupt;
mod files;
mod golden;
mod kills;
mod locks;
mod model;
mod operations;
mod referee;
mod support;
mod worker;
