//! The background process of an ask.

use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use tmux_bus::Bus;

/// The first process starts the second one and ends, so that the second is no descendant of the caller, whose agent may
/// end it with all its descendants. The second one tells the caller, over the output that it inherits, that it has the ask.
pub(crate) async fn run(folder: &Path, id: &str, is_session_leader: bool) -> ExitCode {
    if !is_session_leader {
        return start_again(folder, id);
    }
    // It leaves the session and the terminal of the caller.
    let _ = rustix::process::setsid();
    let is_ready = |ready: &str| {
        let _ = writeln!(std::io::stdout(), "{ready}");
    };
    match Bus::carry_out(folder, id, is_ready).await {
        Ok(()) => ExitCode::SUCCESS,
        // The folder is gone with its session.
        Err(_) => ExitCode::FAILURE,
    }
}

fn start_again(folder: &Path, id: &str) -> ExitCode {
    let started = std::env::current_exe().and_then(|program| {
        Command::new(program)
            .args(["carry-out", "--session-leader", "--folder"])
            .arg(folder)
            .arg(id)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
    });
    match started {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
