//! Finding and ending process trees.
//!
//! This folder is the same in every crate that has it; `scripts/check-shared` compares the copies.
//!
//! A tree is everything that was started from one process, the leader. A signal to the leader's
//! process group does not reach all of it: agents start their tools in sessions of their own. So
//! a process belongs to the tree if one of these holds:
//!
//! 1. it is the leader, or in the leader's process group;
//! 2. its environment contains the tag of the tree, which children inherit;
//! 3. one of its resource limits is the mark of the tree, which children inherit;
//! 4. an earlier scan found it to belong to the tree;
//! 5. its parent belongs to the tree;
//! 6. it has the tag or the mark of an inner execution, of which a process belongs to the tree.
//!
//! No rule is enough alone. Rule 1 misses a tool in its own session; rule 2 misses a program that
//! clears its environment; rule 5 misses a process whose parent has ended, because it is reparented
//! to init; rule 3 misses a program that changes the limit, and processes that a leader has started
//! before it got its mark (in exec-core it has the mark from the start). A process is missed only if
//! no rule holds for it before the first scan.
//!
//! # Other systems
//!
//! | | Linux | macOS | others |
//! |---|---|---|---|
//! | rule 2 | yes | not for programs of Apple, which hide their environment | no |
//! | rules 3 and 6 | yes | no | no |
//! | repeated looks (`tree_memory.rs`) | not needed | yes | yes |
//! | stopped before a signal (`tree_ender.rs`) | not needed | yes | yes |
//! | a signal reaches the right process | always | the start time is compared right before | not checked |
//!
//! So on macOS a program of Apple is missed if it leaves its group and its session and loses its
//! parent before the first look at it. `--cfg portable_processes` compiles the limits of macOS into a
//! build for Linux; `scripts/test-portable` runs the tests of exec-core with it.

#![allow(dead_code, reason = "each crate uses its own part of a shared file")]
#![allow(
    unused_imports,
    reason = "each crate uses its own part of a shared file"
)]

mod process_mark;
mod process_scanner;
mod process_table;
mod system;
mod tree_ender;
mod tree_memory;
mod tree_root;

pub(crate) use process_mark::ProcessMark;
pub(crate) use process_scanner::ProcessScanner;
pub(crate) use process_table::{ProcessInfo, ProcessTable};
pub(crate) use system::{
    HAS_MARKS, MarkLimit, PROCESS_LIST, ProcessHandle, boot_id, is_alive, key_of, start_time_now,
};
pub(crate) use tree_ender::{TreeEnd, TreeEnder};
pub(crate) use tree_root::TreeRoot;

fn raw_pid(pid: u32) -> Option<rustix::process::Pid> {
    rustix::process::Pid::from_raw(i32::try_from(pid).ok()?)
}
