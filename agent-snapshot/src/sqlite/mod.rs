//! Snapshots in a SQLite database.

mod database;
mod stream;
mod worker;

use std::{
    fmt,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;

use self::{
    database::{Database, Stored},
    worker::Worker,
};
use crate::{
    AgentId, AgentSnapshot, Error, SnapshotStorage,
    backend::{self, Write},
    conversation::Message,
    swap::{self, Cache, Known, Swap, Swapped},
};

/// Keeps snapshots in a SQLite database: ACID, and several processes may share it.
///
/// WAL mode with `synchronous = FULL`: when a save has returned it has been synced to disk.
/// One thread writes; saves that wait for it at the same time are committed together, so 64
/// agents do not cost 64 syncs. Another thread reads.
///
/// Clones share the threads. Dropping the last one (or [`close`](SnapshotStorage::close))
/// ends them after the saves that are queued.
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
    cache: Cache,
}

impl SqliteStorage {
    /// Opens a database file, and creates it (mode 0600) if there is none.
    ///
    /// # Errors
    ///
    /// [`Error::Storage`] when it cannot be opened or every user can write to its folder,
    /// [`Error::UnsupportedVersion`] when a newer version of this crate made it,
    /// [`Error::InvalidUrl`] for `:memory:`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref().to_owned();
        if ["", ":memory:"].map(Path::new).contains(&&*path) {
            // To SQLite these are databases of one connection, and there are two.
            return Err(Error::InvalidUrl {
                url: format!("sqlite:{}", path.display()),
                reason: "the database needs a file; in memory there is MemoryStorage".to_owned(),
            });
        }
        let (writer, reader) = {
            let path = path.clone();
            // Opening may wait for another process that has the database locked.
            let opening = move || {
                let writer = Database::create(&path)?;
                Ok((writer, Database::open(&path)?))
            };
            spawn_blocking(opening).await?
        };
        let place = path.display().to_string();
        let thread = |source| Error::Storage {
            operation: "starting a thread",
            place: place.clone(),
            source: Box::new(source),
        };
        Ok(Self {
            shared: Arc::new(Shared {
                writer: Worker::writer(writer).map_err(thread)?,
                reader: Worker::reader(reader).map_err(thread)?,
                path,
                cache: Cache::default(),
            }),
        })
    }

    fn place(&self) -> String {
        self.shared.path.display().to_string()
    }

    async fn write<T: Send + 'static>(
        &self,
        job: impl Fn(&Database) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let answer = self.shared.writer.call(job).await;
        answer.unwrap_or_else(|| {
            Err(Error::Closed {
                place: self.place(),
            })
        })
    }

    async fn read<T: Send + 'static>(
        &self,
        job: impl Fn(&Database) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let answer = self.shared.reader.call(job).await;
        answer.unwrap_or_else(|| {
            Err(Error::Closed {
                place: self.place(),
            })
        })
    }

    async fn read_record(&self, agent: &AgentId) -> Result<Option<Stored>, Error> {
        let agent = agent.clone();
        self.read(move |database| database.record(&agent)).await
    }
}

#[async_trait]
impl Swap for SqliteStorage {
    async fn read(&self, agent: &AgentId) -> Result<Known, Error> {
        let Some(stored) = self.read_record(agent).await? else {
            return Ok(Known::default());
        };
        let known = stored.known();
        stored.assemble(agent, &self.place())?;
        Ok(known)
    }

    async fn swap(&self, agent: &AgentId, known: &Known, write: Write) -> Result<Swapped, Error> {
        let agent = agent.clone();
        let known = known.clone();
        self.write(move |database| database.swap(&agent, &known, &write))
            .await
    }
}

#[async_trait]
impl SnapshotStorage for SqliteStorage {
    async fn save(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        swap::save(self, &self.shared.cache, snapshot).await
    }

    async fn load(&self, agent: &AgentId) -> Result<Option<AgentSnapshot>, Error> {
        let Some(stored) = self.read_record(agent).await? else {
            return Ok(None);
        };
        let known = stored.known();
        let snapshot = stored.assemble(agent, &self.place())?;
        self.shared.cache.set(agent, known);
        Ok(snapshot)
    }

    async fn delete(&self, agent: &AgentId) -> Result<(), Error> {
        self.shared.cache.forget(agent);
        let agent = agent.clone();
        self.write(move |database| database.delete(&agent)).await
    }

    async fn list(&self) -> Result<Vec<AgentId>, Error> {
        self.read(Database::list).await
    }

    async fn history(
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
                backend::decode_messages(agent, &self.place(), first, messages.iter())
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

async fn spawn_blocking<T: Send + 'static>(
    job: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(job)
        .await
        .unwrap_or_else(|panic| {
            Err(Error::Storage {
                operation: "opening",
                place: "a SQLite database".to_owned(),
                source: Box::new(panic),
            })
        })
}

impl fmt::Debug for SqliteStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStorage")
            .field("path", &self.shared.path)
            .finish_non_exhaustive()
    }
}
