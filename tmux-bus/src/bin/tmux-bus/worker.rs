//! The background processes: they carry out an ask, or deliver the inbox.

use std::io::Write;
use std::process::{Command, ExitCode, Stdio};

use tmux_bus::Bus;

use crate::arguments::Background;

/// The first process starts the second one and ends, so that the second is no descendant of the
/// caller, whose agent may end it with all its descendants. The second one tells the caller, over
/// the output that it inherits, that it has its work.
pub(crate) async fn run(background: &Background, id: Option<&str>) -> ExitCode {
    if !background.session_leader {
        return start_again();
    }
    // It leaves the session and the terminal of the caller.
    let _ = rustix::process::setsid();
    let is_ready = |ready: &str| {
        let _ = writeln!(std::io::stdout(), "{ready}");
    };
    let done = match id {
        Some(id) => Bus::carry_out(&background.folder, id, is_ready).await,
        None => Bus::deliver(&background.folder, is_ready).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The folder is gone with its session.
        Err(_) => ExitCode::FAILURE,
    }
}

fn start_again() -> ExitCode {
    let started = std::env::current_exe().and_then(|program| {
        Command::new(program)
            .args(std::env::args_os().skip(1))
            .arg("--session-leader")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
    });
    match started {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
