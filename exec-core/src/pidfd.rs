use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor that names one process for ever, unlike its number.
pub(crate) struct Pidfd {
    fd: AsyncFd<OwnedFd>,
}

impl Pidfd {
    pub(crate) fn open(pid: u32) -> io::Result<Self> {
        let pid = raw_pid(pid).ok_or(Errno::SRCH)?;
        let fd = rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        #[allow(
            deprecated,
            reason = "the successor is unsafe because of types that lie about their descriptor; \
                      `OwnedFd` does not, and older versions of tokio have only this"
        )]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Self { fd })
    }

    /// Waits until the process has ended, reaped or not.
    pub(crate) async fn ended(&self) -> io::Result<()> {
        self.fd.readable().await.map(drop)
    }

    pub(crate) fn send(&self, signal: Signal) -> Result<(), Errno> {
        rustix::process::pidfd_send_signal(self.fd.get_ref(), signal)
    }
}

pub(crate) fn raw_pid(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}
