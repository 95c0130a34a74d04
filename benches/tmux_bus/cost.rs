//! The cost of an idle bus.

use super::*;

/// The processes of a bus, beside this one: the tmux server and our control client.
pub(crate) struct Bus {
    pub(crate) server: u32,
    pub(crate) client: u32,
}

impl Bus {
    pub(crate) fn of(panes: &Panes) -> Self {
        let ask = |args: &[&str]| {
            let found = tmux(&panes.socket, args);
            found.lines().next().unwrap().parse().unwrap()
        };
        Self {
            server: ask(&["display-message", "-p", "#{pid}"]),
            client: ask(&["list-clients", "-F", "#{client_pid}"]),
        }
    }

    /// The share of a core, in percent, that these processes, this one and its ended children use
    /// during `work`.
    pub(crate) fn share(&self, work: impl FnOnce()) -> f64 {
        let used = || {
            nanoseconds(self.server)
                + nanoseconds(self.client)
                + nanoseconds(std::process::id())
                + of_children()
        };
        let (before, start) = (used(), Instant::now());
        work();
        (used() - before) as f64 / start.elapsed().as_nanos() as f64 * 100.0
    }

    /// The resident memory, in MiB, of this process and its client.
    pub(crate) fn memory(&self) -> f64 {
        let kib: f64 = [self.client, std::process::id()]
            .map(resident_kib)
            .iter()
            .sum();
        kib / 1024.0
    }
}

/// The processor time of a process.
pub(crate) fn nanoseconds(pid: u32) -> u64 {
    let tasks =
        fs::read_dir(format!("/proc/{pid}/task")).expect("/proc is needed to measure idle cost");
    tasks
        .map(|task| {
            let path = task.unwrap().path().join("schedstat");
            let text = fs::read_to_string(path).unwrap_or_default();
            let first = text.split(' ').next().and_then(|n| n.parse::<u64>().ok());
            first.unwrap_or(0)
        })
        .sum()
}

/// The processor time of the ended children of this process, in steps of 10 ms.
pub(crate) fn of_children() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<u64> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .skip(1)
        .map(|n| n.parse().unwrap_or(0))
        .collect();
    (fields[12] + fields[13]) * 10_000_000
}
