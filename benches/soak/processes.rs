//! The processes of the machine, read from `/proc`.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Environment variable of every process of a run.
pub(crate) const RUN: &str = "SOAK_RUN";

/// A process and the value of an environment variable.
pub(crate) struct Tagged {
    pub(crate) pid: u32,
    pub(crate) value: String,
    pub(crate) command: String,
}

impl fmt::Display for Tagged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.command)
    }
}

/// All live processes with the variable in their environment.
pub(crate) fn tagged(variable: &str) -> Vec<Tagged> {
    let prefix = format!("{variable}=");
    all()
        .filter_map(|pid| {
            let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let mut variables = environ.split(|byte| *byte == 0);
            let value = variables.find_map(|text| text.strip_prefix(prefix.as_bytes()))?;
            let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            Some(Tagged {
                pid,
                value: String::from_utf8_lossy(value).into_owned(),
                command: String::from_utf8_lossy(&command).replace('\0', " "),
            })
        })
        .collect()
}

/// All live processes with the variable, grouped by its value.
pub(crate) fn by_value(variable: &str) -> BTreeMap<String, Vec<Tagged>> {
    let mut found: BTreeMap<String, Vec<Tagged>> = BTreeMap::new();
    for process in tagged(variable) {
        let value = process.value.clone();
        found.entry(value).or_default().push(process);
    }
    found
}

/// Kills the processes that are left of a run, and returns them.
pub(crate) fn end_all_tagged(run: &str) -> Vec<Tagged> {
    let mut ended: Vec<Tagged> = Vec::new();
    // Race: a process can fork before it is killed, so the list is read again.
    for _ in 0..50 {
        let mut left = tagged(RUN);
        left.retain(|process| process.value == run);
        if left.is_empty() {
            break;
        }
        left.iter().for_each(|process| kill(process.pid));
        left.retain(|process| ended.iter().all(|other| other.pid != process.pid));
        ended.extend(left);
        std::thread::sleep(Duration::from_millis(20));
    }
    ended
}

/// The children of a process.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let children = children.split_ascii_whitespace();
    children.filter_map(|pid| pid.parse().ok()).collect()
}

pub(crate) fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // The error that the process has ended is ignored.
    let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
}

fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}
