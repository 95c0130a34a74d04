//! Waiting for the lock, in turn.
//!
//! The kernel wakes the one who has waited longest, but gives the lock to whoever asks while
//! that one is waking up: mostly to the process that has just given it up. So there is a
//! turnstile, a second kernel lock: who waits takes it first and gives it back when it has got
//! the lock, and who finds it taken does not take the lock, free or not. Those who come without
//! anybody waiting see in the side file that they need not look at the turnstile.
//!
//! To hand the lock over each time would cost a change of processes for each operation. So the
//! one who is next gives the others a moment first, in which those who run may do what they have
//! to do.
//!
//! Nothing but order depends on it. Where there can be none (a folder that cannot be written
//! to), or where the one who is next does not come (stopped by a signal), the lock is the same.

use std::fs::File;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use crate::location::Location;
use crate::lock::{Access, Held, LockFile, unlock};
use crate::{Error, file};

/// How long those who wait put up with a free lock that the one who is next does not take.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long the one who is next lets others pass: some operations, and far less than anybody
/// notices.
const COURTESY: Duration = Duration::from_micros(500);

/// The lock and those of this handle who wait for it.
#[derive(Debug)]
pub(crate) struct Queue {
    lock: LockFile,
    courtesy: Duration,
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

impl Queue {
    pub(crate) fn new(location: Arc<Location>) -> Self {
        Self {
            lock: LockFile { location },
            courtesy: COURTESY,
            idle: Mutex::default(),
        }
    }

    /// Takes the lock if it is free, whoever waits; `None` if somebody is in the way.
    pub(crate) fn attempt(&self, access: Access) -> Result<Option<Held>, Error> {
        self.lock.attempt(access)
    }

    /// Takes the lock if it is free and nobody has waited for it longer than a moment.
    pub(crate) fn attempt_in_turn(&self, access: Access) -> Result<Option<Held>, Error> {
        let Some(held) = self.lock.attempt(access)? else {
            return Ok(None);
        };
        let lets_pass = || held.awaited_for().is_some_and(|time| time < self.courtesy);
        if held.awaited && !lets_pass() {
            let Some(_turn) = Turn::attempt(&self.lock.location) else {
                return Ok(None);
            };
            held.clear_awaited();
        }
        Ok(Some(held))
    }

    /// Waits for the lock; `None` if it has not come in time.
    pub(crate) fn wait(&self, access: Access, limit: Duration) -> Result<Option<Held>, Error> {
        let deadline = Instant::now().checked_add(limit);
        let waiter = self.waiter(access)?;
        let slot = Arc::clone(&waiter.slot);
        let mut state = locked(&slot.state);
        loop {
            if let Wait::Over(result) = &mut *state {
                return result.take().unwrap_or(Ok(None));
            }
            let left = deadline.map_or(Duration::MAX, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            let (next, timeout) = slot
                .changed
                .wait_timeout(state, left.min(PATIENCE))
                .unwrap_or_else(PoisonError::into_inner);
            state = next;
            if !timeout.timed_out() || matches!(*state, Wait::Over(_)) {
                continue;
            }
            let held = self.lock.attempt(access)?;
            if held.is_some() || left <= PATIENCE {
                *state = Wait::Queued { wanted: false };
                locked(&self.idle).push(waiter);
                return Ok(held);
            }
        }
    }

    /// Which process holds the lock, as far as the system tells.
    pub(crate) fn holder(&self) -> Option<u32> {
        self.lock.holder()
    }

    fn waiter(&self, access: Access) -> Result<Waiter, Error> {
        let mut idle = locked(&self.idle);
        while let Some(at) = idle.iter().position(|waiter| waiter.access == access) {
            let waiter = idle.swap_remove(at);
            let mut state = locked(&waiter.slot.state);
            if let Wait::Queued { wanted } = &mut *state {
                *wanted = true;
                drop(state);
                return Ok(waiter);
            }
        }
        drop(idle);
        Waiter::start(&self.lock, access)
    }
}

impl Waiter {
    fn start(lock: &LockFile, access: Access) -> Result<Self, Error> {
        let slot = Arc::new(Slot {
            state: Mutex::new(Wait::Queued { wanted: true }),
            changed: Condvar::new(),
        });
        let (lock, theirs) = (lock.clone(), Arc::clone(&slot));
        let path = lock.location.lock.clone();
        let queue = move || {
            let turn = Turn::wait(&lock.location);
            let result = lock.wait(access);
            drop(turn);
            let mut state = locked(&theirs.state);
            // A grant that nobody waits for any more is given back at once, by its drop.
            let wanted = matches!(*state, Wait::Queued { wanted: true });
            *state = Wait::Over(wanted.then_some(result));
            theirs.changed.notify_one();
        };
        std::thread::Builder::new()
            .name("timed-store-lock".to_owned())
            .spawn(queue)
            .map_err(Error::io("start a thread that waits for", &path))?;
        Ok(Self { access, slot })
    }
}

/// The turnstile: who holds it is next. None inside where there can be no turnstile.
struct Turn(Option<File>);

impl Turn {
    fn wait(location: &Location) -> Self {
        let file = match open_turnstile(location) {
            Ok(None) => create_turnstile(location),
            opened => opened,
        };
        let turn = Self(file.unwrap_or_else(|error| {
            tracing::debug!(%error, "those who wait for the lock get it in no order");
            None
        }));
        if let Some(file) = &turn.0 {
            let take = || rustix::fs::flock(file, FlockOperation::LockExclusive);
            if let Err(error) = rustix::io::retry_on_intr(take) {
                tracing::debug!(%error, "those who wait for the lock get it in no order");
            }
        }
        turn
    }

    /// `None` if somebody else is next.
    fn attempt(location: &Location) -> Option<Self> {
        let turn = Self(open_turnstile(location).unwrap_or(None));
        let taken = turn.0.as_ref().is_some_and(|file| {
            let operation = FlockOperation::NonBlockingLockExclusive;
            rustix::fs::flock(file, operation) == Err(Errno::WOULDBLOCK)
        });
        (!taken).then_some(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.as_ref().map(unlock);
    }
}

fn open_turnstile(location: &Location) -> Result<Option<File>, Error> {
    let path = &location.turn;
    let file = file::open_private(path, OFlags::RDWR)?;
    if let Some(file) = &file {
        file::inspect(file, path)?;
    }
    Ok(file)
}

fn create_turnstile(location: &Location) -> Result<Option<File>, Error> {
    match file::create_private(&location.turn) {
        Ok(file) => Ok(Some(file)),
        // Another process was faster.
        Err(Errno::EXIST) => open_turnstile(location),
        Err(errno) => Err(Error::io("create", &location.turn)(errno.into())),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// In which nobody lets others pass.
    fn queue(folder: &tempfile::TempDir) -> Queue {
        let location = Location::new(&folder.path().join("x.json")).unwrap();
        let mut queue = Queue::new(Arc::new(location));
        queue.courtesy = Duration::ZERO;
        queue
    }

    fn held(grant: Result<Option<Held>, Error>) -> Held {
        grant.unwrap().unwrap()
    }

    fn wait_until(what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + LONG;
        while !condition() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::yield_now();
        }
    }

    /// A turnstile that is taken, with the note in the side file, and the lock free.
    fn somebody_is_next(queue: &Queue) -> Turn {
        let turn = Turn::wait(&queue.lock.location);
        drop(held(queue.lock.wait(Access::Exclusive)));
        turn
    }

    #[test]
    fn who_comes_later_does_not_get_in_first() {
        let folder = tempfile::tempdir().unwrap();
        let queue = queue(&folder);
        let next = somebody_is_next(&queue);
        for access in [Access::Shared, Access::Exclusive] {
            assert!(matches!(queue.attempt_in_turn(access), Ok(None)));
        }
        drop(held(queue.attempt(Access::Exclusive)));

        drop(next);
        assert!(held(queue.attempt_in_turn(Access::Exclusive)).awaited);
        assert!(!held(queue.attempt_in_turn(Access::Exclusive)).awaited);
    }

    #[test]
    fn who_has_only_begun_to_wait_lets_others_pass() {
        let folder = tempfile::tempdir().unwrap();
        let mut queue = queue(&folder);
        let _next = somebody_is_next(&queue);
        queue.courtesy = LONG;
        for access in [Access::Shared, Access::Exclusive] {
            assert!(held(queue.attempt_in_turn(access)).awaited);
        }
        // A note that does not say since when, or that is ahead of the clock, lets nobody pass.
        for since in ["awaited\n", "awaited since 99999999999999999999\n"] {
            let note = " ".repeat(21) + since;
            std::fs::write(&queue.lock.location.lock, note).unwrap();
            assert!(matches!(queue.attempt_in_turn(Access::Exclusive), Ok(None)));
        }
    }

    #[test]
    fn readers_that_come_and_go_do_not_keep_a_writer_out() {
        let folder = tempfile::tempdir().unwrap();
        let queue = queue(&folder);
        let writer = held(queue.attempt(Access::Exclusive));
        drop(writer);
        let reader = held(queue.attempt_in_turn(Access::Shared));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| held(queue.wait(Access::Exclusive, LONG)));
            wait_until("the writer waits", || is_awaited(&queue));
            assert!(matches!(queue.attempt_in_turn(Access::Shared), Ok(None)));
            drop(reader);
            drop(waiting.join().unwrap());
        });
    }

    #[test]
    fn one_who_is_next_and_does_not_come_holds_up_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let queue = queue(&folder);
        let _next = somebody_is_next(&queue);
        drop(held(queue.wait(Access::Exclusive, LONG)));
        drop(held(queue.wait(Access::Shared, LONG)));
    }

    #[test]
    fn without_a_turnstile_to_trust_the_lock_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let queue = queue(&folder);
        std::os::unix::fs::symlink("elsewhere", &queue.lock.location.turn).unwrap();
        let first = held(queue.attempt_in_turn(Access::Exclusive));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| held(queue.wait(Access::Exclusive, LONG)));
            wait_until("the other one waits", || is_awaited(&queue));
            drop(first);
            drop(waiting.join().unwrap());
        });
        drop(held(queue.attempt_in_turn(Access::Exclusive)));
        assert!(!folder.path().join("elsewhere").exists());
    }

    #[cfg(target_os = "linux")]
    fn is_awaited(queue: &Queue) -> bool {
        use std::os::unix::fs::MetadataExt;
        let inode = queue.lock.location.lock.metadata().unwrap().ino();
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks
            .lines()
            .any(|line| line.contains("->") && line.contains(&inode.to_string()))
    }

    #[cfg(not(target_os = "linux"))]
    fn is_awaited(queue: &Queue) -> bool {
        std::fs::read_to_string(&queue.lock.location.lock)
            .unwrap()
            .contains("awaited")
    }

    #[test]
    fn a_wait_that_was_given_up_keeps_one_thread_and_the_next_takes_it_over() {
        let folder = tempfile::tempdir().unwrap();
        let queue = queue(&folder);
        let first = held(queue.attempt(Access::Exclusive));
        for _ in 0..3 {
            assert!(matches!(
                queue.wait(Access::Exclusive, Duration::from_millis(20)),
                Ok(None)
            ));
            assert_eq!(locked(&queue.idle).len(), 1);
        }
        drop(first);
        drop(held(queue.wait(Access::Exclusive, LONG)));
    }

    #[test]
    fn a_grant_after_the_timeout_is_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let queue = queue(&folder);
        let first = held(queue.attempt(Access::Exclusive));
        assert!(matches!(
            queue.wait(Access::Exclusive, Duration::from_millis(1)),
            Ok(None)
        ));
        drop(first);
        let slot = Arc::clone(&locked(&queue.idle)[0].slot);
        wait_until("the abandoned thread gets its grant", || {
            matches!(*locked(&slot.state), Wait::Over(None))
        });
        wait_until("the grant is given back", || {
            matches!(queue.attempt(Access::Exclusive), Ok(Some(_)))
        });
    }

    #[test]
    fn a_side_file_deleted_while_waiting_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let queue = queue(&folder);
        let path = &queue.lock.location.lock;
        let first = held(queue.attempt(Access::Exclusive));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| held(queue.wait(Access::Exclusive, LONG)));
            wait_until("the other thread is in the queue", || is_awaited(&queue));
            std::fs::remove_file(path).unwrap();
            drop(first);
            let second = waiting.join().unwrap();
            assert!(path.exists());
            assert!(matches!(queue.attempt(Access::Shared), Ok(None)));
            drop(second);
        });
    }
}
