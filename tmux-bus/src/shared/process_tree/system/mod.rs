//! The platform layer: all access to the processes of the system.
//!
//! One file for each system has the same items:
//!
//! | item | task |
//! |---|---|
//! | `ProcessReader` | lists all processes, and reads one of them |
//! | `ProcessHandle` | refers to one process: waits for its end, sends it signals |
//! | `signal_by_id` | sends a signal to a process without a handle |
//! | `key_of`, `owner_of` | the identity and the user of a process |
//! | `mark_of`, `mark_if_current` | read and set the [`ProcessMark`](super::ProcessMark) of a process |
//! | `MarkLimit` | how a new process marks itself before its program starts |
//! | `boot_id` | names the boot: start times are comparable within one |
//!
//! The code above this layer is the same on every system. A system that does not show environments,
//! marks or start times reports them as absent; the documentation of `process_tree` says which
//! rules then hold.

#[cfg(target_os = "linux")]
#[path = "linux.rs"]
mod platform;
#[cfg(not(target_os = "linux"))]
#[path = "other.rs"]
mod platform;

pub(crate) use platform::{MarkLimit, ProcessHandle, boot_id};
pub(super) use platform::{
    ProcessReader, key_of, mark_if_current, mark_of, owner_of, signal_by_id,
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
