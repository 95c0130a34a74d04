//! The platform layer: all access to the processes of the system.
//!
//! One file for each system has the same items:
//!
//! | item | task |
//! |---|---|
//! | `ProcessReader` | lists all processes, and reads one of them |
//! | `ProcessHandle` | refers to one process: waits for its end, sends it signals |
//! | `signal_by_id` | sends a signal to a process without a handle |
//! | `key_of`, `owner_of`, `is_alive` | the identity, the real user and the state of a process |
//! | `start_time_now` | the start time of a process that would start now |
//! | `mark_if_current` | sets the [`ProcessMark`](super::ProcessMark) of a process |
//! | `MarkLimit` | how a new process marks itself before its program starts |
//! | `HAS_MARKS` | whether processes can have a mark at all |
//! | `START_TIMES_ARE_ORDERED` | whether a child never starts before its parent |
//! | `boot_id` | names the boot: start times are comparable within one |
//!
//! The code above this layer is the same on every system. A system that does not show environments,
//! marks or start times reports them as absent; the documentation of `process_tree` says which
//! rules then hold.
//!
//! | file | system |
//! |---|---|
//! | `linux.rs` | Linux |
//! | `macos.rs` | macOS: type-checked, never run |
//! | `portable.rs` | Linux with the limits of macOS, for tests: `--cfg portable_processes` |
//! | `other.rs` | other Unix systems, through `ps` |

mod environment;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
mod other;
#[cfg(all(target_os = "linux", portable_processes))]
mod portable;

#[cfg(all(target_os = "linux", not(portable_processes)))]
use linux as platform;
#[cfg(target_os = "macos")]
use macos as platform;
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
use other as platform;
#[cfg(all(target_os = "linux", portable_processes))]
use portable as platform;

pub(crate) use platform::{
    HAS_MARKS, MarkLimit, ProcessHandle, boot_id, is_alive, key_of, start_time_now,
};
pub(super) use platform::{
    ProcessReader, START_TIMES_ARE_ORDERED, mark_if_current, owner_of, signal_by_id,
};

/// Where the processes are read from, for errors.
pub(crate) const PROCESS_LIST: &str = if cfg!(target_os = "linux") {
    "/proc"
} else {
    "the process list"
};

/// Whether a process has its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marking {
    /// It had the mark before.
    Unchanged,
    /// It has the mark from now on. Processes that it started earlier may not have it.
    New,
    /// The system refuses the mark.
    Refused,
}
