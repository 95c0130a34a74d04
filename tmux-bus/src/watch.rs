//! Watches the process of a pane itself: a pane that stays after its program was killed is never
//! announced. Costs nothing until the process ends.

use std::{sync::Weak, time::Duration};

use tokio::task::JoinHandle;

use crate::{control::Shared, panes::PaneInfo};

/// How long tmux may take to say how a process ended that is gone. It takes microseconds, unless
/// the machine is so busy that it does not run.
pub(crate) const STATUS_LIMIT: Duration = Duration::from_secs(1);
/// How long to leave it between two questions.
pub(crate) const STATUS_PAUSE: Duration = Duration::from_millis(2);

#[cfg(target_os = "linux")]
pub(crate) fn process_of(info: &PaneInfo, shared: Weak<Shared>) -> Option<JoinHandle<()>> {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use tokio::time::Instant;

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
        let deadline = Instant::now() + STATUS_LIMIT;
        loop {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let listed = shared.list_panes().await;
            if !shared.panes.runs(pane, pid) {
                return;
            }
            if listed.is_err() || Instant::now() >= deadline {
                return shared.panes.process_gone(pane, pid);
            }
            drop(shared);
            tokio::time::sleep(STATUS_PAUSE).await;
        }
    }))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn process_of(_info: &PaneInfo, _shared: Weak<Shared>) -> Option<JoinHandle<()>> {
    None
}
