//! A child process: spawned without a fork, waited for through its pidfd, reaped with its
//! resource usage.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use tokio::net::unix::pipe;

use crate::shared::process_tree::Pidfd;

/// A child that runs or is a zombie. Dropping it neither stops nor reaps it.
pub(crate) struct Child {
    pid: u32,
    pidfd: Pidfd,
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
    /// Spawns the program as the leader of a new process group.
    ///
    /// The program must be an absolute path: with a bare name and a changed environment, std
    /// forks instead of calling `posix_spawn`, which takes a hundred times longer in a host of one
    /// gigabyte. A `pre_exec` closure has the same effect.
    pub(crate) fn spawn(command: &mut Command) -> io::Result<(Self, Pipes)> {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        Self::adopt(&mut child).inspect_err(|_| {
            // Without descriptors the child could be neither read nor waited for.
            let _ = child.kill();
            let _ = child.wait();
        })
    }

    fn adopt(child: &mut std::process::Child) -> io::Result<(Self, Pipes)> {
        let pid = child.id();
        let pidfd = Pidfd::open(pid)?.ok_or(io::ErrorKind::NotFound)?;
        let stdin = match child.stdin.take() {
            Some(stdin) => Some(pipe::Sender::from_owned_fd_unchecked(nonblocking(stdin)?)?),
            None => None,
        };
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(io::Error::other("the child has no output pipes"));
        };
        let pipes = Pipes {
            stdin,
            stdout: pipe::Receiver::from_owned_fd_unchecked(nonblocking(stdout)?)?,
            stderr: pipe::Receiver::from_owned_fd_unchecked(nonblocking(stderr)?)?,
        };
        Ok((Self { pid, pidfd }, pipes))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until the child has ended. It stays a zombie until [`reap`](Self::reap), so that its
    /// process id and its group are not reused.
    pub(crate) async fn ended(&self) {
        while let Err(error) = self.pidfd.ended().await {
            tracing::warn!(pid = self.pid, %error, "cannot wait for the child, trying again");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Reaps a child that has ended.
    pub(crate) fn reap(&self) -> ChildExit {
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
        let status = ExitStatus::from_raw(status);
        ChildExit {
            code: status.code(),
            signal: status.signal(),
            cpu_time: duration(usage.ru_utime) + duration(usage.ru_stime),
            peak_memory_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
        }
    }
}

fn nonblocking(pipe: impl Into<OwnedFd>) -> io::Result<OwnedFd> {
    let pipe = pipe.into();
    rustix::io::ioctl_fionbio(&pipe, true)?;
    Ok(pipe)
}

fn duration(time: libc::timeval) -> Duration {
    let micros = i128::from(time.tv_sec) * 1_000_000 + i128::from(time.tv_usec);
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
