//! Outside Linux, no agent runs in a sandbox; see `bubblewrap.rs`.

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;

/// There is none.
pub(crate) struct AgentStart(Infallible);

impl AgentStart {
    pub(crate) fn new(_socket: OwnedFd) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) async fn allow(&self) {
        match self.0 {}
    }

    pub(crate) fn refuse(&self) {
        match self.0 {}
    }

    pub(crate) fn true_status(&self, _carrier: ExitStatus) -> ExitStatus {
        match self.0 {}
    }
}
