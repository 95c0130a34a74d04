//! Starts the command `tmux-bus` as a process of its own.
//!
//! It is started twice: the first process starts the second one and ends, so that the second is no
//! descendant of the caller. Agents end a tool that runs too long with all its descendants. The
//! second process has its own session (`setsid`).

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::Error;
#[cfg(target_os = "linux")]
use crate::shared::process_tree::ProcessMark;
use crate::timing::WORKER_LIMIT;
use crate::tmux::launch::{FOLDER_VARIABLE, LAUNCH_VARIABLE};

/// What the process prints when it has its work.
pub(crate) const READY: &str = "ready";

/// Removes the mark of the starting agent from this process. The process also works for other
/// agents, and a restart of the agent ends all processes that have its mark.
#[cfg(target_os = "linux")]
pub(super) fn leave_launch() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    for resource in [Resource::Rttime, Resource::Locks] {
        let mut limit = getrlimit(resource);
        if limit.current.and_then(ProcessMark::from_limit).is_some() {
            limit.current = limit.maximum;
            if let Err(error) = setrlimit(resource, limit) {
                tracing::warn!(%error, "this process ends with the agent that started it");
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn leave_launch() {}

/// Starts the command with a hidden verb, and returns when it has its work.
pub(crate) async fn start(
    command: &Path,
    verb: &str,
    session: &Path,
    argument: Option<&str>,
) -> Result<(), Error> {
    let failed = |source| Error::io("start", command)(source);
    let child = Command::new(command)
        .args([
            OsStr::new(verb),
            OsStr::new("--folder"),
            session.as_os_str(),
        ])
        .args(argument)
        .current_dir("/")
        // A restart of the agent ends the processes that have its tag.
        .env_remove(LAUNCH_VARIABLE)
        // In a pane the command serves no other cluster than that of the variable.
        .env(FOLDER_VARIABLE, session)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.map_err(failed)?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = BufReader::new(stdout);
        let read = tokio::time::timeout(WORKER_LIMIT, stdout.read_line(&mut line));
        let timed_out = |_| failed(io::ErrorKind::TimedOut.into());
        read.await.map_err(timed_out)?.map_err(failed)?;
    }
    child.wait().await.map_err(failed)?;
    if line.trim_end() == READY {
        return Ok(());
    }
    let reason = "it did not begin its work; is it the command `tmux-bus`?";
    Err(failed(io::Error::other(reason)))
}
