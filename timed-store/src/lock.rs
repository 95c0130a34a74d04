//! The lock: a kernel lock on a side file, so that it dies with its holder.
//!
//! `flock` belongs to an open file description. Each operation opens its own, and so threads
//! and handles of one process exclude each other just as processes do. A forked child shares
//! the description: therefore the lock is given up by an explicit unlock, which ends it for
//! the child too, and not by closing, which would wait for the child.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fd_lock::RwLock;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use crate::location::Location;
use crate::{Error, file};

/// What to do when somebody else holds the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockPolicy {
    /// Give up at once with [`Error::Locked`].
    #[default]
    Fail,
    /// Wait at most this long, then [`Error::Locked`]. Those who wait get the lock in turn:
    /// nobody who comes later gets in first, but for the ones that do not wait, and within the
    /// half millisecond that the first in turn gives way to those who are at work.
    Wait(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Shared,
    Exclusive,
}

/// The side file: its lock, and what it says. That is the last fencing token in twenty digits,
/// and, on a line of its own, since when somebody waits or has waited for the lock, by the
/// system's clock that only goes forward.
#[derive(Clone, Debug)]
pub(crate) struct LockFile {
    pub(crate) location: Arc<Location>,
}

/// The lock, held until this is dropped, by whichever thread that happens on.
#[derive(Debug)]
pub(crate) struct Held {
    /// None if there is neither a side file nor a data file: a reader makes none, and finds
    /// nothing.
    file: Option<File>,
    /// Whether the file says that somebody waits.
    pub(crate) awaited: bool,
}

/// A moment by the clock that all processes share, in nanoseconds.
fn moment() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let nanoseconds = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    u64::try_from(nanoseconds).unwrap_or(0)
}

const DIGITS: usize = 20;
/// With the end of its line.
const COUNTER_LENGTH: u64 = 21;
const AWAITED: &str = "awaited since ";

impl LockFile {
    /// Takes the lock; `None` if somebody is in the way.
    pub(crate) fn attempt(&self, access: Access) -> Result<Option<Held>, Error> {
        self.acquire(access, |file| match access {
            Access::Shared => RwLock::new(file).try_read().map(std::mem::forget),
            Access::Exclusive => RwLock::new(file).try_write().map(std::mem::forget),
        })
    }

    /// Takes the lock, however long that takes, and lets everybody know meanwhile.
    pub(crate) fn wait(&self, access: Access) -> Result<Option<Held>, Error> {
        self.acquire(access, |file| {
            // Written by the one who is next alone. Without it, others may get in first.
            let note = format!("{AWAITED}{:0DIGITS$}\n", moment());
            let _ = file.write_all_at(note.as_bytes(), COUNTER_LENGTH);
            match access {
                Access::Shared => RwLock::new(file).read().map(std::mem::forget),
                Access::Exclusive => RwLock::new(file).write().map(std::mem::forget),
            }
        })
    }

    /// Which process holds the lock, as far as the system tells.
    #[cfg(target_os = "linux")]
    pub(crate) fn holder(&self) -> Option<u32> {
        let metadata = self.location.lock.symlink_metadata().ok()?;
        let device = metadata.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let id = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
        // The list is given out in parts, and can miss a line when others change between them.
        (0..5).find_map(|_| find_holder(&std::fs::read_to_string("/proc/locks").ok()?, &id))
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn holder(&self) -> Option<u32> {
        None
    }

    /// Opens the side file, making it if need be, and locks it by `take`.
    ///
    /// `take` forgets fd-lock's guard: it borrows the file, but ours has to be owned, to travel
    /// to the thread that syncs.
    fn acquire(
        &self,
        access: Access,
        take: impl Fn(&File) -> io::Result<()>,
    ) -> Result<Option<Held>, Error> {
        let path = &self.location.lock;
        loop {
            let Some(file) = open(&self.location, access)? else {
                return Ok(Some(Held {
                    file: None,
                    awaited: false,
                }));
            };
            match take(&file) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => return Err(Error::io("lock", path)(source)),
            }
            let metadata = file::inspect(&file, path);
            let mut held = Held {
                file: Some(file),
                awaited: false,
            };
            let metadata = metadata?;
            held.awaited = metadata.len() > COUNTER_LENGTH;
            // A lock on a file that was deleted by hand while we waited excludes nobody.
            if metadata.nlink() > 0 {
                return Ok(Some(held));
            }
        }
    }
}

impl Held {
    /// The last fencing token given out, if the side file knows.
    pub(crate) fn counter(&self) -> Option<u64> {
        self.number_at(0)
    }

    /// How long somebody waits, if the side file tells. What it says may be half written, or of
    /// another clock (a machine that was started anew): then it is `None` or too long, and
    /// nobody who waits is passed over.
    pub(crate) fn awaited_for(&self) -> Option<Duration> {
        let since = self.number_at(COUNTER_LENGTH + AWAITED.len() as u64)?;
        moment().checked_sub(since).map(Duration::from_nanos)
    }

    fn number_at(&self, offset: u64) -> Option<u64> {
        let mut text = [0; DIGITS];
        self.file.as_ref()?.read_exact_at(&mut text, offset).ok()?;
        std::str::from_utf8(&text).ok()?.parse().ok()
    }

    /// One small write in place: a kill comes before or after it. What a power cut makes of it
    /// is told by the digits not being all there.
    pub(crate) fn set_counter(&self, token: u64) -> io::Result<()> {
        self.file()?
            .write_all_at(format!("{token:0DIGITS$}\n").as_bytes(), 0)
    }

    /// Takes back that somebody waits.
    pub(crate) fn clear_awaited(&self) {
        if let Some(file) = &self.file {
            // If it stays, those who come look in vain whether somebody waits.
            let _ = file.set_len(COUNTER_LENGTH);
        }
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file()?.sync_data()
    }

    fn file(&self) -> io::Result<&File> {
        self.file
            .as_ref()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.file.as_ref().map(unlock);
    }
}

/// Also for children that share the file description.
pub(crate) fn unlock(file: &File) {
    // It can only fail for a descriptor that is not open, and closing unlocks too.
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

fn open(location: &Location, access: Access) -> Result<Option<File>, Error> {
    let path = &location.lock;
    loop {
        if let Some(file) = file::open_private(path, OFlags::RDWR)? {
            return Ok(Some(file));
        }
        if access == Access::Shared && !file::exists(location)? {
            return Ok(None);
        }
        match file::create_private(path) {
            Ok(file) => return Ok(Some(file)),
            // Another process was faster.
            Err(Errno::EXIST) => {}
            Err(Errno::NOENT) => create_folder(location.folder())?,
            Err(errno) => return Err(Error::io("create", path)(errno.into())),
        }
    }
}

fn create_folder(folder: &Path) -> Result<(), Error> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(Error::io("create the folder", folder))
}

/// See proc_locks(5): `1: FLOCK  ADVISORY  WRITE 4242 fe:00:131 0 EOF`. Lines with `->` wait.
#[cfg(any(target_os = "linux", test))]
fn find_holder(locks: &str, id: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let &[_, "FLOCK", _, _, pid, file, ..] = fields.as_slice() else {
            return None;
        };
        // Zero or less stands for a process that we cannot see.
        pid.parse().ok().filter(|pid| file == id && *pid > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_and_those_who_wait_are_not() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:00:131 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 22 fe:00:132 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 33 fe:00:131 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 44 fe:00:131 0 EOF\n";
        assert_eq!(find_holder(locks, "fe:00:131"), Some(33));
        assert_eq!(find_holder(locks, "fe:00:133"), None);
        assert_eq!(
            find_holder("1: FLOCK ADVISORY WRITE -1 fe:00:131 0 EOF", "fe:00:131"),
            None
        );
    }

    fn lock_file(folder: &tempfile::TempDir) -> LockFile {
        let location = Location::new(&folder.path().join("x.json")).unwrap();
        LockFile {
            location: Arc::new(location),
        }
    }

    #[test]
    fn the_counter_is_read_back_and_half_of_it_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let side = lock_file(&folder);
        let held = side.attempt(Access::Exclusive).unwrap().unwrap();
        assert_eq!(held.counter(), None);
        held.set_counter(42).unwrap();
        assert_eq!(held.counter(), Some(42));
        std::fs::write(&side.location.lock, "0000").unwrap();
        assert_eq!(held.counter(), None);
    }

    #[test]
    fn the_counter_is_the_same_whether_somebody_waits_or_not() {
        let folder = tempfile::tempdir().unwrap();
        let side = lock_file(&folder);
        let counter = |expected| {
            let held = side.wait(Access::Exclusive).unwrap().unwrap();
            assert!(held.awaited);
            assert_eq!(held.counter(), expected);
            held.clear_awaited();
            drop(held);
            let held = side.attempt(Access::Exclusive).unwrap().unwrap();
            assert!(!held.awaited);
            assert_eq!(held.counter(), expected);
            held
        };
        counter(None).set_counter(42).unwrap();
        counter(Some(42));
    }

    #[test]
    fn a_reader_of_nothing_makes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let held = lock_file(&folder).attempt(Access::Shared).unwrap().unwrap();
        assert!(held.file.is_none());
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }
}
