use std::{io, ops::Range, sync::Arc};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    document::{self, Archive, Document, Meta, Parts, Problem},
    frame::{self, Tail},
    fs::Fs,
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
///
/// - `{agent}.json`: the snapshot at some tick, plain JSON, replaced by rename.
/// - `{agent}.{generation}.log`: one line for each save since then.
/// - `{agent}.{birth}.history`: messages that had gone out of view by then.
/// - `{agent}.deleted`: the commit point of a delete; holds the epoch.
/// - `{agent}.lock`: one process at a time.
pub(super) struct Files<F: Fs> {
    fs: Arc<F>,
    agent: AgentId,
    stem: String,
    folder: String,
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

enum Found {
    Nothing { generation: u64, epoch_floor: u64 },
    Stored(Box<Contents>),
}

/// Everything that is stored but for the archive.
struct Contents {
    meta: Meta,
    document: AgentSnapshot,
    document_len: u64,
    stamp: Stamp,
    /// The state of the last line in the log, if there is one.
    state: Option<String>,
    head: String,
    /// The messages from number `from` on.
    messages: Vec<String>,
    from: u64,
    log: Option<LogEnd>,
}

struct LogEnd {
    len: u64,
    crc: u32,
    torn: bool,
    ticks: u64,
}

/// One line of the log.
#[derive(Deserialize)]
struct Line<'a> {
    stamp: &'a str,
    #[serde(borrow)]
    head: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
    #[serde(borrow)]
    state: &'a RawValue,
}

impl<F: Fs> Files<F> {
    pub(super) fn new(fs: Arc<F>, folder: String, agent: AgentId, rewrite: Rewrite) -> Self {
        Self {
            stem: agent.encoded(),
            fs,
            agent,
            folder,
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
        let mut found = None;
        let (stamp, epoch_floor) = match &self.open {
            Some(open) => (Some(open.stamp.clone()), open.meta.epoch_floor),
            None => match found.insert(self.read()?) {
                Found::Nothing { epoch_floor, .. } => (None, *epoch_floor),
                Found::Stored(contents) => {
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
            tracing::warn!(agent = %self.agent, %error, "could not fold the log into the JSON file");
            self.open = None;
            self.uncertain = true;
        }
        Ok(())
    }

    pub(super) fn load(&mut self) -> Result<Option<AgentSnapshot>, Error> {
        let _lock = self.lock()?;
        match self.read()? {
            Found::Nothing { .. } => Ok(None),
            Found::Stored(contents) => {
                if self.open.is_none() || !self.is_current()? {
                    // Only prepares the next save, which will say what is wrong.
                    self.open = self.open_log(&contents).unwrap_or_default();
                }
                self.assemble(&contents).map(Some)
            }
        }
    }

    /// Whether a snapshot (readable or not) is stored.
    pub(super) fn is_stored(&mut self) -> Result<bool, Error> {
        let _lock = self.lock()?;
        Ok(!matches!(self.read(), Ok(Found::Nothing { .. })))
    }

    pub(super) fn delete(&mut self) -> Result<(), Error> {
        let _lock = self.lock()?;
        self.open = None;
        let (generation, epoch_floor) = match self.read() {
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
                if let Err(error) = self.assemble(&contents) {
                    self.keep_aside(&error)?;
                }
                let epoch = contents.stamp.epoch.max(contents.meta.epoch_floor);
                (contents.meta.generation, epoch)
            }
            Err(error) if error.is_damaged() => {
                self.keep_aside(&error)?;
                let tombstone = self.tombstone()?.unwrap_or_default();
                (tombstone.generation, tombstone.epoch_floor)
            }
            Err(error) => return Err(error),
        };
        let tombstone = Tombstone {
            generation,
            epoch_floor,
        };
        self.uncertain = true;
        self.replace(&self.name("deleted"), &tombstone.write())
            .and_then(|()| self.fs.sync_folder())
            .map_err(|error| self.failed("deleting", error))?;
        self.uncertain = false;
        // From here on nothing is stored; the rest is tidying up.
        let tidy = || {
            for name in self.own_files()? {
                if !name.ends_with(".deleted") && !name.ends_with(".lock") {
                    self.fs.remove(&name)?;
                }
            }
            if epoch_floor == 0 {
                // Nothing to remember. Everything else must be gone before the tombstone is.
                self.fs.sync_folder()?;
                self.fs.remove(&self.name("deleted"))?;
                self.fs.remove_lock(&self.name("lock"))?;
            }
            Ok(())
        };
        tidy().map_err(|error: io::Error| self.failed("deleting", error))
    }

    pub(super) fn history(&mut self, range: &Range<u64>) -> Result<Vec<(u64, Message)>, Error> {
        let _lock = self.lock()?;
        let Found::Stored(contents) = self.read()? else {
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
            messages = self.read_archive(&contents)?;
            messages.drain(..(first - stamp.start) as usize);
        }
        let skip = first.saturating_sub(contents.from) as usize;
        messages.extend(contents.messages.into_iter().skip(skip));
        messages.truncate((end - first) as usize);
        backend::decode_messages(&self.agent, &self.place("json"), first, messages)
    }

    /// Folds the log into the JSON file.
    pub(super) fn compact(&mut self) -> Result<(), Error> {
        let _lock = self.lock()?;
        let Found::Stored(contents) = self.read()? else {
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
        self.fs
            .lock(&self.name("lock"))
            .map_err(|error| self.failed("locking", error))
    }

    /// Whether the open log is still the one that counts: no other process has rewritten,
    /// deleted or appended since.
    fn is_current(&self) -> Result<bool, Error> {
        let Some(open) = &self.open else {
            return Ok(true);
        };
        let generation = open.meta.generation;
        let check = || {
            Ok(self.fs.len(&open.log)? == open.log_len
                && self.fs.exists(&self.log_name(generation))?
                && !self.fs.exists(&self.log_name(generation + 1))?
                && !self.fs.exists(&self.name("deleted"))?)
        };
        check().map_err(|error| self.failed("reading", error))
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
        let fs = &self.fs;
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
        append().map_err(|source| {
            failed(
                "saving",
                &self.folder,
                &format!("{}.log", self.stem),
                source,
            )
        })?;
        open.log_len += line.len() as u64;
        open.log_crc = crc;
        open.ticks += 1;
        open.stamp = write.stamp.clone();
        Ok(())
    }

    /// Writes the JSON file anew, with `write` on top of what is stored.
    fn rewrite(&mut self, write: Option<Write>) -> Result<(), Error> {
        let (old, mut next) = match self.read()? {
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
                (Some(old), NextDocument::of(*contents)?)
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
            .map_err(|error| self.failed("saving", error))?;
        self.open = replaced;
        self.uncertain = false;

        // What the new file does not name any more.
        let mut stale = vec![self.name("deleted")];
        if let Some(old) = old {
            if old.log {
                stale.push(self.log_name(old.generation));
            }
            if old.archive.birth != next.meta.archive.birth {
                stale.push(self.archive_name(old.archive.birth));
            }
        }
        for name in stale {
            if let Err(error) = self.fs.remove(&name) {
                tracing::warn!(agent = %self.agent, name, %error, "could not remove an old file");
            }
        }
        Ok(())
    }

    fn write_document(&self, next: &mut NextDocument) -> io::Result<Option<Open<F>>> {
        let fs = &self.fs;
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
            let mut file = fs.create(&self.log_name(next.meta.generation))?;
            fs.write(&mut file, header.as_bytes())?;
            fs.sync(&file)?;
            log = Some((file, header.len() as u64, crc));
        }
        // The names that the JSON file relies on must be there before it is.
        fs.sync_folder()?;
        self.replace(&self.name("json"), &document)?;
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
    fn write_archive(&self, next: &mut NextDocument) -> io::Result<()> {
        let hidden = (next.stamp.first - next.from) as usize;
        if hidden == 0 {
            return Ok(());
        }
        let fs = &self.fs;
        let archive = &mut next.meta.archive;
        let mut file = fs.append(&self.archive_name(archive.birth))?;
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
        let mut file = self.fs.create(&temporary)?;
        self.fs.write(&mut file, contents.as_bytes())?;
        self.fs.sync(&file)?;
        drop(file);
        self.fs.rename(&temporary, name)
    }

    fn read(&self) -> Result<Found, Error> {
        let bytes = self.read_file(&self.name("json"))?;
        let tombstone = self.tombstone()?;
        let Some(bytes) = bytes else {
            if tombstone.is_none() {
                self.expect_nothing()?;
            }
            let Tombstone {
                generation,
                epoch_floor,
            } = tombstone.unwrap_or_default();
            return Ok(Found::Nothing {
                generation,
                epoch_floor,
            });
        };
        let document = std::str::from_utf8(&bytes)
            .map_err(|_| Problem::Damaged("it is not UTF-8".to_owned()))
            .and_then(document::read)
            .map_err(|problem| self.problem("json", problem))?;
        if document.snapshot.agent_id != self.agent {
            let reason = format!("it is the state of agent {}", document.snapshot.agent_id);
            return Err(self.damaged("json", reason));
        }
        let generation = document.meta.as_ref().map_or(0, |meta| meta.generation);
        if let Some(tombstone) = &tombstone
            && tombstone.generation >= generation
            && document.meta.is_some()
        {
            return Ok(Found::Nothing {
                generation: tombstone.generation,
                epoch_floor: tombstone.epoch_floor,
            });
        }
        self.read_log(document, bytes.len() as u64, &tombstone.unwrap_or_default())
            .map(|contents| Found::Stored(Box::new(contents)))
    }

    fn read_log(
        &self,
        document: Document,
        len: u64,
        before: &Tombstone,
    ) -> Result<Contents, Error> {
        let Document {
            meta,
            stamp,
            snapshot,
            head,
            messages,
        } = document;
        let mut contents = Contents {
            // A file from elsewhere goes on from what was deleted before it came.
            meta: meta.unwrap_or_else(|| {
                let Tombstone {
                    generation,
                    epoch_floor,
                } = *before;
                Meta::new(generation, false, epoch_floor, &stamp, Archive::default())
            }),
            document: snapshot,
            document_len: len,
            from: stamp.first,
            stamp,
            state: None,
            head,
            messages,
            log: None,
        };
        if !contents.meta.log {
            return Ok(contents);
        }
        let generation = contents.meta.generation;
        let Some(bytes) = self.read_file(&self.log_name(generation))? else {
            let reason = format!(
                "its log {} is missing; to go on without it, remove the \"{}\" key",
                self.log_name(generation),
                document::KEY
            );
            return Err(self.damaged("json", reason));
        };
        let place = format!("{generation}.log");
        let lines = frame::read(&bytes);
        if lines.tail == Tail::Damaged || lines.payloads.is_empty() {
            let reason = format!("the line at byte {} does not match its checksum", lines.len);
            return Err(self.damaged(&place, reason));
        }
        for payload in &lines.payloads[1..] {
            contents
                .apply(payload)
                .ok_or_else(|| self.damaged(&place, "a line is not readable".to_owned()))?;
        }
        contents.log = Some(LogEnd {
            len: lines.len,
            crc: lines.crc,
            torn: lines.tail == Tail::Torn,
            ticks: lines.payloads.len() as u64 - 1,
        });
        Ok(contents)
    }

    fn open_log(&self, contents: &Contents) -> Result<Option<Open<F>>, Error> {
        let Some(end) = &contents.log else {
            return Ok(None);
        };
        let generation = contents.meta.generation;
        let open = || {
            // Left by a rewrite that did not come to its end.
            self.fs.remove(&self.log_name(generation + 1))?;
            self.fs.remove(&self.name("deleted"))?;
            self.fs.append(&self.log_name(generation))
        };
        let log = open().map_err(|error| self.failed("opening the log", error))?;
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

    fn assemble(&self, contents: &Contents) -> Result<AgentSnapshot, Error> {
        let Some(state) = &contents.state else {
            return Ok(contents.document.clone());
        };
        let skip = contents.stamp.first.saturating_sub(contents.from) as usize;
        let visible = contents.messages.iter().skip(skip);
        let place = self.place("json");
        backend::assemble(
            &self.agent,
            &place,
            &contents.stamp,
            state,
            &contents.head,
            visible,
        )
    }

    fn read_archive(&self, contents: &Contents) -> Result<Vec<String>, Error> {
        let archive = &contents.meta.archive;
        let name = self.archive_name(archive.birth);
        let place = format!("{}.history", archive.birth);
        let bytes = self.read_file(&name)?.unwrap_or_default();
        let Some(bytes) = bytes.get(..archive.bytes as usize) else {
            return Err(self.damaged(&place, "it is shorter than it should be".to_owned()));
        };
        let lines = frame::read(bytes);
        let expected = contents.from - contents.stamp.start;
        if lines.crc != archive.crc || lines.payloads.len() as u64 != expected {
            return Err(self.damaged(&place, "it does not match its checksum".to_owned()));
        }
        Ok(lines.payloads.into_iter().map(str::to_owned).collect())
    }

    /// Without a JSON file there must be nothing else: a log with lines has lost its start.
    fn expect_nothing(&self) -> Result<(), Error> {
        let names = self
            .own_files()
            .map_err(|error| self.failed("reading", error))?;
        for name in names {
            let saved = name.ends_with(".history")
                || name.ends_with(".log") && {
                    let bytes = self.read_file(&name)?.unwrap_or_default();
                    frame::read(&bytes).payloads.len() > 1
                };
            if saved {
                let reason = format!("it is missing, but {name} is there");
                return Err(self.damaged("json", reason));
            }
        }
        Ok(())
    }

    /// Renames what cannot be read, so that a delete loses nothing.
    fn keep_aside(&self, error: &Error) -> Result<(), Error> {
        tracing::warn!(agent = %self.agent, %error, "keeping damaged files aside");
        let aside = || {
            let all = self.fs.list()?;
            let taken = |n: &u64| {
                let mark = format!("{}.damaged.{n}.", self.stem);
                all.iter().any(|name| name.starts_with(&mark))
            };
            let mark = (1..).find(|n| !taken(n)).unwrap_or_default();
            for name in self.own_files()? {
                if [".json", ".log", ".history"]
                    .iter()
                    .any(|end| name.ends_with(end))
                {
                    let (_, kind) = name.split_once('.').unwrap_or_default();
                    let to = format!("{}.damaged.{mark}.{kind}", self.stem);
                    self.fs.rename(&name, &to)?;
                }
            }
            self.fs.sync_folder()
        };
        aside().map_err(|error: io::Error| self.failed("keeping damaged files aside", error))
    }

    fn tombstone(&self) -> Result<Option<Tombstone>, Error> {
        let Some(bytes) = self.read_file(&self.name("deleted"))? else {
            return Ok(None);
        };
        let tombstone = Tombstone::read(&bytes);
        tombstone
            .map(Some)
            .ok_or_else(|| self.damaged("deleted", "it is not readable".to_owned()))
    }

    /// The agent's files but for those that were kept aside.
    fn own_files(&self) -> io::Result<Vec<String>> {
        let own = format!("{}.", self.stem);
        let aside = format!("{own}damaged.");
        let mut names = self.fs.list()?;
        names.retain(|name| name.starts_with(&own) && !name.starts_with(&aside));
        Ok(names)
    }

    fn read_file(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        self.fs
            .read(name)
            .map_err(|error| failed("reading", &self.folder, name, error))
    }

    fn name(&self, kind: &str) -> String {
        format!("{}.{kind}", self.stem)
    }

    fn log_name(&self, generation: u64) -> String {
        format!("{}.{generation}.log", self.stem)
    }

    fn archive_name(&self, birth: u64) -> String {
        format!("{}.{birth}.history", self.stem)
    }

    fn place(&self, kind: &str) -> String {
        format!("{}/{}.{kind}", self.folder, self.stem)
    }

    fn damaged(&self, kind: &str, reason: String) -> Error {
        Error::Damaged {
            agent: self.agent.clone(),
            place: self.place(kind),
            reason,
        }
    }

    fn problem(&self, kind: &str, problem: Problem) -> Error {
        match problem {
            Problem::Damaged(reason) => self.damaged(kind, reason),
            Problem::Newer(found) => Error::UnsupportedVersion {
                what: format!("agent {} in {}", self.agent, self.place(kind)),
                found,
                supported: crate::SCHEMA_VERSION,
            },
        }
    }

    fn failed(&self, operation: &'static str, source: io::Error) -> Error {
        failed(operation, &self.folder, &self.name("json"), source)
    }
}

impl Contents {
    /// Puts a line of the log on top.
    fn apply(&mut self, payload: &str) -> Option<()> {
        let line: Line<'_> = serde_json::from_str(payload).ok()?;
        let stamp = Stamp::from_text(line.stamp)?;
        self.messages
            .extend(line.messages.iter().map(|json| json.get().to_owned()));
        if self.from + self.messages.len() as u64 != stamp.next || stamp.first < self.from {
            return None;
        }
        if let Some(head) = line.head {
            head.get().clone_into(&mut self.head);
        }
        self.state = Some(line.state.get().to_owned());
        self.stamp = stamp;
        Some(())
    }
}

/// The document that a rewrite makes.
struct NextDocument {
    meta: Meta,
    stamp: Stamp,
    state: String,
    head: String,
    messages: Vec<String>,
    from: u64,
}

impl NextDocument {
    fn empty(meta: Meta, write: &Write) -> Self {
        Self {
            meta,
            stamp: write.stamp.clone(),
            state: String::new(),
            head: "[]".to_owned(),
            messages: Vec::new(),
            from: write.from,
        }
    }

    fn of(contents: Contents) -> Result<Self, Error> {
        let state = match contents.state {
            Some(state) => state,
            None => contents.document.state_json()?,
        };
        Ok(Self {
            meta: contents.meta,
            stamp: contents.stamp,
            state,
            head: contents.head,
            messages: contents.messages,
            from: contents.from,
        })
    }

    fn apply(&mut self, write: Write) {
        if write.stream == Stream::Replace {
            self.messages.clear();
            self.from = write.from;
            self.meta.archive = Archive {
                birth: self.meta.generation + 1,
                ..Archive::default()
            };
        }
        self.messages.extend(write.messages);
        if let Some(head) = write.head {
            self.head = head;
        }
        self.state = write.state;
        self.stamp = write.stamp;
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

fn failed(operation: &'static str, folder: &str, name: &str, source: io::Error) -> Error {
    Error::Storage {
        operation,
        place: format!("{folder}/{name}"),
        source: Box::new(source),
    }
}
