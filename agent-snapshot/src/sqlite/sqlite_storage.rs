use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;

use super::database::{Database, StoredRows};
use super::worker::Worker;
use crate::backend::{self, SavePlan};
use crate::conversation::Message;
use crate::storage::{
    CompareAndSwap, StampCache, StoredStamp, Swap, overwrite_by_swap, run_blocking, save_by_swap,
};
use crate::{AgentId, AgentInfo, AgentSnapshot, Error, SnapshotStorage};

/// Keeps snapshots in a SQLite database with ACID transactions. Several processes may share it.
///
/// WAL mode with `synchronous = FULL`: a save that has returned is synced to disk. One thread
/// writes. Saves that arrive while it commits share the next commit (group commit), so 64 agents
/// do not cost 64 syncs. Another thread reads.
///
/// Any SQLite program reads the messages:
///
/// ```sql
/// SELECT seq, json ->> 'role', json ->> 'content' FROM stream
/// WHERE agent = 'worker_007' ORDER BY seq;
/// ```
///
/// The newest saves are in the file `agents.db-wal`. A copy of the database file alone is older:
/// use [`backup`](crate::backup), or `.backup` of the sqlite3 program.
///
/// New files have mode 0600, new folders 0700. A database, a file beside it or a folder that
/// belongs to another user, is a symbolic link, or that group or others can write to is refused.
///
/// Clones share the threads. Dropping the last clone lets the threads finish the queued calls and
/// end; [`close`](SnapshotStorage::close) waits for that.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// use agent_snapshot::{AgentId, AgentSnapshot, SnapshotStorage, SqliteStorage};
///
/// let storage = SqliteStorage::open(folder.path().join("agents.db")).await?;
/// let mut snapshot = AgentSnapshot::new(AgentId::new("worker_007")?);
/// snapshot.tick_index += 1;
/// storage.save(&snapshot).await?;
/// assert_eq!(storage.load(&snapshot.agent_id).await?, Some(snapshot));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SqliteStorage {
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    writer: Worker,
    reader: Worker,
    stamps: StampCache,
}

/// Options of a [`SqliteStorage`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// use std::time::Duration;
/// use agent_snapshot::SqliteStorage;
///
/// let storage = SqliteStorage::builder(folder.path().join("agents.db"))
///     .busy_timeout(Duration::from_secs(5))
///     .open()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is opened until `open`"]
pub struct SqliteStorageBuilder {
    path: PathBuf,
    busy_timeout: Duration,
}

/// SQLite counts the milliseconds in an `int`, and the driver panics beyond it.
const MAX_BUSY_TIMEOUT: Duration = Duration::from_millis(i32::MAX as u64);

impl SqliteStorageBuilder {
    /// Sets how long a call waits for another process that has the database locked; the default is
    /// 30 seconds, the most are 24 days.
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout.min(MAX_BUSY_TIMEOUT);
        self
    }

    /// Opens the database, and creates it if there is none.
    ///
    /// # Errors
    ///
    /// [`Error::NotPrivate`] if another user could change the database or its folder,
    /// [`Error::Io`] or [`Error::Storage`] if it cannot be opened, [`Error::UnsupportedVersion`] if
    /// a newer version of this crate made it, [`Error::Invalid`] for `:memory:`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at most an empty database is left.
    pub async fn open(self) -> Result<SqliteStorage, Error> {
        let Self { path, busy_timeout } = self;
        if ["", ":memory:"].map(Path::new).contains(&&*path) {
            // For SQLite these are databases of one connection. The storage has two.
            let reason = "the database needs a file; use MemoryStorage in memory";
            return Err(Error::invalid(
                "database path",
                &path.display().to_string(),
                reason,
            ));
        }
        let opened = path.clone();
        // Opening may wait for another process that has the database locked.
        let (writer, reader) = run_blocking(move || {
            let writer = Database::create(&opened, busy_timeout)?;
            Ok((writer, Database::open(&opened, busy_timeout)?))
        })
        .await?;
        let thread = |source| Error::Io {
            action: "start a thread for",
            path: path.clone(),
            source,
        };
        Ok(SqliteStorage {
            shared: Arc::new(Shared {
                writer: Worker::writer(writer).map_err(thread)?,
                reader: Worker::reader(reader).map_err(thread)?,
                path,
                stamps: StampCache::default(),
            }),
        })
    }
}

impl SqliteStorage {
    /// Opens a database file, and creates it if there is none.
    ///
    /// # Errors
    ///
    /// As [`SqliteStorageBuilder::open`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at most an empty database is left.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder(path).open().await
    }

    /// A storage with options.
    pub fn builder(path: impl AsRef<Path>) -> SqliteStorageBuilder {
        SqliteStorageBuilder {
            path: path.as_ref().to_owned(),
            busy_timeout: Duration::from_secs(30),
        }
    }

    fn location(&self) -> String {
        self.shared.path.display().to_string()
    }

    async fn write<T: Send + 'static>(
        &self,
        function: impl Fn(&Database) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let answer = self.shared.writer.call(function).await;
        answer.unwrap_or_else(|| Err(self.closed()))
    }

    async fn read<T: Send + 'static>(
        &self,
        function: impl Fn(&Database) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let answer = self.shared.reader.call(function).await;
        answer.unwrap_or_else(|| Err(self.closed()))
    }

    fn closed(&self) -> Error {
        Error::Closed {
            location: self.location(),
        }
    }

    async fn read_rows(&self, agent: &AgentId) -> Result<Option<StoredRows>, Error> {
        let agent = agent.clone();
        self.read(move |database| database.rows(&agent)).await
    }
}

#[async_trait]
impl CompareAndSwap for SqliteStorage {
    async fn read_stamp(&self, agent: &AgentId) -> Result<StoredStamp, Error> {
        let Some(rows) = self.read_rows(agent).await? else {
            return Ok(StoredStamp::default());
        };
        rows.assemble(agent, &self.location())?;
        Ok(rows.stored)
    }

    async fn swap(
        &self,
        agent: &AgentId,
        expected: &StoredStamp,
        plan: SavePlan,
    ) -> Result<Swap, Error> {
        let agent = agent.clone();
        let expected = expected.clone();
        self.write(move |database| database.swap(&agent, &expected, &plan))
            .await
    }
}

#[async_trait]
impl SnapshotStorage for SqliteStorage {
    async fn save(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        save_by_swap(self, &self.shared.stamps, snapshot).await
    }

    async fn overwrite(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        overwrite_by_swap(self, &self.shared.stamps, snapshot).await
    }

    async fn load(&self, agent: &AgentId) -> Result<Option<AgentSnapshot>, Error> {
        let Some(rows) = self.read_rows(agent).await? else {
            return Ok(None);
        };
        let snapshot = rows.assemble(agent, &self.location())?;
        if let Some(snapshot) = &snapshot {
            self.shared.stamps.set(snapshot, rows.stored);
        }
        Ok(snapshot)
    }

    async fn delete(&self, agent: &AgentId) -> Result<(), Error> {
        self.shared.stamps.forget_deleted(agent);
        let agent = agent.clone();
        self.write(move |database| database.delete(&agent)).await
    }

    async fn list(&self) -> Result<Vec<AgentId>, Error> {
        self.read(Database::list).await
    }

    async fn page(&self, after: Option<&AgentId>, limit: usize) -> Result<Vec<AgentInfo>, Error> {
        let after = after.map(ToString::to_string).unwrap_or_default();
        self.read(move |database| database.page(&after, limit))
            .await
    }

    async fn expire(&self, older_than: Duration) -> Result<Vec<AgentId>, Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let before = now.unwrap_or_default().saturating_sub(older_than);
        let before = i64::try_from(before.as_millis()).unwrap_or(i64::MAX);
        let shared = self.shared.clone();
        self.write(move |database| {
            database.expire(before, |agent| shared.stamps.forget_deleted(agent))
        })
        .await
    }

    async fn cap_stream(&self, agent: &AgentId, keep: u64) -> Result<u64, Error> {
        let agent = agent.clone();
        self.write(move |database| database.cap_stream(&agent, keep))
            .await
    }

    async fn stream(
        &self,
        agent: &AgentId,
        range: Range<u64>,
    ) -> Result<Vec<(u64, Message)>, Error> {
        let messages = {
            let agent = agent.clone();
            self.read(move |database| database.stream(&agent, &range))
                .await?
        };
        match messages {
            Some((first, messages)) => {
                backend::decode_messages(agent, &self.location(), first, messages)
            }
            None => Ok(Vec::new()),
        }
    }

    async fn close(&self) -> Result<(), Error> {
        self.shared.reader.close().await;
        self.shared.writer.close().await;
        Ok(())
    }
}

impl fmt::Debug for SqliteStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStorage")
            .field("path", &self.shared.path)
            .finish_non_exhaustive()
    }
}
