//! Shared by the example programs: a stand-in for a coding agent, the terminal input of a program
//! in a tmux pane, and private servers of Redis and PostgreSQL.

#![allow(
    clippy::missing_errors_doc,
    clippy::print_stderr,
    reason = "parts of command-line programs: they print, and main reports every error"
)]

pub mod console;
pub mod pane_agent;
pub mod postgres_server;
pub mod redis_server;
pub mod scripted_agent;

use std::error::Error;
use std::path::Path;
use std::process::{ExitCode, Termination};

/// The result of a program, with any error.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The end of `main`: an error is printed with its causes, as `Display` shows them, and the exit
/// code is 1.
pub fn report<T: Termination>(result: Result<T>) -> ExitCode {
    match result {
        Ok(value) => value.report(),
        Err(error) => {
            eprintln!("error: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes in one line, separated by colons.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Whether a program is on `PATH`, or is there if it is given with its folder.
pub fn on_path(program: &str) -> bool {
    if program.contains('/') {
        return Path::new(program).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Compiles the programs in the README of the workspace.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
