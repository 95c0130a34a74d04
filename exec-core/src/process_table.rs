//! What runs on this machine, and which of it belongs to an execution.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use std::os::unix::fs::DirEntryExt;
use std::sync::OnceLock;

use uuid::Uuid;

use crate::process::{PIECE, Process, ProcessKey, process_key, read_process};

/// A process with more ancestors than this, up to one that is older than the execution that is
/// looked for, is read each time.
const LONGEST_LINE: usize = 64;

/// Of no folder.
const UNKNOWN_INODE: u64 = 0;

/// What identifies the processes of one execution.
#[derive(Debug)]
pub(crate) struct TreeRoot {
    pub(crate) tag: Uuid,
    /// The process that was started, which leads the group. Only as long as it is known to be
    /// that process (alive with this start time, or a zombie that only we can reap) do its id and
    /// its group mean anything.
    leader: OnceLock<Option<ProcessKey>>,
    child: Option<u32>,
}

impl TreeRoot {
    /// Of a child of ours that has not been reaped.
    pub(crate) fn new(tag: Uuid, child: u32) -> Self {
        Self {
            tag,
            leader: OnceLock::new(),
            child: Some(child),
        }
    }

    /// Of a process that was started by another host, perhaps long ago.
    pub(crate) fn of_stranger(tag: Uuid, leader: Option<ProcessKey>) -> Self {
        Self {
            tag,
            leader: OnceLock::from(leader),
            child: None,
        }
    }

    /// Looked up when it is first needed, which is after the launch: the look costs a tenth of a
    /// spawn, and the number is the child's own until it is reaped.
    pub(crate) fn leader(&self) -> Option<ProcessKey> {
        *self.leader.get_or_init(|| {
            process_key(self.child?).unwrap_or_else(|error| {
                tracing::error!(%error, "cannot read the start time of the child");
                None
            })
        })
    }
}

/// What a table is read for: the processes of these executions are in it, and up to date.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    tags: HashSet<Uuid>,
    groups: HashSet<u32>,
    /// Their leaders, and whoever has been found to be one of theirs.
    members: HashSet<ProcessKey>,
    /// When the first of them was started.
    since: u64,
}

impl Wanted {
    pub(crate) fn tree(root: &TreeRoot, found: &HashSet<ProcessKey>) -> Self {
        let leader = root.leader();
        Self {
            tags: HashSet::from([root.tag]),
            groups: leader.iter().map(|leader| leader.pid).collect(),
            members: leader.iter().chain(found).copied().collect(),
            since: leader.map_or(0, |leader| leader.start_time),
        }
    }

    pub(crate) fn also(&mut self, other: &Self) {
        self.tags.extend(&other.tags);
        self.groups.extend(&other.groups);
        self.members.extend(&other.members);
        self.since = self.since.min(other.since);
    }

    /// Whether a process, as it was when it was read, is one that a tree grows from.
    fn has(&self, process: &Process) -> bool {
        process.tag.is_some_and(|tag| self.tags.contains(&tag))
            || self.groups.contains(&process.group)
            || self.members.contains(&process.key)
    }
}

/// All processes at one moment.
#[derive(Debug, Default)]
pub(crate) struct ProcessTable {
    processes: HashMap<u32, Process>,
    /// Those that an earlier look has read and that belong to none of the executions this one is
    /// for. What is said of them here may be out of date.
    strangers: HashMap<u32, Process>,
}

impl ProcessTable {
    /// Reads the table. A process that ends meanwhile is left out; any other failure is an error,
    /// because a table with holes would make a stop believe that nothing is left.
    ///
    /// Processes that started before `since` are not searched for a tag: theirs is none of ours.
    ///
    /// Most processes of a machine have nothing to do with a stop, and to read one costs ten times
    /// as much as to list it. So those that `previous` shows to be strangers are not read again.
    pub(crate) fn read(since: u64, wanted: &Wanted, previous: &Self) -> io::Result<Self> {
        let mut buffer = vec![0; PIECE];
        let mut table = Self::default();
        // One that ends after it was listed and before it was read may have started others, which
        // are not in that list: so lists are read until one has nobody new. Whoever is expected to
        // be there is read before the first, so that it may be the only one.
        let members = wanted.members.iter().map(|key| &key.pid);
        for &pid in previous.processes.keys().chain(members) {
            let known = previous.known(pid);
            let is_stranger =
                known.is_some_and(|known| previous.is_stranger(known, wanted, |_| true));
            if is_stranger || table.processes.contains_key(&pid) {
                continue;
            }
            let inode = known.map_or(UNKNOWN_INODE, |known| known.inode);
            if let Some(process) = read_process(pid, inode, since, known, &mut buffer)? {
                table.processes.insert(pid, process);
            }
        }
        let mut gone = HashSet::new();
        loop {
            let mut somebody_new = false;
            let listed = list()?;
            let is_listed = |known: &Process| listed.get(&known.key.pid) == Some(&known.inode);
            table.strangers.clear();
            for (&pid, &inode) in &listed {
                if table.processes.contains_key(&pid) {
                    continue;
                }
                let known = previous.known(pid);
                if let Some(known) = known
                    && previous.is_stranger(known, wanted, is_listed)
                {
                    table.strangers.insert(pid, known.clone());
                    continue;
                }
                somebody_new |= !gone.contains(&pid);
                match read_process(pid, inode, since, known, &mut buffer)? {
                    Some(process) => drop(table.processes.insert(pid, process)),
                    None => drop(gone.insert(pid)),
                }
            }
            if !somebody_new {
                return Ok(table);
            }
        }
    }

    /// Whether a process is of none of the trees that are wanted and cannot get into one: older
    /// than they are; or of another execution, with a line of ancestors that are so up to one that
    /// is older. Its parent changes only when that one ends, and then to another of that line.
    ///
    /// Who has no tag may still get one: a server that starts something for an agent forks, and
    /// takes over the agent's environment only with the exec.
    fn is_stranger(
        &self,
        process: &Process,
        wanted: &Wanted,
        is_still_there: impl Fn(&Process) -> bool,
    ) -> bool {
        let mut line = Some(process);
        // Parents that were read at different moments could form a circle.
        for _ in 0..LONGEST_LINE {
            let Some(process) = line.filter(|process| is_still_there(process)) else {
                return false;
            };
            if process.key.start_time < wanted.since {
                return true;
            }
            if process.tag.is_none() || wanted.has(process) {
                return false;
            }
            line = self.known(process.parent);
        }
        false
    }

    fn known(&self, pid: u32) -> Option<&Process> {
        self.processes.get(&pid).or(self.strangers.get(&pid))
    }

    /// The living processes of an execution, parents before their children: the leader with its
    /// group, every process that carries the tag, every one of `known`, and all their descendants.
    ///
    /// Never this process itself or one of its ancestors, whatever they carry.
    pub(crate) fn tree(&self, root: &TreeRoot, known: &HashSet<ProcessKey>) -> Vec<&Process> {
        let leader = root.leader().filter(|leader| self.has(*leader));
        let is_leader = |process: &Process| leader == Some(process.key);
        let is_seed = |process: &Process| {
            leader.is_some_and(|leader| process.group == leader.pid)
                || process.tag == Some(root.tag)
                || known.contains(&process.key)
        };
        let mut children: HashMap<u32, Vec<&Process>> = HashMap::new();
        for process in self.processes.values() {
            children.entry(process.parent).or_default().push(process);
        }
        let mut seen = self.own_line();
        let mut queue: VecDeque<&Process> = VecDeque::new();
        queue.extend(self.processes.values().filter(|process| is_leader(process)));
        queue.extend(self.processes.values().filter(|process| is_seed(process)));
        let mut tree = Vec::new();
        while let Some(process) = queue.pop_front() {
            if !seen.insert(process.key.pid) {
                continue;
            }
            if process.alive {
                tree.push(process);
            }
            queue.extend(children.get(&process.key.pid).into_iter().flatten());
        }
        tree
    }

    fn has(&self, key: ProcessKey) -> bool {
        self.processes
            .get(&key.pid)
            .is_some_and(|process| process.key == key)
    }

    /// This process and its ancestors.
    fn own_line(&self) -> HashSet<u32> {
        let mut line = HashSet::new();
        let mut pid = std::process::id();
        while line.insert(pid) {
            match self.known(pid) {
                Some(process) => pid = process.parent,
                None => break,
            }
        }
        line
    }
}

/// The processes that are there, by their numbers, with the inodes of their folders.
fn list() -> io::Result<BTreeMap<u32, u64>> {
    let mut listed = BTreeMap::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        if let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        {
            listed.insert(pid, entry.ino());
        }
    }
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::process::TAG_VARIABLE;

    /// A shell that is killed at the latest when the test ends.
    struct Shell(Child);

    impl Shell {
        /// Starts one that is younger than this process, and waits for its first line.
        fn start(script: &str, tag: Option<Uuid>) -> Self {
            let own = process_key(std::process::id()).unwrap().unwrap();
            loop {
                let mut command = Command::new("sh");
                command
                    .args(["-c", script])
                    .env_remove(TAG_VARIABLE)
                    .process_group(0)
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped());
                if let Some(tag) = tag {
                    command.env(TAG_VARIABLE, tag.to_string());
                }
                let mut shell = Self(command.spawn().unwrap());
                shell.line();
                if shell.key().start_time > own.start_time {
                    return shell;
                }
            }
        }

        fn key(&self) -> ProcessKey {
            process_key(self.0.id()).unwrap().unwrap()
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
    }

    impl Drop for Shell {
        fn drop(&mut self) {
            // Its children as well: it leads a group.
            let group = crate::pidfd::raw_pid(self.0.id()).unwrap();
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            let _ = self.0.wait();
        }
    }

    fn wanted(tag: Uuid, since: u64) -> Wanted {
        Wanted {
            tags: HashSet::from([tag]),
            groups: HashSet::new(),
            members: HashSet::new(),
            since,
        }
    }

    fn everything() -> ProcessTable {
        let nobody = wanted(Uuid::new_v4(), 0);
        ProcessTable::read(0, &nobody, &ProcessTable::default()).unwrap()
    }

    /// Whether a second look leaves the process out.
    #[track_caller]
    fn left_out(key: ProcessKey, wanted: &Wanted, previous: &ProcessTable) -> bool {
        assert!(previous.has(key));
        let table = ProcessTable::read(0, wanted, previous).unwrap();
        assert_ne!(
            table.has(key),
            table.strangers.contains_key(&key.pid),
            "{key:?} is not in the table"
        );
        !table.has(key)
    }

    #[test]
    fn this_process_is_in_the_table_but_never_in_a_tree() {
        let table = everything();
        let own = process_key(std::process::id()).unwrap().unwrap();
        assert!(table.has(own));
        let root = TreeRoot::of_stranger(Uuid::new_v4(), Some(own));
        let known = HashSet::from([own]);
        assert!(
            table
                .tree(&root, &known)
                .iter()
                .all(|process| process.key != own)
        );
    }

    #[test]
    fn a_recycled_id_is_not_the_leader() {
        let shell = Shell::start("echo; read end", None);
        let key = shell.key();
        let recycled = ProcessKey {
            start_time: key.start_time + 1,
            ..key
        };
        let table = everything();
        let tree = |leader| {
            let root = TreeRoot::of_stranger(Uuid::new_v4(), Some(leader));
            table.tree(&root, &HashSet::new()).len()
        };
        assert_eq!((tree(key), tree(recycled)), (1, 0));
    }

    #[test]
    fn only_what_is_older_than_the_execution_is_a_stranger_by_its_age() {
        let shell = Shell::start("echo; read end", None);
        let (key, previous) = (shell.key(), everything());
        let since = |since| wanted(Uuid::new_v4(), since);
        assert!(left_out(key, &since(key.start_time + 1), &previous));
        assert!(!left_out(key, &since(key.start_time), &previous));
    }

    #[test]
    fn what_another_execution_has_started_is_a_stranger_unless_it_is_within_this_one() {
        let [outer, inner, other] = [(); 3].map(|()| Uuid::new_v4());
        let script = format!("echo; {TAG_VARIABLE}={inner} sh -c 'echo $$; exec sleep 60' & wait");
        let mut shell = Shell::start(&script, Some(outer));
        let inner_shell = process_key(shell.line().parse().unwrap()).unwrap().unwrap();
        let (shell, previous) = (shell.key(), everything());
        let since = shell.start_time;

        for key in [shell, inner_shell] {
            assert!(left_out(key, &wanted(other, since), &previous));
            assert!(!left_out(key, &wanted(outer, since), &previous));
        }
        assert!(!left_out(inner_shell, &wanted(inner, since), &previous));

        let of_group = Wanted {
            groups: HashSet::from([shell.pid]),
            ..wanted(other, since)
        };
        let found_before = Wanted {
            members: HashSet::from([shell]),
            ..wanted(other, since)
        };
        for key in [shell, inner_shell] {
            assert!(!left_out(key, &of_group, &previous));
            assert!(!left_out(key, &found_before, &previous));
        }
    }

    #[test]
    fn a_number_that_was_given_to_another_process_is_looked_at() {
        let shell = Shell::start("echo; read end", None);
        let (key, mut previous) = (shell.key(), everything());
        let later = wanted(Uuid::new_v4(), key.start_time + 1);
        assert!(left_out(key, &later, &previous));
        previous.processes.get_mut(&key.pid).unwrap().inode += 1;
        assert!(!left_out(key, &later, &previous));
    }

    #[test]
    fn who_gets_the_tag_after_a_look_is_found_by_the_next() {
        let tag = Uuid::new_v4();
        let script =
            format!("echo; read go; export {TAG_VARIABLE}={tag}; exec sh -c 'echo; read end'");
        let mut shell = Shell::start(&script, None);
        let root = TreeRoot::of_stranger(tag, None);
        let since = wanted(tag, shell.key().start_time);
        let look = |previous: &ProcessTable| ProcessTable::read(0, &since, previous).unwrap();
        let in_tree = |table: &ProcessTable| table.tree(&root, &HashSet::new()).len();

        let before = look(&everything());
        assert_eq!(in_tree(&before), 0);
        shell.0.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        shell.line();
        assert_eq!(in_tree(&look(&before)), 1);
    }
}
