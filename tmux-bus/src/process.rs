//! Ending what runs in panes, with all its children.

use std::{collections::BTreeSet, time::Duration};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tokio::time::Instant;

use crate::panes::PaneInfo;

/// How often processes are looked at while they end.
const LOOK: Duration = Duration::from_millis(10);
/// How long the kernel may take after a kill.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Ends the programs of panes: asks, waits for `grace`, kills. Returns what is still there.
pub(crate) async fn end(panes: &[PaneInfo], grace: Duration) -> Vec<u32> {
    let wrappers: BTreeSet<u32> = panes
        .iter()
        .filter(|p| !p.dead && p.pid != 0)
        .map(|p| p.pid)
        .collect();
    let mut all = Tree::of(panes);
    // The wrappers follow their programs by themselves. A pane without a program has only its own.
    let asked: Vec<u32> = all
        .iter()
        .copied()
        .filter(|pid| !wrappers.contains(pid))
        .collect();
    asked.iter().for_each(|&pid| signal(pid, Signal::TERM));
    for pane in panes.iter().filter(|p| p.launch.is_empty()) {
        signal(pane.pid, Signal::KILL);
    }
    wait(&mut all, grace).await;
    // A program may have started others meanwhile, and one that was killed may have left some.
    let deadline = Instant::now() + KILL_LIMIT;
    loop {
        all.extend(Tree::of(panes));
        all.retain(|&pid| is_alive(pid));
        if all.is_empty() || Instant::now() >= deadline {
            return all.into_iter().collect();
        }
        all.iter().for_each(|&pid| signal(pid, Signal::KILL));
        wait(&mut all, LOOK * 5).await;
    }
}

async fn wait(pids: &mut BTreeSet<u32>, limit: Duration) {
    let deadline = Instant::now() + limit;
    loop {
        pids.retain(|&pid| is_alive(pid));
        if pids.is_empty() || Instant::now() >= deadline {
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // Gone already is what is wanted.
        let _ = kill_process(pid, signal);
    }
}

fn is_alive(pid: u32) -> bool {
    let alive = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .is_some_and(|pid| test_kill_process(pid).is_ok());
    alive && !is_zombie(pid)
}

struct Tree;

#[cfg(target_os = "linux")]
fn is_zombie(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state == 'Z')
}

#[cfg(target_os = "linux")]
fn stat(pid: u32) -> Option<(char, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may have spaces and parentheses.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

#[cfg(target_os = "linux")]
impl Tree {
    /// The processes of panes: descendants, and those that carry the launch's id in their
    /// environment, because agents start tools in sessions of their own that outlive their parents.
    fn of(panes: &[PaneInfo]) -> BTreeSet<u32> {
        let mut parents = Vec::new();
        let mut found: BTreeSet<u32> = panes
            .iter()
            .filter(|p| !p.dead && p.pid != 0)
            .map(|p| p.pid)
            .collect();
        let tags: Vec<Vec<u8>> = panes
            .iter()
            .filter(|p| !p.launch.is_empty())
            .map(|p| format!("TMUX_BUS_LAUNCH={}", p.launch).into_bytes())
            .collect();
        let Ok(entries) = std::fs::read_dir("/proc") else {
            return found;
        };
        for pid in entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        {
            if let Some((state, parent)) = stat(pid)
                && state != 'Z'
            {
                parents.push((pid, parent));
                let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                if environ
                    .split(|&b| b == 0)
                    .any(|var| tags.iter().any(|tag| tag == var))
                {
                    found.insert(pid);
                }
            }
        }
        descendants(&parents, &mut found);
        found.retain(|&pid| is_alive(pid));
        found
    }
}

#[cfg(not(target_os = "linux"))]
fn is_zombie(_pid: u32) -> bool {
    false
}

#[cfg(not(target_os = "linux"))]
impl Tree {
    /// The processes of panes: their descendants.
    fn of(panes: &[PaneInfo]) -> BTreeSet<u32> {
        let mut found: BTreeSet<u32> = panes
            .iter()
            .filter(|p| !p.dead && p.pid != 0)
            .map(|p| p.pid)
            .collect();
        let Ok(output) = std::process::Command::new("ps")
            .args(["-A", "-o", "pid=,ppid="])
            .output()
        else {
            return found;
        };
        let list = String::from_utf8_lossy(&output.stdout).into_owned();
        let parents: Vec<(u32, u32)> = list
            .lines()
            .filter_map(|line| {
                let mut numbers = line.split_whitespace();
                Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
            })
            .collect();
        descendants(&parents, &mut found);
        found.retain(|&pid| is_alive(pid));
        found
    }
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
