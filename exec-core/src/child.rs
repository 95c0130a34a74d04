//! A child process: started without a fork, waited for through its pidfd, reaped with its
//! resources.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use tokio::net::unix::pipe;

use crate::shared::process_tree::Pidfd;

/// A child that runs or waits to be reaped. It is neither stopped nor reaped on drop.
pub(crate) struct Child {
    pid: u32,
    pidfd: Pidfd,
}

/// Our ends of a child's pipes.
pub(crate) struct Pipes {
    pub(crate) stdin: Option<pipe::Sender>,
    pub(crate) stdout: pipe::Receiver,
    pub(crate) stderr: pipe::Receiver,
}

/// What is left of a child.
#[derive(Debug, Default)]
pub(crate) struct Remains {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) cpu_time: Duration,
    pub(crate) peak_memory_bytes: u64,
}

impl Child {
    /// Starts the program as the leader of a group of its own, without a fork.
    ///
    /// The program must be an absolute path: a bare name together with an environment of our own
    /// would make std fork, which takes a hundred times longer in a host of a gigabyte. So would a
    /// `pre_exec`.
    pub(crate) fn spawn(command: &mut Command) -> io::Result<(Self, Pipes)> {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        Self::adopt(&mut child).inspect_err(|_| {
            // Without its descriptors we could neither read nor wait: do not leave it behind.
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

    /// Waits until the child has ended. It stays a zombie, so its id and its group stay its own
    /// until [`reap`](Self::reap).
    pub(crate) async fn ended(&self) {
        while let Err(error) = self.pidfd.ended().await {
            tracing::warn!(pid = self.pid, %error, "cannot wait for the child, trying again");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Reaps a child that has ended.
    pub(crate) fn reap(&self) -> Remains {
        let pid = i32::try_from(self.pid).unwrap_or(-1);
        let mut status = 0;
        // SAFETY: `rusage` is a struct of integers, for which all zeros is a value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are to live locals of the types that wait4 writes.
        let reaped = unsafe { libc::wait4(pid, &mut status, libc::WNOHANG, &mut usage) };
        if reaped != pid {
            // Someone else in this host has reaped it (a `SIGCHLD` that is ignored, a
            // `waitpid(-1)`): how it ended is lost, that it ended is not.
            let error = io::Error::last_os_error();
            tracing::error!(pid = self.pid, %error, "the child was reaped behind our back");
            return Remains::default();
        }
        let status = ExitStatus::from_raw(status);
        Remains {
            code: status.code(),
            signal: status.signal(),
            cpu_time: duration(usage.ru_utime) + duration(usage.ru_stime),
            peak_memory_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
        }
    }
}

/// Our end of a pipe that std has made: it needs no check that it is one.
fn nonblocking(pipe: impl Into<OwnedFd>) -> io::Result<OwnedFd> {
    let pipe = pipe.into();
    rustix::io::ioctl_fionbio(&pipe, true)?;
    Ok(pipe)
}

fn duration(time: libc::timeval) -> Duration {
    let micros = i128::from(time.tv_sec) * 1_000_000 + i128::from(time.tv_usec);
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
