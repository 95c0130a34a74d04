//! Watches the process of a pane: tmux does not announce the end of a program in a pane that stays
//! open. Costs nothing until the process ends.

use std::sync::Weak;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::pane_info::PaneInfo;
use crate::control::control_client::Connection;
use crate::shared::process_tree::{ProcessHandle, ProcessScanner, TreeEnder, TreeRoot};
use crate::timing::{EXIT_STATUS_LIMIT, EXIT_STATUS_PAUSE};
use crate::tmux::launch::LAUNCH_VARIABLE;

/// A task that reports the end of a process. Dropping it ends the task.
#[derive(Debug)]
pub(crate) struct ExitWatch(JoinHandle<()>);

impl Drop for ExitWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ExitWatch {
    /// Also marks the processes of the pane. `None` if the
    /// process has ended, or the system has no handles of processes.
    pub(crate) fn start(info: &PaneInfo, connection: Weak<Connection>) -> Option<Self> {
        let handle = ProcessHandle::open(info.pid).ok()??;
        let root = TreeRoot::new(Some(info.launch.clone()), Some(info.pid));
        let (pane, pid) = (info.id, info.pid);
        Some(Self(tokio::spawn(async move {
            mark(root).await;
            if handle.ended().await.is_err() {
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

/// Gives the processes of a pane their mark, so that a stop finds what they start from now on, even
/// if it clears its environment and loses its parent. tmux has started them: they could not get the
/// mark at their start. Other systems have no marks.
async fn mark(root: TreeRoot) {
    let is_launched = root.tag.as_ref().is_some_and(|launch| !launch.is_empty());
    if cfg!(target_os = "linux") && is_launched {
        let scanner = ProcessScanner::new(LAUNCH_VARIABLE);
        TreeEnder::new(&scanner, &[root]).scan_targets().await;
    }
}
