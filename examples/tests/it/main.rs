//! The examples, run as a user would run them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod operator_manager;
mod program;
mod run_agent;
