//! Processes through `ps` and `kill`, for systems without `/proc`.
//!
//! Weaker than Linux: environments and start times are not shown, so a tree is the leader's group
//! and its descendants, and a process id that was reused between a scan and a signal cannot be
//! told from the process that had it before.

use std::collections::HashMap;
use std::io;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Signal, test_kill_process};

use super::process_table::ProcessInfo;
use super::raw_pid;
use crate::shared::proc_stat::ProcessKey;

fn key(pid: u32) -> ProcessKey {
    ProcessKey { pid, start_time: 0 }
}

pub(super) fn key_of(pid: u32) -> Option<ProcessKey> {
    is_current(key(pid)).then(|| key(pid))
}

/// Whether a process has the id.
pub(super) fn is_current(key: ProcessKey) -> bool {
    raw_pid(key.pid).is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

/// Unknown: a process that we may not signal is told by the failure of the signal.
pub(super) fn owner_of(_pid: u32) -> Option<u32> {
    None
}

/// The output of one `ps`.
pub(super) struct ProcessReader {
    processes: HashMap<u32, ProcessInfo>,
}

impl ProcessReader {
    pub(super) fn new(_variable: &str, _since: u64) -> Self {
        Self {
            processes: HashMap::new(),
        }
    }

    pub(super) fn list(&mut self) -> io::Result<Vec<(u32, u64)>> {
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

    pub(super) fn read(
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
    Some(ProcessInfo {
        key: key(pid),
        parent,
        group,
        alive: !words.next()?.starts_with('Z'),
        cpu_ticks: 0,
        resident_pages: 0,
        tag: None,
    })
}

/// No descriptor: ends are seen by scans, signals go to the id.
pub(crate) struct Pidfd(std::convert::Infallible);

impl Pidfd {
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
