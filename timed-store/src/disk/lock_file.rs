//! The lock of a store, and the token record inside the lock file.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::Duration;

use super::location::Location;
use crate::format::{TokenRecord, parse_id};
use crate::shared::fifo_lock::FifoLock;
use crate::shared::kernel_lock::{Access, LockedFile};
use crate::shared::private_file::{self, FileError};
use crate::store::Runtime;
use crate::{Durability, Error};

/// How often a waiter tries the lock ahead of the others; see [`LockFile::wait`].
const RETRY: Duration = Duration::from_secs(1);

/// The last token in decimal, with leading zeros; the identity of the store in hexadecimal. Each
/// is a line. Version 0.1 writes the first line only.
const DIGITS: usize = 20;
const ID_DIGITS: usize = 16;
const RECORD: usize = DIGITS + 1 + ID_DIGITS + 1;

/// `<file>.flock`: a FIFO lock. The file's text is the token record of the store.
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
                return match served {
                    // On a read-only file system a reader has no ticket. It reads without the
                    // lock: a version is replaced in one step.
                    Err(error) if access == Access::Shared && is_read_only(&error) => {
                        Ok(Some(self.held(None)))
                    }
                    served => Ok(Some(self.held(Some(served?)))),
                };
            }
            let locked = self.try_lock_barging(access)?;
            left -= step;
            if locked.is_some() || left.is_zero() {
                return Ok(locked);
            }
        }
    }

    /// The token record, for a reader that has released the lock.
    pub(crate) fn record(&self) -> Result<LockRecord, Error> {
        let path = &self.location.lock;
        let file = private_file::open_existing(path, File::options().read(true))?;
        Ok(file.map(|file| LockRecord::read(&file)).unwrap_or_default())
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
                    Access::Shared if self.location.has_data()? => match self.create() {
                        // No process can have locked a file that does not exist.
                        Err(error) if is_read_only(&error) => return Ok(Some(self.held(None))),
                        created => created?,
                    },
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
    /// The token record; see [`LockRecord`].
    pub(crate) fn record(&self) -> LockRecord {
        self.file
            .as_deref()
            .map(LockRecord::read)
            .unwrap_or_default()
    }

    /// Writes the token record in place: one small write, which a kill cannot tear.
    pub(crate) fn set_record(
        &self,
        record: TokenRecord,
        durability: Durability,
    ) -> Result<(), Error> {
        let path = &self.location.lock;
        let file = self.file.as_deref();
        let file = file.ok_or_else(|| Error::io("write", path)(io::ErrorKind::NotFound.into()))?;
        let metadata = file.metadata().map_err(Error::io("inspect", path))?;
        if metadata.nlink() > 1 {
            return Err(Error::hard_link(path));
        }
        let (token, id) = (record.last_token, TokenRecord::id_text(record.store_id));
        file.write_all_at(format!("{token:0DIGITS$}\n{id}\n").as_bytes(), 0)
            .and_then(|()| match durability {
                Durability::Process => Ok(()),
                Durability::Power => file.sync_data(),
            })
            .map_err(Error::io("write", path))
    }
}

fn is_read_only(error: &FileError) -> bool {
    matches!(error, FileError::Io { source, .. } if source.kind() == io::ErrorKind::ReadOnlyFilesystem)
}

/// The parts of the token record that the lock file has. A part is missing if the file is new, or
/// if a power cut tore the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LockRecord {
    pub(crate) last_token: Option<u64>,
    pub(crate) store_id: Option<u64>,
}

impl LockRecord {
    fn read(file: &File) -> Self {
        let mut text = [0; RECORD];
        let length = file.read_at(&mut text, 0).unwrap_or(0);
        let text = std::str::from_utf8(&text[..length]).unwrap_or_default();
        let token = text
            .get(..DIGITS)
            .filter(|token| token.bytes().all(|b| b.is_ascii_digit()));
        Self {
            last_token: token.and_then(|token| token.parse().ok()),
            store_id: text.get(DIGITS + 1..RECORD - 1).and_then(parse_id),
        }
    }

    /// Whether a store wrote it.
    pub(crate) fn is_written(self) -> bool {
        self.last_token.is_some()
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
    fn the_record_is_read_back_and_a_torn_one_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::new(&folder.path().join("x.json")).unwrap();
        let lock_file = LockFile::new(Arc::new(location));
        let held = lock_file.try_lock(Access::Exclusive).unwrap().unwrap();
        assert_eq!(held.record(), LockRecord::default());
        let record = TokenRecord {
            store_id: 7,
            last_token: 42,
        };
        let whole = LockRecord {
            last_token: Some(42),
            store_id: Some(7),
        };
        for durability in [Durability::Process, Durability::Power] {
            held.set_record(record, durability).unwrap();
            assert_eq!(held.record(), whole);
            assert_eq!(lock_file.record().unwrap(), whole);
        }
        let write = |text: &str| std::fs::write(&lock_file.location.lock, text).unwrap();
        write("00000000000000000042\n");
        assert_eq!(
            held.record().last_token,
            Some(42),
            "the form of version 0.1"
        );
        assert_eq!(held.record().store_id, None);
        write("0000");
        assert_eq!(held.record(), LockRecord::default());
    }
}
