use std::collections::HashSet;
use std::error::Error as StdError;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use super::memory_engine::digest;
use super::{MemoryEngine, Offload};
use crate::conversation::Error;
use crate::shared::json_lines;
use crate::shared::private_file::{self, FileError};

/// A [`MemoryEngine`] that appends conversations to a file, one line of JSON each, for another
/// program to read.
///
/// - A conversation is synced to disk before it is acknowledged.
/// - Processes may share the file: each append holds a lock on it.
/// - A line that a crash left torn was never acknowledged. The next append removes it, and the
///   conversation is offered again. A conversation that is offered twice may have two lines with
///   the same `key`.
/// - The file is created with mode 0600 and its folder with 0700. A file or folder that belongs to
///   another user, is a symbolic link, or is writable by group or others is refused.
///
/// [`bootstrap`](MemoryEngine::bootstrap) returns how the last five conversations of the user
/// began and ended. It reads the whole file.
///
/// ```
/// use std::sync::Arc;
///
/// use agent_snapshot::MemoryStorage;
/// use agent_snapshot::conversation::{JsonLinesEngine, Message, SessionManager, StateManager};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let folder = tempfile::tempdir()?;
/// let engine = JsonLinesEngine::new(folder.path().join("memory.jsonl"));
/// let storage = Arc::new(MemoryStorage::new());
/// let sessions = SessionManager::new(storage, StateManager::new(10_000)).memory(engine.clone());
///
/// let mut session = sessions.create("alice", None).await?;
/// session.append(Message::user("hello"))?;
/// session.commit().await?;
/// sessions.destroy(session.id()).await?;
/// assert_eq!(engine.offloads()?.len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct JsonLinesEngine {
    path: PathBuf,
}

impl JsonLinesEngine {
    /// An engine on this file. The first offload creates it, and its folder.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Reads the conversations, each once, in the order of the file. Empty if there is no file.
    /// Blocks on the file system.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] and [`Error::NotPrivate`] for the file, [`Error::DamagedLine`] for a line
    /// that is not an [`Offload`].
    pub fn offloads(&self) -> Result<Vec<Offload>, Error> {
        read(&self.path)
    }
}

#[async_trait]
impl MemoryEngine for JsonLinesEngine {
    async fn offload(&self, offload: &Offload) -> Result<(), Box<dyn StdError + Send + Sync>> {
        let path = self.path.clone();
        let line = serde_json::to_vec(offload)?;
        Ok(tokio::task::spawn_blocking(move || append(&path, &line)).await??)
    }

    async fn bootstrap(
        &self,
        user: &str,
    ) -> Result<Option<String>, Box<dyn StdError + Send + Sync>> {
        let path = self.path.clone();
        let offloads = tokio::task::spawn_blocking(move || read(&path)).await??;
        Ok(digest(&offloads, user))
    }
}

fn append(path: &Path, line: &[u8]) -> Result<(), Error> {
    let folder = path.parent().filter(|path| !path.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    private_file::create_folder(folder)?;
    let file = json_lines::open_locked(path)?;
    json_lines::append(&file, line).map_err(FileError::io("write", path))?;
    file.sync_all().map_err(FileError::io("sync", path))?;
    // The name of a new file is durable only when its folder is synced. Not only after the first
    // line: its writer may have been killed before the sync.
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(synced.map_err(FileError::io("sync", folder))?)
}

fn read(path: &Path) -> Result<Vec<Offload>, Error> {
    let Some(mut file) = private_file::open_existing(path, File::options().read(true))? else {
        return Ok(Vec::new());
    };
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)
        .map_err(FileError::io("read", path))?;
    let mut keys = HashSet::new();
    let mut offloads = Vec::new();
    for (line, json) in json_lines::whole_lines(&bytes) {
        let offload: Offload =
            serde_json::from_slice(json).map_err(|error| Error::DamagedLine {
                path: path.to_owned(),
                line,
                source: error.into(),
            })?;
        if keys.insert(offload.key.clone()) {
            offloads.push(offload);
        }
    }
    Ok(offloads)
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Io {
                action,
                path,
                source,
            } => Self::Io {
                action,
                path,
                source,
            },
            FileError::NotPrivate { path, reason } => Self::NotPrivate { path, reason },
        }
    }
}
