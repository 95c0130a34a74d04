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
//! 3. an earlier scan found it to belong to the tree;
//! 4. its parent belongs to the tree.
//!
//! No rule is enough alone. Rule 1 misses a tool in its own session; rule 2 misses a program that
//! clears its environment; rule 4 misses a process whose parent has ended, because it is reparented
//! to init. A process is missed only if no rule holds for it before the first scan.
//!
//! Rule 2 exists on Linux only: other systems do not show environments (`other.rs`).

#![allow(dead_code, reason = "each crate uses its own part of a shared file")]
#![allow(
    unused_imports,
    reason = "each crate uses its own part of a shared file"
)]

mod process_scanner;
mod process_table;
mod tree_ender;
mod tree_root;

#[cfg(target_os = "linux")]
#[path = "linux.rs"]
mod system;
#[cfg(not(target_os = "linux"))]
#[path = "other.rs"]
mod system;

pub(crate) use process_scanner::ProcessScanner;
pub(crate) use process_table::{ProcessInfo, ProcessTable};
pub(crate) use system::Pidfd;
pub(crate) use tree_ender::{TreeEnd, TreeEnder};
pub(crate) use tree_root::TreeRoot;

fn raw_pid(pid: u32) -> Option<rustix::process::Pid> {
    rustix::process::Pid::from_raw(i32::try_from(pid).ok()?)
}
