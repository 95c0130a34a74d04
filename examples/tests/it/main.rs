//! The examples, run as a user runs them. Each test reads `/proc` to see that no process is left.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod chat;
mod chat_session;
mod cluster;
mod crash_recovery;
mod crew;
// An example has no tests of its own: with them, cargo would not build the program.
#[allow(dead_code, unreachable_pub)]
#[path = "../../crew/crew_file.rs"]
mod crew_file;
mod daemon;
mod hosts;
mod inspect;
#[cfg(feature = "mcp")]
mod mcp;
mod operator_manager;
mod path_guard;
mod ports;
mod run_agent;
mod sandbox;
mod task_list;
