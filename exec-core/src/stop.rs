//! Ending a process tree.
//!
//! The group is not enough: agents start their tools in sessions of their own. So every round
//! looks at the whole process table for the group, for the descendants and for the tag, and ends
//! only when a look finds nothing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Signal;
use tokio::time::Instant;

use crate::pidfd::{Pidfd, raw_pid};
use crate::process::{ProcessKey, owner_of, process_key};
use crate::process_table::{ProcessTable, TreeRoot, Wanted};
use crate::scanner::ProcessScanner;
use crate::{StopAction, StopLadder, StopLevel};

/// How long a process may take to die of `KILL`. Only one that the kernel holds takes longer.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks when there is nothing better to wait for.
const PAUSE: Duration = Duration::from_millis(20);

/// What it took to end a tree.
#[derive(Debug)]
pub(crate) struct TreeEnd {
    pub(crate) processes: usize,
    pub(crate) level: StopLevel,
    /// Processes that could not be ended: not ours to signal, or held by the kernel.
    pub(crate) survivors: Vec<u32>,
}

/// Ends the processes of one execution.
pub(crate) struct TreeEnder<'a> {
    scanner: &'a ProcessScanner,
    root: &'a TreeRoot,
    only_uid: Option<u32>,
    /// Those that are alive, as far as is known.
    targets: HashMap<ProcessKey, Target>,
    /// All that were ever found. A process without the tag whose parent has died can be found
    /// again only because it was found before.
    found: HashSet<ProcessKey>,
    out_of_reach: HashSet<ProcessKey>,
}

struct Target {
    /// Names the process beyond doubt and tells of its end. `None` when no descriptor was to be
    /// had: then the process table tells.
    pidfd: Option<Pidfd>,
    signalled: Option<Signal>,
}

impl<'a> TreeEnder<'a> {
    pub(crate) fn new(scanner: &'a ProcessScanner, root: &'a TreeRoot) -> Self {
        Self {
            scanner,
            root,
            only_uid: None,
            targets: HashMap::new(),
            found: HashSet::new(),
            out_of_reach: HashSet::new(),
        }
    }

    /// Leaves the processes of other users alone.
    pub(crate) fn only_uid(mut self, uid: u32) -> Self {
        self.only_uid = Some(uid);
        self
    }

    /// Takes the steps of the ladder, then kills, until no process of the tree is left.
    pub(crate) async fn end(mut self, ladder: &StopLadder, close_stdin: impl Fn()) -> TreeEnd {
        let mut level = StopLevel::AlreadyGone;
        if self.look().await {
            return self.result(level);
        }
        for step in ladder.steps() {
            let signal = match step.action {
                StopAction::CloseStdin => {
                    close_stdin();
                    None
                }
                StopAction::Interrupt => Some(Signal::INT),
                StopAction::Terminate => Some(Signal::TERM),
            };
            level = level.max(match step.action {
                StopAction::CloseStdin => StopLevel::StdinClosed,
                StopAction::Interrupt => StopLevel::Interrupted,
                StopAction::Terminate => StopLevel::Terminated,
            });
            if self.climb(signal, step.grace).await {
                return self.result(level);
            }
        }
        self.climb(Some(Signal::KILL), KILL_PATIENCE).await;
        self.result(StopLevel::Killed)
    }

    /// One step of the ladder; tells whether the tree has ended.
    async fn climb(&mut self, signal: Option<Signal>, grace: Duration) -> bool {
        let deadline = Instant::now() + grace;
        loop {
            if let Some(signal) = signal {
                self.signal_all(signal);
            }
            // In the last step, look again soon: what the tree started meanwhile is not waited for.
            let patience = match signal {
                Some(Signal::KILL) => deadline.min(Instant::now() + 5 * PAUSE),
                _ => deadline,
            };
            let in_time = tokio::time::timeout_at(patience, self.all_gone()).await;
            if self.look().await {
                return true;
            }
            if in_time.is_err() && Instant::now() >= deadline {
                return false;
            }
        }
    }

    /// Brings the targets up to date; tells whether there are none.
    async fn look(&mut self) -> bool {
        loop {
            let found = self.look_once().await;
            if !self.targets.is_empty() {
                return false;
            }
            if !found {
                return true;
            }
            // Whoever was found has ended since, but may have started others before.
        }
    }

    /// Tells whether the look found anybody.
    async fn look_once(&mut self) -> bool {
        let table = self.scan().await;
        let tree = table.tree(self.root, &self.found);
        let alive: Vec<ProcessKey> = tree
            .into_iter()
            .map(|process| process.key)
            // One that has ended since belongs to nobody, but has been found.
            .filter(|key| {
                self.only_uid
                    .is_none_or(|uid| owner_of(key.pid).is_none_or(|owner| owner == uid))
            })
            .filter(|key| !self.out_of_reach.contains(key))
            .collect();
        self.targets.retain(|key, _| alive.contains(key));
        let found = !alive.is_empty();
        for key in alive {
            self.found.insert(key);
            if self.targets.contains_key(&key) {
                continue;
            }
            if let Some(target) = Target::open(key) {
                self.targets.insert(key, target);
            }
        }
        found
    }

    /// A machine that is short of descriptors or memory gets time: giving up here would leave
    /// processes behind.
    async fn scan(&self) -> Arc<ProcessTable> {
        loop {
            match self
                .scanner
                .scan(Wanted::tree(self.root, &self.found))
                .await
            {
                Ok(table) => return table,
                Err(error) => {
                    tracing::warn!(%error, "cannot read the process table, trying again");
                    tokio::time::sleep(5 * PAUSE).await;
                }
            }
        }
    }

    fn signal_all(&mut self, signal: Signal) {
        // The leader first: it should not see its children die and start new ones.
        let leader = self.root.leader();
        let mut keys: Vec<_> = self.targets.keys().copied().collect();
        keys.sort_by_key(|key| (leader != Some(*key), key.start_time, key.pid));
        for key in keys {
            let Some(target) = self.targets.get_mut(&key) else {
                continue;
            };
            if target.signalled == Some(signal) {
                continue;
            }
            target.signalled = Some(signal);
            match target.send(key, signal) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => {
                    tracing::warn!(pid = key.pid, %error, "cannot signal a process of the tree");
                    self.out_of_reach.insert(key);
                    self.targets.remove(&key);
                }
            }
        }
    }

    async fn all_gone(&self) {
        for target in self.targets.values() {
            match &target.pidfd {
                Some(pidfd) => {
                    if let Err(error) = pidfd.ended().await {
                        tracing::warn!(%error, "cannot wait for a process");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                None => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    fn result(&self, level: StopLevel) -> TreeEnd {
        let mut survivors: Vec<u32> = self
            .targets
            .keys()
            .chain(&self.out_of_reach)
            .map(|key| key.pid)
            .collect();
        survivors.sort_unstable();
        TreeEnd {
            processes: self.found.len(),
            level,
            survivors,
        }
    }
}

impl Target {
    /// `None` if the process has ended meanwhile.
    fn open(key: ProcessKey) -> Option<Self> {
        let pidfd = match Pidfd::open(key.pid) {
            Ok(pidfd) => Some(pidfd),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => return None,
            Err(error) => {
                tracing::debug!(pid = key.pid, %error, "no descriptor for a process");
                None
            }
        };
        // The id may have been given to another process since the table was read. What the
        // descriptor names now it names for ever, so one more look decides.
        if !key.is_current() {
            return None;
        }
        Some(Self {
            pidfd,
            signalled: None,
        })
    }

    fn send(&self, key: ProcessKey, signal: Signal) -> Result<(), Errno> {
        match &self.pidfd {
            Some(pidfd) => pidfd.send(signal),
            None if key.is_current() => {
                rustix::process::kill_process(raw_pid(key.pid).ok_or(Errno::SRCH)?, signal)
            }
            None => Err(Errno::SRCH),
        }
    }
}

impl ProcessKey {
    fn is_current(self) -> bool {
        matches!(process_key(self.pid), Ok(Some(current)) if current == self)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::process::TAG_VARIABLE;

    #[tokio::test]
    async fn processes_of_other_users_are_left_alone() {
        let tag = Uuid::new_v4();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .env(TAG_VARIABLE, tag.to_string())
            .spawn()
            .unwrap();
        let scanner = ProcessScanner::of_all();
        let root = TreeRoot::of_stranger(tag, None);
        let own = rustix::process::geteuid().as_raw();
        let end = async |uid| {
            let ender = TreeEnder::new(&scanner, &root).only_uid(uid);
            ender.end(&StopLadder::default(), || {}).await.processes
        };
        assert_eq!(end(own + 1).await, 0);
        assert!(
            child.try_wait().unwrap().is_none(),
            "another user's process was ended"
        );
        assert_eq!(end(own).await, 1);
        child.wait().unwrap();
    }
}
