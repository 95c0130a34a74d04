//! The lock of a pane: one sender at a time, first come, first served.
//!
//! In one process a fair semaphore keeps the order, and a second one bounds the number of senders.
//! Across processes a [`FifoLock`] in the folder of the session keeps the order. A process that dies
//! leaves the queue, because the kernel releases its locks.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::pane_id::PaneId;
use crate::Error;
use crate::shared::fifo_lock::FifoLock;
use crate::shared::kernel_lock::{Access, LockedFile};

/// Number of senders of one process that a pane admits, including the one that has the lock.
const MAX_SENDERS: usize = 64;

#[derive(Debug)]
pub(crate) struct PaneLock {
    pane: PaneId,
    /// One for each admitted sender.
    slots: Arc<Semaphore>,
    /// The order within this process.
    in_process: Arc<Semaphore>,
    /// The order among processes.
    file: FifoLock,
}

/// The right to send to a pane. Dropping it admits the next sender.
#[derive(Debug)]
pub(crate) struct PaneLockGuard {
    // Fields are dropped in this order.
    _file: LockedFile,
    _in_process: OwnedSemaphorePermit,
    _slot: OwnedSemaphorePermit,
}

impl PaneLock {
    pub(crate) fn new(folder: &Path, pane: PaneId) -> Self {
        Self {
            pane,
            slots: Arc::new(Semaphore::new(MAX_SENDERS)),
            in_process: Arc::new(Semaphore::new(1)),
            file: FifoLock::new(&folder.join(format!("pane-{}", pane.number()))),
        }
    }

    /// Waits for the lock. Dropping the future leaves the queue.
    pub(crate) async fn lock(&self) -> Result<PaneLockGuard, Error> {
        let full = |_| Error::QueueFull {
            pane: self.pane,
            senders: MAX_SENDERS,
        };
        let slot = Arc::clone(&self.slots).try_acquire_owned().map_err(full)?;
        // The semaphore is never closed.
        let in_process = Arc::clone(&self.in_process).acquire_owned().await;
        let in_process = in_process.map_err(|_| Error::failed("lock", "the pane is closed"))?;
        let file = match self.file.try_lock(Access::Exclusive)? {
            Some(file) => file,
            None => self.file.wait(Access::Exclusive)?.await?,
        };
        Ok(PaneLockGuard {
            _file: file,
            _in_process: in_process,
            _slot: slot,
        })
    }

    /// Whether a sender of any process has the lock.
    pub(crate) fn is_held(&self) -> bool {
        self.in_process.available_permits() == 0 || self.file.is_held().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;

    /// Several of them behave like several processes, because they share only the files.
    fn pane_lock(folder: &tempfile::TempDir) -> Arc<PaneLock> {
        let pane = PaneId::new("%1").unwrap();
        Arc::new(PaneLock::new(folder.path(), pane))
    }

    /// Waits until so many processes are in the queue.
    async fn queued(folder: &tempfile::TempDir, count: usize) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(40);
        let is_ticket = |name: std::ffi::OsString| name.to_str().unwrap().parse::<u64>().is_ok();
        loop {
            let entries = std::fs::read_dir(folder.path().join("pane-1-queue"));
            let names = entries.into_iter().flatten();
            let tickets = names.filter(|entry| is_ticket(entry.as_ref().unwrap().file_name()));
            if tickets.count() == count {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn processes_get_the_lock_in_the_order_of_their_arrival() {
        let folder = tempfile::tempdir().unwrap();
        let first = pane_lock(&folder);
        let held = first.lock().await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for number in 0..4 {
            let (lock, order) = (pane_lock(&folder), Arc::clone(&order));
            assert!(lock.is_held());
            waiting.push(tokio::spawn(async move {
                let _held = lock.lock().await.unwrap();
                order.lock().unwrap().push(number);
            }));
            queued(&folder, number + 1).await;
        }
        assert!(order.lock().unwrap().is_empty());
        drop(held);
        // A newcomer is last, although the lock may be free for a moment.
        let last = first.lock().await.unwrap();
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3]);
        drop(last);
        for task in waiting {
            task.await.unwrap();
        }
        assert!(!first.is_held());
    }

    #[tokio::test]
    async fn a_sender_that_gives_up_leaves_the_queue() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (pane_lock(&folder), pane_lock(&folder));
        let held = first.lock().await.unwrap();
        let given_up = tokio::time::timeout(Duration::from_millis(50), second.lock()).await;
        assert!(given_up.is_err());
        queued(&folder, 0).await;
        drop(held);
        let held = second.lock().await.unwrap();
        assert!(first.is_held());
        drop(held);
        assert!(!first.is_held());
    }

    #[tokio::test]
    async fn the_queue_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let lock = pane_lock(&folder);
        let held = lock.lock().await.unwrap();
        let mut waiting = Vec::new();
        for _ in 1..MAX_SENDERS {
            let lock = Arc::clone(&lock);
            waiting.push(tokio::spawn(async move { lock.lock().await.map(drop) }));
        }
        while lock.slots.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(matches!(lock.lock().await, Err(Error::QueueFull { .. })));
        drop(held);
        for task in waiting {
            task.await.unwrap().unwrap();
        }
    }

    /// The folder is removed with its session; a sender must not create it again.
    #[tokio::test]
    async fn the_lock_does_not_create_the_folder_of_the_session() {
        let folder = tempfile::tempdir().unwrap();
        let gone = folder.path().join("gone");
        let lock = PaneLock::new(&gone, PaneId::new("%1").unwrap());
        assert!(lock.lock().await.unwrap_err().is_not_found());
        assert!(!gone.exists());
    }
}
