//! The files of a store: where they are, how the data file is read and replaced, and the lock.
//!
//! The contents of the data file are bytes here.

mod data_file;
mod file_watcher;
mod location;
mod lock_file;
mod wait_queue;

pub(crate) use data_file::{Contents, discard_copy, keep_aside, read, replace};
pub(crate) use file_watcher::{FileWatch, FileWatcher};
pub(crate) use location::{Location, slots};
pub(crate) use lock_file::{HeldLock, LockFile, LockRecord};
pub(crate) use wait_queue::{WaitQueue, WaitTicket};
