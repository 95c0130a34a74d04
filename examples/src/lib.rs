//! What several of the example programs share: a stand-in for a coding agent, a small terminal of
//! our own for programs that live in a tmux pane, and a private redis-server.

#![allow(
    clippy::missing_errors_doc,
    clippy::print_stderr,
    reason = "these are parts of programs: the terminal is theirs, and main prints what failed"
)]

pub mod console;
pub mod pane_agent;
pub mod redis_server;
pub mod scripted_agent;

use std::error::Error;
use std::process::ExitCode;

/// A program's result: whatever fails is told, wherever it was found.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Says what failed, with all its causes.
pub fn report(result: Result<()>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    eprintln!("error: {}", with_causes(&*error));
    ExitCode::FAILURE
}

/// An error and what caused it, in one line.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// The programs of the workspace's README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
