use std::{borrow::Cow, io, ops::Range, sync::Arc};

use super::{
    document::{self, Archive, Meta, Parts},
    frame,
    fs::Fs,
    next_document::NextDocument,
    place::{Contents, Found, Place, Texts},
    tombstone::Tombstone,
};
use crate::{
    AgentId, AgentSnapshot, Error,
    backend::{self, Stamp, Stream, Write},
    conversation::Message,
};

/// When the JSON file is written anew.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rewrite {
    /// After this many ticks at the earliest; 0 means at every save.
    pub(super) ticks: u64,
}

/// The log is folded into the JSON file when it is this many times as long. Each byte of
/// history is then rewritten 1.25 times at most in all (1 + 1/5 + 1/25 ...).
const GROWTH: u64 = 4;

/// The files of one agent, and what is known about them between two calls.
pub(super) struct Files<F: Fs> {
    at: Place<F>,
    rewrite: Rewrite,
    open: Option<Open<F>>,
    /// A write failed: what the disk holds is not certain until the JSON file has been
    /// written anew. (After a failed sync the next one may succeed without having written.)
    uncertain: bool,
}

/// The log that the next save appends to.
struct Open<F: Fs> {
    meta: Meta,
    stamp: Stamp,
    log: F::File,
    log_len: u64,
    log_crc: u32,
    torn: bool,
    ticks: u64,
    document_len: u64,
}

impl<F: Fs> Files<F> {
    pub(super) fn new(fs: Arc<F>, folder: String, agent: AgentId, rewrite: Rewrite) -> Self {
        Self {
            at: Place::new(fs, folder, agent),
            rewrite,
            open: None,
            uncertain: false,
        }
    }

    pub(super) fn save(&mut self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        if snapshot.extra.contains_key(document::KEY) {
            // Came along when somebody read the JSON file; it is not part of the snapshot.
            let mut snapshot = snapshot.clone();
            snapshot.extra.remove(document::KEY);
            return self.save(&snapshot);
        }
        let _lock = self.lock()?;
        if !self.is_current()? {
            self.open = None;
        }
        let mut texts = Texts::default();
        let mut found = None;
        let (stamp, epoch_floor) = match &self.open {
            Some(open) => (Some(open.stamp.clone()), open.meta.epoch_floor),
            None => match found.insert(self.at.read(&mut texts)?) {
                Found::Nothing { epoch_floor, .. } => (None, *epoch_floor),
                Found::Stored(contents) => {
                    // What cannot be loaded is not to be built upon.
                    self.at.assemble(contents)?;
                    (Some(contents.stamp.clone()), contents.meta.epoch_floor)
                }
            },
        };
        let write = backend::plan(snapshot, stamp.as_ref(), epoch_floor)?;
        if write.is_none() && !self.uncertain {
            return Ok(());
        }
        if self.open.is_none()
            && let Some(Found::Stored(contents)) = &found
        {
            self.open = self.open_log(contents)?;
        }
        let result = match write {
            Some(write)
                if write.stream == Stream::Append
                    && self.open.is_some()
                    && !self.uncertain
                    && self.rewrite.ticks > 0 =>
            {
                self.append(&write)
            }
            write => self.rewrite(write),
        };
        if result.is_err() {
            self.open = None;
            self.uncertain = true;
        }
        result?;
        if self.is_due()
            && let Err(error) = self.rewrite(None)
        {
            // The save itself is in the log and synced.
            tracing::warn!(agent = %self.at.agent, %error, "could not fold the log into the JSON file");
            self.open = None;
            self.uncertain = true;
        }
        Ok(())
    }

    pub(super) fn load(&mut self) -> Result<Option<AgentSnapshot>, Error> {
        let _lock = self.lock()?;
        match self.at.read(&mut Texts::default())? {
            Found::Nothing { .. } => Ok(None),
            Found::Stored(contents) => {
                if self.open.is_none() || !self.is_current()? {
                    // Only prepares the next save, which will say what is wrong.
                    self.open = self.open_log(&contents).unwrap_or_default();
                }
                self.at.assemble(&contents).map(Some)
            }
        }
    }

    /// Whether a snapshot (readable or not) is stored.
    pub(super) fn is_stored(&mut self) -> Result<bool, Error> {
        let _lock = self.lock()?;
        Ok(!matches!(
            self.at.read(&mut Texts::default()),
            Ok(Found::Nothing { .. })
        ))
    }

    pub(super) fn delete(&mut self) -> Result<(), Error> {
        let _lock = self.lock()?;
        self.open = None;
        let (generation, epoch_floor) = match self.at.read(&mut Texts::default()) {
            Ok(Found::Nothing {
                generation,
                epoch_floor,
            }) => {
                if !self.uncertain {
                    return Ok(());
                }
                (generation, epoch_floor)
            }
            Ok(Found::Stored(contents)) => {
                if let Err(error) = self.at.assemble(&contents) {
                    self.at.keep_aside(&error)?;
                }
                let epoch = contents.stamp.epoch.max(contents.meta.epoch_floor);
                (contents.meta.generation, epoch)
            }
            Err(error) if error.is_damaged() => {
                self.at.keep_aside(&error)?;
                let tombstone = self.at.tombstone()?.unwrap_or_default();
                (tombstone.generation, tombstone.epoch_floor)
            }
            Err(error) => return Err(error),
        };
        let tombstone = Tombstone {
            generation,
            epoch_floor,
        };
        self.uncertain = true;
        self.replace(&self.at.name("deleted"), &tombstone.write())
            .and_then(|()| self.at.fs.sync_folder())
            .map_err(|error| self.at.failed("deleting", error))?;
        self.uncertain = false;
        // From here on nothing is stored; the rest is tidying up.
        let tidy = || {
            for name in self.at.own_files()? {
                if !name.ends_with(".deleted") && !name.ends_with(".lock") {
                    self.at.fs.remove(&name)?;
                }
            }
            if epoch_floor == 0 {
                // Nothing to remember. Everything else must be gone before the tombstone is.
                self.at.fs.sync_folder()?;
                self.at.fs.remove(&self.at.name("deleted"))?;
                self.at.fs.remove_lock(&self.at.name("lock"))?;
            }
            Ok(())
        };
        tidy().map_err(|error: io::Error| self.at.failed("deleting", error))
    }

    pub(super) fn history(&mut self, range: &Range<u64>) -> Result<Vec<(u64, Message)>, Error> {
        let _lock = self.lock()?;
        let mut texts = Texts::default();
        let Found::Stored(contents) = self.at.read(&mut texts)? else {
            return Ok(Vec::new());
        };
        let stamp = &contents.stamp;
        let first = range.start.max(stamp.start);
        let end = range.end.min(stamp.next);
        if first >= end {
            return Ok(Vec::new());
        }
        let mut messages = Vec::new();
        if first < contents.from {
            let archive = self.at.read_archive(&contents)?;
            let skip = (first - stamp.start) as usize;
            messages.extend(archive.into_iter().skip(skip).map(Cow::Owned));
        }
        let skip = first.saturating_sub(contents.from) as usize;
        messages.extend(contents.messages.into_iter().skip(skip));
        messages.truncate((end - first) as usize);
        backend::decode_messages(&self.at.agent, &self.at.place("json"), first, messages)
    }

    /// Folds the log into the JSON file.
    pub(super) fn compact(&mut self) -> Result<(), Error> {
        let _lock = self.lock()?;
        let mut texts = Texts::default();
        let Found::Stored(contents) = self.at.read(&mut texts)? else {
            return Ok(());
        };
        let plain = contents.log.as_ref().is_none_or(|log| log.ticks == 0);
        if plain && !self.uncertain {
            return Ok(());
        }
        let result = self.rewrite(None);
        if result.is_err() {
            self.open = None;
            self.uncertain = true;
        }
        result
    }

    fn lock(&self) -> Result<F::Lock, Error> {
        self.at
            .fs
            .lock(&self.at.name("lock"))
            .map_err(|error| self.at.failed("locking", error))
    }

    /// Whether the open log is still the one that counts: no other process has rewritten,
    /// deleted or appended since.
    fn is_current(&self) -> Result<bool, Error> {
        let Some(open) = &self.open else {
            return Ok(true);
        };
        let generation = open.meta.generation;
        let check = || {
            Ok(self.at.fs.len(&open.log)? == open.log_len
                && self.at.fs.exists(&self.at.log_name(generation))?
                && !self.at.fs.exists(&self.at.log_name(generation + 1))?
                && !self.at.fs.exists(&self.at.name("deleted"))?)
        };
        check().map_err(|error| self.at.failed("reading", error))
    }

    fn is_due(&self) -> bool {
        self.open.as_ref().is_some_and(|open| {
            open.ticks >= self.rewrite.ticks && open.log_len >= open.document_len * GROWTH
        })
    }

    fn append(&mut self, write: &Write) -> Result<(), Error> {
        let mut line = String::new();
        let payload = encode_line(write);
        let Some(open) = &mut self.open else {
            return self.rewrite(None);
        };
        let crc = frame::push(&mut line, open.log_crc, &payload);
        let fs = &self.at.fs;
        let mut append = || {
            if open.torn {
                // Synced by itself: old and new bytes must not mix after a crash.
                fs.truncate(&mut open.log, open.log_len)?;
                fs.sync(&open.log)?;
                open.torn = false;
            }
            fs.write(&mut open.log, line.as_bytes())?;
            fs.sync(&open.log)
        };
        append().map_err(|error| self.at.failed("saving", error))?;
        open.log_len += line.len() as u64;
        open.log_crc = crc;
        open.ticks += 1;
        open.stamp = write.stamp.clone();
        Ok(())
    }

    /// Writes the JSON file anew, with `write` on top of what is stored.
    fn rewrite(&mut self, write: Option<Write>) -> Result<(), Error> {
        let mut texts = Texts::default();
        let (old, mut next) = match self.at.read(&mut texts)? {
            Found::Nothing {
                generation,
                epoch_floor,
            } => {
                let Some(write) = &write else { return Ok(()) };
                let archive = Archive {
                    birth: generation + 1,
                    ..Archive::default()
                };
                let meta = Meta::new(generation, false, epoch_floor, &write.stamp, archive);
                (None, NextDocument::empty(meta, write))
            }
            Found::Stored(contents) => {
                let old = contents.meta.clone();
                (Some(old), NextDocument::of(*contents))
            }
        };
        if let Some(write) = write {
            next.apply(write);
        }
        next.meta.generation += 1;
        next.meta.log = self.rewrite.ticks > 0;
        next.meta.stamp = next.stamp.to_text();
        let replaced = self
            .write_document(&mut next)
            .map_err(|error| self.at.failed("saving", error))?;
        self.open = replaced;
        self.uncertain = false;

        // What the new file does not name any more.
        let mut stale = vec![self.at.name("deleted")];
        if let Some(old) = old {
            if old.log {
                stale.push(self.at.log_name(old.generation));
            }
            if old.archive.birth != next.meta.archive.birth {
                stale.push(self.at.archive_name(old.archive.birth));
            }
        }
        for name in stale {
            if let Err(error) = self.at.fs.remove(&name) {
                tracing::warn!(agent = %self.at.agent, name, %error, "could not remove an old file");
            }
        }
        Ok(())
    }

    fn write_document(&self, next: &mut NextDocument<'_>) -> io::Result<Option<Open<F>>> {
        let fs = &self.at.fs;
        self.write_archive(next)?;
        let document = document::write(&Parts {
            meta: &next.meta,
            stamp: &next.stamp,
            state: &next.state,
            head: &next.head,
            messages: &next.messages,
        })
        .ok_or_else(|| io::Error::other("the state is not the JSON of a snapshot"))?;

        let mut log = None;
        if next.meta.log {
            let mut header = String::new();
            let payload = format!("{{\"format\":1,\"generation\":{}}}", next.meta.generation);
            let crc = frame::push(&mut header, 0, &payload);
            let mut file = fs.create(&self.at.log_name(next.meta.generation))?;
            fs.write(&mut file, header.as_bytes())?;
            fs.sync(&file)?;
            log = Some((file, header.len() as u64, crc));
        }
        // The names that the JSON file relies on must be there before it is.
        fs.sync_folder()?;
        self.replace(&self.at.name("json"), &document)?;
        fs.sync_folder()?;
        Ok(log.map(|(log, log_len, log_crc)| Open {
            meta: next.meta.clone(),
            stamp: next.stamp.clone(),
            log,
            log_len,
            log_crc,
            torn: false,
            ticks: 0,
            document_len: document.len() as u64,
        }))
    }

    /// Moves what is out of view from the document to the archive.
    fn write_archive(&self, next: &mut NextDocument<'_>) -> io::Result<()> {
        let hidden = (next.stamp.first - next.from) as usize;
        if hidden == 0 {
            return Ok(());
        }
        let fs = &self.at.fs;
        let archive = &mut next.meta.archive;
        let mut file = fs.append(&self.at.archive_name(archive.birth))?;
        if fs.len(&file)? != archive.bytes {
            // The rest of a rewrite that did not come to its end.
            fs.truncate(&mut file, archive.bytes)?;
            fs.sync(&file)?;
        }
        let mut lines = String::new();
        let mut crc = archive.crc;
        for json in next.messages.drain(..hidden) {
            crc = frame::push(&mut lines, crc, &json);
        }
        fs.write(&mut file, lines.as_bytes())?;
        fs.sync(&file)?;
        archive.bytes += lines.len() as u64;
        archive.crc = crc;
        next.from = next.stamp.first;
        Ok(())
    }

    /// Replaces a file in one step.
    fn replace(&self, name: &str, contents: &str) -> io::Result<()> {
        let temporary = format!("{name}.tmp");
        let mut file = self.at.fs.create(&temporary)?;
        self.at.fs.write(&mut file, contents.as_bytes())?;
        self.at.fs.sync(&file)?;
        drop(file);
        self.at.fs.rename(&temporary, name)
    }

    fn open_log(&self, contents: &Contents<'_>) -> Result<Option<Open<F>>, Error> {
        let Some(end) = &contents.log else {
            return Ok(None);
        };
        let generation = contents.meta.generation;
        let open = || {
            // Left by a rewrite that did not come to its end.
            self.at.fs.remove(&self.at.log_name(generation + 1))?;
            self.at.fs.remove(&self.at.name("deleted"))?;
            self.at.fs.append(&self.at.log_name(generation))
        };
        let log = open().map_err(|error| self.at.failed("opening the log", error))?;
        Ok(Some(Open {
            meta: contents.meta.clone(),
            stamp: contents.stamp.clone(),
            log,
            log_len: end.len,
            log_crc: end.crc,
            torn: end.torn,
            ticks: end.ticks,
            document_len: contents.document_len,
        }))
    }
}

fn encode_line(write: &Write) -> String {
    let size: usize = write.messages.iter().map(|json| json.len() + 1).sum();
    let mut out = String::with_capacity(size + write.state.len() + 512);
    out.push_str(&format!("{{\"stamp\":\"{}\"", write.stamp.to_text()));
    if let Some(head) = &write.head {
        out.push_str(",\"head\":");
        out.push_str(head);
    }
    out.push_str(",\"messages\":[");
    for (n, json) in write.messages.iter().enumerate() {
        if n > 0 {
            out.push(',');
        }
        out.push_str(json);
    }
    out.push_str("],\"state\":");
    out.push_str(&write.state);
    out.push('}');
    out
}
