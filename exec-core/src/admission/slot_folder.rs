//! The files that executions lock while they run.
//!
//! # Theory
//!
//! `flock` has no wait for any one of several locks, so the first launch in the queue watches the
//! folder instead. The holder of a slot keeps its file open twice: once for reading, with the lock,
//! and once for writing. The kernel reports the close of a file that was open for writing
//! (`IN_CLOSE_WRITE`), also when a killed process closes it. Looks at the slots open the files for
//! reading only, so that they make no events.
//!
//! **Races.**
//! - A killed process closes its descriptors one after the other, and the kernel reports a close
//!   before it releases the lock. A launch that looks in between finds the slot taken. So it looks
//!   again a few times after each event ([`SETTLE`]).
//! - Events are missing where the kernel has none (network file systems), and if the inotify
//!   instances of the user are used up. So the slots are also looked at every [`INTERVAL`].

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::Error;
use crate::shared::kernel_lock::{Access, LockedFile};
use crate::shared::private_file;

/// The pauses before further looks after an event.
const SETTLE: [Duration; 3] = [
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(25),
];
/// How often the slots are looked at without an event.
const INTERVAL: Duration = Duration::from_secs(1);
/// The same, if the folder cannot be watched.
const INTERVAL_WITHOUT_EVENTS: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct SlotFolder {
    path: PathBuf,
    count: usize,
}

/// A locked slot. Dropping it unlocks first, then closes the second descriptor, which tells the
/// watchers: the fields are dropped in this order.
#[derive(Debug)]
pub(super) struct SlotFile {
    _locked: LockedFile,
    _open_for_writing: File,
}

impl SlotFolder {
    pub(super) fn create(path: PathBuf, count: usize) -> Result<Self, Error> {
        private_file::create_folder(&path)?;
        Ok(Self { path, count })
    }

    /// Takes a free slot; `None` if all are taken. Only the holder of the gate calls it.
    pub(super) fn try_take(&self) -> Result<Option<SlotFile>, Error> {
        for number in 0..self.count {
            let path = self.path.join(number.to_string());
            let file = match private_file::open_existing(&path, File::options().read(true))? {
                Some(file) => file,
                None => {
                    open_for_writing(&path)?;
                    private_file::open(&path, File::options().read(true))?
                }
            };
            let locked = LockedFile::try_lock(file, Access::Exclusive);
            if let Some(locked) = locked.map_err(Error::io("lock", &path))? {
                return Ok(Some(SlotFile {
                    _locked: locked,
                    _open_for_writing: open_for_writing(&path)?,
                }));
            }
        }
        Ok(None)
    }

    /// Begins to watch: a release from now on is seen.
    pub(super) fn watch(&self) -> SlotWatch {
        let events = watch_closes(&self.path);
        let events = events.map_err(|error| {
            let path = self.path.display();
            tracing::warn!(%path, %error, "cannot watch the slots, looking every 50 ms");
        });
        SlotWatch {
            events: events.ok(),
            settle: 0,
        }
    }
}

fn open_for_writing(path: &Path) -> Result<File, Error> {
    let mut options = File::options();
    Ok(private_file::open(
        path,
        options.create(true).write(true).truncate(false),
    )?)
}

fn watch_closes(folder: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    inotify::add_watch(&inotify, folder, WatchFlags::CLOSE_WRITE)?;
    #[allow(
        deprecated,
        reason = "the successor is unsafe because of types that lie about their descriptor; \
                  `OwnedFd` does not, and older versions of tokio have only this"
    )]
    AsyncFd::with_interest(inotify, Interest::READABLE)
}

/// The releases of slots since its creation.
#[derive(Debug)]
pub(super) struct SlotWatch {
    /// `None` if the folder cannot be watched.
    events: Option<AsyncFd<OwnedFd>>,
    /// How many looks have followed the last event.
    settle: usize,
}

impl SlotWatch {
    /// Waits until it is worth to look at the slots again.
    pub(super) async fn released(&mut self) {
        let Some(events) = &self.events else {
            return tokio::time::sleep(INTERVAL_WITHOUT_EVENTS).await;
        };
        let pause = SETTLE.get(self.settle).copied().unwrap_or(INTERVAL);
        self.settle = (self.settle + 1).min(SETTLE.len());
        tokio::select! {
            ready = events.readable() => {
                if let Ok(mut ready) = ready {
                    drain(events.get_ref());
                    ready.clear_ready();
                }
                self.settle = 0;
            }
            () = tokio::time::sleep(pause) => {}
        }
    }
}

impl Drop for SlotWatch {
    /// The kernel takes milliseconds to close an inotify descriptor, because it waits until no
    /// event is under way. The launch does not wait for that.
    fn drop(&mut self) {
        let Some(events) = self.events.take() else {
            return;
        };
        let inotify = events.into_inner();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(inotify));
        }
    }
}

fn drain(inotify: &OwnedFd) {
    let mut buffer = [const { MaybeUninit::uninit() }; 1024];
    let mut reader = inotify::Reader::new(inotify, &mut buffer);
    while reader.next().is_ok() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(count: usize) -> (tempfile::TempDir, SlotFolder) {
        let folder = tempfile::tempdir().unwrap();
        let slots = SlotFolder::create(folder.path().join("slots"), count).unwrap();
        (folder, slots)
    }

    #[test]
    fn there_are_exactly_as_many_slots() {
        let (_folder, slots) = slots(2);
        let first = slots.try_take().unwrap().unwrap();
        let second = slots.try_take().unwrap().unwrap();
        assert!(slots.try_take().unwrap().is_none());
        drop(first);
        let third = slots.try_take().unwrap().unwrap();
        assert!(slots.try_take().unwrap().is_none());
        drop((second, third));
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_makes_no_event_and_a_release_does() {
        let (_folder, slots) = slots(1);
        let held = slots.try_take().unwrap().unwrap();
        let mut watch = slots.watch();
        watch.settle = SETTLE.len();
        assert!(slots.try_take().unwrap().is_none());
        let events = watch.events.as_ref().unwrap();
        let mut buffer = [const { MaybeUninit::uninit() }; 1024];
        let mut seen = || {
            let mut reader = inotify::Reader::new(events.get_ref(), &mut buffer);
            reader.next().is_ok()
        };
        assert!(!seen());
        drop(held);
        assert!(seen());
        drop(watch);
    }
}
