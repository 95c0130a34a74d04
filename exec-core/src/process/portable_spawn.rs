//! A spawn without a mark, by `posix_spawn` of the standard library: for systems without marks.
//!
//! Race: outside Linux, a pipe gets its close-on-exec flag after its creation. A child that is started
//! in between inherits it, and the reader of the pipe then waits for the end of that child, too. So
//! only one spawn of this crate runs at a time. Other code of the host that starts programs can still
//! hit this moment.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use super::child::SpawnedProcess;
use super::launch_plan::LaunchPlan;

static SPAWNING: Mutex<()> = Mutex::new(());

/// Starts the program as the leader of a new process group. There is no mark for the tag.
pub(crate) fn spawn_marked(plan: &LaunchPlan, _tag: &str) -> io::Result<SpawnedProcess> {
    if plan.sandbox.is_some() {
        // Such a plan cannot be made: see `bubblewrap.rs`.
        return Err(io::ErrorKind::Unsupported.into());
    }
    let given = &plan.command;
    let mut command = Command::new(given.get_program());
    command.args(given.get_args());
    command.env_clear().envs(plan.full_env());
    if let Some(folder) = given.get_current_dir() {
        command.current_dir(folder);
    }
    let stdin = match plan.has_input {
        true => Stdio::piped(),
        false => Stdio::null(),
    };
    command
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.process_group(0);
    let mut child = {
        let _spawning = SPAWNING.lock().unwrap_or_else(PoisonError::into_inner);
        command.spawn()?
    };
    let missing = || io::Error::from(io::ErrorKind::BrokenPipe);
    // Dropping the `Child` of the standard library neither ends nor reaps it.
    Ok(SpawnedProcess {
        pid: child.id(),
        stdin: child.stdin.take().map(Into::into),
        stdout: child.stdout.take().ok_or_else(missing)?.into(),
        stderr: child.stderr.take().ok_or_else(missing)?.into(),
        control: None,
    })
}
