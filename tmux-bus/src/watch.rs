//! Watches the process of a pane itself: a pane that stays after its program was killed is never
//! announced. Costs nothing until the process ends.

use std::sync::Weak;

use tokio::task::JoinHandle;

use crate::{control::Shared, panes::PaneInfo};

#[cfg(target_os = "linux")]
pub(crate) fn process_of(info: &PaneInfo, shared: Weak<Shared>) -> Option<JoinHandle<()>> {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    let raw = i32::try_from(info.pid).ok()?;
    let pidfd = pidfd_open(Pid::from_raw(raw)?, PidfdFlags::NONBLOCK).ok()?;
    #[allow(
        deprecated,
        reason = "the sound use with an owned descriptor; the replacement is unsafe and younger than our minimum"
    )]
    let fd = tokio::io::unix::AsyncFd::with_interest(pidfd, tokio::io::Interest::READABLE).ok()?;
    let (pane, pid) = (info.id, info.pid);
    Some(tokio::spawn(async move {
        if fd.readable().await.is_err() {
            return;
        }
        // tmux reads the last output and the status in its own time; its list comes after both.
        for _ in 0..3 {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            shared.refresh();
            drop(shared);
            tokio::time::sleep(std::time::Duration::from_millis(4)).await;
        }
        if let Some(shared) = shared.upgrade() {
            shared.panes.process_gone(pane, pid);
        }
    }))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn process_of(_info: &PaneInfo, _shared: Weak<Shared>) -> Option<JoinHandle<()>> {
    None
}
