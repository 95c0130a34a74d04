//! Shared by the example programs: the end by a signal, a stand-in for a coding agent, the JSON form
//! of live sessions, the terminal input and the processes of a program in a tmux pane, private servers
//! of Redis and PostgreSQL, a list of tasks that workers share, and the board.

#![allow(
    clippy::missing_errors_doc,
    clippy::print_stderr,
    reason = "parts of command-line programs: they print, and main reports every error"
)]

pub mod availability;
#[cfg(feature = "board")]
#[path = "../board/mod.rs"]
pub mod board;
pub mod bus_command;
pub mod console;
pub mod live_json;
pub mod pane_agent;
pub mod pane_processes;
pub mod postgres_server;
pub mod redis_server;
pub mod scripted_agent;
mod scripted_live;
pub mod task_list;

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::process::{ExitCode, Termination};

use exec_core::termination_signal;

/// The result of a program, with any error.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The end of `main`: an error is printed with its causes, as `Display` shows them, and its hint
/// below. The exit code is 1; after a signal it is 128 plus the number of the signal.
pub fn report<T: Termination>(result: Result<T>) -> ExitCode {
    let error = match result {
        Ok(value) => return value.report(),
        Err(error) => error,
    };
    // Not `eprintln!`, which panics if the terminal is gone.
    let mut stderr = std::io::stderr();
    let _ = writeln!(stderr, "error: {}", with_causes(&*error));
    if let Some(hint) = error.downcast_ref().and_then(exec_core::Error::hint) {
        let _ = writeln!(stderr, "hint: {hint}");
    }
    match error.downcast_ref::<Interrupted>() {
        Some(interrupted) => interrupted.exit_code(),
        None => ExitCode::FAILURE,
    }
}

/// A signal has asked the program to end.
#[derive(Clone, Copy, Debug)]
pub struct Interrupted {
    /// The number of the signal: `INT`, `TERM` or `HUP`.
    pub signal: i32,
}

impl Interrupted {
    /// 128 plus the number of the signal, as shells report it.
    pub fn exit_code(self) -> ExitCode {
        ExitCode::from(u8::try_from(128 + self.signal).unwrap_or(1))
    }
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "interrupted by signal {}", self.signal)
    }
}

impl Error for Interrupted {}

/// Runs the work until it is done, or until the first `INT`, `TERM` or `HUP`: then the work is
/// dropped, and the error is [`Interrupted`].
pub async fn until_signal<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let signal = termination_signal()?;
    tokio::select! {
        biased;
        done = work => done,
        signal = signal => Err(Interrupted { signal }.into()),
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
