//! The examples, run as a user runs them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod chat;
mod chat_session;
mod cluster;
mod crash_recovery;
mod crew;
// For its unit tests: with `test = true`, Cargo would build the example for them and not the program.
#[allow(dead_code, unreachable_pub, reason = "only its tests are used here")]
#[path = "../../crew/crew_file.rs"]
mod crew_file;
mod hosts;
mod inspect;
mod operator_manager;
mod path_guard;
mod ports;
mod run_agent;
mod sandbox;
mod task_list;
