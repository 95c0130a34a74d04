//! Ends the programs of panes with all their processes.

use std::time::Duration;

use rustix::process::Signal;

use super::pane_info::PaneInfo;
use crate::shared::proc_stat::ProcessKey;
use crate::shared::process_tree::{ProcessScanner, TreeEnder, TreeRoot};
use crate::timing::KILL_LIMIT;
use crate::tmux::launch::LAUNCH_VARIABLE;

/// Sends SIGTERM, waits up to `grace`, sends SIGKILL. Returns the processes that are still alive.
///
/// The processes of a pane are found by the id of its launch, also in panes whose program has
/// ended: agents start tools in sessions of their own that outlive them.
pub(crate) async fn end(panes: &[PaneInfo], grace: Duration) -> Vec<u32> {
    let roots: Vec<TreeRoot> = panes.iter().map(tree_root).collect();
    let scanner = ProcessScanner::new(LAUNCH_VARIABLE);
    let mut tree = TreeEnder::new(&scanner, &roots);
    let terminate = |process: ProcessKey| match pane_of(process, panes) {
        // The placeholder in a pane without a program has nothing to save.
        Some(pane) if pane.launch.is_empty() => Some(Signal::KILL),
        // The wrapper reports the exit of its program and ends by itself.
        Some(_) => None,
        None => Some(Signal::TERM),
    };
    if !tree.scan_targets().await && !tree.step(grace, terminate).await {
        tree.kill(KILL_LIMIT).await;
    }
    tree.into_result().survivors
}

fn tree_root(pane: &PaneInfo) -> TreeRoot {
    let tag = (!pane.launch.is_empty()).then(|| pane.launch.clone());
    let leader = (!pane.dead && pane.pid != 0).then_some(pane.pid);
    TreeRoot::new(tag, leader)
}

fn pane_of(process: ProcessKey, panes: &[PaneInfo]) -> Option<&PaneInfo> {
    panes
        .iter()
        .find(|pane| pane.pid == process.pid && !pane.dead)
}
