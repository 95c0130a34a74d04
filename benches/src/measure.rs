//! What bench files need to know about times and processes.

use std::time::Duration;

/// The middle one of some times.
///
/// # Panics
///
/// If there are none.
pub fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times[times.len() / 2]
}

/// The resident memory of a process, in KiB.
///
/// # Panics
///
/// Without `/proc`, or if there is no such process.
pub fn resident_kib(pid: u32) -> f64 {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("resident memory is measured by {path}: {error}"));
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    kib.unwrap_or_else(|| panic!("{path} tells no VmRSS: the process has ended"))
}
