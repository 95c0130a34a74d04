//! Snapshots as files: plain JSON, and a checksummed log beside it.

mod document;
mod files;
mod frame;
mod fs;
mod next_document;
mod place;
mod tombstone;

#[cfg(test)]
mod faults;
#[cfg(test)]
mod simulated;

use std::{
    collections::HashMap,
    fmt,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use tokio::sync::Mutex as AsyncMutex;

use self::{
    files::{Files, Rewrite},
    fs::{Fs, RealFs},
};
use crate::{AgentId, AgentSnapshot, Error, SnapshotStorage, conversation::Message};

/// Keeps each agent in a folder of its own files: `worker_007.json`, plain JSON for any tool,
/// and beside it a log of the ticks since then.
///
/// A save appends one checksummed line to the log and syncs it. The JSON file is written
/// anew, by rename, at the first save; after [`rewrite_every`](FileStorageBuilder::rewrite_every)
/// ticks, once the log is four times as long as the JSON (so that all rewriting together stays
/// below 1.25 times the history); on [`compact`](Self::compact); and on
/// [`close`](SnapshotStorage::close). Messages that are out of view by then go to
/// `worker_007.N.history`.
///
/// Files have mode 0600, a new folder 0700; symbolic links in it are not followed, and a folder
/// that every user can write to is refused. Several processes may use one folder: each call
/// takes the agent's `.lock`. A file that cannot be read is an error until `delete`, which
/// renames it to `worker_007.damaged.N.json` and so on. A JSON file that was put into the
/// folder by hand is read; the key `file_storage` in a file is this storage's own.
///
/// Clones share their contents. Dropping it loses nothing, but leaves the log unfolded.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let folder = folder.path().join("data/snapshots");
/// use agent_snapshot::{AgentId, AgentSnapshot, FileStorage, SnapshotStorage};
///
/// let storage = FileStorage::open(&folder).await?;
/// let mut snapshot = AgentSnapshot::new(AgentId::new("worker_007")?);
/// snapshot.tick_index += 1;
/// storage.save(&snapshot).await?;
/// storage.close().await?;
/// assert!(folder.join("worker_007.json").exists());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FileStorage {
    shared: Arc<Shared>,
}

struct Shared {
    fs: Arc<RealFs>,
    rewrite: Rewrite,
    agents: Mutex<HashMap<AgentId, Agent>>,
}

// Fair, so that a call that was dropped while it runs cannot overtake a later one.
type Agent = Arc<AsyncMutex<Files<RealFs>>>;

/// Each one holds a file open.
const MAX_OPEN: usize = 256;

/// Options of a [`FileStorage`].
#[derive(Debug, Clone)]
pub struct FileStorageBuilder {
    folder: PathBuf,
    rewrite: Rewrite,
    sync: bool,
}

impl FileStorageBuilder {
    /// Writes the JSON file anew after `ticks` saves at the earliest (64 by default).
    #[must_use]
    pub fn rewrite_every(mut self, ticks: u64) -> Self {
        self.rewrite.ticks = ticks.max(1);
        self
    }

    /// Writes the JSON file at each save, without a log: the file is always up to date, and
    /// a save costs as much as the history is long.
    #[must_use]
    pub fn rewrite_every_save(mut self) -> Self {
        self.rewrite.ticks = 0;
        self
    }

    /// Leaves it to the operating system when data reaches the disk: a save survives the end
    /// of the process, but not the loss of power.
    #[must_use]
    pub fn without_sync(mut self) -> Self {
        self.sync = false;
        self
    }

    /// Opens the folder, and makes it if it is missing.
    ///
    /// # Errors
    ///
    /// [`Error::Storage`] when it cannot be made, or other users can write to it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn open(self) -> Result<FileStorage, Error> {
        let Self {
            folder,
            rewrite,
            sync,
        } = self;
        let fs = blocking(move || {
            RealFs::open(&folder, sync).map_err(|source| Error::Storage {
                operation: "opening the folder",
                place: folder.display().to_string(),
                source: Box::new(source),
            })
        })
        .await?;
        Ok(FileStorage {
            shared: Arc::new(Shared {
                fs: Arc::new(fs),
                rewrite,
                agents: Mutex::default(),
            }),
        })
    }
}

impl FileStorage {
    /// The folder that the specification names.
    pub const DEFAULT_FOLDER: &str = "./data/snapshots";

    /// Opens a folder, and makes it if it is missing.
    ///
    /// # Errors
    ///
    /// [`Error::Storage`] when it cannot be made, or other users can write to it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn open(folder: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder(folder).open().await
    }

    /// Opens a folder with options.
    #[must_use]
    pub fn builder(folder: impl AsRef<Path>) -> FileStorageBuilder {
        FileStorageBuilder {
            folder: folder.as_ref().to_owned(),
            rewrite: Rewrite { ticks: 64 },
            sync: true,
        }
    }

    /// Folds the log of an agent into its JSON file.
    ///
    /// # Errors
    ///
    /// As [`save`](SnapshotStorage::save).
    ///
    /// # Cancel safety
    ///
    /// It goes on in the background; nothing is lost.
    pub async fn compact(&self, agent: &AgentId) -> Result<(), Error> {
        self.with(agent, Files::compact).await
    }

    fn agent(&self, agent: &AgentId) -> Agent {
        let agents = self.shared.agents.lock();
        let mut agents = agents.unwrap_or_else(PoisonError::into_inner);
        if agents.len() >= MAX_OPEN {
            // Nothing is lost with them: all that they know is in the files.
            agents.retain(|_, files| Arc::strong_count(files) > 1);
        }
        let new = || {
            let folder = self.shared.fs.folder().display().to_string();
            let files = Files::new(
                self.shared.fs.clone(),
                folder,
                agent.clone(),
                self.shared.rewrite,
            );
            Arc::new(AsyncMutex::new(files))
        };
        agents.entry(agent.clone()).or_insert_with(new).clone()
    }

    async fn with<T: Send + 'static>(
        &self,
        agent: &AgentId,
        job: impl FnOnce(&mut Files<RealFs>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let mut files = self.agent(agent).lock_owned().await;
        blocking(move || job(&mut files)).await
    }
}

async fn blocking<T: Send + 'static>(
    job: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(job)
        .await
        .unwrap_or_else(|panic| {
            Err(Error::Storage {
                operation: "working with files",
                place: "a background thread".to_owned(),
                source: Box::new(panic),
            })
        })
}

#[async_trait]
impl SnapshotStorage for FileStorage {
    async fn save(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        let snapshot = snapshot.clone();
        let agent = snapshot.agent_id.clone();
        self.with(&agent, move |files| files.save(&snapshot)).await
    }

    async fn load(&self, agent: &AgentId) -> Result<Option<AgentSnapshot>, Error> {
        self.with(agent, Files::load).await
    }

    async fn delete(&self, agent: &AgentId) -> Result<(), Error> {
        self.with(agent, Files::delete).await
    }

    async fn list(&self) -> Result<Vec<AgentId>, Error> {
        let fs = self.shared.fs.clone();
        let names = blocking(move || {
            fs.list().map_err(|source| Error::Storage {
                operation: "listing agents",
                place: fs.folder().display().to_string(),
                source: Box::new(source),
            })
        })
        .await?;
        let mut agents = Vec::new();
        for name in &names {
            let Some(agent) = name.strip_suffix(".json").and_then(AgentId::from_encoded) else {
                continue;
            };
            // A delete that did not come to its end may have left the file.
            let deleted = names.contains(&format!("{}.deleted", agent.encoded()));
            if !deleted || self.with(&agent, Files::is_stored).await? {
                agents.push(agent);
            }
        }
        agents.sort();
        Ok(agents)
    }

    async fn history(
        &self,
        agent: &AgentId,
        range: Range<u64>,
    ) -> Result<Vec<(u64, Message)>, Error> {
        self.with(agent, move |files| files.history(&range)).await
    }

    async fn close(&self) -> Result<(), Error> {
        let agents: Vec<Agent> = {
            let agents = self.shared.agents.lock();
            let agents = agents.unwrap_or_else(PoisonError::into_inner);
            agents.values().cloned().collect()
        };
        for agent in agents {
            let mut files = agent.lock_owned().await;
            match blocking(move || files.compact()).await {
                // What is damaged cannot be folded, and stays as it is.
                Err(error) if error.is_damaged() => {}
                result => result?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for FileStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStorage")
            .field("folder", &self.shared.fs.folder())
            .finish_non_exhaustive()
    }
}
