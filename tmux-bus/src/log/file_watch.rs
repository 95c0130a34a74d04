//! Waits for changes of a file that need not exist yet.
//!
//! # Theory
//!
//! The folder of the file is watched, not the file: that covers writes, creation, removal and
//! replacement. If the folder does not exist, its nearest existing ancestor is watched until
//! something is created in it.
//!
//! - **Race.** A change between a read of the file and the wait must wake the waiter. So the caller
//!   arms the watch first, then reads, then waits; the kernel queues events from the moment of
//!   arming.
//! - Arming again is cheap and has no effect on a folder that is already watched, because a watch
//!   belongs to the inode. A folder that was replaced gets a new watch.
//! - A wake-up without a change of the file is possible (another file in the folder): the caller
//!   reads and waits again.
//! - One inotify instance is kept for the life of the watch: the kernel takes milliseconds to close
//!   one.

use std::path::Path;

use crate::timing::LOG_POLL;

/// The default is without events: the file is polled.
#[derive(Debug, Default)]
pub(crate) struct FileWatch {
    #[cfg(target_os = "linux")]
    events: Option<inotify::Events>,
}

impl FileWatch {
    /// Needs the tokio runtime. Falls back to polling if the system gives no file events.
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(target_os = "linux")]
            events: inotify::Events::new()
                .inspect_err(|error| tracing::warn!(%error, "no file events, polling the log"))
                .ok(),
        }
    }

    /// From now on every change of the file ends the next wait.
    pub(crate) fn arm(&mut self, path: &Path) {
        #[cfg(target_os = "linux")]
        if let Some(events) = &self.events
            && let Err(error) = events.watch(path)
        {
            tracing::warn!(path = %path.display(), %error, "no file events, polling the log");
            self.events = None;
        }
        #[cfg(not(target_os = "linux"))]
        let _ = path;
    }

    /// Waits for a change since [`arm`](Self::arm), or for the next poll.
    pub(crate) async fn changed(&self) {
        #[cfg(target_os = "linux")]
        if let Some(events) = &self.events
            && events.wait().await.is_ok()
        {
            return;
        }
        tokio::time::sleep(LOG_POLL).await;
    }
}

#[cfg(target_os = "linux")]
mod inotify {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
    use rustix::io::Errno;
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    #[derive(Debug)]
    pub(super) struct Events(AsyncFd<OwnedFd>);

    impl Events {
        pub(super) fn new() -> io::Result<Self> {
            let fd = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
            #[allow(
                deprecated,
                reason = "the successor is unsafe because of types that lie about their descriptor; \
                          `OwnedFd` does not, and older versions of tokio have only this"
            )]
            AsyncFd::with_interest(fd, Interest::READABLE).map(Self)
        }

        /// Watches the folder of the file, or its nearest existing ancestor.
        pub(super) fn watch(&self, path: &Path) -> io::Result<()> {
            let here = Path::new(".");
            let created = WatchFlags::CREATE | WatchFlags::MOVED_TO;
            let removed = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
            let mut flags = created | removed | WatchFlags::MODIFY | WatchFlags::DELETE;
            let folders = path.ancestors().skip(1);
            let mut missing: Option<&Path> = None;
            for folder in folders.chain([here]) {
                let folder = if folder.as_os_str().is_empty() {
                    here
                } else {
                    folder
                };
                match add_watch(&self.0, folder, flags) {
                    // Race: the missing folder was created between the two watches, and no event tells it.
                    Ok(_) if missing.is_some_and(Path::is_dir) => return self.watch(path),
                    Ok(_) => return Ok(()),
                    Err(Errno::NOENT | Errno::NOTDIR) => missing = Some(folder),
                    Err(error) => return Err(error.into()),
                }
                // Once: the next call watches a folder that is nearer.
                flags = created | removed | WatchFlags::ONESHOT;
            }
            Err(Errno::NOENT.into())
        }

        /// Waits for events and discards them.
        pub(super) async fn wait(&self) -> io::Result<()> {
            let mut ready = self.0.readable().await?;
            let mut buffer = [0; 4096];
            loop {
                match rustix::io::read(&self.0, &mut buffer) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => {
                        ready.clear_ready();
                        return Ok(());
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}
