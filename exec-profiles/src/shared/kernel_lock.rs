//! Kernel file locks with an owned guard.
//!
//! This file is the same in every crate that has it; `scripts/check-shared` compares the copies.
//!
//! `flock` locks belong to the open file description. Every open of a path makes a new one, so
//! threads of one process exclude each other just as processes do. The kernel releases a lock
//! when the last descriptor of the description is closed: a lock dies with its process, and no
//! lock has to be judged by its age. A forked child shares the description, so the guard unlocks
//! explicitly; closing alone would keep the lock until the child closes its copy.
//!
//! fd-lock's guard borrows the lock. Ours is stored in structs and moves between threads:
//! `self_cell` keeps the file and fd-lock's guard together in one owned value.

#![allow(dead_code, reason = "each crate uses its own part of a shared file")]

use std::fs::File;
use std::io;
use std::ops::Deref;

use fd_lock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use self_cell::{MutBorrow, self_cell};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Shared,
    Exclusive,
}

/// An open file with its lock. Dropping it unlocks and closes the file.
pub(crate) struct LockedFile(Locked);

self_cell!(
    struct Locked {
        owner: MutBorrow<RwLock<File>>,

        #[not_covariant]
        dependent: Guard,
    }
);

enum Guard<'a> {
    Shared(RwLockReadGuard<'a, File>),
    Exclusive(RwLockWriteGuard<'a, File>),
}

impl LockedFile {
    /// Locks the file; `None` if another open file holds a conflicting lock.
    pub(crate) fn try_lock(file: File, access: Access) -> io::Result<Option<Self>> {
        let locked = Self::attempt(file, |lock| match access {
            Access::Shared => lock.try_read().map(Guard::Shared),
            Access::Exclusive => lock.try_write().map(Guard::Exclusive),
        });
        match locked {
            Ok(locked) => Ok(Some(locked)),
            Err((_, error)) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err((_, error)) => Err(error),
        }
    }

    /// Locks the file; blocks until the lock is free.
    pub(crate) fn lock(mut file: File, access: Access) -> io::Result<Self> {
        loop {
            let locked = Self::attempt(file, |lock| match access {
                Access::Shared => lock.read().map(Guard::Shared),
                Access::Exclusive => lock.write().map(Guard::Exclusive),
            });
            match locked {
                Ok(locked) => return Ok(locked),
                Err((returned, error)) if error.kind() == io::ErrorKind::Interrupted => {
                    file = returned;
                }
                Err((_, error)) => return Err(error),
            }
        }
    }

    fn attempt(
        file: File,
        take: impl for<'a> FnOnce(&'a mut RwLock<File>) -> io::Result<Guard<'a>>,
    ) -> Result<Self, (File, io::Error)> {
        let owner = MutBorrow::new(RwLock::new(file));
        Locked::try_new_or_recover(owner, |lock| take(lock.borrow_mut()))
            .map(Self)
            .map_err(|(lock, error)| (lock.into_inner().into_inner(), error))
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        self.0.with_dependent(|_, guard| match guard {
            Guard::Shared(guard) => &**guard,
            Guard::Exclusive(guard) => &**guard,
        })
    }
}

impl std::fmt::Debug for LockedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LockedFile").field(&**self).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exclusive_lock_excludes_and_ends_with_its_guard() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let try_lock = |access| LockedFile::try_lock(file.reopen().unwrap(), access).unwrap();
        let held = try_lock(Access::Exclusive).unwrap();
        assert!(try_lock(Access::Exclusive).is_none());
        assert!(try_lock(Access::Shared).is_none());
        // On another thread: an owned guard may move.
        std::thread::spawn(move || drop(held)).join().unwrap();
        let shared = try_lock(Access::Shared).unwrap();
        assert!(try_lock(Access::Exclusive).is_none());
        let second = try_lock(Access::Shared).unwrap();
        drop((shared, second));
        assert!(try_lock(Access::Exclusive).is_some());
    }

    #[test]
    fn the_lock_of_a_dropped_guard_is_free_although_a_child_shares_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let held = LockedFile::try_lock(file.reopen().unwrap(), Access::Exclusive);
        let held = held.unwrap().unwrap();
        // The child's standard input is a duplicate of the locked descriptor.
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .stdin(held.try_clone().unwrap())
            .spawn()
            .unwrap();
        drop(held);
        let again = LockedFile::try_lock(file.reopen().unwrap(), Access::Exclusive);
        let is_free = again.unwrap().is_some();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_free);
    }
}
