//! What several bench files need.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

/// A folder on a real disk: in memory, where many systems have `/tmp`, every sync would be free.
///
/// # Panics
///
/// If it cannot be made.
pub fn scratch() -> TempDir {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let made = std::fs::create_dir_all(&target).and_then(|()| tempfile::tempdir_in(&target));
    made.unwrap_or_else(|error| panic!("cannot make a folder in {}: {error}", target.display()))
}

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
