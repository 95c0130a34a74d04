//! A FIFO lock across processes: waiters are served first come, first served.
//!
//! This file is the same in every crate that has it; `scripts/check-shared` compares the copies.
//!
//! # Theory
//!
//! `flock` alone is not fair. The kernel wakes the first waiter, but a request that arrives while
//! that waiter is still waking up finds the lock free and takes it ("barging"). Under load the
//! process that has just released the lock wins nearly always, and waiters starve.
//!
//! So every waiter takes a ticket: a numbered file in `<lock>-queue/` that it holds locked. It
//! waits for the locks of all lower tickets, then for the lock itself, then drops its ticket. A
//! ticket also holds `<lock>-queue/waiting` (shared). A newcomer that gets the lock at once probes
//! that file; if there is a ticket, the newcomer releases the lock and queues.
//!
//! `flock` has no deadline, and a stopped process can hold any file of the queue. So callers never
//! block on these files. A caller joins a queue in memory; one thread for each `FifoLock` with
//! waiters takes the tickets and blocks in place of the callers. The first waiter starts the
//! thread, and the thread ends with the last waiter. Before the thread blocks for the first waiter,
//! it takes a ticket for each waiter that has none.
//!
//! **Invariants.**
//! - Numbers are given out under the lock of `<lock>-queue/numbering`, so every lower ticket was
//!   locked before a higher one exists. The order across processes is the order of the numbers.
//! - The waiters of one `FifoLock` get their tickets, and the lock, in the order of their calls.
//! - Mutual exclusion depends on the lock file alone. If a file of the queue is deleted by hand,
//!   only the order suffers.
//!
//! **Deviation from FIFO across processes.** The place of a waiter is decided when the thread takes
//! its ticket, not when the caller arrives. The delay is the start of the thread for the first
//! waiter. A waiter that arrives while the thread is blocked gets its ticket when the thread is
//! free again, that is, when a waiter of the same `FifoLock` has been served. A caller of another
//! process that arrives during the delay comes first. Such a waiter does not starve: with each
//! service, the thread takes tickets for all waiters.
//!
//! **Races.**
//! - A ticket is taken right after a newcomer's probe. The waiter blocks on the lock until the
//!   newcomer releases it.
//! - Readers queue like writers; the next reader follows as soon as the reader before it has the
//!   lock. A waiting writer cannot starve, because newcomers of either kind queue.
//! - Two probes at the same time can mistake each other for a ticket. A probe takes about a
//!   microsecond, so a failed probe is repeated a few times; after that the newcomer queues, which
//!   costs time and nothing else.
//! - A caller gives up while the thread takes its ticket: the thread drops the ticket.
//! - Death: the kernel releases the locks of a process that dies. The next waiter finds the ticket
//!   unlocked and removes its file.
//! - SIGSTOP: a stopped process keeps its ticket, and all waiters behind it wait. A process that is
//!   stopped while it holds `numbering` or `waiting` blocks the threads that need a ticket, with
//!   all their waiters. Callers keep their deadline, because they only wait for the thread. Callers
//!   that must not depend on other processes call [`FifoLock::try_lock_barging`] from time to time
//!   while they wait.
//!
//! **Example.** A holds the lock; B and C wait with tickets 0 and 1. A releases and calls again at
//! once. A gets the lock while B wakes up, probes, finds tickets, releases the lock and takes
//! ticket 2. B gets the lock and drops ticket 0; C is next and blocks on the lock; A blocks on
//! ticket 1. Order: B, C, A.
//!
//! Rejected: a turnstile, a second lock that the first waiter holds. It needs no numbered files,
//! but newcomers overtake a waiter that is just being woken at the turnstile. Rejected: tickets
//! taken on the caller's thread. They remove the deviation, but need a poll with a limit for the
//! case of a stopped process, on a thread that may serve other tasks.

#![allow(dead_code, reason = "each crate uses its own part of a shared file")]

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use fd_lock::RwLock;

use super::kernel_lock::{Access, LockedFile};
use super::private_file::{self, FileError};

/// How often a probe is repeated: see the theory above.
const PROBES: usize = 4;

/// A lock file with its queue. Clones are the same lock.
#[derive(Clone, Debug)]
pub(crate) struct FifoLock {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    queue: QueueFolder,
    /// The file that tickets hold, kept open for probes.
    probe: OnceLock<Mutex<RwLock<File>>>,
    waiters: Mutex<Waiters>,
}

/// The callers that wait, in the order of their calls.
#[derive(Debug, Default)]
struct Waiters {
    queue: VecDeque<Arc<Waiter>>,
    has_thread: bool,
}

impl FifoLock {
    /// Nothing is opened or created before it is needed.
    pub(crate) fn new(path: &Path) -> Self {
        let mut queue = OsString::from(path);
        queue.push("-queue");
        Self {
            inner: Arc::new(Inner {
                path: path.to_owned(),
                queue: QueueFolder(queue.into()),
                probe: OnceLock::new(),
                waiters: Mutex::default(),
            }),
        }
    }

    /// Takes the lock if it is free, ahead of all waiters; `None` if it is held.
    ///
    /// Exclusive access creates the lock file, but not its folder. Shared access creates nothing:
    /// without a lock file the error is `is_not_found`.
    pub(crate) fn try_lock_barging(&self, access: Access) -> Result<Option<LockedFile>, FileError> {
        self.inner
            .take(access, LockedFile::try_lock, Option::as_deref)
    }

    /// Takes the lock if it is free and has no waiter.
    pub(crate) fn try_lock(&self, access: Access) -> Result<Option<LockedFile>, FileError> {
        let Some(locked) = self.try_lock_barging(access)? else {
            return Ok(None);
        };
        Ok((!self.inner.has_waiter()?).then_some(locked))
    }

    /// Whether the lock is held, by any process.
    pub(crate) fn is_held(&self) -> Result<bool, FileError> {
        let path = &self.inner.path;
        let Some(file) = private_file::open_existing(path, File::options().read(true))? else {
            return Ok(false);
        };
        let taken = LockedFile::try_lock(file, Access::Shared);
        Ok(taken.map_err(FileError::io("lock", path))?.is_none())
    }

    /// Joins the queue and returns at once; the future waits for the lock. Dropping the future
    /// leaves the queue. The error is that of starting a thread.
    pub(crate) fn wait(&self, access: Access) -> Result<Waiting, FileError> {
        let waiter = Arc::new(Waiter {
            access,
            step: Mutex::new(Step::Waiting {
                ticket: None,
                waker: None,
            }),
        });
        let mut waiters = locked(&self.inner.waiters);
        // The thread may be blocked for long: callers that have given up must not pile up.
        waiters.queue.retain(|waiter| waiter.is_waiting());
        waiters.queue.push_back(Arc::clone(&waiter));
        if !waiters.has_thread {
            let inner = Arc::clone(&self.inner);
            std::thread::Builder::new()
                .name("fifo-lock".to_owned())
                .spawn(move || inner.serve())
                .map_err(|error| {
                    waiters.queue.pop_back();
                    FileError::io("start a thread that waits for", &self.inner.path)(error)
                })?;
            waiters.has_thread = true;
        }
        Ok(Waiting { waiter })
    }
}

impl Inner {
    /// Whether a caller of this `FifoLock` waits, or a ticket exists in any process. In doubt there
    /// is one.
    fn has_waiter(&self) -> Result<bool, FileError> {
        let waiters = locked(&self.waiters);
        if waiters.queue.iter().any(|waiter| waiter.is_waiting()) {
            return Ok(true);
        }
        drop(waiters);
        // Waiters create the folder: there has never been one. Checked first, because most locks
        // never have a waiter, and an open that fails takes twice the time.
        if self.probe.get().is_none() && !self.queue.0.exists() {
            return Ok(false);
        }
        let path = self.queue.waiting();
        let probe = match self.probe.get() {
            Some(probe) => probe,
            // NFS gives an exclusive lock only to a descriptor that is open for writing.
            None => {
                match private_file::open_existing(&path, File::options().read(true).write(true)) {
                    Ok(Some(file)) => self.probe.get_or_init(|| Mutex::new(RwLock::new(file))),
                    Ok(None) => return Ok(false),
                    // No process of this machine can wait on a read-only file system.
                    Err(FileError::Io { source, .. })
                        if source.kind() == io::ErrorKind::ReadOnlyFilesystem =>
                    {
                        return Ok(false);
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        for _ in 0..PROBES {
            match locked(probe).try_write() {
                Ok(_) => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(FileError::io("probe", &path)(error)),
            }
        }
        Ok(true)
    }

    /// Opens and locks the lock file. The check follows the lock, so that it also shows whether
    /// the file was deleted.
    fn take<L>(
        &self,
        access: Access,
        lock: impl Fn(File, Access) -> io::Result<L>,
        file_of: impl Fn(&L) -> Option<&File>,
    ) -> Result<L, FileError> {
        let path = &self.path;
        let mut options = File::options();
        // A reader needs no permission to write: the file system may be read-only.
        let is_writer = access == Access::Exclusive;
        options.read(true).write(is_writer).create(is_writer);
        let options = options.truncate(false);
        loop {
            let file = private_file::open_unchecked(path, options)?;
            let taken = lock(file, access).map_err(FileError::io("lock", path))?;
            let Some(file) = file_of(&taken) else {
                // A file that is not private is refused, even if another process holds its lock.
                private_file::open_existing(path, options)?;
                return Ok(taken);
            };
            let metadata = private_file::check(file, path)?;
            // The lock of a deleted file excludes no other process.
            if metadata.nlink() > 0 {
                return Ok(taken);
            }
        }
    }

    /// The body of the thread: takes the tickets, and blocks in place of the first caller, until
    /// none waits.
    fn serve(&self) {
        while let Some(waiters) = self.waiting() {
            for waiter in waiters.iter().filter(|waiter| waiter.needs_ticket()) {
                match self.queue.take_ticket() {
                    Ok(ticket) => waiter.set_ticket(ticket),
                    Err(error) => waiter.serve(Err(error)),
                }
            }
            let Some((first, lower)) = waiters
                .first()
                .and_then(|first| Some((first, first.lower_tickets()?)))
            else {
                continue;
            };
            let served = lower
                .iter()
                .try_for_each(|path| wait_for_ticket(path))
                .and_then(|()| self.take(first.access, LockedFile::lock, |l| Some(l)));
            // If the caller has given up, `served` is dropped, which unlocks.
            first.serve(served);
        }
    }

    /// The waiters in their order. `None` ends the thread, in the same step in which the queue is
    /// seen to be empty, so that the next waiter starts another one.
    fn waiting(&self) -> Option<Vec<Arc<Waiter>>> {
        let mut waiters = locked(&self.waiters);
        waiters.queue.retain(|waiter| waiter.is_waiting());
        waiters.has_thread = !waiters.queue.is_empty();
        waiters
            .has_thread
            .then(|| waiters.queue.iter().cloned().collect())
    }
}

/// A caller in the queue.
#[derive(Debug)]
struct Waiter {
    access: Access,
    step: Mutex<Step>,
}

#[derive(Debug)]
enum Step {
    Waiting {
        /// `None` until the thread has taken it.
        ticket: Option<Ticket>,
        waker: Option<Waker>,
    },
    Served(Result<LockedFile, FileError>),
    /// The caller has the lock, or has given up.
    Done,
}

impl Waiter {
    fn is_waiting(&self) -> bool {
        matches!(*locked(&self.step), Step::Waiting { .. })
    }

    fn needs_ticket(&self) -> bool {
        matches!(*locked(&self.step), Step::Waiting { ticket: None, .. })
    }

    /// Drops the ticket if the caller has given up.
    fn set_ticket(&self, taken: Ticket) {
        if let Step::Waiting { ticket, .. } = &mut *locked(&self.step) {
            *ticket = Some(taken);
        }
    }

    /// `None` if the caller does not wait any more.
    fn lower_tickets(&self) -> Option<Vec<PathBuf>> {
        match &*locked(&self.step) {
            Step::Waiting { ticket, .. } => ticket.as_ref().map(|ticket| ticket.lower.clone()),
            Step::Served(_) | Step::Done => None,
        }
    }

    /// Drops the ticket, then hands the lock over. The order matters: a served caller must not find
    /// its own ticket when it probes, and between the two steps the lock itself keeps newcomers
    /// out.
    fn serve(&self, served: Result<LockedFile, FileError>) {
        let mut step = locked(&self.step);
        if let Step::Waiting { waker, .. } = &mut *step {
            let waker = waker.take();
            *step = Step::Done; // drops the ticket
            *step = Step::Served(served);
            drop(step);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

/// A place in the queue; resolves to the lock.
#[derive(Debug)]
#[must_use]
pub(crate) struct Waiting {
    waiter: Arc<Waiter>,
}

impl Future for Waiting {
    type Output = Result<LockedFile, FileError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut step = locked(&self.waiter.step);
        if let Step::Waiting { waker, .. } = &mut *step {
            *waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        match std::mem::replace(&mut *step, Step::Done) {
            Step::Served(served) => Poll::Ready(served),
            // Polled again after it was ready.
            Step::Waiting { .. } | Step::Done => Poll::Pending,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        *locked(&self.waiter.step) = Step::Done;
    }
}

/// The folder of the tickets.
#[derive(Debug)]
struct QueueFolder(PathBuf);

/// A numbered file with its lock. Dropping it removes the file, then unlocks it.
#[derive(Debug)]
struct Ticket {
    path: PathBuf,
    /// The tickets before this one, lowest first.
    lower: Vec<PathBuf>,
    _locked: LockedFile,
    _presence: LockedFile,
}

impl QueueFolder {
    fn waiting(&self) -> PathBuf {
        self.0.join("waiting")
    }

    /// Blocks for a few system calls of other processes, or until a stopped one continues.
    fn take_ticket(&self) -> Result<Ticket, FileError> {
        self.create()?;
        let _numbering = lock(&self.0.join("numbering"), Access::Exclusive)?;
        let presence = lock(&self.waiting(), Access::Shared)?;
        let lower = self.tickets().map_err(FileError::io("read", &self.0))?;
        let number = lower.last().and_then(|path| number_of(path));
        // All digits are written, so that names sort like numbers.
        let path = self.0.join(format!("{:020}", number.map_or(0, |n| n + 1)));
        Ok(Ticket {
            _locked: lock(&path, Access::Exclusive)?,
            _presence: presence,
            lower,
            path,
        })
    }

    /// Creates the queue folder only, not its parents: the folder of a stopped session must not be
    /// created again.
    fn create(&self) -> Result<(), FileError> {
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(FileError::io("create the folder", &self.0)(error))
            }
            _ => private_file::check_folder(&self.0),
        }
    }

    fn tickets(&self) -> io::Result<Vec<PathBuf>> {
        let mut tickets = Vec::new();
        for entry in std::fs::read_dir(&self.0)? {
            let path = entry?.path();
            if number_of(&path).is_some() {
                tickets.push(path);
            }
        }
        tickets.sort_unstable();
        Ok(tickets)
    }
}

/// Locks a file of the queue; blocks until the lock is free.
fn lock(path: &Path, access: Access) -> Result<LockedFile, FileError> {
    LockedFile::lock(open(path)?, access).map_err(FileError::io("lock", path))
}

/// Blocks until a ticket is dropped or its process is dead, and removes the file of a dead one.
fn wait_for_ticket(path: &Path) -> Result<(), FileError> {
    let Some(file) = private_file::open_existing(path, File::options().read(true))? else {
        return Ok(());
    };
    let ended = LockedFile::lock(file, Access::Shared).map_err(FileError::io("lock", path))?;
    let metadata = ended.metadata().map_err(FileError::io("inspect", path))?;
    // Only a dead process leaves its file. A dropped ticket has no name any more; if our caller has
    // given up since then, the path may already be another waiter's ticket, which must not be
    // removed.
    if metadata.nlink() > 0 {
        remove(path).map_err(FileError::io("remove", path))?;
    }
    Ok(())
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Remove the file before the lock is released: a waiter that gets the lock checks whether
        // the file still has a name.
        if let Err(error) = remove(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove a ticket");
        }
    }
}

fn number_of(ticket: &Path) -> Option<u64> {
    ticket.file_name()?.to_str()?.parse().ok()
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn open(path: &Path) -> Result<File, FileError> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    private_file::open(path, &mut options)
}

/// No code panics while it holds one of these mutexes.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::Wake;
    use std::thread::Thread;
    use std::time::{Duration, Instant};

    use super::*;

    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn block_on(mut waiting: Waiting) -> LockedFile {
        let waker = Arc::new(Unpark(std::thread::current())).into();
        loop {
            match Pin::new(&mut waiting).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(served) => return served.unwrap(),
                Poll::Pending => std::thread::park(),
            }
        }
    }

    /// Several of them on the same files are several processes as far as the kernel can tell.
    fn fifo_lock(folder: &tempfile::TempDir) -> FifoLock {
        FifoLock::new(&folder.path().join("lock"))
    }

    fn tickets(lock: &FifoLock) -> usize {
        let tickets = lock.inner.queue.tickets();
        // The first waiter's thread creates the folder.
        tickets.map_or(0, |tickets| tickets.len())
    }

    #[track_caller]
    fn wait_until(condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(40);
        while !condition() {
            assert!(Instant::now() < deadline, "the condition did not come true");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn waiters_are_served_in_order_and_newcomers_queue() {
        let folder = tempfile::tempdir().unwrap();
        let first = fifo_lock(&folder);
        let held = first.try_lock(Access::Exclusive).unwrap().unwrap();
        let (sender, served) = mpsc::channel();
        let mut threads = Vec::new();
        for number in 0..8 {
            let waiting = fifo_lock(&folder).wait(Access::Exclusive).unwrap();
            wait_until(|| tickets(&first) == number + 1);
            let sender = sender.clone();
            threads.push(std::thread::spawn(move || {
                let _held = block_on(waiting);
                sender.send(number).unwrap();
            }));
        }
        drop(held);
        // A newcomer comes last, even if it finds the lock free for a moment.
        let _last = match first.try_lock(Access::Exclusive).unwrap() {
            Some(locked) => locked,
            None => block_on(first.wait(Access::Exclusive).unwrap()),
        };
        let order: Vec<_> = served.try_iter().collect();
        assert_eq!(order, [0, 1, 2, 3, 4, 5, 6, 7]);
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert_eq!(tickets(&first), 0);
    }

    #[test]
    fn a_caller_that_gives_up_leaves_the_queue() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (fifo_lock(&folder), fifo_lock(&folder));
        let held = first.try_lock(Access::Exclusive).unwrap().unwrap();
        for _ in 0..100 {
            drop(second.wait(Access::Exclusive).unwrap());
        }
        // The thread may be about to take the last ticket.
        wait_until(|| tickets(&second) == 0);
        let next = second.wait(Access::Shared).unwrap();
        drop(held);
        drop(block_on(next));
        wait_until(|| !locked(&second.inner.waiters).has_thread);
        assert!(first.try_lock(Access::Exclusive).unwrap().is_some());
    }

    #[test]
    fn a_barging_caller_passes_the_waiters_and_readers_share() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (fifo_lock(&folder), fifo_lock(&folder));
        let missing = first.try_lock(Access::Shared);
        assert!(missing.is_err_and(|error| error.is_not_found()));
        drop(first.try_lock(Access::Exclusive).unwrap().unwrap());
        let reader = first.try_lock(Access::Shared).unwrap().unwrap();
        let writer = second.wait(Access::Exclusive).unwrap();
        let late_reader = second.wait(Access::Shared).unwrap();
        wait_until(|| tickets(&first) > 0);
        assert!(first.try_lock(Access::Shared).unwrap().is_none());
        assert!(first.try_lock_barging(Access::Shared).unwrap().is_some());
        drop(reader);
        let written = block_on(writer);
        assert!(first.is_held().unwrap());
        drop(written);
        let read = block_on(late_reader);
        assert!(first.try_lock(Access::Shared).unwrap().is_some());
        drop(read);
        assert!(!first.is_held().unwrap());
    }

    /// NFS refuses an exclusive lock through a descriptor that can only read.
    #[test]
    fn the_probe_is_open_for_writing() {
        let folder = tempfile::tempdir().unwrap();
        let lock = fifo_lock(&folder);
        drop(block_on(lock.wait(Access::Exclusive).unwrap()));
        drop(lock.try_lock(Access::Exclusive).unwrap());
        let probe = locked(lock.inner.probe.get().unwrap());
        let probe = probe.read().unwrap();
        let flags = rustix::fs::fcntl_getfl(&*probe).unwrap();
        assert!(flags.contains(rustix::fs::OFlags::RDWR));
    }

    #[test]
    fn the_ticket_of_a_dead_process_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (fifo_lock(&folder), fifo_lock(&folder));
        let held = first.try_lock(Access::Exclusive).unwrap().unwrap();
        second.inner.queue.create().unwrap();
        open(&folder.path().join("lock-queue/00000000000000000007")).unwrap();
        let waiting = second.wait(Access::Exclusive).unwrap();
        let ticket = folder.path().join("lock-queue/00000000000000000008");
        wait_until(|| ticket.exists());
        drop(held);
        drop(block_on(waiting));
        assert_eq!(tickets(&first), 0);
    }

    #[test]
    fn waiters_that_arrive_while_the_thread_is_blocked_get_tickets_together() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second, third) = (fifo_lock(&folder), fifo_lock(&folder), fifo_lock(&folder));
        let held = first.try_lock(Access::Exclusive).unwrap().unwrap();
        let blocked = second.wait(Access::Exclusive).unwrap();
        wait_until(|| tickets(&first) == 1);
        let [early, given_up, late] = [(); 3].map(|()| second.wait(Access::Exclusive).unwrap());
        drop(given_up);
        let other = third.wait(Access::Exclusive).unwrap();
        wait_until(|| tickets(&first) == 2);
        drop(held);
        drop(block_on(blocked));
        let other = block_on(other);
        wait_until(|| tickets(&first) == 2);
        drop(other);
        drop(block_on(early));
        drop(block_on(late));
        wait_until(|| tickets(&first) == 0);
    }

    /// A newcomer of the same process queues, although the waiter has no ticket yet.
    #[test]
    fn a_waiter_without_a_ticket_is_not_overtaken_in_its_process() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (fifo_lock(&folder), fifo_lock(&folder));
        second.inner.queue.create().unwrap();
        let numbering = lock(&second.inner.queue.0.join("numbering"), Access::Exclusive).unwrap();
        let waiting = second.wait(Access::Exclusive).unwrap();
        assert!(second.try_lock(Access::Exclusive).unwrap().is_none());
        assert!(first.try_lock(Access::Exclusive).unwrap().is_some());
        drop(numbering);
        drop(block_on(waiting));
        assert!(second.try_lock(Access::Exclusive).unwrap().is_some());
    }

    /// A caller does not block, even if a stopped process holds a file of the queue.
    #[test]
    fn a_process_stopped_on_its_way_into_the_queue_blocks_no_caller() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["numbering", "waiting"] {
            let fifo = fifo_lock(&folder);
            fifo.inner.queue.create().unwrap();
            let stopped = lock(&fifo.inner.queue.0.join(name), Access::Exclusive).unwrap();
            let given_up = fifo.wait(Access::Exclusive).unwrap();
            let waiting = fifo.wait(Access::Exclusive).unwrap();
            drop(given_up);
            assert!(fifo.try_lock_barging(Access::Exclusive).unwrap().is_some());
            assert_eq!(tickets(&fifo), 0, "{name}");
            drop(stopped);
            drop(block_on(waiting));
            wait_until(|| !locked(&fifo.inner.waiters).has_thread);
            assert_eq!(tickets(&fifo), 0, "{name}");
        }
    }

    #[test]
    fn a_lock_file_that_was_deleted_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (fifo_lock(&folder), fifo_lock(&folder));
        let stale = first.try_lock(Access::Exclusive).unwrap().unwrap();
        let waiting = second.wait(Access::Exclusive).unwrap();
        wait_until(|| tickets(&second) == 1);
        std::fs::remove_file(folder.path().join("lock")).unwrap();
        drop(stale);
        let held = block_on(waiting);
        assert_eq!(held.metadata().unwrap().nlink(), 1);
        assert!(first.try_lock_barging(Access::Exclusive).unwrap().is_none());
    }
}
