//! The processes of this machine.
//!
//! # Theory
//!
//! `/proc` gives no snapshot: processes start and end while it is read. A scan lists the ids, then
//! reads the processes one by one. The stop loop needs less than a snapshot:
//!
//! **Invariant.** If a process of a tree is alive when [`ProcessTable::read`] returns, then the
//! tree in the table is not empty. (It may lack that very process; then the next scan has it.)
//!
//! Race: process P is listed, forks C and ends before it is read. C is not in the list and P is
//! not alive in the table, so the tree would look empty. So list again if a listed process turns
//! out to have ended when it is read. Why that is enough: let C be alive and in no list. C was
//! forked after the last listing, by a P that was alive then and so was listed. If P was read
//! alive, the tree has P. If P was read as ended, the scan listed again, so this was not the last listing.
//! (Processes that the previous scan knows are read before the listing. If one has ended, its
//! children are in the list. During a stop, that saves the second listing.)
//!
//! A machine that starts short-lived processes without pause could delay the last listing for ever. So
//! the scan gives up after `MAX_LISTINGS`, and the table says that the invariant does not hold
//! (`is_settled`): its processes can be signalled, but an empty tree in it proves nothing.
//!
//! Example: `sh` (P, id 40) runs `setsid tool &` and exits.
//!
//! | we | the machine |
//! |---|---|
//! | list: 1, 40 | |
//! | | 40 forks 41, 40 ends |
//! | read 40: zombie, so list again: 1, 40, 41 | |
//! | read 41: tagged, in the tree | |
//!
//! # Processes that are not read
//!
//! Listing a process costs a tenth of reading it, and most processes of a machine are older than
//! the tree that is looked for, so they cannot belong to it. The start time of a process is known
//! after its first read; while the inode of `/proc/<pid>` stays the same it is the same process
//! (the kernel drops the inode under memory pressure, which costs one more read), and it is not
//! read again by scans for younger trees. Median of 40 stops of a tree of seven processes, with
//! 90 system processes and these others on the machine:
//!
//! | others | time with the rule | without | CPU time with | without |
//! |---|---|---|---|---|
//! | 60 | 3.1 ms | 9.8 ms | 2.1 ms | 7.2 ms |
//! | 200 | 4.3 ms | 14 ms | 2.8 ms | 10 ms |
//! | 1,000 | 7.0 ms | 54 ms | 5.6 ms | 30 ms |
//!
//! A second rule, which also left out the processes of other trees, was dropped: it saved 1 ms of
//! a stop with ten trees on the machine and 5 ms with fifty, and took 200 lines.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::slice;
use std::time::Duration;

use super::process_mark::ProcessMark;
use super::system;
use super::tree_root::TreeRoot;
use crate::shared::proc_stat::ProcessKey;

/// How often the processes are listed in one scan.
const MAX_LISTINGS: usize = 20;

/// One process as a scan saw it.
#[derive(Clone, Debug)]
pub(crate) struct ProcessInfo {
    pub(crate) key: ProcessKey,
    pub(crate) parent: u32,
    pub(crate) group: u32,
    pub(crate) session: u32,
    /// Neither a zombie nor gone.
    pub(crate) alive: bool,
    /// By a signal, until `CONT`.
    pub(crate) stopped: bool,
    /// Zero for a process of another user on macOS.
    pub(crate) cpu_time: Duration,
    pub(crate) resident_bytes: u64,
    /// The value of the tag variable in its environment.
    pub(crate) tag: Option<String>,
    pub(crate) mark: Option<ProcessMark>,
}

/// The result of one scan.
#[derive(Debug, Default)]
pub(crate) struct ProcessTable {
    since: u64,
    is_settled: bool,
    /// Processes that started at `since` or later.
    processes: HashMap<u32, ProcessInfo>,
    older: HashMap<u32, OlderProcess>,
}

/// A process that started before `since`.
#[derive(Clone, Copy, Debug)]
struct OlderProcess {
    inode: u64,
    start_time: u64,
}

impl ProcessTable {
    /// Scans the machine. Leaves out processes that started before `since` or end during the scan.
    /// Any other failure is an error: with an incomplete table a stop would believe that nothing is
    /// left.
    pub(crate) fn read(variable: &str, since: u64, previous: &Self) -> io::Result<Self> {
        let mut reader = system::ProcessReader::new(variable, since);
        let mut table = Self {
            since,
            ..Self::default()
        };
        for (&pid, known) in &previous.processes {
            if known.key.start_time >= since
                && let Some(process) = reader.read(pid, Some(known))?
                && process.key == known.key
            {
                table.processes.insert(pid, process);
            }
        }
        let mut ended = HashSet::new();
        for _ in 0..MAX_LISTINGS {
            let mut list_again = false;
            for (pid, inode) in reader.list()? {
                if table.processes.contains_key(&pid) || table.older.contains_key(&pid) {
                    continue;
                }
                if let Some(older) = previous.older_than(since, pid, inode) {
                    table.older.insert(pid, older);
                    continue;
                }
                let Some(process) = reader.read(pid, None)? else {
                    list_again |= ended.insert(pid);
                    continue;
                };
                let start_time = process.key.start_time;
                if start_time < since {
                    table.older.insert(pid, OlderProcess { inode, start_time });
                    continue;
                }
                list_again |= !process.alive;
                table.processes.insert(pid, process);
            }
            if !list_again {
                table.is_settled = true;
                break;
            }
        }
        Ok(table)
    }

    /// Whether an empty tree in this table has no process; see the theory above.
    pub(super) fn is_settled(&self) -> bool {
        self.is_settled
    }

    pub(super) fn since(&self) -> u64 {
        self.since
    }

    fn older_than(&self, since: u64, pid: u32, inode: u64) -> Option<OlderProcess> {
        let older = self.older.get(&pid)?;
        (older.inode == inode && older.start_time < since).then_some(*older)
    }

    /// The living processes of these trees, parents before their children. `found`: the
    /// processes that earlier scans found.
    ///
    /// Never this process or one of its ancestors: an executor may run inside an execution. In the
    /// other direction, an execution whose executor belongs to the tree belongs to the tree as a
    /// whole: its processes have a tag and a mark of their own, and those that have lost their
    /// parents are found by these. Example: agent 40 runs an executor 41, which runs agent 42 with
    /// the tag T. A tool 43 of agent 42 was started by a double fork. 41 and 42 are found by their
    /// parents, 43 by the tag T of 42. A tag counts only if the process also has the mark of that
    /// tag: a program can copy the environment of another execution, which is none of ours. So on a
    /// system without marks, inner executions are found by their parents, groups and sessions only.
    pub(crate) fn tree(
        &self,
        roots: &[TreeRoot],
        found: &HashSet<ProcessKey>,
    ) -> Vec<&ProcessInfo> {
        // The id and the group of a leader mean something only while the leader exists, if only
        // as a zombie. Afterwards both may belong to an unrelated process.
        let leaders: HashSet<u32> = roots
            .iter()
            .filter_map(TreeRoot::leader)
            .filter(|leader| self.contains(*leader))
            .map(|leader| leader.pid)
            .collect();
        let mut tags: HashSet<&str> = roots
            .iter()
            .filter_map(|root| root.tag.as_deref())
            .collect();
        let mut marks: HashSet<ProcessMark> = roots.iter().filter_map(|root| root.mark).collect();
        let memories: Vec<_> = roots.iter().map(TreeRoot::memory).collect();
        let is_leader = |process: &&ProcessInfo| leaders.contains(&process.key.pid);
        let is_seed = |process: &&ProcessInfo| {
            leaders.contains(&process.group)
                || found.contains(&process.key)
                || memories.iter().any(|memory| memory.has(process))
                || process.tag.as_deref().is_some_and(|tag| tags.contains(tag))
                || process.mark.is_some_and(|mark| marks.contains(&mark))
        };
        let mut children: HashMap<u32, Vec<&ProcessInfo>> = HashMap::new();
        for process in self.processes.values() {
            children.entry(process.parent).or_default().push(process);
        }
        let mut seen = self.own_ancestors();
        let mut queue: VecDeque<&ProcessInfo> = VecDeque::new();
        queue.extend(self.processes.values().filter(is_leader));
        queue.extend(self.processes.values().filter(is_seed));
        let mut tree = Vec::new();
        while let Some(process) = queue.pop_front() {
            if !seen.insert(process.key.pid) {
                continue;
            }
            if process.alive {
                tree.push(process);
            }
            queue.extend(children.get(&process.key.pid).into_iter().flatten());
            if let Some(inner) = &process.tag
                && !tags.contains(&**inner)
            {
                let mark = ProcessMark::of(inner);
                if process.mark != Some(mark) {
                    continue;
                }
                tags.insert(inner);
                marks.insert(mark);
                queue.extend(self.processes.values().filter(|process| {
                    process.tag.as_ref() == Some(inner) || process.mark == Some(mark)
                }));
            }
        }
        tree
    }

    /// Keeps the processes of a tree for later scans; see `tree_memory.rs`. Without effect on a system
    /// with marks.
    pub(super) fn remember(&self, root: &TreeRoot) {
        if system::HAS_MARKS {
            return;
        }
        let tree = self.tree(slice::from_ref(root), &HashSet::new());
        root.memory().update(&tree, |pid| {
            self.processes
                .get(&pid)
                .map(|process| process.key.start_time)
        });
    }

    fn contains(&self, key: ProcessKey) -> bool {
        self.processes
            .get(&key.pid)
            .is_some_and(|process| process.key == key)
    }

    /// This process and its ancestors, up to one that is older than the table.
    fn own_ancestors(&self) -> HashSet<u32> {
        let mut ancestors = HashSet::new();
        let mut pid = std::process::id();
        while ancestors.insert(pid) {
            match self.processes.get(&pid) {
                Some(process) => pid = process.parent,
                None => break,
            }
        }
        ancestors
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use super::*;

    const VARIABLE: &str = "PROCESS_TABLE_TEST";

    /// A shell that is killed at the latest when the test ends.
    struct Shell(Child);

    impl Shell {
        /// Starts a shell and waits for its first line.
        fn start(script: &str, tag: Option<&str>) -> Self {
            let child = Command::new("sh")
                .args(["-c", script])
                .envs(tag.map(|tag| (VARIABLE, unique(tag))))
                .process_group(0)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn();
            let mut shell = Self(child.unwrap());
            shell.line();
            shell
        }

        fn key(&self) -> ProcessKey {
            ProcessKey::of(self.0.id()).unwrap().unwrap()
        }

        fn line(&mut self) -> String {
            let mut line = String::new();
            // Byte by byte: nothing of the next line is taken.
            let stdout = self.0.stdout.as_mut().unwrap();
            BufReader::with_capacity(1, stdout)
                .read_line(&mut line)
                .unwrap();
            line.trim_end().to_owned()
        }

        fn go_on(&mut self) {
            self.0.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
            self.line();
        }
    }

    impl Drop for Shell {
        fn drop(&mut self) {
            let group = super::super::raw_pid(self.0.id()).unwrap();
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            let _ = self.0.wait();
        }
    }

    fn scan(since: u64, previous: &ProcessTable) -> ProcessTable {
        ProcessTable::read(VARIABLE, since, previous).unwrap()
    }

    #[test]
    fn an_inner_execution_belongs_to_the_tree_as_a_whole() {
        let (outer, inner) = (unique("outer"), unique("inner"));
        let process = |pid, parent, tag: Option<&str>, mark| {
            let process = ProcessInfo {
                key: ProcessKey { pid, start_time: 1 },
                parent,
                group: pid,
                session: pid,
                alive: true,
                stopped: false,
                cpu_time: Duration::ZERO,
                resident_bytes: 0,
                tag: tag.map(str::to_owned),
                mark,
            };
            (pid, process)
        };
        let table = ProcessTable {
            processes: HashMap::from([
                process(40, 1, Some(&outer), None),
                process(41, 40, Some(&outer), None),
                process(42, 41, Some(&inner), Some(ProcessMark::of(&inner))),
                process(43, 1, Some(&inner), None),
                process(44, 1, None, Some(ProcessMark::of(&inner))),
                process(45, 1, None, Some(ProcessMark::of(&outer))),
                process(46, 45, None, None),
                process(47, 1, None, Some(ProcessMark::of("another"))),
                process(48, 1, Some("another"), None),
                process(49, 40, Some("another"), Some(ProcessMark::of(&outer))),
            ]),
            ..ProcessTable::default()
        };
        let tree = |tag: &String| {
            let root = TreeRoot::recorded(Some(tag.clone()), None);
            let mut tree = pids(table.tree(&[root], &HashSet::new()));
            tree.sort_unstable();
            tree
        };
        assert_eq!(tree(&outer), [40, 41, 42, 43, 44, 45, 46, 49]);
        assert_eq!(tree(&inner), [42, 43, 44]);
    }

    fn pids(tree: Vec<&ProcessInfo>) -> Vec<u32> {
        tree.into_iter().map(|process| process.key.pid).collect()
    }

    fn by_tag(tag: &str) -> TreeRoot {
        TreeRoot::recorded(Some(unique(tag)), None)
    }

    /// Another run of these tests may be under way: of another crate, or in another checkout.
    fn unique(tag: &str) -> String {
        format!("{tag}-{}", std::process::id())
    }

    #[test]
    fn this_process_is_in_the_table_but_in_no_tree() {
        let table = scan(0, &ProcessTable::default());
        let own = ProcessKey::of(std::process::id()).unwrap().unwrap();
        assert!(table.contains(own));
        let root = TreeRoot::recorded(None, Some(own));
        let tree = table.tree(&[root], &HashSet::from([own]));
        assert!(!pids(tree).contains(&own.pid));
    }

    #[test]
    fn a_reused_id_is_not_the_leader() {
        let shell = Shell::start("echo; read end", None);
        let key = shell.key();
        let reused = ProcessKey {
            start_time: key.start_time + 1,
            ..key
        };
        let table = scan(0, &ProcessTable::default());
        let tree = |leader| {
            let root = TreeRoot::recorded(None, Some(leader));
            pids(table.tree(&[root], &HashSet::new()))
        };
        assert_eq!((tree(key), tree(reused)), (vec![key.pid], vec![]));
    }

    #[cfg(not(portable_processes))]
    #[test]
    fn a_tree_has_the_group_the_tagged_the_found_and_their_descendants() {
        // Both children leave the group, the second one its tag as well. The end of their input
        // ends them.
        let script = "exec 3<&0; echo; setsid sh -c 'echo $$; cat' <&3 & \
                      env -i setsid sh -c 'echo $$; cat' <&3 & wait";
        let mut shell = Shell::start(script, Some("a tree"));
        let (leader, mut members) = (shell.key(), vec![shell.0.id()]);
        members.extend([shell.line(), shell.line()].map(|pid| pid.parse::<u32>().unwrap()));
        members.sort_unstable();
        let table = scan(0, &ProcessTable::default());
        let check = |root: TreeRoot, found: &[ProcessKey], expected: &[u32]| {
            let found = found.iter().copied().collect();
            let mut tree = pids(table.tree(&[root], &found));
            tree.retain(|pid| members.contains(pid));
            tree.sort_unstable();
            assert_eq!(tree, expected, "{members:?}");
        };
        check(TreeRoot::recorded(None, Some(leader)), &[], &members);
        check(by_tag("a tree"), &[], &members);
        check(TreeRoot::recorded(None, None), &[leader], &members);
        let child = ProcessKey::of(members[2]).unwrap().unwrap();
        check(TreeRoot::recorded(None, None), &[child], &members[2..]);
        check(TreeRoot::recorded(None, None), &[], &[]);
    }

    #[test]
    fn a_process_that_is_older_than_the_tree_is_read_once() {
        let shell = Shell::start("echo; read end", None);
        let key = shell.key();
        let first = scan(key.start_time + 1, &ProcessTable::default());
        assert!(first.older.contains_key(&key.pid) && !first.contains(key));

        // A wrong start time shows that the second scan did not read the process.
        let mut marked = scan(key.start_time + 1, &first);
        marked.older.get_mut(&key.pid).unwrap().start_time = 1;
        let second = scan(key.start_time + 1, &marked);
        assert_eq!(second.older[&key.pid].start_time, 1);

        // Another inode is another process.
        marked.older.get_mut(&key.pid).unwrap().inode += 1;
        let third = scan(key.start_time + 1, &marked);
        assert_eq!(third.older[&key.pid].start_time, key.start_time);
        // A scan for an older tree includes it.
        assert!(scan(key.start_time, &third).contains(key));
    }

    #[cfg(not(portable_processes))]
    #[test]
    fn a_process_that_gets_the_tag_after_a_scan_is_found_by_the_next() {
        let tag = unique("late");
        let script = format!("echo; read go; export {VARIABLE}={tag}; exec sh -c 'echo; read end'");
        let mut shell = Shell::start(&script, None);
        let since = shell.key().start_time;
        let tree = |table: &ProcessTable| pids(table.tree(&[by_tag("late")], &HashSet::new()));

        let before = scan(since, &ProcessTable::default());
        assert!(tree(&before).is_empty());
        shell.go_on();
        assert_eq!(tree(&scan(since, &before)), [shell.0.id()]);
    }

    #[cfg(not(portable_processes))]
    #[test]
    fn a_process_that_clears_its_environment_after_a_scan_keeps_its_tag() {
        let script = "echo; read go; exec env -i sh -c 'echo; read end'";
        let mut shell = Shell::start(script, Some("early"));
        let since = shell.key().start_time;
        let tree = |table: &ProcessTable| pids(table.tree(&[by_tag("early")], &HashSet::new()));

        let before = scan(since, &ProcessTable::default());
        shell.go_on();
        assert_eq!(tree(&scan(since, &before)), [shell.0.id()]);
        assert!(tree(&scan(since, &ProcessTable::default())).is_empty());
    }
}
