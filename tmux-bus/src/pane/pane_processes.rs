//! Ends the programs of panes with all their processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::pane_info::PaneInfo;
use crate::shared::proc_stat::ProcessKey;
use crate::shared::process_tree::{ProcessScanner, TreeEnder, TreeRoot};
use crate::timing::{KILL_LIMIT, PROGRAM_LOOK};
use crate::tmux::launch::LAUNCH_VARIABLE;

/// Sends SIGTERM, waits up to `grace`, sends SIGKILL. Returns the processes that are still alive.
///
/// The processes of a pane are found by the id of its launch, also in panes whose program has
/// ended: agents start tools in sessions of their own that outlive them.
pub(crate) async fn end(panes: &[PaneInfo], grace: Duration) -> Vec<u32> {
    let scanner = Arc::new(ProcessScanner::new(LAUNCH_VARIABLE));
    let mut ends = JoinSet::new();
    for pane in panes {
        let (scanner, pane) = (Arc::clone(&scanner), pane.clone());
        ends.spawn(async move { end_pane(&scanner, &pane, grace).await });
    }
    let mut survivors = ends.join_all().await.concat();
    survivors.sort_unstable();
    survivors
}

async fn end_pane(scanner: &ProcessScanner, pane: &PaneInfo, grace: Duration) -> Vec<u32> {
    let roots = [tree_root(pane)];
    let mut tree = TreeEnder::new(scanner, &roots);
    let is_leader = |process: ProcessKey| process.pid == pane.pid && !pane.dead;
    let deadline = Instant::now() + grace;
    if tree.scan_targets().await {
        return Vec::new();
    }
    // Race: the wrapper has not started its program yet. The wrapper gets no signal, so the program would
    // run until the end of the grace.
    let has_program = AtomicBool::new(pane.launch.is_empty());
    let mut pause = Duration::ZERO;
    while !has_program.load(Ordering::Relaxed) && Instant::now() < deadline {
        let look = |process| {
            has_program.fetch_or(!is_leader(process), Ordering::Relaxed);
            None
        };
        if tree.step(pause, look).await {
            return Vec::new();
        }
        pause = PROGRAM_LOOK;
    }
    let terminate = |process| match is_leader(process) {
        // The placeholder in a pane without a program has nothing to save.
        true if pane.launch.is_empty() => Some(Signal::KILL),
        // The wrapper reports the exit of its program and ends by itself.
        true => None,
        false => Some(Signal::TERM),
    };
    let left = deadline.saturating_duration_since(Instant::now());
    if !tree.step(left, terminate).await {
        tree.kill(KILL_LIMIT).await;
    }
    tree.into_result().survivors
}

fn tree_root(pane: &PaneInfo) -> TreeRoot {
    let tag = (!pane.launch.is_empty()).then(|| pane.launch.clone());
    let leader = (!pane.dead && pane.pid != 0).then_some(pane.pid);
    TreeRoot::new(tag, leader)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    #[tokio::test]
    async fn a_program_that_starts_during_the_stop_is_ended_before_the_end_of_the_grace() {
        let launch = "0123456789abcdef0123456789abcdef";
        // A wrapper that starts its program when it is told to.
        let mut wrapper = Command::new("sh");
        wrapper.args(["-c", "read -r _; sh -c 'exec sleep 600'; exit 7"]);
        wrapper.env(LAUNCH_VARIABLE, launch).stdin(Stdio::piped());
        let mut wrapper = wrapper.spawn().unwrap();
        let pid = wrapper.id();
        let limits = || std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let unmarked = limits();
        let line = format!("%0\t0\t\t\t{pid}\t\t{launch}\t\t\t");
        let panes = PaneInfo::parse_list(&line);
        assert_eq!(panes.len(), 1);
        let ended = tokio::spawn(async move { end(&panes, Duration::from_secs(3600)).await });
        // The first scan has found the wrapper alone.
        while limits() == unmarked {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        wrapper.stdin.take().unwrap().write_all(b"\n").unwrap();
        // The tree has ended when its zombie is reaped.
        let code = tokio::task::spawn_blocking(move || wrapper.wait().unwrap().code());
        let limit = Duration::from_secs(100);
        let ended = tokio::time::timeout(limit, ended).await;
        assert_eq!(ended.expect("the stop ends").unwrap(), [0; 0]);
        assert_eq!(code.await.unwrap(), Some(7));
    }
}
