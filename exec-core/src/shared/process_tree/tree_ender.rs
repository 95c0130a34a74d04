//! The stop loop.
//!
//! # Theory
//!
//! The members of a tree are not known in advance and change while it is ended: a process that is
//! asked to stop starts a clean-up program, a parent that dies leaves children that are reparented
//! to init. So the loop alternates between scans and signals:
//!
//! 1. Scan. Open a handle of every process that is new, give it the mark of the tree, and check its
//!    start time again. If a process did not have the mark before, scan once more.
//! 2. Signal every process that has not yet had the signal of this step.
//! 3. Wait until all of them have ended, or until the grace of the step is over. Scan again.
//!
//! **Invariants.**
//! - The loop reports success only after a scan that began after the last known process had ended
//!   found nothing. With the invariant of the process table, nothing of the tree is then left.
//! - A signal never reaches an unrelated process. A handle refers to one process, also after its id
//!   was reused; the start time is compared after the handle was opened, so an id that was reused
//!   between the scan and the open is noticed. Without a handle (out of descriptors, not
//!   Linux) the start time is compared right before the signal; a reuse within these microseconds
//!   is not noticed.
//! - A process that was found once stays found (`found`), also when its parent has died and it
//!   cleared its environment.
//! - Before the first signal, every process that was found has the mark, and so has every process
//!   that it starts from then on. A signal can therefore not turn a process that is known by its
//!   parent only into one without a parent that is unknown.
//!
//! **Races.**
//! - A process forks after the scan and before its signal: step 3 scans again, and the child gets
//!   the signal of the same step.
//! - A process without tag and mark (it was started before the leader got its mark, or it has
//!   changed the limit) forks after the scan and before it gets the mark. The scan that follows
//!   finds the child by its parent. This is repeated at most `EXTRA_SCANS` times: a program that
//!   keeps removing the mark must not delay the stop.
//! - A process forks and dies before its handle was opened: the scan found a process, but no target
//!   is left. Scan again at once, until a scan finds nothing (`scan_targets`). So does a scan that has
//!   given up (`ProcessTable::is_settled`).
//! - On a system without marks, a process that is known by its parent only forks after the scan, and
//!   dies of its signal: its child has no parent then, and would be lost. So all processes are stopped
//!   (`STOP`) before a signal, until a scan finds all of them stopped and none that is new. Then they
//!   get the signal, and `CONT`, the youngest first: a parent that ends before its stopped child is
//!   continued could make the kernel send `HUP` to the child.
//! - During `KILL` the tree may fork faster than it dies: the wait is cut to 100 ms there, so
//!   that new processes are killed soon.
//!
//! **Example.** Leader 40 with a tool 41 in its own session; 41 traps `TERM`, runs a clean-up
//! program 42 and ends.
//!
//! | scan | signals | wait |
//! |---|---|---|
//! | 40, 41 | `TERM` to 40 and 41 | 40 ends; 41 starts 42 and ends |
//! | 42 (tagged) | `TERM` to 42 | 42 ends |
//! | nothing | | done |

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Signal;
use tokio::time::Instant;

use super::process_mark::ProcessMark;
use super::process_scanner::ProcessScanner;
use super::process_table::{ProcessInfo, ProcessTable};
use super::system::{self, Marking, ProcessHandle};
use super::tree_root::TreeRoot;
use crate::shared::proc_stat::ProcessKey;

/// Between two scans when no event reports the end of a process.
const PAUSE: Duration = Duration::from_millis(20);
/// Between two scans during `KILL`, and after a scan that failed.
const LONG_PAUSE: Duration = Duration::from_millis(100);
/// How often a scan is repeated because it found processes without the mark.
const EXTRA_SCANS: usize = 3;
/// How often a scan is repeated until all processes are stopped, and the pause between two. A process
/// in the middle of a system call stops when that returns.
const FREEZE_SCANS: usize = 20;
const FREEZE_PAUSE: Duration = Duration::from_millis(1);

/// The result of ending a tree.
#[derive(Debug)]
pub(crate) struct TreeEnd {
    /// How many processes were found alive.
    pub(crate) processes: usize,
    /// Processes that could not be ended: we may not signal them, or the kernel holds them.
    pub(crate) survivors: Vec<u32>,
}

/// Ends the processes of trees, step by step. Dropping it between two steps leaves the rest of
/// the tree running.
pub(crate) struct TreeEnder<'a> {
    scanner: &'a ProcessScanner,
    roots: &'a [TreeRoot],
    only_uid: Option<u32>,
    /// The processes that were alive in the latest scan.
    targets: HashMap<ProcessKey, Target>,
    /// All processes that were ever found.
    found: HashSet<ProcessKey>,
    not_permitted: HashSet<ProcessKey>,
}

/// The result of bringing the targets up to date.
struct TargetUpdate {
    /// Whether the scan has shown that no process of the trees is left.
    is_empty: bool,
    /// Whether a process has got the mark that did not have it.
    newly_marked: bool,
    /// Whether all processes of the trees are stopped by a signal.
    all_stopped: bool,
}

struct Target {
    /// `None` if the system gave no handle: then the next scan shows the end.
    handle: Option<ProcessHandle>,
    signalled: Option<Signal>,
    /// Whether it has got a `STOP` and no `CONT`.
    frozen: bool,
}

impl<'a> TreeEnder<'a> {
    pub(crate) fn new(scanner: &'a ProcessScanner, roots: &'a [TreeRoot]) -> Self {
        Self {
            scanner,
            roots,
            only_uid: None,
            targets: HashMap::new(),
            found: HashSet::new(),
            not_permitted: HashSet::new(),
        }
    }

    /// Leaves the processes of other users alone.
    pub(crate) fn only_uid(mut self, uid: u32) -> Self {
        self.only_uid = Some(uid);
        self
    }

    /// Scans; `true` if no process is left that we may signal.
    pub(crate) async fn scan_targets(&mut self) -> bool {
        let mut extra_scans = 0;
        loop {
            let TargetUpdate {
                is_empty,
                newly_marked,
                ..
            } = self.update_targets().await;
            if newly_marked && extra_scans < EXTRA_SCANS {
                extra_scans += 1;
                continue;
            }
            if !self.targets.is_empty() {
                return false;
            }
            if is_empty {
                return true;
            }
        }
    }

    /// One step: sends each process the signal that `choose` names, once, and waits up to `grace`
    /// for the trees to end. Processes that appear during the wait get their signal, too.
    /// `true` if no process is left that we may signal.
    ///
    /// The first step needs a [`scan_targets`](Self::scan_targets) before it.
    pub(crate) async fn step(
        &mut self,
        grace: Duration,
        choose: impl Fn(ProcessKey) -> Option<Signal>,
    ) -> bool {
        self.run_step(grace, grace, choose).await
    }

    /// The last step: `KILL` to every process, until nothing is left or `limit` is over. Only a
    /// process that the kernel holds takes long to die.
    pub(crate) async fn kill(&mut self, limit: Duration) -> bool {
        self.run_step(limit, LONG_PAUSE, |_| Some(Signal::KILL))
            .await
    }

    /// The number of found processes, and the processes that are left. A process that could not be
    /// signalled may have ended by itself.
    pub(crate) fn into_result(self) -> TreeEnd {
        let left = self.targets.keys().chain(&self.not_permitted);
        let left = left.filter(|key| system::is_alive(**key));
        let mut survivors: Vec<u32> = left.map(|key| key.pid).collect();
        survivors.sort_unstable();
        TreeEnd {
            processes: self.found.len(),
            survivors,
        }
    }

    async fn run_step(
        &mut self,
        grace: Duration,
        scan_after: Duration,
        choose: impl Fn(ProcessKey) -> Option<Signal>,
    ) -> bool {
        let deadline = Instant::now() + grace;
        let scan_after = match system::HAS_MARKS {
            true => scan_after,
            // A process that starts during the step is seen before its parent ends, if that takes long.
            false => scan_after.min(LONG_PAUSE),
        };
        loop {
            if !system::HAS_MARKS && self.has_signals_to_send(&choose) {
                self.freeze().await;
            }
            self.signal_all(&choose);
            self.thaw();
            let wake_up = deadline.min(Instant::now() + scan_after);
            let _ = tokio::time::timeout_at(wake_up, self.all_ended()).await;
            if self.scan_targets().await {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
        }
    }

    async fn update_targets(&mut self) -> TargetUpdate {
        let table = self.scan().await;
        let tree = table.tree(self.roots, &self.found);
        let alive: HashMap<ProcessKey, &ProcessInfo> = tree
            .into_iter()
            .map(|process| (process.key, process))
            .filter(|(key, _)| !self.not_permitted.contains(key) && self.is_ours(*key))
            .collect();
        self.targets.retain(|key, _| alive.contains_key(key));
        let mut newly_marked = false;
        for (&key, process) in &alive {
            self.found.insert(key);
            if !self.targets.contains_key(&key)
                && let Some((target, marking)) = Target::open(key, self.mark_for(process))
            {
                newly_marked |= marking == Marking::New;
                self.targets.insert(key, target);
            }
        }
        TargetUpdate {
            is_empty: alive.is_empty() && table.is_settled(),
            newly_marked,
            all_stopped: alive.values().all(|process| process.stopped),
        }
    }

    /// Stops all processes, and the ones that they start until then. [`thaw`](Self::thaw) continues
    /// them; so does a drop, in case the future of this step is dropped.
    async fn freeze(&mut self) {
        for _ in 0..FREEZE_SCANS {
            for (key, target) in &mut self.targets {
                if !target.frozen && target.send(*key, Signal::STOP).is_ok() {
                    target.frozen = true;
                }
            }
            if self.update_targets().await.all_stopped {
                return;
            }
            tokio::time::sleep(FREEZE_PAUSE).await;
        }
        tracing::debug!("some processes of the tree cannot be stopped before their signal");
    }

    /// Continues the processes that [`freeze`](Self::freeze) has stopped, the youngest first.
    fn thaw(&mut self) {
        let frozen = self.targets.iter_mut().filter(|(_, target)| target.frozen);
        let mut frozen: Vec<_> = frozen.collect();
        frozen.sort_by_key(|(key, _)| std::cmp::Reverse((key.start_time, key.pid)));
        for (key, target) in frozen {
            let _ = target.send(*key, Signal::CONT);
            target.frozen = false;
        }
    }

    fn has_signals_to_send(&self, choose: &impl Fn(ProcessKey) -> Option<Signal>) -> bool {
        let due = |(key, target): (&ProcessKey, &Target)| {
            choose(*key).is_some_and(|signal| target.signalled != Some(signal))
        };
        self.targets.iter().any(due)
    }

    /// The mark that a process of the trees should have; `None` to leave it as it is. A process of
    /// an inner execution keeps the mark of that execution: its executor, which is ended at the
    /// same time, searches for it.
    fn mark_for(&self, process: &ProcessInfo) -> Option<ProcessMark> {
        match (&process.tag, process.mark) {
            (Some(_), _) => self
                .roots
                .iter()
                .find(|root| root.tag == process.tag)
                .and_then(|root| root.mark),
            (None, Some(_)) => None,
            (None, None) => self.roots.iter().find_map(|root| root.mark),
        }
    }

    /// A process that has ended since the scan has no owner, but it counts as found: it may have
    /// started others.
    fn is_ours(&self, key: ProcessKey) -> bool {
        self.only_uid
            .is_none_or(|uid| system::owner_of(key.pid).is_none_or(|owner| owner == uid))
    }

    /// Repeats a scan that fails. A machine that is short of descriptors or memory recovers;
    /// giving up would leave processes behind.
    async fn scan(&self) -> Arc<ProcessTable> {
        loop {
            match self.scanner.scan(self.roots).await {
                Ok(table) => return table,
                Err(error) => {
                    tracing::warn!(%error, "cannot read the process table, trying again");
                    tokio::time::sleep(LONG_PAUSE).await;
                }
            }
        }
    }

    fn signal_all(&mut self, choose: impl Fn(ProcessKey) -> Option<Signal>) {
        // Leaders first: a leader that sees its children die may start new ones.
        let leaders: HashSet<_> = self.roots.iter().filter_map(TreeRoot::leader).collect();
        let mut keys: Vec<_> = self.targets.keys().copied().collect();
        keys.sort_by_key(|key| (!leaders.contains(key), key.start_time, key.pid));
        for key in keys {
            let (Some(target), Some(signal)) = (self.targets.get_mut(&key), choose(key)) else {
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
                    self.not_permitted.insert(key);
                    self.targets.remove(&key);
                }
            }
        }
    }

    async fn all_ended(&self) {
        for target in self.targets.values() {
            match &target.handle {
                Some(handle) => {
                    if let Err(error) = handle.ended().await {
                        tracing::warn!(%error, "cannot wait for a process");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                None => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}

impl Drop for TreeEnder<'_> {
    fn drop(&mut self) {
        self.thaw();
    }
}

impl Target {
    /// `None` if the process has ended since the scan.
    fn open(key: ProcessKey, mark: Option<ProcessMark>) -> Option<(Self, Marking)> {
        let handle = match ProcessHandle::open(key.pid) {
            Ok(None) => return None,
            Ok(handle) => handle,
            Err(error) => {
                tracing::debug!(pid = key.pid, %error, "no handle of a process");
                None
            }
        };
        let marking = system::mark_if_current(key, mark)?;
        let target = Self {
            handle,
            signalled: None,
            frozen: false,
        };
        Some((target, marking))
    }

    fn send(&self, key: ProcessKey, signal: Signal) -> Result<(), Errno> {
        match &self.handle {
            Some(handle) => handle.send(signal),
            None => system::signal_by_id(key, signal),
        }
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    const VARIABLE: &str = "TREE_ENDER_TEST";
    const LIMIT: Duration = Duration::from_secs(30);

    fn start(tag: &str) -> (Child, [TreeRoot; 1]) {
        // Another run of these tests may be under way: of another crate, or in another checkout.
        let tag = format!("{tag}-{}", std::process::id());
        let mut sleep = Command::new("sleep");
        let child = sleep.arg("60").env(VARIABLE, &tag).spawn().unwrap();
        // With a leader: a system may hide the tag.
        let leader = system::key_of(child.id());
        (child, [TreeRoot::recorded(Some(tag), leader)])
    }

    #[tokio::test]
    async fn processes_of_other_users_are_left_alone() {
        let (mut child, roots) = start("of another user");
        let scanner = ProcessScanner::new(VARIABLE);
        let own = rustix::process::geteuid().as_raw();
        let end = async |uid| {
            let mut ender = TreeEnder::new(&scanner, &roots).only_uid(uid);
            assert!(ender.scan_targets().await || ender.kill(LIMIT).await);
            ender.into_result().processes
        };
        assert_eq!(end(own + 1).await, 0);
        assert!(
            child.try_wait().unwrap().is_none(),
            "another user's process was ended"
        );
        assert_eq!(end(own).await, 1);
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn a_process_without_a_signal_is_waited_for() {
        let (mut child, roots) = start("no signal");
        let scanner = ProcessScanner::new(VARIABLE);
        let mut ender = TreeEnder::new(&scanner, &roots);
        assert!(!ender.scan_targets().await);
        assert!(!ender.step(Duration::from_millis(1), |_| None).await);
        assert!(child.try_wait().unwrap().is_none());
        assert!(ender.step(LIMIT, |_| Some(Signal::TERM)).await);
        let end = ender.into_result();
        assert_eq!((end.processes, end.survivors), (1, vec![]));
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn a_process_that_could_not_be_signalled_survives_until_it_ends() {
        let (mut child, roots) = start("not permitted");
        let scanner = ProcessScanner::new(VARIABLE);
        let refused = || {
            let mut ender = TreeEnder::new(&scanner, &roots);
            ender.not_permitted.extend(roots[0].leader());
            ender.into_result().survivors
        };
        assert_eq!(refused(), [child.id()]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(refused(), [0; 0]);
    }

    #[cfg(not(portable_processes))]
    #[tokio::test]
    async fn a_process_without_a_mark_gets_one_before_the_first_signal() {
        let (mut child, roots) = start("unmarked");
        let scanner = ProcessScanner::new(VARIABLE);
        let mut ender = TreeEnder::new(&scanner, &roots);
        assert!(!ender.scan_targets().await);
        let key = system::key_of(child.id()).unwrap();
        let marked = system::mark_if_current(key, roots[0].mark);
        assert_eq!(marked, Some(Marking::Unchanged));
        assert!(ender.kill(LIMIT).await);
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn a_reused_id_gets_no_signal() {
        let (mut child, _) = start("reused");
        let key = ProcessKey::of(child.id()).unwrap().unwrap();
        let earlier = ProcessKey {
            start_time: key.start_time - 1,
            ..key
        };
        assert!(Target::open(earlier, None).is_none());
        let by_id = Target {
            handle: None,
            signalled: None,
            frozen: false,
        };
        assert_eq!(by_id.send(earlier, Signal::KILL), Err(Errno::SRCH));
        assert!(child.try_wait().unwrap().is_none());
        let (target, _) = Target::open(key, None).unwrap();
        target.send(key, Signal::KILL).unwrap();
        child.wait().unwrap();
    }
}
