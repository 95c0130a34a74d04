use std::time::Duration;

use rustix::process::Signal;
use tokio::time::Instant;

use crate::sandbox::signal_in_step;
use crate::shared::proc_stat::ProcessKey;
use crate::shared::process_tree::TreeEnder;
use crate::{StopAction, StopLadder, StopLevel};

/// How long a process may take to die of `KILL`. Only a process that the kernel holds takes
/// longer, for example in a read from a network file system that is gone.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// Limits of callers are cut to this: an `Instant` cannot hold the sum with `Duration::MAX`.
pub(crate) const LONGEST_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// The end of a limit that begins now.
pub(crate) fn deadline_after(limit: Duration) -> Instant {
    Instant::now() + limit.min(LONGEST_LIMIT)
}

/// The result of a stop.
#[derive(Debug)]
pub(crate) struct StoppedTree {
    /// How many processes were found alive.
    pub(crate) processes: usize,
    pub(crate) level: StopLevel,
    /// Processes that could not be ended.
    pub(crate) survivors: Vec<u32>,
}

/// Takes the steps of the ladder, then kills, until no process of the tree is left. The steps are
/// broken off when `kill_now` completes. Calls `begin_step` before each step, and before the kill. See
/// [`TreeEnder`] for the loop inside a step.
pub(crate) async fn stop_tree(
    mut tree: TreeEnder<'_>,
    ladder: &StopLadder,
    begin_step: impl Fn(StopLevel),
    kill_now: impl Future<Output = ()>,
) -> StoppedTree {
    let reached = tokio::select! {
        reached = run_steps(&mut tree, ladder, &begin_step) => reached,
        () = kill_now => None,
    };
    let level = match reached {
        Some(level) => level,
        None => {
            begin_step(StopLevel::Killed);
            tree.kill(KILL_LIMIT).await;
            StopLevel::Killed
        }
    };
    let end = tree.into_result();
    StoppedTree {
        processes: end.processes,
        level,
        survivors: end.survivors,
    }
}

/// The step after which no process was left; `None` if some are left.
async fn run_steps(
    tree: &mut TreeEnder<'_>,
    ladder: &StopLadder,
    begin_step: impl Fn(StopLevel),
) -> Option<StopLevel> {
    let mut level = StopLevel::AlreadyGone;
    if tree.scan_targets().await {
        return Some(level);
    }
    for step in ladder.steps() {
        let (signal, reached) = match step.action {
            StopAction::CloseStdin => (None, StopLevel::StdinClosed),
            StopAction::Interrupt => (Some(Signal::INT), StopLevel::Interrupted),
            StopAction::Terminate => (Some(Signal::TERM), StopLevel::Terminated),
        };
        begin_step(reached);
        level = level.max(reached);
        let choose = |key: ProcessKey| signal_in_step(key.pid, signal?);
        if tree.step(step.grace.min(LONGEST_LIMIT), choose).await {
            return Some(level);
        }
    }
    None
}
