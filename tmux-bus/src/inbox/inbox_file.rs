//! The file of an inbox: a write-ahead log of records, shared by processes.
//!
//! # Theory
//!
//! `inbox.jsonl` has one record a line. Every access is under the kernel lock of the file `lock`
//! beside it, which stays when the log is replaced. A process keeps the state of the records that
//! it has read, and each access reads only the lines that others have appended since.
//!
//! - **Durability.** A record with [`Sync::Disk`] is on disk before the call returns. Records of an
//!   outcome are not waited for: after a power failure without them the message is uncertain, never
//!   delivered again.
//! - **Torn write.** A process dies in the middle of a line. Readers ignore bytes after the last
//!   newline, and the next writer cuts them off before it decides: a record that is completed later
//!   would contradict the decision.
//! - **Compaction.** When most of the file is about settled messages, the lines that still count
//!   are written into a new file, which is synced and then renamed over the old one. A crash before
//!   the rename leaves the old file, a crash after it the new one. A reader holds the file that it
//!   has read open, so that the system cannot give its inode number to the next file; another inode
//!   at the path means that the file was replaced, and is read from its start.
//! - **Owner.** Two clusters with the same session name and the same log have the same folder. The first one that
//!   stores a record claims it: the file `cluster` has the path of its configuration. Each access of another one is
//!   refused, because it would deliver to its own agents and bury the messages of all others.
//! - **Damage.** A whole line that is no record is reported, kept and otherwise ignored.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::inbox_model::{InboxModel, Letter, LetterState, LinePosition};
use super::inbox_record::{InboxRecord, LeftRecord};
use crate::Error;
use crate::shared::kernel_lock::{Access, LockedFile};
use crate::shared::{json_lines, private_file};

/// The file that has the configuration of the cluster.
const OWNER: &str = "cluster";

/// Files below this length are not compacted.
const COMPACT_FROM: u64 = 64 << 10;

/// How much of the file is read at once.
const READ_SIZE: usize = 1 << 20;

/// When a record must be on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sync {
    /// Before the call returns.
    Disk,
    /// Some time later.
    Later,
}

#[derive(Debug)]
pub(super) struct InboxFile {
    folder: PathBuf,
    path: PathBuf,
    /// The configuration of the cluster.
    owner: PathBuf,
    read: Mutex<ReadInbox>,
}

/// The records that this process has read.
#[derive(Debug, Default)]
struct ReadInbox {
    file: Option<File>,
    /// The end of the last whole line that was read.
    offset: u64,
    model: InboxModel,
    /// Lines that are no records.
    damaged: Vec<LinePosition>,
}

impl InboxFile {
    pub(super) fn new(folder: PathBuf, owner: PathBuf) -> Self {
        Self {
            path: folder.join("inbox.jsonl"),
            folder,
            owner,
            read: Mutex::default(),
        }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Calls `look` with the state of all messages. An inbox that no message was left in is empty,
    /// and is not created.
    pub(super) fn read<T>(
        &self,
        look: impl FnOnce(&InboxModel, &TextReader<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut read = self.memory();
        let _lock = match self.folder.exists() {
            true => Some(self.lock()?),
            false => None,
        };
        self.is_claimed()?;
        read.refresh(&self.path)?;
        look(&read.model, &read.texts(&self.path))
    }

    /// Appends the records that `decide` returns, as one step for all processes.
    pub(super) fn update<T>(
        &self,
        sync: Sync,
        decide: impl FnOnce(&InboxModel) -> Result<(Vec<InboxRecord>, T), Error>,
    ) -> Result<T, Error> {
        let mut read = self.memory();
        self.create_folder()?;
        let _lock = self.lock()?;
        let is_claimed = self.is_claimed()?;
        read.refresh(&self.path)?;
        self.cut_tail(read.offset)?;
        let (records, result) = decide(&read.model)?;
        if records.is_empty() {
            return Ok(result);
        }
        if !is_claimed {
            self.claim()?;
        }
        self.append(&records, sync)?;
        // The records are stored: a caller that is told of a failure would leave its message again.
        if let Err(error) = self.refresh_and_compact(&mut read) {
            tracing::warn!(%error, "cannot compact the inbox");
            // The next access reads the file from its start.
            *read = ReadInbox::default();
        }
        Ok(result)
    }

    fn refresh_and_compact(&self, read: &mut ReadInbox) -> Result<(), Error> {
        read.refresh(&self.path)?;
        // A compaction keeps damaged lines: without them each update would be followed by one.
        let damaged: u64 = read.damaged.iter().map(|line| line.len as u64).sum();
        let live = read.model.live_bytes() + damaged;
        match read.offset > COMPACT_FROM.max(2 * live) {
            true => self.compact(read),
            false => Ok(()),
        }
    }

    /// Whether this cluster has claimed the inbox; an error if another one has.
    pub(super) fn is_claimed(&self) -> Result<bool, Error> {
        let path = self.folder.join(OWNER);
        let mut options = File::options();
        let Some(mut file) = private_file::open_existing(&path, options.read(true))? else {
            return Ok(false);
        };
        let mut found = Vec::new();
        file.read_to_end(&mut found)
            .map_err(Error::io("read", &path))?;
        if found == self.owner.as_os_str().as_encoded_bytes() {
            return Ok(true);
        }
        Err(Error::Invalid {
            what: "inbox",
            value: self.folder.display().to_string(),
            reason: "it belongs to another configuration (its file `cluster` has the path): use another session name or another log file, or remove that file",
        })
    }

    fn claim(&self) -> Result<(), Error> {
        let (path, part) = (self.folder.join(OWNER), self.folder.join("cluster.part"));
        let mut options = File::options();
        let mut file = private_file::open(&part, options.write(true).create(true).truncate(true))?;
        // Without the sync a power failure can leave an empty file, by which every access is refused.
        file.write_all(self.owner.as_os_str().as_encoded_bytes())
            .and_then(|()| file.sync_data())
            .and_then(|()| fs::rename(&part, &path))
            .map_err(Error::io("write", &path))
    }

    fn create_folder(&self) -> Result<(), Error> {
        let missing: Vec<&Path> = self
            .folder
            .ancestors()
            .take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists())
            .collect();
        private_file::create_folder(&self.folder)?;
        for folder in missing.iter().filter_map(|folder| folder.parent()) {
            let folder = if folder.as_os_str().is_empty() {
                Path::new(".")
            } else {
                folder
            };
            sync_folder(folder).map_err(Error::io("sync", folder))?;
        }
        Ok(())
    }

    /// Removes the torn line of a process that has died.
    fn cut_tail(&self, end: u64) -> Result<(), Error> {
        let mut options = File::options();
        let file = private_file::open_existing(&self.path, options.read(true).write(true))?;
        let Some(file) = file else {
            return Ok(());
        };
        let cut = file.metadata().and_then(|found| match found.len() > end {
            true => file.set_len(end),
            false => Ok(()),
        });
        cut.map_err(Error::io("repair", &self.path))
    }

    fn append(&self, records: &[InboxRecord], sync: Sync) -> Result<(), Error> {
        let failed = |source| Error::io("append to", &self.path)(source);
        let lines: Result<Vec<_>, _> = records.iter().map(serde_json::to_string).collect();
        let lines = lines.map_err(|error| failed(error.into()))?.join("\n");
        let is_new = !self.path.exists();
        let mut options = File::options();
        let options = options.create(true).read(true).append(true);
        let file = private_file::open(&self.path, options)?;
        let end = json_lines::append(&file, lines.as_bytes()).map_err(failed)?;
        if sync == Sync::Later {
            return Ok(());
        }
        let mut synced = file.sync_data();
        if is_new && synced.is_ok() {
            synced = sync_folder(&self.folder);
        }
        synced.map_err(|error| {
            // The caller is told that it failed: no other process has seen the record yet.
            let start = end - lines.len() as u64 - 1;
            let _ = file.set_len(start);
            failed(error)
        })
    }

    /// Replaces the file by one that has only what is listed.
    fn compact(&self, read: &mut ReadInbox) -> Result<(), Error> {
        let failed = |source| Error::io("compact", &self.path)(source);
        let part = self.folder.join("inbox.part");
        let mut options = File::options();
        let mut file = private_file::open(&part, options.write(true).create(true).truncate(true))?;
        let texts = read.texts(&self.path);
        let mut lines = Vec::new();
        for line in &read.damaged {
            lines.extend_from_slice(&texts.line(*line)?);
            lines.push(b'\n');
        }
        for letter in read.model.letters() {
            for record in compacted(letter, &texts)? {
                let line = serde_json::to_vec(&record).map_err(|error| failed(error.into()))?;
                lines.extend_from_slice(&line);
                lines.push(b'\n');
            }
            if lines.len() >= READ_SIZE {
                file.write_all(&lines).map_err(failed)?;
                lines.clear();
            }
        }
        file.write_all(&lines)
            .and_then(|()| file.sync_data())
            .and_then(|()| fs::rename(&part, &self.path))
            .and_then(|()| sync_folder(&self.folder))
            .map_err(failed)?;
        read.refresh(&self.path)
    }

    fn lock(&self) -> Result<LockedFile, Error> {
        let path = self.folder.join("lock");
        let mut options = File::options();
        let file = private_file::open(&path, options.create(true).truncate(false).write(true))?;
        LockedFile::lock(file, Access::Exclusive).map_err(Error::io("lock", &path))
    }

    fn memory(&self) -> MutexGuard<'_, ReadInbox> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The records that lead to the state of a message.
fn compacted(letter: &Letter, texts: &TextReader<'_>) -> Result<Vec<InboxRecord>, Error> {
    let id = || letter.id.clone();
    let text = match letter.state {
        LetterState::Delivered(_) => String::new(),
        _ => texts.text(letter)?,
    };
    let mut records = vec![InboxRecord::Left(LeftRecord {
        id: id(),
        from: letter.from.clone(),
        to: letter.to.clone(),
        text,
        at: letter.at,
        expires: letter.expires,
        is_agent: letter.is_agent,
    })];
    let sending = InboxRecord::Sending { id: id() };
    match letter.state.clone() {
        LetterState::Waiting => {}
        LetterState::Sending => records.push(sending),
        LetterState::Uncertain(reason) => {
            records.extend([sending, InboxRecord::Uncertain { id: id(), reason }]);
        }
        LetterState::Dead(reason) => records.push(InboxRecord::Dead { id: id(), reason }),
        LetterState::Delivered(at) => {
            records.extend([sending, InboxRecord::Delivered { id: id(), at }]);
        }
    }
    Ok(records)
}

impl ReadInbox {
    /// Reads the lines that were appended since the last call.
    fn refresh(&mut self, path: &Path) -> Result<(), Error> {
        let failed = |source| Error::io("read", path)(source);
        let Some(found) = private_file::open_existing(path, File::options().read(true))? else {
            *self = Self::default();
            return Ok(());
        };
        let identity = |file: &File| file.metadata().map(|found| (found.dev(), found.ino()));
        let metadata = found.metadata().map_err(failed)?;
        let is_same = match &self.file {
            Some(known) => {
                identity(known).map_err(failed)? == (metadata.dev(), metadata.ino())
                    // A person has cut the file off.
                    && metadata.len() >= self.offset
            }
            None => false,
        };
        if !is_same {
            *self = Self {
                file: Some(found),
                ..Self::default()
            };
        }
        self.read_to(metadata.len()).map_err(failed)
    }

    fn read_to(&mut self, end: u64) -> io::Result<()> {
        let mut bytes = Vec::new();
        while self.offset + (bytes.len() as u64) < end {
            let Some(file) = &self.file else {
                return Ok(());
            };
            let start = bytes.len();
            let left = usize::try_from(end - self.offset).unwrap_or(usize::MAX) - start;
            bytes.resize(start + left.min(READ_SIZE), 0);
            file.read_exact_at(&mut bytes[start..], self.offset + start as u64)?;
            // Bytes behind the last newline stay for the next round.
            let taken = self.apply(&bytes);
            bytes.drain(..taken);
        }
        Ok(())
    }

    /// Applies whole lines, and returns their length.
    fn apply(&mut self, bytes: &[u8]) -> usize {
        let mut start = 0;
        while let Some(len) = memchr::memchr(b'\n', &bytes[start..]) {
            let line = &bytes[start..start + len];
            let position = LinePosition {
                offset: self.offset,
                len,
            };
            match serde_json::from_slice(line) {
                Ok(record) => self.model.apply(record, position),
                Err(_) if line.trim_ascii().is_empty() => {}
                Err(error) => {
                    tracing::error!(%error, offset = self.offset, "a line of the inbox is no record");
                    self.damaged.push(position);
                }
            }
            start += len + 1;
            self.offset += len as u64 + 1;
        }
        start
    }

    fn texts<'a>(&'a self, path: &'a Path) -> TextReader<'a> {
        TextReader {
            path,
            file: self.file.as_ref(),
        }
    }
}

/// Reads the texts of messages.
pub(super) struct TextReader<'a> {
    path: &'a Path,
    file: Option<&'a File>,
}

impl TextReader<'_> {
    pub(super) fn text(&self, letter: &Letter) -> Result<String, Error> {
        match serde_json::from_slice(&self.line(letter.line)?) {
            Ok(InboxRecord::Left(left)) => Ok(left.text),
            Ok(_) => Err(self.failed(io::ErrorKind::InvalidData.into())),
            Err(error) => Err(self.failed(error.into())),
        }
    }

    fn line(&self, position: LinePosition) -> Result<Vec<u8>, Error> {
        let file = self
            .file
            .ok_or_else(|| self.failed(io::ErrorKind::NotFound.into()))?;
        let mut line = vec![0; position.len];
        file.read_exact_at(&mut line, position.offset)
            .map_err(|error| self.failed(error))?;
        Ok(line)
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::io("read", self.path)(error)
    }
}

/// Makes a new name in a folder durable.
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::message_id::MessageId;

    fn inbox(dir: &tempfile::TempDir) -> InboxFile {
        InboxFile::new(dir.path().join("inbox"), "team.yaml".into())
    }

    fn leave(file: &InboxFile) {
        let left = InboxRecord::Left(LeftRecord {
            id: MessageId::random(),
            from: "user".to_owned(),
            to: "a".to_owned(),
            text: "hello".to_owned(),
            at: 0,
            expires: u64::MAX,
            is_agent: false,
        });
        file.update(Sync::Disk, |_| Ok((vec![left], ()))).unwrap();
    }

    #[test]
    fn a_record_that_is_stored_but_cannot_be_read_again_is_no_failure() {
        let dir = tempfile::tempdir().unwrap();
        let file = inbox(&dir);
        leave(&file);
        // The same file, through a descriptor that cannot read it.
        let unreadable = File::options().append(true).open(file.path()).unwrap();
        file.memory().file = Some(unreadable);
        leave(&file);
        let count = file.read(|model, _| Ok(model.letters().count()));
        assert_eq!(count.unwrap(), 2);
    }

    #[test]
    fn a_long_damaged_line_does_not_cause_a_compaction_at_each_update() {
        let dir = tempfile::tempdir().unwrap();
        let file = inbox(&dir);
        leave(&file);
        let damage = vec![b'x'; 2 * COMPACT_FROM as usize];
        let mut log = File::options().append(true).open(file.path()).unwrap();
        log.write_all(&[&damage[..], b"\n"].concat()).unwrap();
        leave(&file);
        let inode = || fs::metadata(file.path()).unwrap().ino();
        let before = inode();
        leave(&file);
        assert_eq!(inode(), before, "the file was replaced");
        let count = file.read(|model, _| Ok(model.letters().count()));
        assert_eq!(count.unwrap(), 3);
    }
}
