//! The start and the exit status of an agent in a sandbox. See the theory of the module.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::OnceLock;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, Shutdown,
    SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// The host's end of the socket on which the agent's process announces itself.
pub(crate) struct AgentStart {
    socket: UnixStream,
    /// The handle of the agent, once it was allowed to start; `None` if the sandbox failed, or if
    /// the system gave no handle.
    agent: OnceLock<Option<OwnedFd>>,
}

impl AgentStart {
    /// Both ends of a socket: ours, and the one for the child.
    pub(crate) fn socket() -> io::Result<(OwnedFd, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::sockopt::set_socket_passcred(&ours, true)?;
        // A shell does not expect a read that does not wait.
        rustix::io::ioctl_fionbio(&theirs, false)?;
        Ok((ours, theirs))
    }

    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            socket: UnixStream::from_std(socket.into())?,
            agent: OnceLock::new(),
        })
    }

    /// Waits until the sandbox is complete, and lets the agent start. Returns at once if that was
    /// done. Cancel safe: the only await is the one for the announcement.
    pub(crate) async fn allow(&self) {
        if self.agent.get().is_some() {
            return;
        }
        let socket = &self.socket;
        let announced = socket
            .async_io(Interest::READABLE, || receive_sender(socket))
            .await;
        let agent = match announced {
            Ok(Some(pid)) => Some(pid),
            // The shell or bubblewrap has ended.
            Ok(None) => None,
            Err(error) => {
                tracing::warn!(%error, "cannot read the socket of the sandbox");
                None
            }
        };
        let handle = agent.and_then(|pid| {
            let opened = rustix::process::pidfd_open(pid, PidfdFlags::empty());
            opened
                .inspect_err(|error| tracing::warn!(%error, "no handle of the agent"))
                .ok()
        });
        let _ = self.agent.set(handle);
        if agent.is_some()
            && let Err(error) = rustix::net::send(socket, b"\n", SendFlags::NOSIGNAL)
        {
            tracing::warn!(%error, "cannot start the agent in its sandbox");
        }
    }

    /// Ends a sandbox whose agent has not started, as soon as it is complete. Without effect on an
    /// agent that was allowed to start.
    ///
    /// Race: a stop scans for processes while the sandbox is set up. The process of the agent can
    /// appear after the scan, and would get no signal until the end of the grace.
    pub(crate) fn refuse(&self) {
        if self.agent.set(None).is_ok() {
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        }
    }

    /// The exit status of the agent, for the status of `bwrap`.
    ///
    /// If a signal has ended `bwrap` itself, that is the end of the run. The agent gets the end of its
    /// input then, and may exit with 0 before it is killed: that is not a success.
    pub(crate) fn true_status(&self, carrier: ExitStatus) -> ExitStatus {
        if carrier.signal().is_some() {
            return carrier;
        }
        let Some(agent) = self.agent.get().and_then(Option::as_ref) else {
            return carrier;
        };
        let from_code = || match carrier.code() {
            Some(code) if (129..=192).contains(&code) => ExitStatus::from_raw(code - 128),
            _ => carrier,
        };
        exit_status(agent).unwrap_or_else(from_code)
    }
}

/// The process that has written to the socket; `None` at its end.
fn receive_sender(socket: &UnixStream) -> io::Result<Option<Pid>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket.as_fd(),
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let sender = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(credentials) => Some(credentials.pid),
        _ => None,
    });
    sender
        .map(Some)
        .ok_or_else(|| io::Error::other("a message without the id of its sender"))
}

/// `struct pidfd_info` of `linux/pidfd.h`, in its first version.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup_id: u64,
    ids: [u32; 11],
    exit_code: i32,
}

const PIDFD_INFO_EXIT: u64 = 1 << 3;
/// `_IOWR(0xFF, 11, struct pidfd_info)`.
const PIDFD_GET_INFO: u64 = (3 << 30) | ((size_of::<PidfdInfo>() as u64) << 16) | (0xFF << 8) | 11;

/// The status of a process that was reaped; `None` if the kernel does not keep it (before 6.15).
fn exit_status(process: &OwnedFd) -> Option<ExitStatus> {
    let mut info = PidfdInfo {
        mask: PIDFD_INFO_EXIT,
        ..PidfdInfo::default()
    };
    // SAFETY: the kernel writes at most the size that is part of the request's number.
    let result = unsafe {
        libc::ioctl(
            process.as_raw_fd(),
            PIDFD_GET_INFO as libc::Ioctl,
            std::ptr::from_mut(&mut info),
        )
    };
    let known = result == 0 && info.mask & PIDFD_INFO_EXIT != 0;
    known.then(|| ExitStatus::from_raw(info.exit_code))
}
