use std::{
    error::Error as StdError,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use async_trait::async_trait;

use super::{MemoryEngine, Offload, memory::digest};
use crate::private;

/// Keeps conversations in a file, one line of JSON each, for a memory engine to read.
///
/// A conversation is on disk (fsync) when it is acknowledged; the file is for its owner only
/// (0600, a new folder 0700), must not be a symbolic link nor lie where every user can write,
/// and may be shared by processes. A line that a crash left half written was never
/// acknowledged: the next writer takes it away, and the conversation is offered again. One
/// that is offered twice has two lines with the same `key`.
///
/// [`bootstrap`](MemoryEngine::bootstrap) reads the file and tells how the user's last five
/// conversations began and ended.
#[derive(Debug, Clone)]
pub struct JsonLinesEngine {
    path: PathBuf,
}

impl JsonLinesEngine {
    /// An engine on this file, which is created with its folder when needed.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Reads what was offloaded, each conversation once, in the order of the file.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or has a line that is none of ours (the message names
    /// it). No file is an empty answer.
    pub fn offloads(&self) -> io::Result<Vec<Offload>> {
        read(&self.path)
    }
}

#[async_trait]
impl MemoryEngine for JsonLinesEngine {
    async fn offload(&self, offload: &Offload) -> Result<(), Box<dyn StdError + Send + Sync>> {
        let path = self.path.clone();
        let mut line = serde_json::to_vec(offload)?;
        line.push(b'\n');
        Ok(tokio::task::spawn_blocking(move || append(&path, &line)).await??)
    }

    async fn bootstrap(
        &self,
        user: &str,
    ) -> Result<Option<String>, Box<dyn StdError + Send + Sync>> {
        let path = self.path.clone();
        let offloads = tokio::task::spawn_blocking(move || read(&path)).await??;
        let mut own: Vec<&Offload> = offloads.iter().filter(|o| o.user == user).collect();
        own.sort_by_key(|offload| offload.ended);
        Ok(digest(&own))
    }
}

fn append(path: &Path, line: &[u8]) -> io::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        private::folder(folder)?;
    }
    let mut file = private::file()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    // Released when the file is closed. Others wait, so that no line lands inside another.
    file.lock()?;
    let end = whole_lines(&mut file)?;
    file.set_len(end)?;
    file.seek(SeekFrom::Start(end))?;
    file.write_all(line)?;
    file.sync_all()?;
    if let Some(folder) = folder
        && end == 0
    {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// Where the last whole line ends.
fn whole_lines(file: &mut File) -> io::Result<u64> {
    const STEP: u64 = 4096;
    let mut end = file.seek(SeekFrom::End(0))?;
    let mut buffer = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(STEP);
        file.seek(SeekFrom::Start(start))?;
        buffer.clear();
        file.take(end - start).read_to_end(&mut buffer)?;
        if let Some(newline) = buffer.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + newline as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

fn read(path: &Path) -> io::Result<Vec<Offload>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut seen = std::collections::HashSet::new();
    let mut offloads = Vec::new();
    // What follows the last newline is being written, or was never acknowledged.
    let whole = text.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
    let lines = text[..whole].split(|byte| *byte == b'\n');
    for (number, line) in lines.enumerate().filter(|(_, line)| !line.is_empty()) {
        let offload: Offload = serde_json::from_slice(line).map_err(|error| {
            let place = format!("{}, line {}: {error}", path.display(), number + 1);
            io::Error::new(io::ErrorKind::InvalidData, place)
        })?;
        if seen.insert(offload.key.clone()) {
            offloads.push(offload);
        }
    }
    Ok(offloads)
}
