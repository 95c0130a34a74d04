//! The promises of the crate, against a real tmux on private sockets with real programs in the panes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    missing_docs,
    unreachable_pub
)]

mod fake_agent;
mod mail_agent;
mod pane_program;
mod recorded_agent;
mod support;
mod worker;

mod answers;
mod cluster;
mod config;
#[cfg(feature = "cli")]
mod conversation;
mod deaths;
mod definitions;
mod faults;
mod hooks;
mod inbox;
mod inbox_storm;
mod late;
mod log;
mod privacy;
mod reconcile;
mod sends;
mod states;
mod typing;
mod vocabulary;
