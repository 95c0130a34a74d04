use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::checksummed_lines;
use super::file_set::{FileSet, Found, StoredAgent};
use super::folder::Folder;
use super::log_record;
use super::snapshot_document::{self, Archive, StorageMeta};
use super::snapshot_parts::SnapshotParts;
use super::tombstone::Tombstone;
use crate::backend::{self, Intent, SavePlan, Stamp, StreamChange};
use crate::conversation::Message;
use crate::shared::private_file::FileError;
use crate::{AgentId, AgentInfo, AgentSnapshot, Error};

/// When the JSON file is rewritten.
#[derive(Clone, Copy, Debug)]
pub(super) struct RewritePolicy {
    /// After this many ticks at the earliest; 0 means at every save.
    pub(super) min_ticks: u64,
}

/// The log is compacted into the JSON file once it is this many times as long. Each byte of history
/// is then rewritten at most 1.25 times in all (1 + 1/5 + 1/25 ...).
const MAX_LOG_BY_DOCUMENT: u64 = 4;

/// The operations on the files of one agent, and the knowledge about the files between two calls.
///
/// The module documentation has the theory: commit points, generations, tombstones.
pub(super) struct AgentFiles<F: Folder> {
    files: FileSet<F>,
    policy: RewritePolicy,
    /// `None` if the files must be read before the next save.
    open_log: Option<OpenLog<F>>,
    /// A write failed, so it is unknown what the disk holds. Nothing is appended before a rewrite
    /// or a delete has succeeded.
    is_uncertain: bool,
}

/// The log that the next save appends to.
struct OpenLog<F: Folder> {
    meta: StorageMeta,
    stamp: Stamp,
    /// The number of the first message that is not in the archive.
    from: u64,
    file: F::File,
    len: u64,
    crc: u32,
    is_torn: bool,
    ticks: u64,
    document_len: u64,
    /// The JSON file that the log belongs to.
    document_version: Option<F::Version>,
}

impl<F: Folder> AgentFiles<F> {
    pub(super) fn new(folder: Arc<F>, agent: AgentId, policy: RewritePolicy) -> Self {
        Self {
            files: FileSet::new(folder, agent),
            policy,
            open_log: None,
            is_uncertain: false,
        }
    }

    /// Saves, and returns the stored stamp. A repeat has one too.
    pub(super) fn save(
        &mut self,
        snapshot: &AgentSnapshot,
        intent: &Intent,
    ) -> Result<Option<Stamp>, Error> {
        if snapshot.extra.contains_key(snapshot_document::KEY) {
            // A caller that parses the JSON file gets this key. It is not part of the snapshot.
            let mut snapshot = snapshot.copy_of_same_object();
            snapshot.extra.remove(snapshot_document::KEY);
            return self.save(&snapshot, intent);
        }
        let _lock = self.lock()?;
        if !self.is_current()? {
            self.open_log = None;
        }
        let mut found = None;
        let (stamp, epoch_floor) = match &self.open_log {
            Some(log) => (Some(log.stamp.clone()), log.meta.epoch_floor),
            None => match found.insert(self.files.read()?) {
                Found::Nothing { epoch_floor, .. } => (None, *epoch_floor),
                Found::Stored(stored) => {
                    // A snapshot that cannot be loaded must not be continued (rule 3).
                    self.files.assemble(stored)?;
                    (Some(stored.parts.stamp.clone()), stored.meta.epoch_floor)
                }
            },
        };
        let plan = backend::judge(snapshot, stamp.as_ref(), epoch_floor, intent)?;
        let new_stamp = plan.as_ref().map(|plan| plan.stamp.clone()).or(stamp);
        if plan.is_none() && !self.is_uncertain {
            return Ok(new_stamp);
        }
        if let Some(Found::Stored(stored)) = &mut found {
            self.open_log = self.open_log(stored)?;
        }
        let may_append = self.policy.min_ticks > 0 && !self.is_uncertain;
        let appended = match (&plan, &mut self.open_log) {
            (Some(plan), Some(log)) if may_append && log.is_continued_by(plan) => {
                Some(log.append(&*self.files.folder, plan))
            }
            _ => None,
        };
        let result = match appended {
            Some(result) => result.map_err(Error::from),
            None => self.rewrite(plan),
        };
        self.note(result)?;
        if self.is_rewrite_due() {
            let result = self.rewrite(None);
            if let Err(error) = self.note(result) {
                // The save itself is durable: it is in the log.
                let agent = &self.files.agent;
                tracing::warn!(%agent, %error, "cannot compact the log");
            }
        }
        Ok(new_stamp)
    }

    pub(super) fn load(&mut self) -> Result<Option<(AgentSnapshot, Stamp)>, Error> {
        let _lock = self.lock()?;
        match self.read_stored()? {
            Found::Nothing { .. } => Ok(None),
            Found::Stored(mut stored) => {
                if self.open_log.is_none() || !self.is_current()? {
                    // Only a preparation for the next save, which reports an error itself.
                    self.open_log = self.open_log(&mut stored).unwrap_or_default();
                }
                let snapshot = self.files.assemble(&stored)?;
                Ok(Some((snapshot, stored.parts.stamp)))
            }
        }
    }

    /// Reads the files. If there are none, the lock file goes too: callers may ask for any number of
    /// agents that do not exist. The caller must change nothing then: another process can take the
    /// lock of a new file.
    fn read_stored(&self) -> Result<Found<F>, Error> {
        let found = self.files.read()?;
        if matches!(found, Found::Nothing { epoch_floor: 0, .. }) {
            self.files.folder.remove(&self.files.name("lock"))?;
        }
        Ok(found)
    }

    /// Whether a snapshot is stored, readable or not.
    pub(super) fn is_stored(&mut self) -> Result<bool, Error> {
        let _lock = self.lock()?;
        Ok(!matches!(self.files.read(), Ok(Found::Nothing { .. })))
    }

    /// Deletes the agent if its last write is not younger than `age`. Calls `begin` before it deletes.
    pub(super) fn expire(&mut self, age: Duration, begin: impl FnOnce()) -> Result<bool, Error> {
        let _lock = self.lock()?;
        let stored = match self.files.read() {
            Ok(Found::Stored(stored)) => stored,
            Ok(Found::Nothing { .. }) => return Ok(false),
            Err(error) if error.is_damaged() => return Ok(false),
            Err(error) => return Err(error),
        };
        let is_old = self.changed(&stored)?.elapsed().unwrap_or_default() >= age;
        if !is_old || self.files.assemble(&stored).is_err() {
            return Ok(false);
        }
        begin();
        self.delete_locked()?;
        Ok(true)
    }

    /// The time of the last write.
    fn changed(&self, stored: &StoredAgent<F>) -> Result<SystemTime, FileError> {
        let folder = &self.files.folder;
        let document = folder.modified(&self.files.name("json"))?;
        let log = folder.modified(&self.files.log_name(stored.meta.generation))?;
        Ok(document.max(log).unwrap_or(UNIX_EPOCH))
    }

    /// The entry of the agent in a list; `None` if it is not stored.
    pub(super) fn info(&mut self) -> Result<Option<AgentInfo>, Error> {
        #[derive(serde::Deserialize)]
        struct Labels<'a> {
            #[serde(borrow)]
            labels: Option<&'a serde_json::value::RawValue>,
        }

        let _lock = self.lock()?;
        let agent = self.files.agent.clone();
        let stored = match self.files.read() {
            Ok(Found::Nothing { .. }) => return Ok(None),
            Ok(Found::Stored(stored)) => stored,
            Err(error) if error.is_damaged() => return Ok(Some(AgentInfo::new(agent))),
            Err(error) => return Err(error),
        };
        let labels = serde_json::from_str::<Labels<'_>>(&stored.parts.body);
        let labels = labels.ok().and_then(|body| body.labels);
        let log = stored.log.as_ref().map_or(0, |log| log.len);
        Ok(Some(AgentInfo::from_parts(
            agent,
            Some(&stored.parts.stamp),
            labels.map(serde_json::value::RawValue::get),
            stored.document_len + log + stored.meta.archive.bytes,
            self.changed(&stored)?,
        )))
    }

    /// Removes the oldest hidden messages until `keep` are left: the next generation gets a new
    /// archive, and the rename of the JSON file is the commit point, as in every rewrite.
    pub(super) fn cap_stream(&mut self, keep: u64) -> Result<u64, Error> {
        let _lock = self.lock()?;
        let Found::Stored(mut stored) = self.read_stored()? else {
            return Ok(0);
        };
        let start = stored.parts.stamp.capped_start(keep);
        let removed = start - stored.parts.stamp.stream_start;
        if removed == 0 {
            return Ok(0);
        }
        self.take_from_archive(&mut stored)?;
        let StoredAgent {
            meta: old,
            mut parts,
            ..
        } = *stored;
        parts.messages.drain(..removed as usize);
        parts.from = start;
        parts.stamp.stream_start = start;
        let mut meta = old.clone();
        meta.generation += 1;
        meta.archive = Archive {
            birth: meta.generation,
            ..Archive::default()
        };
        let result = self.write_next(Some(&old), meta, parts);
        self.note(result)?;
        Ok(removed)
    }

    /// Puts the messages of the archive before the others: the next generation gets a new archive.
    fn take_from_archive(&self, stored: &mut StoredAgent<F>) -> Result<(), Error> {
        let start = stored.parts.stamp.stream_start;
        if stored.parts.from > start {
            let mut messages = self.files.read_archive(stored)?;
            messages.append(&mut stored.parts.messages);
            stored.parts.messages = messages;
            stored.parts.from = start;
        }
        Ok(())
    }

    pub(super) fn delete(&mut self) -> Result<(), Error> {
        let _lock = self.lock()?;
        self.delete_locked()
    }

    fn delete_locked(&mut self) -> Result<(), Error> {
        self.open_log = None;
        let (generation, epoch_floor) = match self.files.read() {
            Ok(Found::Nothing {
                generation,
                epoch_floor,
            }) => {
                // An interrupted delete leaves dead files, or a tombstone that has no epoch to keep.
                let has_tombstone = self.files.read_tombstone()?.is_some();
                let is_done = self.dead_files()?.is_empty() && (epoch_floor > 0 || !has_tombstone);
                if is_done && !self.is_uncertain {
                    if epoch_floor == 0 {
                        self.files.folder.remove(&self.files.name("lock"))?;
                    }
                    return Ok(());
                }
                (generation, epoch_floor)
            }
            Ok(Found::Stored(stored)) => {
                if let Err(error) = self.files.assemble(&stored) {
                    self.files.keep_aside(&error)?;
                }
                let epoch = stored.parts.stamp.epoch.max(stored.meta.epoch_floor);
                (stored.meta.generation, epoch)
            }
            Err(error) if error.is_damaged() => {
                self.files.keep_aside(&error)?;
                let tombstone = self.files.read_tombstone()?.unwrap_or_default();
                (tombstone.generation, tombstone.epoch_floor)
            }
            Err(error) => return Err(error),
        };
        let tombstone = Tombstone {
            generation,
            epoch_floor,
        };
        self.is_uncertain = true;
        self.replace(&self.files.name("deleted"), &tombstone.to_text())?;
        self.files.folder.sync_names()?;
        self.is_uncertain = false;
        self.remove_dead_files(&tombstone)?;
        Ok(())
    }

    /// The files that a tombstone has killed.
    fn dead_files(&self) -> Result<Vec<String>, FileError> {
        let mut names = self.files.own_files()?;
        names.retain(|name| !name.ends_with(".deleted") && !name.ends_with(".lock"));
        Ok(names)
    }

    fn remove_dead_files(&self, tombstone: &Tombstone) -> Result<(), FileError> {
        let folder = &self.files.folder;
        for name in self.dead_files()? {
            folder.remove(&name)?;
        }
        // A file of another program has no generation, so the tombstone does not kill it.
        folder.sync_names()?;
        if tombstone.epoch_floor == 0 {
            // The tombstone has no epoch to keep. It must be the last file to go: a dead file
            // without it would be alive again.
            folder.remove(&self.files.name("deleted"))?;
            folder.remove(&self.files.name("lock"))?;
        }
        Ok(())
    }

    pub(super) fn stream(&mut self, range: &Range<u64>) -> Result<Vec<(u64, Message)>, Error> {
        let _lock = self.lock()?;
        let Found::Stored(stored) = self.read_stored()? else {
            return Ok(Vec::new());
        };
        let stamp = &stored.parts.stamp;
        let first = range.start.max(stamp.stream_start);
        let end = range.end.min(stamp.next);
        if first >= end {
            return Ok(Vec::new());
        }
        let mut messages = Vec::new();
        if first < stored.parts.from {
            let archive = self.files.read_archive(&stored)?;
            messages.extend(
                archive
                    .into_iter()
                    .skip((first - stamp.stream_start) as usize),
            );
        }
        let skip = first.saturating_sub(stored.parts.from) as usize;
        messages.extend(stored.parts.messages.into_iter().skip(skip));
        messages.truncate((end - first) as usize);
        let location = self.files.location("json");
        backend::decode_messages(&self.files.agent, &location, first, messages)
    }

    /// Whether a write failed and nothing was written since.
    pub(super) fn is_uncertain(&self) -> bool {
        self.is_uncertain
    }

    /// Whether a log with saves was left open.
    pub(super) fn has_open_log(&self) -> bool {
        self.open_log.as_ref().is_some_and(|log| log.ticks > 0)
    }

    /// Folds the log into the JSON file.
    pub(super) fn compact(&mut self) -> Result<(), Error> {
        let _lock = self.lock()?;
        let Found::Stored(stored) = self.read_stored()? else {
            return Ok(());
        };
        let is_log_empty = stored.log.as_ref().is_none_or(|log| log.ticks == 0);
        if is_log_empty && !self.is_uncertain {
            return Ok(());
        }
        let result = self.rewrite(None);
        self.note(result)
    }

    /// Remembers that a write failed.
    fn note(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        if result.is_err() {
            self.open_log = None;
            self.is_uncertain = true;
        }
        result
    }

    fn lock(&self) -> Result<F::Lock, FileError> {
        self.files.folder.lock(&self.files.name("lock"))
    }

    /// Whether the files are as the last call left them: no other process has rewritten, deleted
    /// or appended since.
    fn is_current(&self) -> Result<bool, FileError> {
        let Some(log) = &self.open_log else {
            return Ok(true);
        };
        let folder = &self.files.folder;
        let generation = log.meta.generation;
        // By inode: a restored backup has the names and perhaps the lengths of the files, but an
        // append to the log that was replaced would be lost. Not by the log of the next generation:
        // that generation may have none.
        Ok(folder.len(&log.file)? == log.len
            && folder.is_file_at(&log.file, &self.files.log_name(generation))?
            && folder.version(&self.files.name("json"))? == log.document_version
            && !folder.exists(&self.files.name("deleted"))?)
    }

    fn is_rewrite_due(&self) -> bool {
        self.open_log.as_ref().is_some_and(|log| {
            log.ticks >= self.policy.min_ticks && log.len >= log.document_len * MAX_LOG_BY_DOCUMENT
        })
    }

    /// Writes the next generation of the JSON file: the stored parts with `plan` applied.
    fn rewrite(&mut self, plan: Option<SavePlan>) -> Result<(), Error> {
        let mut has_new_archive = false;
        let (old, mut meta, mut parts) = match self.files.read()? {
            Found::Stored(mut stored) => {
                if let Some(plan) = &plan {
                    has_new_archive = plan.stream == StreamChange::Replace;
                    // Messages come back into view.
                    if !has_new_archive && plan.stamp.first < stored.parts.from {
                        self.take_from_archive(&mut stored)?;
                        has_new_archive = true;
                    }
                }
                let StoredAgent { meta, parts, .. } = *stored;
                (Some(meta.clone()), meta, parts)
            }
            Found::Nothing {
                generation,
                epoch_floor,
            } => {
                let Some(plan) = &plan else { return Ok(()) };
                has_new_archive = true;
                let parts = SnapshotParts::before(plan);
                let archive = Archive::default();
                let meta = StorageMeta::new(generation, false, epoch_floor, &parts.stamp, archive);
                (None, meta, parts)
            }
        };
        meta.generation += 1;
        meta.log = self.policy.min_ticks > 0;
        if has_new_archive {
            meta.archive = Archive {
                birth: meta.generation,
                ..Archive::default()
            };
        }
        if let Some(plan) = plan {
            parts.apply(plan);
        }
        self.write_next(old.as_ref(), meta, parts)
    }

    /// Writes a generation and removes the files that it replaces.
    fn write_next(
        &mut self,
        old: Option<&StorageMeta>,
        mut meta: StorageMeta,
        mut parts: SnapshotParts,
    ) -> Result<(), Error> {
        meta.stamp = parts.stamp.to_text();
        if old.is_none() && parts.hidden() > 0 {
            // An archive without a JSON file is damage. With a tombstone it is what an interrupted
            // first save has left.
            let before = Tombstone {
                generation: meta.generation - 1,
                epoch_floor: meta.epoch_floor,
            };
            self.replace(&self.files.name("deleted"), &before.to_text())?;
            self.files.folder.sync_names()?;
        }
        self.archive_hidden(&mut meta.archive, &mut parts)?;
        self.open_log = self.write_generation(&meta, parts)?;
        self.is_uncertain = false;

        let mut stale = vec![self.files.name("deleted")];
        if let Some(old) = old {
            if old.log {
                stale.push(self.files.log_name(old.generation));
            }
            if old.archive.birth != meta.archive.birth {
                stale.push(self.files.archive_name(old.archive.birth));
            }
        }
        for name in stale {
            if let Err(error) = self.files.folder.remove(&name) {
                let error = Error::from(error);
                let agent = &self.files.agent;
                tracing::warn!(%agent, name, %error, "cannot remove a file that is not used any more");
            }
        }
        Ok(())
    }

    /// Writes the log and the JSON file of a generation. The rename of the JSON file is the commit
    /// point, so everything that it names is synced before.
    fn write_generation(
        &self,
        meta: &StorageMeta,
        parts: SnapshotParts,
    ) -> Result<Option<OpenLog<F>>, Error> {
        let document = snapshot_document::write(meta, &parts).ok_or_else(|| Error::Encode {
            what: self.files.location("json"),
            source: "the body is not the JSON of a snapshot".into(),
        })?;
        let folder = &self.files.folder;
        let mut log = None;
        if meta.log {
            let mut header = String::new();
            let payload = format!("{{\"format\":1,\"generation\":{}}}", meta.generation);
            let crc = checksummed_lines::push(&mut header, 0, &payload);
            let mut file = folder.create(&self.files.log_name(meta.generation))?;
            folder.write(&mut file, header.as_bytes())?;
            folder.sync(&file)?;
            log = Some((file, header.len() as u64, crc));
        }
        folder.sync_names()?;
        self.replace(&self.files.name("json"), &document)?;
        folder.sync_names()?;
        let document_version = folder.version(&self.files.name("json"))?;
        Ok(log.map(|(file, len, crc)| OpenLog {
            meta: meta.clone(),
            stamp: parts.stamp,
            from: parts.from,
            file,
            len,
            crc,
            is_torn: false,
            ticks: 0,
            document_len: document.len() as u64,
            document_version,
        }))
    }

    /// Moves the messages that are out of view to the archive.
    fn archive_hidden(
        &self,
        archive: &mut Archive,
        parts: &mut SnapshotParts,
    ) -> Result<(), FileError> {
        let hidden = parts.hidden();
        if hidden == 0 {
            return Ok(());
        }
        let folder = &self.files.folder;
        let mut file = folder.open_to_append(&self.files.archive_name(archive.birth))?;
        if folder.len(&file)? != archive.bytes {
            // An interrupted rewrite left more.
            folder.truncate(&mut file, archive.bytes)?;
            folder.sync(&file)?;
        }
        let mut lines = String::new();
        for json in parts.messages.drain(..hidden) {
            archive.crc = checksummed_lines::push(&mut lines, archive.crc, &json);
        }
        folder.write(&mut file, lines.as_bytes())?;
        folder.sync(&file)?;
        archive.bytes += lines.len() as u64;
        parts.from = parts.stamp.first;
        Ok(())
    }

    /// Replaces a file in one step. The caller syncs the names.
    fn replace(&self, name: &str, contents: &str) -> Result<(), FileError> {
        let folder = &self.files.folder;
        let temporary = format!("{name}.tmp");
        let mut file = folder.create(&temporary)?;
        folder.write(&mut file, contents.as_bytes())?;
        folder.sync(&file)?;
        drop(file);
        folder.rename(&temporary, name)
    }

    fn open_log(&self, stored: &mut StoredAgent<F>) -> Result<Option<OpenLog<F>>, FileError> {
        let Some(end) = &stored.log else {
            return Ok(None);
        };
        let folder = &self.files.folder;
        let generation = stored.meta.generation;
        // Interrupted operations left them; `is_current` would take a tombstone for another process.
        folder.remove(&self.files.log_name(generation + 1))?;
        folder.remove(&self.files.name("deleted"))?;
        let file = folder.open_to_append(&self.files.log_name(generation))?;
        Ok(Some(OpenLog {
            meta: stored.meta.clone(),
            stamp: stored.parts.stamp.clone(),
            from: stored.parts.from,
            file,
            len: end.len,
            crc: end.crc,
            is_torn: end.is_torn,
            ticks: end.ticks,
            document_len: stored.document_len,
            document_version: stored.document_version.take(),
        }))
    }
}

impl<F: Folder> OpenLog<F> {
    /// Whether a line of the log can hold the save. The log has no messages of the archive.
    fn is_continued_by(&self, plan: &SavePlan) -> bool {
        plan.stream == StreamChange::Append && plan.stamp.first >= self.from
    }

    fn append(&mut self, folder: &F, plan: &SavePlan) -> Result<(), FileError> {
        if self.is_torn {
            folder.truncate(&mut self.file, self.len)?;
            folder.sync(&self.file)?;
            self.is_torn = false;
        }
        let mut line = String::new();
        let crc = checksummed_lines::push(&mut line, self.crc, &log_record::encode(plan));
        folder.write(&mut self.file, line.as_bytes())?;
        folder.sync(&self.file)?;
        self.len += line.len() as u64;
        self.crc = crc;
        self.ticks += 1;
        self.stamp = plan.stamp.clone();
        Ok(())
    }
}
