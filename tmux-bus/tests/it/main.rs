//! The promises of the crate, against a real tmux on private sockets with real programs in the panes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    missing_docs,
    unreachable_pub
)]

mod fake_agent;
mod pane_program;
mod recorded_agent;
mod support;
mod worker;

mod answers;
mod cluster;
mod config;
mod deaths;
mod definitions;
mod faults;
mod hooks;
mod late;
mod log;
mod privacy;
mod sends;
mod states;
mod typing;
