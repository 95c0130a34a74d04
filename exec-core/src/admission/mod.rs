//! Admission: how many executions of a state folder run at the same time.
//!
//! ```text
//! <state>/admission/gate          the lock that the next launch holds while it waits for a slot
//! <state>/admission/gate-queue/   the tickets of the launches behind it
//! <state>/admission/slots/0 …     one file for each execution that may run, locked while it runs
//! ```

mod admission_gate;
mod free_memory;
mod slot_folder;
mod wait_list;

pub use wait_list::{WaitReason, WaitingLaunch};

pub(crate) use admission_gate::{AdmissionGate, AdmissionRules, AdmissionSlot};
pub(crate) use wait_list::{WaitList, WaitTicket};
