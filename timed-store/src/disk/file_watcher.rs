//! Watches the files of a store, and the processes that own entries.
//!
//! # Theory (Linux)
//!
//! One thread for each handle with waiters blocks in `poll` on three kinds of descriptors:
//!
//! - *inotify on the folder of the data file*. A new version arrives by a rename, which replaces
//!   the watched inode; so the folder is watched, and events of other names are dropped. The writer
//!   still holds the lock then, and a waiter that is woken now would have to queue for it. So the
//!   waiters are told when the writer closes the lock file, which follows the unlock, or after
//!   `GRACE`: a tool that knows no lock does not close it.
//! - *inotify on the folder of the waiters.* A waiter holds its ticket open for writing, so its end
//!   closes the file (`IN_CLOSE_WRITE`), also if the process was killed. Waiters open the tickets
//!   of others for reading only, so that looking at the queue makes no events.
//! - *A pidfd for each owner process*, which becomes readable when the process ends.
//!
//! Race: the kernel reports the close of a file just before it releases the file's lock. A waiter
//! that checks the queue in between sees a live ticket. The waiter checks again after at most a
//! second, because it leaves a free value to an earlier waiter for no longer.
//!
//! A watch belongs to the folder's inode. If the folder is removed or renamed, or does not exist yet,
//! the thread tries to watch the path every quarter of a second, and tells the waiters each time. It
//! does the latter also if a process has no pidfd (no descriptor is left, or the kernel refuses).
//!
//! inotify reports changes by other machines neither on network file systems nor through FUSE.
//! There, on other systems, and if the user's inotify instances are used up, waiters look again
//! every quarter of a second.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::location::Location;
use crate::store::{Changes, Signal, Source};

/// How often a waiter checks the store where no change is reported.
const INTERVAL: Duration = Duration::from_millis(250);

/// The watcher of a handle and its clones, while one of them waits.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileWatch(Arc<Mutex<Weak<FileWatcher>>>);

impl FileWatch {
    pub(crate) fn changes(&self, location: &Location) -> Changes {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let watcher = match current.upgrade() {
            Some(watcher) => watcher,
            None => match FileWatcher::start(location) {
                Ok(Some(watcher)) => Arc::new(watcher),
                Ok(None) => return by_interval(),
                Err(error) => {
                    let path = location.data.display();
                    tracing::warn!(%path, %error, "cannot watch the file; looking every 250 ms");
                    return by_interval();
                }
            },
        };
        *current = Arc::downgrade(&watcher);
        Changes::new(Arc::clone(watcher.signal()), Source::Files(watcher), None)
    }
}

fn by_interval() -> Changes {
    Changes::new(
        Arc::new(Signal::default()),
        Source::Interval,
        Some(INTERVAL),
    )
}

#[cfg(target_os = "linux")]
pub(crate) use linux::FileWatcher;

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::OsString;
    use std::io;
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::os::unix::ffi::OsStrExt;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
    use std::sync::{Arc, Mutex, PoisonError};

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
    use rustix::io::Errno;
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::super::location::Location;
    use super::INTERVAL;
    use crate::OwnerProcess;
    use crate::store::Signal;

    /// How long after a new version the waiters are told, if the lock file is not closed.
    const GRACE: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 2_000_000,
    };

    const POLL: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: INTERVAL.subsec_nanos() as i64,
    };

    /// In place of a watch: there is no folder, or it was renamed.
    const NO_WATCH: i32 = -1;

    /// Dropping it ends the thread.
    ///
    /// To close an inotify descriptor takes milliseconds, because the kernel waits until no event is
    /// under way. So the thread must be the last owner of `shared`: the drop gives `shared` up first,
    /// and only then lets the thread end.
    #[derive(Debug)]
    pub(crate) struct FileWatcher {
        /// `None` only inside of the drop.
        shared: Option<Arc<Shared>>,
        signal: Arc<Signal>,
        is_ended: Arc<AtomicBool>,
        /// The thread's `wake`.
        wake: OwnedFd,
    }

    #[derive(Debug)]
    struct Shared {
        signal: Arc<Signal>,
        inotify: OwnedFd,
        /// Wakes the thread for a new process, or for its end.
        wake: OwnedFd,
        is_ended: Arc<AtomicBool>,
        processes: Mutex<Vec<(u32, Arc<OwnedFd>)>>,
        names: [OsString; 2],
        lock_name: OsString,
        waiters: PathBuf,
        folder: PathBuf,
        /// The watch of the data file's folder, or [`NO_WATCH`].
        watch: AtomicI32,
        /// Set if a process could not be watched.
        has_unwatched: AtomicBool,
    }

    impl FileWatcher {
        /// `None` if the file system does not report changes.
        pub(crate) fn start(location: &Location) -> io::Result<Option<Self>> {
            let folder = location.folder();
            if is_remote(folder) {
                return Ok(None);
            }
            let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
            let watch = match watch_folder(&inotify, folder) {
                Err(Errno::NOENT) => NO_WATCH,
                watch => watch?,
            };
            let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let (signal, is_ended) = (Arc::<Signal>::default(), Arc::<AtomicBool>::default());
            let name = |path: &Path| path.file_name().unwrap_or_default().to_owned();
            let shared = Arc::new(Shared {
                signal: Arc::clone(&signal),
                inotify,
                wake: wake.try_clone()?,
                is_ended: Arc::clone(&is_ended),
                processes: Mutex::default(),
                names: [name(&location.data), name(&location.slots())],
                lock_name: name(&location.lock),
                waiters: location.waiters(),
                folder: folder.to_owned(),
                watch: AtomicI32::new(watch),
                has_unwatched: AtomicBool::new(false),
            });
            let watcher = Self {
                shared: Some(Arc::clone(&shared)),
                signal,
                is_ended,
                wake,
            };
            watcher.watch_queue();
            std::thread::Builder::new()
                .name("timed-store-watch".to_owned())
                .spawn(move || shared.run())?;
            Ok(Some(watcher))
        }

        pub(crate) fn signal(&self) -> &Arc<Signal> {
            &self.signal
        }

        /// Idempotent. There is no folder before the first waiter.
        pub(crate) fn watch_queue(&self) {
            let Some(shared) = &self.shared else { return };
            let flags = WatchFlags::CLOSE_WRITE | WatchFlags::DELETE | WatchFlags::ONLYDIR;
            let watch = inotify::add_watch(&shared.inotify, &shared.waiters, flags);
            if let Err(error) = watch
                && error != Errno::NOENT
            {
                let path = shared.waiters.display();
                tracing::warn!(%path, %error, "cannot watch the queue");
            }
        }

        pub(crate) fn watch_processes(&self, owners: &[OwnerProcess]) {
            let Some(shared) = &self.shared else { return };
            let mut processes = shared.processes();
            let mut is_new = false;
            for owner in owners.iter().filter(|owner| owner.is_here()) {
                let pid = i32::try_from(owner.pid()).ok().and_then(Pid::from_raw);
                let Some(pid) = pid else { continue };
                if processes.iter().any(|(known, _)| *known == owner.pid()) {
                    continue;
                }
                // A process that has just ended has no pidfd: the caller checks the store after
                // this call and sees it.
                match pidfd_open(pid, PidfdFlags::empty()) {
                    Ok(descriptor) => {
                        processes.push((owner.pid(), Arc::new(descriptor)));
                        is_new = true;
                    }
                    Err(Errno::SRCH) => self.signal.notify(),
                    Err(error) => {
                        if !shared.has_unwatched.swap(true, Ordering::SeqCst) {
                            tracing::warn!(pid = owner.pid(), %error, "cannot watch the process");
                            is_new = true;
                        }
                    }
                }
            }
            drop(processes);
            if is_new {
                self.wake_thread();
            }
        }

        fn wake_thread(&self) {
            // Fails only if the counter is full, and then the thread wakes up anyway.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    impl Drop for FileWatcher {
        fn drop(&mut self) {
            self.shared = None;
            self.is_ended.store(true, Ordering::SeqCst);
            self.wake_thread();
        }
    }

    impl Shared {
        fn processes(&self) -> std::sync::MutexGuard<'_, Vec<(u32, Arc<OwnedFd>)>> {
            self.processes
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        }

        fn run(&self) {
            let mut is_unlocked = true;
            let mut is_failing = false;
            while !self.is_ended.load(Ordering::SeqCst) {
                let Err(error) = self.wait(&mut is_unlocked) else {
                    is_failing = false;
                    continue;
                };
                if !is_failing {
                    tracing::error!(%error, "cannot watch the store; looking every 250 ms");
                }
                is_failing = true;
                std::thread::sleep(INTERVAL);
                self.signal.notify();
            }
        }

        /// Blocks until something happens, and tells the waiters if it may concern them.
        /// `is_unlocked` is false between a new version and the unlock that follows it.
        fn wait(&self, is_unlocked: &mut bool) -> io::Result<()> {
            // Not duplicated descriptors: the process may have no descriptor left.
            let processes = self.processes().clone();
            let mut sources = vec![
                PollFd::new(&self.inotify, PollFlags::IN),
                PollFd::new(&self.wake, PollFlags::IN),
            ];
            let owners = processes.iter().map(|(_, descriptor)| descriptor);
            sources.extend(owners.map(|owner| PollFd::new(&**owner, PollFlags::IN)));
            let is_deaf = self.watch.load(Ordering::Relaxed) == NO_WATCH;
            let limit = if !*is_unlocked {
                Some(&GRACE)
            } else if is_deaf || self.has_unwatched.load(Ordering::SeqCst) {
                Some(&POLL)
            } else {
                None
            };
            let is_late = match poll(&mut sources, limit) {
                Ok(ready) => ready == 0,
                Err(Errno::INTR) => false,
                Err(error) => return Err(error.into()),
            };
            let is_ready = |at: usize| !sources[at].revents().is_empty();
            let ended: Vec<u32> = processes
                .iter()
                .enumerate()
                .filter(|(at, _)| is_ready(at + 2))
                .map(|(_, (pid, _))| *pid)
                .collect();
            self.processes().retain(|(pid, _)| !ended.contains(pid));
            if is_ready(1) {
                let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            }
            let mut is_news = !ended.is_empty();
            if is_deaf
                && !is_remote(&self.folder)
                && let Ok(watch) = watch_folder(&self.inotify, &self.folder)
            {
                self.watch.store(watch, Ordering::Relaxed);
                is_news = true;
            }
            if is_ready(0) {
                is_news |= self.read_events(is_unlocked)?;
            }
            if is_late {
                *is_unlocked = true;
                is_news = true;
            }
            if is_news {
                self.signal.notify();
            }
            Ok(())
        }

        /// Reads all events, and returns whether the waiters must be told.
        fn read_events(&self, is_unlocked: &mut bool) -> io::Result<bool> {
            let mut buffer = [MaybeUninit::uninit(); 8 << 10];
            let mut events = inotify::Reader::new(&self.inotify, &mut buffer);
            let mut is_news = false;
            loop {
                match events.next() {
                    Ok(event) => {
                        let name = event.file_name().map(|name| name.to_bytes());
                        let is_version =
                            |name: &[u8]| self.names.iter().any(|ours| ours.as_bytes() == name);
                        match name {
                            // A waiter has ended.
                            _ if event.wd() != self.watch.load(Ordering::Relaxed) => is_news = true,
                            _ if event.events().intersects(FOLDER_GONE) => {
                                let _ = inotify::remove_watch(&self.inotify, event.wd());
                                self.watch.store(NO_WATCH, Ordering::Relaxed);
                                is_news = true;
                            }
                            // An overflow.
                            None => is_news = true,
                            Some(name) if is_version(name) => *is_unlocked = false,
                            Some(name) if name == self.lock_name.as_bytes() && !*is_unlocked => {
                                *is_unlocked = true;
                                is_news = true;
                            }
                            Some(_) => {}
                        }
                    }
                    Err(Errno::AGAIN) => return Ok(is_news),
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }

    const FOLDER_GONE: ReadFlags = ReadFlags::DELETE_SELF
        .union(ReadFlags::MOVE_SELF)
        .union(ReadFlags::IGNORED)
        .union(ReadFlags::UNMOUNT);

    fn watch_folder(inotify: &OwnedFd, folder: &Path) -> Result<i32, Errno> {
        let flags = WatchFlags::MOVED_TO
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        inotify::add_watch(inotify, folder, flags)
    }

    /// Whether other machines can change the folder, which inotify does not see.
    fn is_remote(folder: &Path) -> bool {
        // NFS, SMB, SMB2, CIFS, FUSE, 9P, Ceph, AFS; see statfs(2).
        const REMOTE: [u64; 8] = [
            0x6969,
            0x517B,
            0xFE53_4D42,
            0xFF53_4D42,
            0x6573_5546,
            0x0102_1997,
            0x00C3_6400,
            0x5346_414F,
        ];
        rustix::fs::statfs(folder).is_ok_and(|system| REMOTE.contains(&(system.f_type as u64)))
    }

    #[cfg(test)]
    mod tests {
        use std::time::{Duration, Instant};

        use super::*;
        use crate::store::{Blocking, Changes, Runtime, RuntimeContext, Source, block_on};

        /// The events of a folder's descriptor cannot be read.
        #[test]
        fn a_watcher_that_fails_makes_the_waiters_look() {
            let folder = tempfile::tempdir().unwrap();
            let descriptor = std::fs::File::open(folder.path()).unwrap();
            check_polling(descriptor.into(), false);
        }

        #[test]
        fn a_process_without_a_descriptor_makes_the_waiters_look() {
            let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
            check_polling(inotify.unwrap(), true);
        }

        #[test]
        fn a_folder_that_is_created_later_is_watched() {
            let parent = tempfile::tempdir().unwrap();
            let location = Location::new(&parent.path().join("new/state.json")).unwrap();
            let watcher = FileWatcher::start(&location).unwrap().unwrap();
            let shared = watcher.shared.as_ref().unwrap();
            let is_watched = || shared.watch.load(Ordering::Relaxed) != NO_WATCH;
            assert!(!is_watched());
            std::fs::create_dir(location.folder()).unwrap();
            let deadline = Instant::now() + Duration::from_secs(60);
            while !is_watched() {
                assert!(Instant::now() < deadline, "the folder is not watched");
                std::thread::sleep(Duration::from_millis(1));
            }
        }

        fn check_polling(inotify: OwnedFd, has_unwatched: bool) {
            let signal = Arc::<Signal>::default();
            let shared = Shared {
                signal: Arc::clone(&signal),
                inotify,
                wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap(),
                is_ended: Arc::default(),
                processes: Mutex::default(),
                names: Default::default(),
                lock_name: OsString::new(),
                waiters: PathBuf::new(),
                folder: PathBuf::new(),
                watch: AtomicI32::new(0),
                has_unwatched: AtomicBool::new(has_unwatched),
            };
            let mut changes = Changes::new(signal, Source::Interval, None);
            let looks = std::thread::scope(|scope| {
                scope.spawn(|| shared.run());
                let looks = [(); 2].map(|()| {
                    let look = Blocking::at_most(Duration::from_secs(60), changes.changed());
                    let look = block_on(&RuntimeContext::default(), look);
                    changes.mark();
                    look
                });
                shared.is_ended.store(true, Ordering::SeqCst);
                looks
            });
            assert_eq!(looks, [Some(()); 2]);
        }
    }
}

/// A system without inotify: the watcher does not exist.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub(crate) enum FileWatcher {}

#[cfg(not(target_os = "linux"))]
impl FileWatcher {
    fn start(_location: &Location) -> std::io::Result<Option<Self>> {
        Ok(None)
    }

    fn signal(&self) -> &Arc<Signal> {
        match *self {}
    }

    pub(crate) fn watch_queue(&self) {
        match *self {}
    }

    pub(crate) fn watch_processes(&self, _owners: &[crate::OwnerProcess]) {
        match *self {}
    }
}
