//! Ending what runs in panes, with all its children.

use std::{collections::BTreeSet, time::Duration};

use rustix::process::{Pid, Signal};
use tokio::time::Instant;

use crate::panes::PaneInfo;

/// How often processes are looked at while they end.
const LOOK: Duration = Duration::from_millis(10);
/// How long the kernel may take after a kill.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Ends the programs of panes: asks, waits for `grace`, kills. Returns what is still there.
pub(crate) async fn end(panes: &[PaneInfo], grace: Duration) -> Vec<u32> {
    let mut all = system::processes_of(panes);
    // The wrappers follow their programs by themselves. A pane without a program has only its own.
    let is_wrapper = |pid| panes.iter().any(|p| p.pid == pid && !p.launch.is_empty());
    let is_placeholder = |pid| panes.iter().any(|p| p.pid == pid && p.launch.is_empty());
    for &process in &all {
        if is_placeholder(process.pid) {
            process.signal(Signal::KILL);
        } else if !is_wrapper(process.pid) {
            process.signal(Signal::TERM);
        }
    }
    wait(&mut all, grace).await;
    // A program may have started others meanwhile, and one that was killed may have left some.
    let deadline = Instant::now() + KILL_LIMIT;
    loop {
        all.extend(system::processes_of(panes));
        all.retain(|process| process.is_alive());
        if all.is_empty() || Instant::now() >= deadline {
            return all.into_iter().map(|process| process.pid).collect();
        }
        all.iter().for_each(|process| process.signal(Signal::KILL));
        wait(&mut all, LOOK * 5).await;
    }
}

async fn wait(processes: &mut BTreeSet<Process>, limit: Duration) {
    let deadline = Instant::now() + limit;
    loop {
        processes.retain(|process| process.is_alive());
        if processes.is_empty() || Instant::now() >= deadline {
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// A process, and not a later one of the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Process {
    pid: u32,
    /// When it was started, in the system's own unit; 0 where that is not known.
    started: u64,
}

impl Process {
    fn raw(self) -> Option<Pid> {
        i32::try_from(self.pid).ok().and_then(Pid::from_raw)
    }
}

/// The processes of panes that have not ended.
fn running(panes: &[PaneInfo]) -> BTreeSet<u32> {
    let running = panes.iter().filter(|p| !p.dead && p.pid != 0);
    running.map(|p| p.pid).collect()
}

/// Adds to `found` all whose parents are in it.
fn descendants(parents: &[(u32, u32)], found: &mut BTreeSet<u32>) {
    loop {
        let before = found.len();
        for (pid, parent) in parents {
            if found.contains(parent) {
                found.insert(*pid);
            }
        }
        if found.len() == before {
            return;
        }
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::{collections::BTreeSet, fs};

    use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

    use super::{Process, descendants, running};
    use crate::panes::PaneInfo;

    impl Process {
        pub(super) fn signal(self, signal: Signal) {
            // Gone already is what is wanted. Looked at only when the descriptor holds it: then it
            // cannot become another.
            if let Some(pid) = self.raw()
                && let Ok(held) = pidfd_open(pid, PidfdFlags::empty())
                && self.is_alive()
            {
                let _ = pidfd_send_signal(held, signal);
            }
        }

        pub(super) fn is_alive(self) -> bool {
            Stat::of(self.pid).is_some_and(|stat| stat.state != 'Z' && stat.started == self.started)
        }
    }

    /// The processes of panes: descendants, and those that carry the launch's id in their
    /// environment, because agents start tools in sessions of their own that outlive their parents.
    pub(super) fn processes_of(panes: &[PaneInfo]) -> BTreeSet<Process> {
        let mut found = running(panes);
        let tags: Vec<Vec<u8>> = panes
            .iter()
            .filter(|p| !p.launch.is_empty())
            .map(|p| format!("TMUX_BUS_LAUNCH={}", p.launch).into_bytes())
            .collect();
        let (mut parents, mut living) = (Vec::new(), Vec::new());
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
            let Some(stat) = Stat::of(pid).filter(|stat| stat.state != 'Z') else {
                continue;
            };
            parents.push((pid, stat.parent));
            living.push(Process {
                pid,
                started: stat.started,
            });
            let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let mut variables = environ.split(|&b| b == 0);
            if variables.any(|var| tags.iter().any(|tag| tag == var)) {
                found.insert(pid);
            }
        }
        descendants(&parents, &mut found);
        living.retain(|process| found.contains(&process.pid));
        living.into_iter().collect()
    }

    pub(super) struct Stat {
        state: char,
        parent: u32,
        pub(super) started: u64,
    }

    impl Stat {
        pub(super) fn of(pid: u32) -> Option<Self> {
            let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The name in parentheses may have spaces and parentheses.
            let mut fields = text.rsplit_once(')')?.1.split_whitespace();
            Some(Self {
                state: fields.next()?.chars().next()?,
                parent: fields.next()?.parse().ok()?,
                started: fields.nth(17)?.parse().ok()?,
            })
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::{collections::BTreeSet, process::Command};

    use rustix::process::{Signal, kill_process, test_kill_process};

    use super::{Process, descendants, running};
    use crate::panes::PaneInfo;

    impl Process {
        pub(super) fn signal(self, signal: Signal) {
            if let Some(pid) = self.raw() {
                // Gone already is what is wanted.
                let _ = kill_process(pid, signal);
            }
        }

        pub(super) fn is_alive(self) -> bool {
            self.raw().is_some_and(|pid| test_kill_process(pid).is_ok())
        }
    }

    /// The processes of panes: their descendants.
    pub(super) fn processes_of(panes: &[PaneInfo]) -> BTreeSet<Process> {
        let mut found = running(panes);
        if let Ok(output) = Command::new("ps").args(["-A", "-o", "pid=,ppid="]).output() {
            let parents: Vec<(u32, u32)> = String::from_utf8_lossy(&output.stdout)
                .lines()
                .filter_map(|line| {
                    let mut numbers = line.split_whitespace();
                    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
                })
                .collect();
            descendants(&parents, &mut found);
        }
        let processes = found.into_iter().map(|pid| Process { pid, started: 0 });
        processes.filter(|process| process.is_alive()).collect()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_later_process_of_the_same_number_is_left_alone() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id();
        let started = system::Stat::of(pid).unwrap().started;
        let (it, another) = (
            Process { pid, started },
            Process {
                pid,
                started: started + 1,
            },
        );
        another.signal(Signal::KILL);
        assert!(it.is_alive() && !another.is_alive());
        it.signal(Signal::KILL);
        child.wait().unwrap();
        assert!(!it.is_alive());
    }
}
