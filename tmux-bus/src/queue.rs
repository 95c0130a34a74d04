//! One sender at a time a pane, in one process and across processes, in the order of arrival.
//!
//! Within a process a fair semaphore keeps the order. Across processes each sender at the head of
//! its process takes a numbered ticket, a file that it holds locked, and waits for the locks of all
//! lower numbers. The kernel releases the lock of a process that dies, so that no ticket has to be
//! judged by its age.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    error::{Error, Result},
    pane::PaneId,
};

/// How many senders of one process may wait for one pane.
pub(crate) const MAX_WAITING: usize = 64;

/// The queue of one pane, shared by all senders of this process.
#[derive(Debug)]
pub(crate) struct Queue {
    pane: PaneId,
    folder: PathBuf,
    turn: Arc<Semaphore>,
    places: Arc<Semaphore>,
}

/// The right to send to a pane. Dropping it lets the next sender go on.
#[derive(Debug)]
pub(crate) struct Turn {
    _ticket: Ticket,
    _turn: OwnedSemaphorePermit,
    _place: OwnedSemaphorePermit,
}

impl Queue {
    pub(crate) fn new(folder: &Path, pane: PaneId) -> Self {
        Self {
            pane,
            folder: folder.join(format!("queue-{}", pane.number())),
            turn: Arc::new(Semaphore::new(1)),
            places: Arc::new(Semaphore::new(MAX_WAITING)),
        }
    }

    /// Waits for this sender's turn. Dropping the future gives its place up.
    pub(crate) async fn turn(&self) -> Result<Turn> {
        let full = || Error::QueueFull {
            pane: self.pane,
            waiting: MAX_WAITING,
        };
        let place = Arc::clone(&self.places)
            .try_acquire_owned()
            .map_err(|_| full())?;
        let turn = Arc::clone(&self.turn)
            .acquire_owned()
            .await
            .map_err(|_| full())?;
        let failed = |source| Error::file("take a ticket in", &self.folder, source);
        let mut ticket = Ticket::take(&self.folder).map_err(failed)?;
        if !ticket.try_wait().map_err(failed)? {
            // A lock cannot be waited for without a thread. If the caller gives up, the thread ends
            // when the senders before it are through, and drops the ticket then.
            ticket = tokio::task::spawn_blocking(move || ticket.wait().map(|()| ticket))
                .await
                .map_err(io::Error::other)
                .flatten()
                .map_err(failed)?;
        }
        Ok(Turn {
            _ticket: ticket,
            _turn: turn,
            _place: place,
        })
    }

    /// Whether a sender, of any process, holds or waits for the turn.
    pub(crate) fn is_busy(&self) -> bool {
        self.turn.available_permits() == 0
            || tickets(&self.folder).is_ok_and(|tickets| {
                tickets
                    .iter()
                    .any(|path| matches!(is_free(path), Ok(false)))
            })
    }
}

impl Turn {
    /// The number of this turn, growing with each sender of any process.
    #[cfg(test)]
    fn number(&self) -> u64 {
        self._ticket.number
    }
}

#[derive(Debug)]
struct Ticket {
    folder: PathBuf,
    number: u64,
    /// The tickets before this one. Each was locked before this one was there.
    before: Vec<PathBuf>,
    _locked: File,
}

impl Ticket {
    fn take(folder: &Path) -> io::Result<Self> {
        let door = match open(&folder.join("door")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(folder)?;
                open(&folder.join("door"))?
            }
            other => other?,
        };
        // Held for three system calls only, so that waiting for it inline is fine.
        door.lock()?;
        let before = tickets(folder)?;
        let number = before
            .last()
            .and_then(|path| number(path))
            .map_or(0, |n| n + 1);
        let locked = open(&path(folder, number))?;
        locked.lock()?;
        door.unlock()?;
        Ok(Self {
            folder: folder.to_owned(),
            number,
            before,
            _locked: locked,
        })
    }

    /// Whether all tickets before this one are through.
    fn try_wait(&self) -> io::Result<bool> {
        for path in &self.before {
            if !is_free(path)? {
                return Ok(false);
            }
            // What a dead process left behind: its number is not given again while a higher ticket
            // stands, and this one is higher.
            remove(path)?;
        }
        Ok(true)
    }

    fn wait(&self) -> io::Result<()> {
        for path in &self.before {
            match File::open(path) {
                Ok(file) => file.lock_shared()?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            remove(path)?;
        }
        Ok(())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Before the lock goes with the file: who waits for it holds the same file open.
        if let Err(error) = remove(&path(&self.folder, self.number)) {
            tracing::warn!(%error, "a ticket could not be removed");
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)
}

fn path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:020}"))
}

fn number(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.parse().ok()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn is_free(path: &Path) -> io::Result<bool> {
    match File::open(path) {
        Ok(file) => match file.try_lock_shared() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// The tickets that are there, lowest first.
fn tickets(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut tickets = Vec::new();
    match fs::read_dir(folder) {
        Ok(entries) => {
            for entry in entries {
                let path = entry?.path();
                if number(&path).is_some() {
                    tickets.push(path);
                }
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // The numbers are written with all their digits.
    tickets.sort_unstable();
    Ok(tickets)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pane() -> PaneId {
        "%1".parse().unwrap()
    }

    #[tokio::test]
    async fn another_queue_on_the_same_folder_waits_and_goes_on_in_order() {
        let folder = tempfile::tempdir().unwrap();
        // Two queues are two processes as far as the files can tell.
        let (a, b) = (
            Queue::new(folder.path(), pane()),
            Queue::new(folder.path(), pane()),
        );
        let first = a.turn().await.unwrap();
        assert!(b.is_busy());
        let waiting = tokio::spawn(async move { b.turn().await.unwrap().number() });
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        while tickets(&a.folder).unwrap().len() < 2 {
            assert!(tokio::time::Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!waiting.is_finished());
        let number = first.number();
        drop(first);
        assert_eq!(waiting.await.unwrap(), number + 1);
        assert!(!a.is_busy());
    }

    #[tokio::test]
    async fn a_ticket_of_a_dead_process_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let queue = Queue::new(folder.path(), pane());
        fs::create_dir_all(&queue.folder).unwrap();
        File::create(path(&queue.folder, 7)).unwrap();
        assert_eq!(queue.turn().await.unwrap().number(), 8);
    }

    #[tokio::test]
    async fn the_queue_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let queue = Arc::new(Queue::new(folder.path(), pane()));
        let first = queue.turn().await.unwrap();
        let mut waiting = Vec::new();
        for _ in 1..MAX_WAITING {
            let queue = Arc::clone(&queue);
            waiting.push(tokio::spawn(async move { queue.turn().await.map(drop) }));
        }
        while queue.places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(matches!(queue.turn().await, Err(Error::QueueFull { .. })));
        drop(first);
        for task in waiting {
            task.await.unwrap().unwrap();
        }
    }
}
