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
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
    /// Wait in the kernel's queue, at most this long, then [`Error::Locked`].
    Wait(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Shared,
    Exclusive,
}

/// The lock, held until this is dropped, by whichever thread that happens on.
#[derive(Debug)]
pub(crate) struct Held {
    /// None if there is neither a side file nor a data file: a reader makes none, and finds
    /// nothing.
    file: Option<File>,
}

/// The side file.
#[derive(Debug)]
pub(crate) struct LockFile {
    location: Arc<Location>,
    /// Threads whose waits were given up: they are still in the kernel's queue, and the next
    /// wait takes over their place. So there are never more of them than waits at one time.
    idle: Mutex<Vec<Waiter>>,
}

/// A thread in the kernel's queue. `flock` cannot be told to stop waiting at a set time.
#[derive(Debug)]
struct Waiter {
    access: Access,
    slot: Arc<Slot>,
}

#[derive(Debug)]
struct Slot {
    state: Mutex<Wait>,
    changed: Condvar,
}

#[derive(Debug)]
enum Wait {
    Queued { wanted: bool },
    Over(Option<Result<Option<Held>, Error>>),
}

impl LockFile {
    pub(crate) fn new(location: Arc<Location>) -> Self {
        Self {
            location,
            idle: Mutex::default(),
        }
    }

    /// Takes the lock; `None` if somebody is in the way.
    pub(crate) fn attempt(&self, access: Access) -> Result<Option<Held>, Error> {
        acquire(&self.location, access, |file| match access {
            Access::Shared => RwLock::new(file).try_read().map(std::mem::forget),
            Access::Exclusive => RwLock::new(file).try_write().map(std::mem::forget),
        })
    }

    /// Waits for the lock; `None` if it has not come in time.
    pub(crate) fn wait(&self, access: Access, limit: Duration) -> Result<Option<Held>, Error> {
        let deadline = Instant::now().checked_add(limit);
        let waiter = self.waiter(access)?;
        let slot = Arc::clone(&waiter.slot);
        let mut state = lock(&slot.state);
        loop {
            if let Wait::Over(result) = &mut *state {
                return result.take().unwrap_or(Ok(None));
            }
            let left = deadline.map_or(Duration::MAX, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                *state = Wait::Queued { wanted: false };
                lock(&self.idle).push(waiter);
                return Ok(None);
            }
            state = slot
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Which process holds the lock, as far as the system tells.
    #[cfg(target_os = "linux")]
    pub(crate) fn holder(&self) -> Option<u32> {
        let metadata = self.location.lock.symlink_metadata().ok()?;
        let device = metadata.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let id = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
        find_holder(&std::fs::read_to_string("/proc/locks").ok()?, &id)
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn holder(&self) -> Option<u32> {
        None
    }

    fn waiter(&self, access: Access) -> Result<Waiter, Error> {
        let mut idle = lock(&self.idle);
        while let Some(at) = idle.iter().position(|waiter| waiter.access == access) {
            let waiter = idle.swap_remove(at);
            let mut state = lock(&waiter.slot.state);
            if let Wait::Queued { wanted } = &mut *state {
                *wanted = true;
                drop(state);
                return Ok(waiter);
            }
        }
        drop(idle);
        Waiter::start(&self.location, access)
    }
}

impl Waiter {
    fn start(location: &Arc<Location>, access: Access) -> Result<Self, Error> {
        let slot = Arc::new(Slot {
            state: Mutex::new(Wait::Queued { wanted: true }),
            changed: Condvar::new(),
        });
        let (place, theirs) = (Arc::clone(location), Arc::clone(&slot));
        let queue = move || {
            let result = acquire(&place, access, |file| match access {
                Access::Shared => RwLock::new(file).read().map(std::mem::forget),
                Access::Exclusive => RwLock::new(file).write().map(std::mem::forget),
            });
            let mut state = lock(&theirs.state);
            // A grant that nobody waits for any more is given back at once, by its drop.
            let wanted = matches!(*state, Wait::Queued { wanted: true });
            *state = Wait::Over(wanted.then_some(result));
            theirs.changed.notify_one();
        };
        std::thread::Builder::new()
            .name("timed-store-lock".to_owned())
            .spawn(queue)
            .map_err(Error::io("start a thread that waits for", &location.lock))?;
        Ok(Self { access, slot })
    }
}

impl Held {
    /// The last fencing token given out, if the side file knows.
    pub(crate) fn counter(&self) -> Option<u64> {
        let mut text = [0; COUNTER_DIGITS];
        self.file.as_ref()?.read_exact_at(&mut text, 0).ok()?;
        std::str::from_utf8(&text).ok()?.parse().ok()
    }

    /// One small write in place: a kill comes before or after it. What a power cut makes of it
    /// is told by the digits not being all there.
    pub(crate) fn set_counter(&self, token: u64) -> io::Result<()> {
        self.file()?
            .write_all_at(format!("{token:0COUNTER_DIGITS$}\n").as_bytes(), 0)
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

const COUNTER_DIGITS: usize = 20;

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // It can only fail for a descriptor that is not open, and closing unlocks too.
            let _ = rustix::fs::flock(file, FlockOperation::Unlock);
        }
    }
}

/// Opens the side file, making it if need be, and locks it by `take`.
///
/// `take` forgets fd-lock's guard: it borrows the file, but ours has to be owned, to travel to
/// the thread that syncs.
fn acquire(
    location: &Location,
    access: Access,
    take: impl Fn(&File) -> io::Result<()>,
) -> Result<Option<Held>, Error> {
    let path = &location.lock;
    loop {
        let Some(file) = open(location, access)? else {
            return Ok(Some(Held { file: None }));
        };
        match take(&file) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) => return Err(Error::io("lock", path)(source)),
        }
        let metadata = file::inspect(&file, path);
        let held = Held { file: Some(file) };
        // A lock on a file that was deleted by hand while we waited excludes nobody.
        if metadata?.nlink() > 0 {
            return Ok(Some(held));
        }
    }
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        LockFile::new(Arc::new(
            Location::new(&folder.path().join("x.json")).unwrap(),
        ))
    }

    fn held(grant: Result<Option<Held>, Error>) -> Held {
        grant.unwrap().unwrap()
    }

    fn wait_until(what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !condition() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::yield_now();
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_wait_that_was_given_up_keeps_one_thread_and_the_next_takes_it_over() {
        let folder = tempfile::tempdir().unwrap();
        let side = lock_file(&folder);
        let first = held(side.attempt(Access::Exclusive));
        for _ in 0..3 {
            assert!(matches!(
                side.wait(Access::Exclusive, Duration::from_millis(20)),
                Ok(None)
            ));
            assert_eq!(lock(&side.idle).len(), 1);
        }
        drop(first);
        drop(held(side.wait(Access::Exclusive, LONG)));
    }

    #[test]
    fn a_grant_after_the_timeout_is_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let side = lock_file(&folder);
        let first = held(side.attempt(Access::Exclusive));
        assert!(matches!(
            side.wait(Access::Exclusive, Duration::from_millis(1)),
            Ok(None)
        ));
        drop(first);
        let slot = Arc::clone(&lock(&side.idle)[0].slot);
        wait_until("the abandoned thread gets its grant", || {
            matches!(*lock(&slot.state), Wait::Over(None))
        });
        wait_until("the grant is given back", || {
            matches!(side.attempt(Access::Exclusive), Ok(Some(_)))
        });
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_side_file_deleted_while_waiting_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let side = lock_file(&folder);
        let path = &side.location.lock;
        let first = held(side.attempt(Access::Exclusive));
        let inode = path.metadata().unwrap().ino().to_string();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| held(side.wait(Access::Exclusive, LONG)));
            wait_until("the other thread is in the queue", || {
                let locks = std::fs::read_to_string("/proc/locks").unwrap();
                locks
                    .lines()
                    .any(|line| line.contains("->") && line.contains(&inode))
            });
            std::fs::remove_file(path).unwrap();
            drop(first);
            let second = waiting.join().unwrap();
            assert!(path.exists());
            assert!(matches!(side.attempt(Access::Shared), Ok(None)));
            drop(second);
        });
    }

    #[test]
    fn the_counter_is_read_back_and_half_of_it_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let side = lock_file(&folder);
        let held = held(side.attempt(Access::Exclusive));
        assert_eq!(held.counter(), None);
        held.set_counter(42).unwrap();
        assert_eq!(held.counter(), Some(42));
        std::fs::write(&side.location.lock, "0000").unwrap();
        assert_eq!(held.counter(), None);
    }

    #[test]
    fn a_reader_of_nothing_makes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        assert!(
            held(lock_file(&folder).attempt(Access::Shared))
                .file
                .is_none()
        );
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }
}
