//! Other systems: processes through `ps` and `kill`.
//!
//! Weaker than Linux: environments, marks and start times are not shown, so a tree is the leader's
//! group and its descendants, and a process id that was reused between a scan and a signal cannot be
//! told from the process that had it before.

use std::collections::HashMap;
use std::io;
use std::process::Command;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Signal, test_kill_process};

use super::super::process_mark::ProcessMark;
use super::super::process_table::ProcessInfo;
use super::super::raw_pid;
use super::Marking;
use crate::shared::proc_stat::ProcessKey;

pub(crate) const HAS_MARKS: bool = false;
pub(in super::super) const START_TIMES_ARE_ORDERED: bool = false;

fn key(pid: u32) -> ProcessKey {
    ProcessKey { pid, start_time: 0 }
}

pub(crate) fn boot_id() -> io::Result<String> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn key_of(pid: u32) -> Option<ProcessKey> {
    is_current(key(pid)).then(|| key(pid))
}

/// Whether a process has the id. A zombie counts as alive.
pub(crate) fn is_alive(key: ProcessKey) -> bool {
    is_current(key)
}

/// Start times are not known.
pub(crate) fn start_time_now() -> u64 {
    0
}

/// Whether a process has the id.
fn is_current(key: ProcessKey) -> bool {
    raw_pid(key.pid).is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

/// Unknown: a process that we may not signal is told by the failure of the signal.
pub(in super::super) fn owner_of(_pid: u32) -> Option<u32> {
    None
}

pub(in super::super) fn signal_by_id(key: ProcessKey, signal: Signal) -> Result<(), Errno> {
    rustix::process::kill_process(raw_pid(key.pid).ok_or(Errno::SRCH)?, signal)
}

/// No limit can carry a mark.
#[derive(Clone, Copy)]
pub(crate) enum MarkLimit {}

impl MarkLimit {
    pub(in super::super) fn of(_mark: ProcessMark) -> Option<Self> {
        None
    }

    pub(crate) fn set_for_this_process(self) -> Result<(), Errno> {
        match self {}
    }
}

pub(in super::super) fn mark_if_current(
    key: ProcessKey,
    _mark: Option<ProcessMark>,
) -> Option<Marking> {
    is_current(key).then_some(Marking::Refused)
}

/// The output of one `ps`.
pub(in super::super) struct ProcessReader {
    processes: HashMap<u32, ProcessInfo>,
}

impl ProcessReader {
    pub(in super::super) fn new(_variable: &str, _since: u64) -> Self {
        Self {
            processes: HashMap::new(),
        }
    }

    pub(in super::super) fn list(&mut self) -> io::Result<Vec<(u32, u64)>> {
        let columns = ["-A", "-o", "pid=,ppid=,pgid=,stat="];
        let output = Command::new("ps").args(columns).output()?;
        if !output.status.success() {
            return Err(io::Error::other(format!("ps: {}", output.status)));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        self.processes = text
            .lines()
            .filter_map(parse_line)
            .map(|process| (process.key.pid, process))
            .collect();
        Ok(self.processes.keys().map(|pid| (*pid, 0)).collect())
    }

    pub(in super::super) fn read(
        &mut self,
        pid: u32,
        _known: Option<&ProcessInfo>,
    ) -> io::Result<Option<ProcessInfo>> {
        Ok(self.processes.get(&pid).cloned())
    }
}

fn parse_line(line: &str) -> Option<ProcessInfo> {
    let mut words = line.split_whitespace();
    let mut number = || words.next()?.parse().ok();
    let (pid, parent, group) = (number()?, number()?, number()?);
    let state = words.next()?;
    Some(ProcessInfo {
        key: key(pid),
        parent,
        group,
        session: 0,
        alive: !state.starts_with('Z'),
        stopped: state.starts_with('T'),
        cpu_time: Duration::ZERO,
        resident_bytes: 0,
        tag: None,
        mark: None,
    })
}

/// No handle: ends are seen by scans, signals go to the id.
pub(crate) struct ProcessHandle(std::convert::Infallible);

impl ProcessHandle {
    pub(crate) fn open(_pid: u32) -> io::Result<Option<Self>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) async fn ended(&self) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn send(&self, _signal: Signal) -> Result<(), Errno> {
        match self.0 {}
    }
}
