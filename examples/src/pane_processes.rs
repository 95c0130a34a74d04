//! The processes of an agent in a tmux pane, found in `/proc`.
//!
//! tmux-bus starts a program below a shell that reports its exit. So the process that tmux names
//! (`#{pane_pid}`) is that shell: a signal to it does not reach the program, only the end of the
//! terminal does, which a program can ignore. All processes below the shell have the id of the launch
//! in their environment, also those in sessions of their own.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::Instant;

/// The variable with the id of the launch, which tmux has in `#{@tmux_bus_launch}`.
const LAUNCH: &str = "TMUX_BUS_LAUNCH";
/// Between two looks at the processes.
const LOOK: Duration = Duration::from_millis(50);
/// The time for killed processes to disappear.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// The program below the shell of a pane. A command line can have shells of its own, which wait for it.
pub fn program_below(shell: u32) -> Option<u32> {
    let mut program = child_of(shell)?;
    while is_command_line(program)
        && let Some(child) = child_of(program)
    {
        program = child;
    }
    Some(program)
}

/// Ends all processes of a launch: SIGTERM, and SIGKILL after `grace`. The shell of the pane is not one of them: it
/// reports the exit of its program, and ends by itself.
pub async fn end(launch: &str, grace: Duration) {
    let start = Instant::now();
    let mut asked = Vec::new();
    // Again until a look finds none: a process can start another one between the look and its signal.
    while start.elapsed() < grace + KILL_LIMIT {
        let alive = processes_of(launch);
        if alive.is_empty() {
            return;
        }
        for pid in alive {
            if start.elapsed() >= grace {
                signal(pid, launch, Signal::KILL);
            } else if !asked.contains(&pid) {
                signal(pid, launch, Signal::TERM);
                asked.push(pid);
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn child_of(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Whether the process is a shell with `-c`; a shell with a script is a program.
fn is_command_line(pid: u32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let option = line.split(|byte| *byte == 0).nth(1);
    matches!(name.trim(), "sh" | "dash" | "bash") && option == Some(&b"-c"[..])
}

fn processes_of(launch: &str) -> Vec<i32> {
    let entries = Path::new("/proc").read_dir().into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let pids = names.filter_map(|name| name.parse().ok());
    pids.filter(|pid| is_of(*pid, launch)).collect()
}

fn is_of(pid: i32, launch: &str) -> bool {
    let tag = format!("{LAUNCH}={launch}");
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mut variables = environment.split(|byte| *byte == 0);
    variables.any(|variable| variable == tag.as_bytes())
}

/// Race: the process can end, and its number be given to another one. The descriptor names one process; the launch is
/// compared after it was opened.
#[cfg(target_os = "linux")]
fn signal(pid: i32, launch: &str, signal: Signal) {
    use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

    let process = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    if let Some(Ok(process)) = process
        && is_of(pid, launch)
    {
        let _ = pidfd_send_signal(&process, signal);
    }
}

/// Without `/proc` no process is found.
#[cfg(not(target_os = "linux"))]
fn signal(_: i32, _: &str, _: Signal) {}
