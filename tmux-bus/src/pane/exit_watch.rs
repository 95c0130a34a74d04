//! Watches the process of a pane: tmux does not announce the end of a program in a pane that stays
//! open. Costs nothing until the process ends.

use std::sync::Weak;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::pane_info::PaneInfo;
use crate::control::control_client::Connection;
use crate::shared::process_tree::Pidfd;
use crate::timing::{EXIT_STATUS_LIMIT, EXIT_STATUS_PAUSE};

/// A task that reports the end of a process. Dropping it ends the task.
#[derive(Debug)]
pub(crate) struct ExitWatch(JoinHandle<()>);

impl Drop for ExitWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ExitWatch {
    /// `None` if the process has ended, or the system has no pidfds.
    pub(crate) fn start(info: &PaneInfo, connection: Weak<Connection>) -> Option<Self> {
        let pidfd = Pidfd::open(info.pid).ok()??;
        let (pane, pid) = (info.id, info.pid);
        Some(Self(tokio::spawn(async move {
            if pidfd.ended().await.is_err() {
                return;
            }
            // tmux reads the last output and the exit status at its own pace; a list that has the
            // status comes after both.
            let deadline = Instant::now() + EXIT_STATUS_LIMIT;
            while let Some(connection) = connection.upgrade() {
                let listed = connection.list_panes().await;
                if !connection.panes().runs(pane, pid) {
                    return;
                }
                if listed.is_err() || Instant::now() >= deadline {
                    return connection.panes().process_gone(pane, pid);
                }
                drop(connection);
                tokio::time::sleep(EXIT_STATUS_PAUSE).await;
            }
        })))
    }
}
