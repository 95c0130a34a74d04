//! The result of an interrupt, and the processes that outlive it.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::Instant;

use super::turn::TurnReport;
use crate::Error;
use crate::run::LiveExecution;
use crate::sandbox::is_shell_or_agent;
use crate::shared::proc_stat::ProcessKey;
use crate::shared::process_tree::{self, PROCESS_LIST, ProcessHandle, ProcessTable};

/// Between `TERM` and `KILL`.
const GRACE: Duration = Duration::from_secs(5);
/// How long a process may take to die of `KILL`.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// Between two looks at the process table.
const PAUSE: Duration = Duration::from_millis(100);

/// The result of [`LiveSession::interrupt`](crate::LiveSession::interrupt).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, session) = doctest::open_live().await;
/// use exec_core::TurnOutcome;
///
/// let turn = session.prompt("run the tests")?;
/// let interrupted = session.interrupt(turn.id()).await?;
/// assert_eq!(interrupted.turn().outcome, TurnOutcome::Interrupted);
/// if !interrupted.process_ids().is_empty() {
///     session.end_processes(&interrupted).await?;
/// }
/// # session.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct InterruptReport {
    pub(super) report: Arc<TurnReport>,
    pub(super) processes: Vec<ProcessKey>,
}

impl InterruptReport {
    /// The end of the turn. The outcome is [`Completed`](crate::TurnOutcome::Completed) if the turn
    /// ended by itself before the agent got the cancel.
    pub fn turn(&self) -> &TurnReport {
        &self.report
    }

    /// The processes that were started during the turn and were alive after its end, tools and
    /// others. The ids are those of this host, also for an agent in a sandbox, which sees other ids.
    pub fn process_ids(&self) -> Vec<u32> {
        self.processes.iter().map(|key| key.pid).collect()
    }
}

impl fmt::Debug for InterruptReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InterruptReport")
            .field("turn", &self.report)
            .field("process_ids", &self.process_ids())
            .finish()
    }
}

impl LiveExecution {
    /// The living processes of the tree that were started at this clock tick or later, without the
    /// agent itself.
    pub(super) async fn tool_processes(&self, since: u64) -> Result<Vec<ProcessKey>, Error> {
        let table = self.process_table().await?;
        let leader = self.root.leader();
        let tree = table.tree(slice::from_ref(&self.root), &HashSet::new());
        let tools = tree.into_iter().filter(|process| {
            process.alive && process.key.start_time >= since && Some(process.key) != leader
        });
        let mut keys: Vec<_> = tools.map(|process| process.key).collect();
        if self.sandbox.is_some() {
            // The leader only carries the agent, which may have started in the tick of the turn.
            keys.retain(|key| !is_shell_or_agent(key.pid));
        }
        keys.sort_unstable();
        Ok(keys)
    }

    /// Ends these processes and their descendants.
    ///
    /// Not by the tree ender: the tools carry the tag of the whole execution, so that each of them
    /// would lead it to the agent.
    pub(super) async fn end_processes(&self, keys: &[ProcessKey]) -> Result<(), Error> {
        let mut found: HashSet<ProcessKey> = keys.iter().copied().collect();
        let mut signalled = HashSet::new();
        let begin = Instant::now();
        loop {
            let table = self.process_table().await?;
            let alive = with_descendants(&self.root, &table, &mut found);
            if alive.is_empty() {
                return Ok(());
            }
            let signal = match begin.elapsed() {
                elapsed if elapsed > GRACE + KILL_LIMIT => {
                    let mut pids: Vec<_> = alive.iter().map(|key| key.pid).collect();
                    pids.sort_unstable();
                    return Err(Error::StillAlive {
                        session: self.session_id(),
                        pids,
                    });
                }
                elapsed if elapsed > GRACE => Signal::KILL,
                _ => Signal::TERM,
            };
            for key in alive {
                if signalled.insert((key, signal.as_raw())) {
                    send(key, signal);
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn process_table(&self) -> Result<Arc<ProcessTable>, Error> {
        let scan = self.scanner.scan(slice::from_ref(&self.root)).await;
        scan.map_err(Error::io("read", Path::new(PROCESS_LIST)))
    }
}

/// Adds the descendants to `found`; returns those of `found` that are alive.
fn with_descendants(
    root: &crate::shared::process_tree::TreeRoot,
    table: &ProcessTable,
    found: &mut HashSet<ProcessKey>,
) -> Vec<ProcessKey> {
    let tree = table.tree(slice::from_ref(root), found);
    loop {
        let pids: HashSet<u32> = tree
            .iter()
            .filter(|process| found.contains(&process.key))
            .map(|process| process.key.pid)
            .collect();
        let before = found.len();
        let children = tree.iter().filter(|process| pids.contains(&process.parent));
        found.extend(children.map(|process| process.key));
        if found.len() == before {
            break;
        }
    }
    tree.iter()
        .filter(|process| process.alive && found.contains(&process.key))
        .map(|process| process.key)
        .collect()
}

/// The start time is compared after the handle was opened: a handle never refers to another
/// process.
fn send(key: ProcessKey, signal: Signal) {
    let Ok(Some(handle)) = ProcessHandle::open(key.pid) else {
        return;
    };
    if process_tree::key_of(key.pid) == Some(key)
        && let Err(error) = handle.send(signal)
    {
        tracing::warn!(pid = key.pid, %error, "cannot signal a process of the turn");
    }
}
