//! Helpers of several bench files.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

/// A temporary folder on disk. `/tmp` is in memory on many systems, where a sync costs nothing.
///
/// # Panics
///
/// If the folder cannot be created.
pub fn scratch() -> TempDir {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let made = std::fs::create_dir_all(&target).and_then(|()| tempfile::tempdir_in(&target));
    made.unwrap_or_else(|error| panic!("cannot create a folder in {}: {error}", target.display()))
}

/// The median of some times.
///
/// # Panics
///
/// If `times` is empty.
pub fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times[times.len() / 2]
}

/// The resident memory of a process, in KiB.
///
/// # Panics
///
/// If there is no `/proc`, or no such process.
pub fn resident_kib(pid: u32) -> f64 {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("cannot read resident memory from {path}: {error}"));
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    kib.unwrap_or_else(|| panic!("no VmRSS in {path}: the process has ended"))
}
