use std::{borrow::Cow, io, sync::Arc};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    document::{self, Archive, Document, Meta, Problem},
    frame::{self, Tail},
    fs::Fs,
    tombstone::Tombstone,
};
use crate::{
    AgentId, AgentSnapshot, Error,
    backend::{self, Stamp},
};

/// Where the files of one agent are, and what is in them.
///
/// - `{agent}.json`: the snapshot at some tick, plain JSON, replaced by rename.
/// - `{agent}.{generation}.log`: one line for each save since then.
/// - `{agent}.{birth}.history`: messages that had gone out of view by then.
/// - `{agent}.deleted`: the commit point of a delete; holds the epoch.
/// - `{agent}.lock`: one process at a time.
pub(super) struct Place<F: Fs> {
    pub(super) fs: Arc<F>,
    pub(super) agent: AgentId,
    stem: String,
    folder: String,
}

/// The JSON file and the log, from which [`Contents`] borrows what it can.
#[derive(Default)]
pub(super) struct Texts {
    json: Vec<u8>,
    log: Vec<u8>,
}

pub(super) enum Found<'a> {
    Nothing { generation: u64, epoch_floor: u64 },
    Stored(Box<Contents<'a>>),
}

/// Everything that is stored but for the archive.
pub(super) struct Contents<'a> {
    pub(super) meta: Meta,
    pub(super) document_len: u64,
    pub(super) stamp: Stamp,
    pub(super) state: Cow<'a, str>,
    pub(super) head: Cow<'a, str>,
    /// The messages from number `from` on.
    pub(super) messages: Vec<Cow<'a, str>>,
    pub(super) from: u64,
    pub(super) log: Option<LogEnd>,
}

pub(super) struct LogEnd {
    pub(super) len: u64,
    pub(super) crc: u32,
    pub(super) torn: bool,
    pub(super) ticks: u64,
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

impl<F: Fs> Place<F> {
    pub(super) fn new(fs: Arc<F>, folder: String, agent: AgentId) -> Self {
        Self {
            stem: agent.encoded(),
            fs,
            agent,
            folder,
        }
    }

    pub(super) fn read<'a>(&self, texts: &'a mut Texts) -> Result<Found<'a>, Error> {
        let Texts { json, log } = texts;
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
        *json = bytes;
        let document = std::str::from_utf8(json)
            .map_err(|_| Problem::Damaged("it is not UTF-8".to_owned()))
            .and_then(document::read)
            .map_err(|problem| self.problem("json", problem))?;
        if document.agent != self.agent {
            let reason = format!("it is the state of agent {}", document.agent);
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
        let before = tombstone.unwrap_or_default();
        self.read_log(document, json.len() as u64, &before, log)
            .map(|contents| Found::Stored(Box::new(contents)))
    }

    fn read_log<'a>(
        &self,
        document: Document<'a>,
        len: u64,
        before: &Tombstone,
        log: &'a mut Vec<u8>,
    ) -> Result<Contents<'a>, Error> {
        let Document {
            meta,
            agent: _,
            stamp,
            state,
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
            document_len: len,
            from: stamp.first,
            stamp,
            state: Cow::Owned(state),
            head: Cow::Owned(head),
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
        *log = bytes;
        let lines = frame::read(log);
        if lines.tail == Tail::Damaged || lines.payloads.is_empty() {
            let reason = format!("the line at byte {} does not match its checksum", lines.len);
            return Err(self.damaged(&place, reason));
        }
        contents
            .apply(&lines.payloads[1..])
            .ok_or_else(|| self.damaged(&place, "a line is not readable".to_owned()))?;
        contents.log = Some(LogEnd {
            len: lines.len,
            crc: lines.crc,
            torn: lines.tail == Tail::Torn,
            ticks: lines.payloads.len() as u64 - 1,
        });
        Ok(contents)
    }

    pub(super) fn assemble(&self, contents: &Contents<'_>) -> Result<AgentSnapshot, Error> {
        let skip = contents.stamp.first.saturating_sub(contents.from) as usize;
        let visible = contents.messages.iter().skip(skip);
        let place = self.place("json");
        backend::assemble(
            &self.agent,
            &place,
            &contents.stamp,
            &contents.state,
            &contents.head,
            visible,
        )
    }

    pub(super) fn read_archive(&self, contents: &Contents<'_>) -> Result<Vec<String>, Error> {
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
    pub(super) fn expect_nothing(&self) -> Result<(), Error> {
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
    pub(super) fn keep_aside(&self, error: &Error) -> Result<(), Error> {
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

    pub(super) fn tombstone(&self) -> Result<Option<Tombstone>, Error> {
        let Some(bytes) = self.read_file(&self.name("deleted"))? else {
            return Ok(None);
        };
        let tombstone = Tombstone::read(&bytes);
        tombstone
            .map(Some)
            .ok_or_else(|| self.damaged("deleted", "it is not readable".to_owned()))
    }

    /// The agent's files but for those that were kept aside.
    pub(super) fn own_files(&self) -> io::Result<Vec<String>> {
        let own = format!("{}.", self.stem);
        let aside = format!("{own}damaged.");
        let mut names = self.fs.list()?;
        names.retain(|name| name.starts_with(&own) && !name.starts_with(&aside));
        Ok(names)
    }

    pub(super) fn read_file(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        self.fs
            .read(name)
            .map_err(|error| failed("reading", &self.folder, name, error))
    }

    pub(super) fn name(&self, kind: &str) -> String {
        format!("{}.{kind}", self.stem)
    }

    pub(super) fn log_name(&self, generation: u64) -> String {
        format!("{}.{generation}.log", self.stem)
    }

    pub(super) fn archive_name(&self, birth: u64) -> String {
        format!("{}.{birth}.history", self.stem)
    }

    pub(super) fn place(&self, kind: &str) -> String {
        format!("{}/{}.{kind}", self.folder, self.stem)
    }

    pub(super) fn damaged(&self, kind: &str, reason: String) -> Error {
        Error::Damaged {
            agent: self.agent.clone(),
            place: self.place(kind),
            reason,
        }
    }

    pub(super) fn problem(&self, kind: &str, problem: Problem) -> Error {
        match problem {
            Problem::Damaged(reason) => self.damaged(kind, reason),
            Problem::Newer(found) => Error::UnsupportedVersion {
                what: format!("agent {} in {}", self.agent, self.place(kind)),
                found,
                supported: crate::SCHEMA_VERSION,
            },
        }
    }

    pub(super) fn failed(&self, operation: &'static str, source: io::Error) -> Error {
        failed(operation, &self.folder, &self.name("json"), source)
    }
}

impl<'a> Contents<'a> {
    /// Puts the lines of the log on top.
    fn apply(&mut self, payloads: &[&'a str]) -> Option<()> {
        let mut last = None;
        for payload in payloads {
            let line: Line<'a> = serde_json::from_str(payload).ok()?;
            let messages = line.messages.into_iter().map(RawValue::get);
            self.messages.extend(messages.map(Cow::Borrowed));
            if let Some(head) = line.head {
                self.head = Cow::Borrowed(head.get());
            }
            self.state = Cow::Borrowed(line.state.get());
            last = Some(line.stamp);
        }
        // The last one says how many messages there are in all.
        if let Some(stamp) = last {
            self.stamp = Stamp::from_text(stamp)?;
        }
        let complete = self.from + self.messages.len() as u64 == self.stamp.next;
        (complete && self.stamp.first >= self.from).then_some(())
    }
}

fn failed(operation: &'static str, folder: &str, name: &str, source: io::Error) -> Error {
    Error::Storage {
        operation,
        place: format!("{folder}/{name}"),
        source: Box::new(source),
    }
}
