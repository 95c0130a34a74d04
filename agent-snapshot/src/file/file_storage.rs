use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex as AsyncMutex;

use super::agent_files::{AgentFiles, RewritePolicy};
use super::folder::{Folder, OsFolder};
use crate::backend::{HandleMemory, Intent};
use crate::conversation::Message;
use crate::storage::run_blocking;
use crate::{AgentId, AgentInfo, AgentSnapshot, Error, SnapshotStorage};

/// Keeps snapshots in files: for each agent `worker_007.json`, plain JSON for any tool, and a log
/// of the ticks since it was written.
///
/// A save appends one checksummed line to the log and syncs it. The JSON file is rewritten, by
/// rename,
///
/// - at the first save;
/// - after [`rewrite_every`](FileStorageBuilder::rewrite_every) ticks, once the log is four times
///   as long as the JSON, so that all rewriting together stays below 1.25 times the history;
/// - if the history is another one, or if messages out of view come back into view;
/// - by [`compact`](Self::compact) and [`close`](SnapshotStorage::close).
///
/// Messages that are out of view at a rewrite move to `worker_007.N.history`.
///
/// Several processes may use one folder: each call takes the kernel lock of the agent's `.lock`
/// file. A file that cannot be read is an error until `delete`, which renames it to
/// `worker_007.damaged.N.json` (also the log and the history). A JSON file of another program is
/// read; the key `file_storage` belongs to this storage.
///
/// New files have mode 0600, new folders 0700. A file or folder that belongs to another user, is a
/// symbolic link, or that group or others can write to is refused.
///
/// Clones share the open files. Dropping the last clone loses nothing, but does not compact the log;
/// call [`close`](SnapshotStorage::close) for that.
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
    folder: Arc<OsFolder>,
    policy: RewritePolicy,
    agents: Mutex<OpenAgents>,
    memory: HandleMemory,
}

#[derive(Default)]
struct OpenAgents {
    files: HashMap<AgentId, SharedFiles>,
    /// Agents whose log was closed to stay below [`MAX_OPEN`]: the storage compacts them, too, when
    /// it is closed.
    with_closed_log: HashSet<AgentId>,
}

/// tokio's mutex is FIFO. A call that continues after its future was dropped holds the mutex, so a
/// later call cannot overtake it.
type SharedFiles = Arc<AsyncMutex<AgentFiles<OsFolder>>>;

/// Each entry holds a file open.
const MAX_OPEN: usize = 256;

/// Options of a [`FileStorage`].
///
/// ```
/// use agent_snapshot::FileStorage;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let folder = folder.path();
/// let storage = FileStorage::builder(folder).rewrite_every(16).open().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is opened until `open`"]
pub struct FileStorageBuilder {
    folder: PathBuf,
    policy: RewritePolicy,
    sync: bool,
}

impl FileStorageBuilder {
    /// Sets the number of saves after which the JSON file is rewritten at the earliest; the default
    /// is 64.
    pub fn rewrite_every(mut self, ticks: u64) -> Self {
        self.policy.min_ticks = ticks.max(1);
        self
    }

    /// Rewrites the JSON file at each save, without a log. The file is always up to date, and the
    /// cost of a save grows with the history.
    pub fn rewrite_every_save(mut self) -> Self {
        self.policy.min_ticks = 0;
        self
    }

    /// Does not sync: a save survives a crash of the process, but not a power failure.
    pub fn without_sync(mut self) -> Self {
        self.sync = false;
        self
    }

    /// Opens the folder, and creates it if it is missing.
    ///
    /// # Errors
    ///
    /// [`Error::NotPrivate`] if another user could change the folder, [`Error::Io`] if it cannot be
    /// created.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at most an empty folder is left.
    pub async fn open(self) -> Result<FileStorage, Error> {
        let Self {
            folder,
            policy,
            sync,
        } = self;
        let folder = run_blocking(move || Ok(OsFolder::open(&folder, sync)?)).await?;
        Ok(FileStorage {
            shared: Arc::new(Shared {
                folder: Arc::new(folder),
                policy,
                agents: Mutex::default(),
                memory: HandleMemory::default(),
            }),
        })
    }
}

impl FileStorage {
    /// The folder that the specification names.
    pub const DEFAULT_FOLDER: &str = "./data/snapshots";

    /// Opens a folder, and creates it if it is missing.
    ///
    /// # Errors
    ///
    /// As [`FileStorageBuilder::open`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at most an empty folder is left.
    pub async fn open(folder: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder(folder).open().await
    }

    /// A storage with options.
    pub fn builder(folder: impl AsRef<Path>) -> FileStorageBuilder {
        FileStorageBuilder {
            folder: folder.as_ref().to_owned(),
            policy: RewritePolicy { min_ticks: 64 },
            sync: true,
        }
    }

    /// Writes the log of an agent into its JSON file.
    ///
    /// # Errors
    ///
    /// As [`save`](SnapshotStorage::save).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the work continues in the background.
    pub async fn compact(&self, agent: &AgentId) -> Result<(), Error> {
        self.with(agent, AgentFiles::compact).await
    }

    fn agents(&self) -> MutexGuard<'_, OpenAgents> {
        let agents = self.shared.agents.lock();
        agents.unwrap_or_else(PoisonError::into_inner)
    }

    fn files(&self, agent: &AgentId) -> SharedFiles {
        let mut agents = self.agents();
        let OpenAgents {
            files,
            with_closed_log,
        } = &mut *agents;
        if files.len() >= MAX_OPEN {
            // Everything that an unused entry knows is in the files, except that a write failed.
            files.retain(|agent, files| {
                if Arc::strong_count(files) > 1 {
                    return true;
                }
                let Ok(files) = files.try_lock() else {
                    return true;
                };
                if !files.is_uncertain() && files.has_open_log() {
                    with_closed_log.insert(agent.clone());
                }
                files.is_uncertain()
            });
        }
        with_closed_log.remove(agent);
        let new = || {
            let Shared { folder, policy, .. } = &*self.shared;
            let files = AgentFiles::new(folder.clone(), agent.clone(), *policy);
            Arc::new(AsyncMutex::new(files))
        };
        files.entry(agent.clone()).or_insert_with(new).clone()
    }

    /// The agent whose files have this name. The name of a long id is only a part of it, so the id
    /// comes from the file.
    async fn agent_of(&self, stem: &str) -> Result<Option<AgentId>, Error> {
        let is_own = |agent: &AgentId| agent.file_stem() == stem;
        if !stem.contains('~') {
            return Ok(AgentId::from_encoded(stem).filter(is_own));
        }
        let folder = self.shared.folder.clone();
        let name = format!("{stem}.json");
        let bytes = run_blocking(move || Ok(folder.read(&name)?)).await?;
        let text = String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned();
        // The rest of the file may be damaged. The name has a digest of the id, so another field
        // called `agent_id` does not match.
        let agent = text.split("\"agent_id\"").skip(1).find_map(|rest| {
            let value = rest.trim_start().strip_prefix(':')?;
            let mut values = serde_json::Deserializer::from_str(value).into_iter();
            values.next()?.ok().filter(is_own)
        });
        if agent.is_none() {
            let folder = self.shared.folder.path().display();
            tracing::warn!(%folder, stem, "not listed: the files do not name their agent");
        }
        Ok(agent)
    }

    async fn write(
        &self,
        snapshot: &AgentSnapshot,
        intent: fn(&HandleMemory, &AgentSnapshot) -> Intent,
    ) -> Result<(), Error> {
        let (copy, shared) = (snapshot.copy_of_same_object(), self.shared.clone());
        // In the job: an expiry that was queued earlier has noted its delete by then.
        let job = move |files: &mut AgentFiles<OsFolder>| {
            files.save(&copy, &intent(&shared.memory, &copy))
        };
        if let Some(stamp) = self.with(&snapshot.agent_id, job).await? {
            self.shared.memory.note(snapshot, &stamp);
        }
        Ok(())
    }

    async fn with<T: Send + 'static>(
        &self,
        agent: &AgentId,
        job: impl FnOnce(&mut AgentFiles<OsFolder>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let mut files = self.files(agent).lock_owned().await;
        run_blocking(move || job(&mut files)).await
    }
}

#[async_trait]
impl SnapshotStorage for FileStorage {
    async fn save(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        self.write(snapshot, HandleMemory::save_intent).await
    }

    async fn overwrite(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        self.write(snapshot, |_, _| Intent::Overwrite).await
    }

    async fn load(&self, agent: &AgentId) -> Result<Option<AgentSnapshot>, Error> {
        let loaded = self.with(agent, AgentFiles::load).await?;
        Ok(loaded.map(|(snapshot, stamp)| {
            self.shared.memory.note(&snapshot, &stamp);
            snapshot
        }))
    }

    async fn delete(&self, agent: &AgentId) -> Result<(), Error> {
        self.shared.memory.note_delete(agent);
        self.with(agent, AgentFiles::delete).await
    }

    async fn list(&self) -> Result<Vec<AgentId>, Error> {
        let folder = self.shared.folder.clone();
        let names = run_blocking(move || Ok(folder.list()?)).await?;
        let mut stems: BTreeMap<&str, ListedFiles> = BTreeMap::new();
        for name in &names {
            let Some((stem, kind)) = name.split_once('.') else {
                continue;
            };
            let kinds = match kind {
                "json" => &mut stems.entry(stem).or_default().json,
                "deleted" => &mut stems.entry(stem).or_default().tombstone,
                // Not a file that was kept aside.
                kind if is_numbered(kind) => &mut stems.entry(stem).or_default().numbered,
                _ => continue,
            };
            *kinds = true;
        }
        let mut agents = Vec::new();
        for (stem, found) in stems {
            if !found.json && !found.numbered {
                continue;
            }
            let Some(agent) = self.agent_of(stem).await? else {
                continue;
            };
            // An interrupted delete leaves dead files beside its tombstone, an interrupted first save
            // leaves a log. A log or archive that has lost its JSON file is damage.
            let is_certain = found.json && !found.tombstone;
            if is_certain || self.with(&agent, AgentFiles::is_stored).await? {
                agents.push(agent);
            }
        }
        agents.sort();
        Ok(agents)
    }

    async fn page(&self, after: Option<&AgentId>, limit: usize) -> Result<Vec<AgentInfo>, Error> {
        let mut page = Vec::new();
        for agent in self.list().await? {
            if page.len() >= limit {
                break;
            }
            if after.is_none_or(|after| agent > *after) {
                page.extend(self.with(&agent, AgentFiles::info).await?);
            }
        }
        Ok(page)
    }

    async fn expire(&self, older_than: Duration) -> Result<Vec<AgentId>, Error> {
        let mut expired = Vec::new();
        for agent in self.list().await? {
            let (shared, name) = (self.shared.clone(), agent.clone());
            let job = move |files: &mut AgentFiles<OsFolder>| {
                files.expire(older_than, || shared.memory.note_delete(&name))
            };
            if self.with(&agent, job).await? {
                expired.push(agent);
            }
        }
        Ok(expired)
    }

    async fn cap_stream(&self, agent: &AgentId, keep: u64) -> Result<u64, Error> {
        self.with(agent, move |files| files.cap_stream(keep)).await
    }

    async fn stream(
        &self,
        agent: &AgentId,
        range: Range<u64>,
    ) -> Result<Vec<(u64, Message)>, Error> {
        self.with(agent, move |files| files.stream(&range)).await
    }

    async fn close(&self) -> Result<(), Error> {
        let used: Vec<AgentId> = {
            let agents = self.agents();
            let used = agents.files.keys().chain(&agents.with_closed_log);
            used.cloned().collect()
        };
        for agent in used {
            match self.compact(&agent).await {
                // Damaged files cannot be compacted; they stay as they are.
                Err(error) if error.is_damaged() => {}
                result => result?,
            }
        }
        Ok(())
    }
}

/// The kinds of files that a list found for one name.
#[derive(Default)]
struct ListedFiles {
    json: bool,
    tombstone: bool,
    numbered: bool,
}

/// Whether this is the end of the name of a log or an archive: `7.log`, `1.history`.
fn is_numbered(kind: &str) -> bool {
    let number = kind
        .strip_suffix(".log")
        .or_else(|| kind.strip_suffix(".history"));
    number.is_some_and(|number| number.parse::<u64>().is_ok())
}

impl fmt::Debug for FileStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStorage")
            .field("folder", &self.shared.folder.path())
            .finish_non_exhaustive()
    }
}
