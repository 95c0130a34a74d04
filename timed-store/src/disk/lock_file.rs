//! The lock of a store, and the token counter inside the lock file.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::Duration;

use super::location::Location;
use crate::shared::fifo_lock::FifoLock;
use crate::shared::kernel_lock::{Access, LockedFile};
use crate::shared::private_file::{self, FileError};
use crate::store::Runtime;
use crate::{Durability, Error};

/// How often a waiter tries the lock ahead of the others; see [`LockFile::wait`].
const RETRY: Duration = Duration::from_secs(1);

/// The last token in decimal, with leading zeros, and a line feed.
const DIGITS: usize = 20;

/// `<file>.flock`: a FIFO lock. The file's text is the last fencing token.
#[derive(Debug)]
pub(crate) struct LockFile {
    location: Arc<Location>,
    fifo: FifoLock,
}

/// The lock while it is held. Dropping it unlocks, on any thread.
#[derive(Debug)]
pub(crate) struct HeldLock {
    location: Arc<Location>,
    /// `None` for a reader of a store that was never used: it creates no file.
    file: Option<LockedFile>,
}

impl LockFile {
    pub(crate) fn new(location: Arc<Location>) -> Self {
        Self {
            fifo: FifoLock::new(&location.lock),
            location,
        }
    }

    /// Takes the lock if it is free and has no waiter. A writer creates the lock file and its
    /// folder.
    pub(crate) fn try_lock(&self, access: Access) -> Result<Option<HeldLock>, Error> {
        self.take(FifoLock::try_lock, access)
    }

    /// Takes the lock if it is free, ahead of all waiters. A writer creates the lock file and its
    /// folder.
    pub(crate) fn try_lock_barging(&self, access: Access) -> Result<Option<HeldLock>, Error> {
        self.take(FifoLock::try_lock_barging, access)
    }

    /// Waits for the lock, first come, first served; `None` if it was not free within `limit`.
    ///
    /// Liveness: the kernel lock of a dead process is released, but a process that was stopped by
    /// SIGSTOP keeps its place in the queue, or the files of the queue, and does not take the lock.
    /// All waiters behind it would time out although the lock is free. So once a second, and before
    /// it gives up, a waiter tries the lock ahead of the others. In a queue that moves, the lock is
    /// free only for the microseconds between two waiters, and the order is hardly ever broken.
    pub(crate) async fn wait<R: Runtime>(
        &self,
        access: Access,
        limit: Duration,
    ) -> Result<Option<HeldLock>, Error> {
        let mut waiting = self.fifo.wait(access)?;
        let mut left = limit;
        loop {
            let step = left.min(RETRY);
            if let Some(served) = R::at_most(step, &mut waiting).await {
                return Ok(Some(self.held(Some(served?))));
            }
            let locked = self.try_lock_barging(access)?;
            left -= step;
            if locked.is_some() || left.is_zero() {
                return Ok(locked);
            }
        }
    }

    /// The process that holds the lock, if the operating system reports it.
    #[cfg(target_os = "linux")]
    pub(crate) fn holder(&self) -> Option<u32> {
        let metadata = self.location.lock.symlink_metadata().ok()?;
        let device = metadata.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let id = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
        // Race: the kernel gives out the list in parts. A line can be missing if other locks
        // change between two parts.
        (0..5).find_map(|_| find_holder(&std::fs::read_to_string("/proc/locks").ok()?, &id))
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn holder(&self) -> Option<u32> {
        None
    }

    fn take(
        &self,
        attempt: impl Fn(&FifoLock, Access) -> Result<Option<LockedFile>, FileError>,
        access: Access,
    ) -> Result<Option<HeldLock>, Error> {
        let taken = match attempt(&self.fifo, access) {
            Err(error) if error.is_not_found() => {
                match access {
                    Access::Exclusive => private_file::create_folder(self.location.folder())?,
                    // The file of a tool that knows no lock file.
                    Access::Shared if self.location.has_data()? => self.create()?,
                    Access::Shared => return Ok(Some(self.held(None))),
                }
                attempt(&self.fifo, access)
            }
            taken => taken,
        };
        Ok(taken?.map(|file| self.held(Some(file))))
    }

    fn create(&self) -> Result<(), FileError> {
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        private_file::open(&self.location.lock, &mut options).map(drop)
    }

    fn held(&self, file: Option<LockedFile>) -> HeldLock {
        HeldLock {
            location: Arc::clone(&self.location),
            file,
        }
    }
}

impl HeldLock {
    /// The last fencing token; `None` if the file does not contain it (it is new, or a power cut
    /// tore the number, so that digits are missing).
    pub(crate) fn counter(&self) -> Option<u64> {
        let mut text = [0; DIGITS];
        self.file.as_ref()?.read_exact_at(&mut text, 0).ok()?;
        std::str::from_utf8(&text).ok()?.parse().ok()
    }

    /// Writes the last fencing token in place: one small write, which a kill cannot tear.
    pub(crate) fn set_counter(&self, token: u64, durability: Durability) -> Result<(), Error> {
        let path = &self.location.lock;
        let file = self.file.as_deref();
        let file = file.ok_or_else(|| Error::io("write", path)(io::ErrorKind::NotFound.into()))?;
        let metadata = file.metadata().map_err(Error::io("inspect", path))?;
        if metadata.nlink() > 1 {
            return Err(Error::hard_link(path));
        }
        file.write_all_at(format!("{token:0DIGITS$}\n").as_bytes(), 0)
            .and_then(|()| match durability {
                Durability::Process => Ok(()),
                Durability::Power => file.sync_data(),
            })
            .map_err(Error::io("write", path))
    }
}

/// Finds the holder in the text of proc_locks(5), with lines of the form
/// `1: FLOCK  ADVISORY  WRITE 4242 fe:00:131 0 EOF`. Lines with `->` are waiters.
#[cfg(any(target_os = "linux", test))]
fn find_holder(locks: &str, id: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let &[_, "FLOCK", _, _, pid, file, ..] = fields.as_slice() else {
            return None;
        };
        // Zero or less is a process of another pid namespace.
        pid.parse().ok().filter(|pid| file == id && *pid > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_and_waiters_are_not() {
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

    #[test]
    fn the_counter_is_read_back_and_half_of_it_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::new(&folder.path().join("x.json")).unwrap();
        let lock_file = LockFile::new(Arc::new(location));
        let held = lock_file.try_lock(Access::Exclusive).unwrap().unwrap();
        assert_eq!(held.counter(), None);
        for durability in [Durability::Process, Durability::Power] {
            held.set_counter(42, durability).unwrap();
            assert_eq!(held.counter(), Some(42));
        }
        std::fs::write(&lock_file.location.lock, "0000").unwrap();
        assert_eq!(held.counter(), None);
    }
}
