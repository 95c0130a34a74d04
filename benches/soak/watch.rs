//! The long-lived processes: none may grow.

use std::fmt;
use std::fs;
use std::time::Duration;

use crate::ledger::Ledger;

/// Of fewer samples nothing can be said.
const ENOUGH: usize = 80;

/// Memory may be that much higher in the last quarter of the run than in the second (the first
/// is warm-up): allocators keep some of what was freed, and a leak of 100 bytes for each of a
/// hundred operations a second is twice of it in ten minutes.
const RSS_KB: u64 = 3 << 10;

/// And so may descriptors and threads, and by an eighth: a host has more of them while it starts
/// and stops. A leak of one for each execution is several hundreds in two minutes.
const HANDLES: u64 = 8;

/// Takes samples every second.
pub(crate) fn sample_until_end(ledger: &Ledger) {
    while ledger.pace(Duration::from_secs(1)) {
        ledger.sample_watched();
    }
}

/// A process that lives as long as the run, and how it was each second.
pub(crate) struct Watched {
    name: String,
    pid: u32,
    samples: Vec<Sample>,
}

/// Resident kilobytes, descriptors, threads.
type Sample = [u64; 3];

impl Watched {
    pub(crate) const HEADER: &str = concat!(
        "long-lived process     memory (KB) of the second and last quarter",
        "     descriptors        threads"
    );

    pub(crate) fn new(name: &str, pid: u32) -> Self {
        Self {
            name: name.to_owned(),
            pid,
            samples: Vec::new(),
        }
    }

    /// One that has just ended gives no sample; whether it should have is its area's affair.
    pub(crate) fn sample(&mut self) {
        self.samples.extend(sample(self.pid));
    }

    /// What has grown too much.
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
                0 => RSS_KB,
                _ => HANDLES + second / 8,
            };
            let name = &self.name;
            (last > second + tolerance).then(|| {
                format!("{name} grew from {second} to {last} {what} (+{tolerance} are fine)")
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
