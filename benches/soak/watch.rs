//! The growth of long-lived processes.

use std::fmt;
use std::fs;
use std::time::Duration;

use crate::ledger::Ledger;

/// Minimum number of samples for a verdict.
const ENOUGH: usize = 80;

/// Tolerated growth of descriptors and threads, plus an eighth of their number: a host has more of
/// them while executions start and stop. A leak of one for each execution is several hundred in two
/// minutes.
const HANDLES: u64 = 8;

/// Takes a sample of each watched process every second.
pub(crate) fn sample_until_end(ledger: &Ledger) {
    while ledger.pace(Duration::from_secs(1)) {
        ledger.sample_watched();
    }
}

/// A process that lives as long as the run, and its samples.
pub(crate) struct Watched {
    name: String,
    pid: u32,
    rss_kb: u64,
    samples: Vec<Sample>,
}

/// Resident kilobytes, descriptors, threads.
type Sample = [u64; 3];

impl Watched {
    /// Tolerated growth of memory from the second to the last quarter of the run; the first quarter is
    /// warm-up. Allocators keep some freed memory. A leak of 100 bytes an operation at 100 operations a
    /// second is twice this limit in ten minutes.
    pub(crate) const RSS_KB: u64 = 3 << 10;

    pub(crate) const HEADER: &str = concat!(
        "long-lived process     memory (KB) of the second and last quarter",
        "     descriptors        threads"
    );

    pub(crate) fn new(name: &str, pid: u32, rss_kb: u64) -> Self {
        Self {
            name: name.to_owned(),
            pid,
            rss_kb,
            samples: Vec::new(),
        }
    }

    /// A process that has ended gives no sample. Its area checks whether it may end.
    pub(crate) fn sample(&mut self) {
        self.samples.extend(sample(self.pid));
    }

    /// The quantities that have grown too much.
    pub(crate) fn growth(&self) -> Vec<String> {
        if self.samples.len() < ENOUGH {
            return Vec::new();
        }
        let grown = ["KB of memory", "descriptors", "threads"]
            .iter()
            .enumerate();
        let grown = grown.filter_map(|(kind, what)| {
            let (second, last) = (self.median(1, kind), self.median(3, kind));
            let tolerance = match kind {
                0 => self.rss_kb,
                _ => HANDLES + second / 8,
            };
            let name = &self.name;
            (last > second + tolerance).then(|| {
                format!("{name} grew from {second} to {last} {what} (tolerance {tolerance})")
            })
        });
        grown.collect()
    }

    fn median(&self, quarter: usize, kind: usize) -> u64 {
        let length = self.samples.len();
        let samples = &self.samples[length * quarter / 4..length * (quarter + 1) / 4];
        let mut values: Vec<u64> = samples.iter().map(|sample| sample[kind]).collect();
        values.sort_unstable();
        values.get(values.len() / 2).copied().unwrap_or(0)
    }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [memory, handles, threads] =
            [0, 1, 2].map(|kind| (self.median(1, kind), self.median(3, kind)));
        write!(
            f,
            "{:<22} {:>18} {:>24} {:>9} {:>5} {:>8} {:>5}",
            self.name, memory.0, memory.1, handles.0, handles.1, threads.0, threads.1
        )
    }
}

fn sample(pid: u32) -> Option<Sample> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse().ok()
    };
    let handles = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
    Some([
        field("VmRSS:")?,
        u64::try_from(handles).ok()?,
        field("Threads:")?,
    ])
}
