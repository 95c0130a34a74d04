//! One sender at a time a pane, in one process and across processes, in the order of arrival.
//!
//! Within a process a fair semaphore keeps the order. Across processes the lock of one file is the
//! turn. Who finds it free, and nobody waiting, takes it by three system calls on files that stay
//! open. Everybody else takes a numbered ticket, a file that it holds locked, waits for the locks of
//! all lower numbers, and then for the turn. The kernel releases the locks of a process that dies,
//! so that nothing has to be judged by its age.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
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
    /// Used by who has the semaphore only: a lock taken twice through one open file is one lock.
    files: OnceLock<Files>,
}

/// The right to send to a pane. Dropping it lets the next sender go on.
#[derive(Debug)]
pub(crate) struct Turn {
    // The fields are dropped in this order.
    _lock: Held,
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
            files: OnceLock::new(),
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
        let failed = |source| Error::file("take a turn in", &self.folder, source);
        let lock = match self.files().and_then(Files::try_lock).map_err(failed)? {
            Some(lock) => lock,
            None => {
                let folder = self.folder.clone();
                // A lock cannot be waited for without a thread. If the caller gives up, the thread
                // ends when the senders before it are through, and drops the lock then.
                tokio::task::spawn_blocking(move || wait_in_line(&folder))
                    .await
                    .map_err(io::Error::other)
                    .flatten()
                    .map_err(failed)?
            }
        };
        Ok(Turn {
            _lock: lock,
            _turn: turn,
            _place: place,
        })
    }

    /// Whether a sender, of any process, has the turn.
    pub(crate) fn is_busy(&self) -> bool {
        self.turn.available_permits() == 0 || matches!(is_free(&self.folder.join(TURN)), Ok(false))
    }

    fn files(&self) -> io::Result<&Files> {
        if let Some(files) = self.files.get() {
            return Ok(files);
        }
        let files = Files::open(&self.folder)?;
        Ok(self.files.get_or_init(|| files))
    }
}

const TURN: &str = "turn";
/// Held shared by all who wait in line.
const WAITING: &str = "waiting";

/// The files of a queue, kept open.
#[derive(Debug)]
struct Files {
    turn: Arc<File>,
    waiting: File,
}

impl Files {
    fn open(folder: &Path) -> io::Result<Self> {
        // Not recursive: the session's folder goes with the session, and must not come back.
        match fs::DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        Ok(Self {
            turn: Arc::new(open(&folder.join(TURN))?),
            waiting: open(&folder.join(WAITING))?,
        })
    }

    /// The turn, if it is free and nobody waits for it.
    fn try_lock(&self) -> io::Result<Option<Held>> {
        if !is_locked_now(self.turn.try_lock())? {
            return Ok(None);
        }
        let held = Held(Arc::clone(&self.turn));
        if !is_locked_now(self.waiting.try_lock())? {
            return Ok(None);
        }
        self.waiting.unlock()?;
        Ok(Some(held))
    }
}

/// The lock of a file, which goes with this value.
#[derive(Debug)]
struct Held(Arc<File>);

impl Drop for Held {
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "a turn could not be given back");
        }
    }
}

/// Waits for the turn behind all who came before. Through files of its own: when the caller has
/// given up, another sender of this process uses the others.
fn wait_in_line(folder: &Path) -> io::Result<Held> {
    let files = Files::open(folder)?;
    files.waiting.lock_shared()?;
    let ticket = Ticket::take(folder)?;
    ticket.wait()?;
    files.turn.lock()?;
    Ok(Held(files.turn))
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
        let door = open(&folder.join("door"))?;
        // Held for three system calls only.
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

    /// Waits until all tickets before this one are through.
    fn wait(&self) -> io::Result<()> {
        for path in &self.before {
            match File::open(path) {
                Ok(file) => file.lock_shared()?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            // What a dead process left behind: its number is not given again while a higher ticket
            // stands, and this one is higher.
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
        .mode(0o600)
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

fn is_locked_now(tried: std::result::Result<(), TryLockError>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn is_free(path: &Path) -> io::Result<bool> {
    match File::open(path) {
        Ok(file) => is_locked_now(file.try_lock_shared()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// The tickets that are there, lowest first.
fn tickets(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut tickets = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if number(&path).is_some() {
            tickets.push(path);
        }
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

    /// Waits until so many stand in line.
    async fn in_line(queue: &Queue, count: usize) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(40);
        while tickets(&queue.folder).unwrap().len() < count {
            assert!(tokio::time::Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn other_queues_on_the_same_folder_wait_and_go_on_in_order() {
        let folder = tempfile::tempdir().unwrap();
        // Several queues are several processes as far as the files can tell.
        let queue = || Arc::new(Queue::new(folder.path(), pane()));
        let a = queue();
        let first = a.turn().await.unwrap();
        let through = Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for i in 0..4 {
            let (queue, through) = (queue(), Arc::clone(&through));
            assert!(queue.is_busy());
            waiting.push(tokio::spawn(async move {
                let _turn = queue.turn().await.unwrap();
                through.lock().unwrap().push(i);
            }));
            in_line(&a, i + 1).await;
        }
        assert!(through.lock().unwrap().is_empty());
        drop(first);
        // Who comes now comes last, although the turn may be free for a moment.
        let last = a.turn().await.unwrap();
        assert_eq!(*through.lock().unwrap(), [0, 1, 2, 3]);
        drop(last);
        for task in waiting {
            task.await.unwrap();
        }
        assert!(!a.is_busy());
        assert!(tickets(&a.folder).unwrap().is_empty());
    }

    #[tokio::test]
    async fn who_gives_up_in_line_does_not_take_the_turn_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (
            Queue::new(folder.path(), pane()),
            Queue::new(folder.path(), pane()),
        );
        let first = a.turn().await.unwrap();
        let given_up = tokio::time::timeout(Duration::from_millis(50), b.turn()).await;
        assert!(given_up.is_err());
        in_line(&a, 1).await;
        drop(first);
        // Behind the thread that still stands in line for nobody.
        let second = b.turn().await.unwrap();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(40);
        while !tickets(&a.folder).unwrap().is_empty() {
            assert!(tokio::time::Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(a.is_busy(), "its end does not end ours");
        drop(second);
        assert!(!a.is_busy());
    }

    #[tokio::test]
    async fn a_ticket_of_a_dead_process_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (
            Queue::new(folder.path(), pane()),
            Queue::new(folder.path(), pane()),
        );
        let first = a.turn().await.unwrap();
        File::create(path(&a.folder, 7)).unwrap();
        let waiting = tokio::spawn(async move { b.turn().await.map(drop) });
        let deadline = tokio::time::Instant::now() + Duration::from_secs(40);
        while !path(&a.folder, 8).exists() {
            assert!(tokio::time::Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(first);
        waiting.await.unwrap().unwrap();
        a.turn().await.unwrap();
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
