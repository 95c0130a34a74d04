//! A child process: waited for through its handle, reaped with its
//! resource usage.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions};
use tokio::net::unix::pipe;

use super::launch_plan::LaunchPlan;
use super::marked_spawn::{SpawnedProcess, spawn_marked};
use crate::sandbox::AgentStart;
use crate::shared::process_tree::ProcessHandle;

/// A child that runs or is a zombie. Dropping it neither stops nor reaps it.
pub(crate) struct Child {
    pid: u32,
    handle: ProcessHandle,
    /// Whether this process is its parent.
    is_ours: bool,
    /// The agent, if the child only carries it; see the theory of `sandbox`.
    agent: Option<AgentStart>,
}

/// Our ends of the child's pipes.
pub(crate) struct Pipes {
    pub(crate) stdin: Option<pipe::Sender>,
    pub(crate) stdout: pipe::Receiver,
    pub(crate) stderr: pipe::Receiver,
}

/// The data that the kernel reports when a child is reaped.
#[derive(Debug, Default)]
pub(crate) struct ChildExit {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) cpu_time: Duration,
    pub(crate) peak_memory_bytes: u64,
}

impl Child {
    /// Spawns the program, with the mark of the tag; see [`spawn_marked`].
    pub(crate) fn spawn(plan: &LaunchPlan, tag: &str) -> io::Result<(Self, Pipes)> {
        let spawned = spawn_marked(plan, tag)?;
        let pid = spawned.pid;
        // Without descriptors the child could be neither read nor waited for.
        Self::adopt(spawned).inspect_err(|_| kill_group(pid))
    }

    fn adopt(spawned: SpawnedProcess) -> io::Result<(Self, Pipes)> {
        let pid = spawned.pid;
        let handle = ProcessHandle::open(pid)?.ok_or(io::ErrorKind::NotFound)?;
        let stdin = match spawned.stdin {
            Some(stdin) => Some(pipe::Sender::from_owned_fd_unchecked(nonblocking(stdin)?)?),
            None => None,
        };
        let pipes = Pipes {
            stdin,
            stdout: pipe::Receiver::from_owned_fd_unchecked(nonblocking(spawned.stdout)?)?,
            stderr: pipe::Receiver::from_owned_fd_unchecked(nonblocking(spawned.stderr)?)?,
        };
        let child = Self {
            pid,
            handle,
            is_ours: true,
            agent: spawned.control.map(AgentStart::new).transpose()?,
        };
        Ok((child, pipes))
    }

    /// A process that another host has started. Its pipes have no other end. `None` if there is no
    /// process with this id; the caller checks whether it is the right one.
    pub(crate) fn of_another_host(pid: u32) -> io::Result<Option<(Self, Pipes)>> {
        let Some(handle) = ProcessHandle::open(pid)? else {
            return Ok(None);
        };
        let at_end = || -> io::Result<pipe::Receiver> {
            let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
            drop(writer);
            pipe::Receiver::from_owned_fd_unchecked(nonblocking(reader)?)
        };
        let pipes = Pipes {
            stdin: None,
            stdout: at_end()?,
            stderr: at_end()?,
        };
        let child = Self {
            pid,
            handle,
            is_ours: false,
            agent: None,
        };
        Ok(Some((child, pipes)))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until the child has ended. It stays a zombie until [`reap`](Self::reap), so that its
    /// process id and its group are not reused. Lets the agent of a sandbox start.
    pub(crate) async fn ended(&self) {
        if let Some(agent) = &self.agent {
            tokio::select! {
                () = agent.allow() => {}
                () = self.process_ended() => return,
            }
        }
        self.process_ended().await;
    }

    /// A stop has begun: an agent that waits for its sandbox is not started any more.
    pub(crate) fn refuse_agent(&self) {
        if let Some(agent) = &self.agent {
            agent.refuse();
        }
    }

    async fn process_ended(&self) {
        while let Err(error) = self.handle.ended().await {
            tracing::warn!(pid = self.pid, %error, "cannot wait for the child, trying again");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Reaps a child that has ended. The exit of a process that is not our child is not known.
    pub(crate) fn reap(&self) -> ChildExit {
        if !self.is_ours {
            return ChildExit::default();
        }
        let pid = i32::try_from(self.pid).unwrap_or(-1);
        let mut status = 0;
        // SAFETY: `rusage` is a struct of integers, for which all zeros is a value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are to live locals of the types that wait4 writes.
        let reaped = unsafe { libc::wait4(pid, &mut status, libc::WNOHANG, &mut usage) };
        if reaped != pid {
            // Other code of this host reaped the child (an ignored `SIGCHLD`, `waitpid(-1)`). Its
            // exit code is lost.
            let error = io::Error::last_os_error();
            tracing::error!(pid = self.pid, %error, "the child was reaped by other code");
            return ChildExit::default();
        }
        let mut status = ExitStatus::from_raw(status);
        if let Some(agent) = &self.agent {
            status = agent.true_status(status);
        }
        ChildExit {
            code: status.code(),
            signal: status.signal(),
            cpu_time: duration(usage.ru_utime) + duration(usage.ru_stime),
            peak_memory_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
        }
    }
}

/// Kills a child that is not reaped yet, with its group, and reaps it. The program may have started
/// others by now. The child is the leader of the group since before its program started.
fn kill_group(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        reap_failed(pid);
    }
}

/// Waits for the end of a child whose start has failed, and reaps it.
pub(super) fn reap_failed(pid: Pid) {
    let wait = || rustix::process::waitpid(Some(pid), WaitOptions::empty());
    if let Err(error) = rustix::io::retry_on_intr(wait) {
        tracing::warn!(?pid, %error, "cannot reap a child");
    }
}

fn nonblocking(pipe: OwnedFd) -> io::Result<OwnedFd> {
    rustix::io::ioctl_fionbio(&pipe, true)?;
    Ok(pipe)
}

fn duration(time: libc::timeval) -> Duration {
    let micros = i128::from(time.tv_sec) * 1_000_000 + i128::from(time.tv_usec);
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufRead, BufReader};
    use std::process::Command;

    use super::*;
    use crate::ExecutionId;

    #[test]
    fn a_child_that_cannot_be_adopted_is_killed_with_its_group() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "(sleep 10; echo alive) & echo ready; wait"]);
        let plan = LaunchPlan {
            binary: "sh".to_owned(),
            command,
            has_input: false,
            sandbox: None,
        };
        let spawned = spawn_marked(&plan, ExecutionId::mint().as_str()).unwrap();
        let mut lines = BufReader::new(File::from(spawned.stdout)).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        kill_group(spawned.pid);
        // The pipe ends with its last writer.
        assert!(lines.next().is_none(), "the group is alive");
        let pid = Pid::from_raw(spawned.pid.cast_signed());
        let again = rustix::process::waitpid(pid, WaitOptions::NOHANG);
        assert_eq!(again.unwrap_err(), rustix::io::Errno::CHILD, "reaped");
    }
}
