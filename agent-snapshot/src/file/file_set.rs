use std::sync::Arc;

use super::checksummed_lines::{self, Tail};
use super::folder::Folder;
use super::log_record;
use super::snapshot_document::{self, Archive, SnapshotDocument, StorageMeta, Unreadable};
use super::snapshot_parts::SnapshotParts;
use super::tombstone::Tombstone;
use crate::shared::private_file::FileError;
use crate::{AgentId, AgentSnapshot, Error, backend};

/// The names of an agent's files, and how to read them. The module documentation describes the
/// files.
pub(super) struct FileSet<F: Folder> {
    pub(super) folder: Arc<F>,
    pub(super) agent: AgentId,
    stem: String,
}

/// The result of reading the files.
pub(super) enum Found<F: Folder> {
    Nothing { generation: u64, epoch_floor: u64 },
    Stored(Box<StoredAgent<F>>),
}

/// Everything that is stored, except the archive.
pub(super) struct StoredAgent<F: Folder> {
    pub(super) meta: StorageMeta,
    pub(super) parts: SnapshotParts,
    pub(super) document_len: u64,
    pub(super) document_version: Option<F::Version>,
    /// `None` if the generation has no log.
    pub(super) log: Option<LogEnd>,
}

/// The end of the good lines in the log.
pub(super) struct LogEnd {
    pub(super) len: u64,
    pub(super) crc: u32,
    pub(super) is_torn: bool,
    pub(super) ticks: u64,
}

impl<F: Folder> FileSet<F> {
    pub(super) fn new(folder: Arc<F>, agent: AgentId) -> Self {
        Self {
            stem: agent.file_stem(),
            folder,
            agent,
        }
    }

    pub(super) fn read(&self) -> Result<Found<F>, Error> {
        // Before the file is read: a program that takes no lock may replace it in between.
        let version = self.folder.version(&self.name("json"))?;
        let json = self.folder.read(&self.name("json"))?;
        let tombstone = self.read_tombstone()?;
        let Some(json) = json else {
            if tombstone.is_none() {
                self.check_no_leftovers()?;
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
        let document = std::str::from_utf8(&json)
            .map_err(|_| Unreadable::Damaged("it is not UTF-8".to_owned()))
            .and_then(snapshot_document::read)
            .map_err(|unreadable| self.unreadable("json", unreadable))?;
        if document.agent != self.agent {
            let reason = format!("it is the state of agent {}", document.agent);
            return Err(self.damaged("json", reason));
        }
        if let Some(tombstone) = &tombstone
            && let Some(meta) = &document.meta
            && tombstone.generation >= meta.generation
        {
            return Ok(Found::Nothing {
                generation: tombstone.generation,
                epoch_floor: tombstone.epoch_floor,
            });
        }
        let tombstone = tombstone.unwrap_or_default();
        let mut stored = self.read_log(document, json.len() as u64, &tombstone)?;
        stored.document_version = version;
        Ok(Found::Stored(Box::new(stored)))
    }

    fn read_log(
        &self,
        document: SnapshotDocument,
        document_len: u64,
        tombstone: &Tombstone,
    ) -> Result<StoredAgent<F>, Error> {
        let SnapshotDocument {
            meta,
            agent: _,
            parts,
        } = document;
        // A file of another program continues after the generation that was deleted before it came.
        let meta = meta.unwrap_or_else(|| {
            let Tombstone {
                generation,
                epoch_floor,
            } = *tombstone;
            let archive = Archive::default();
            StorageMeta::new(generation, false, epoch_floor, &parts.stamp, archive)
        });
        let mut stored = StoredAgent {
            meta,
            parts,
            document_len,
            document_version: None,
            log: None,
        };
        if !stored.meta.log {
            return Ok(stored);
        }
        let generation = stored.meta.generation;
        let Some(bytes) = self.folder.read(&self.log_name(generation))? else {
            let reason = format!(
                "its log {} is missing; to continue without it, remove the \"{}\" key",
                self.log_name(generation),
                snapshot_document::KEY
            );
            return Err(self.damaged("json", reason));
        };
        let kind = format!("{generation}.log");
        let lines = checksummed_lines::read(&bytes);
        let records = match lines.payloads.split_first() {
            Some((_header, records)) if lines.tail != Tail::Damaged => records,
            _ => {
                let reason = format!("the line at byte {} does not match its checksum", lines.len);
                return Err(self.damaged(&kind, reason));
            }
        };
        log_record::replay(records, &mut stored.parts)
            .ok_or_else(|| self.damaged(&kind, "a line is not readable".to_owned()))?;
        stored.log = Some(LogEnd {
            len: lines.len,
            crc: lines.crc,
            is_torn: lines.tail == Tail::Torn,
            ticks: records.len() as u64,
        });
        Ok(stored)
    }

    pub(super) fn assemble(&self, stored: &StoredAgent<F>) -> Result<AgentSnapshot, Error> {
        let parts = &stored.parts;
        let view = parts.messages.iter().skip(parts.hidden());
        let location = self.location("json");
        backend::assemble(
            &self.agent,
            &location,
            &parts.stamp,
            &parts.body,
            &parts.head,
            view,
        )
    }

    pub(super) fn read_archive(&self, stored: &StoredAgent<F>) -> Result<Vec<String>, Error> {
        let archive = &stored.meta.archive;
        let kind = format!("{}.history", archive.birth);
        let bytes = self.folder.read(&self.archive_name(archive.birth))?;
        let bytes = bytes.unwrap_or_default();
        let Some(bytes) = bytes.get(..archive.bytes as usize) else {
            return Err(self.damaged(&kind, "it is shorter than it should be".to_owned()));
        };
        let lines = checksummed_lines::read(bytes);
        let expected = stored.parts.from - stored.parts.stamp.stream_start;
        if lines.crc != archive.crc || lines.payloads.len() as u64 != expected {
            return Err(self.damaged(&kind, "it does not match its checksum".to_owned()));
        }
        Ok(lines.payloads.into_iter().map(str::to_owned).collect())
    }

    /// Without a JSON file, a log with records or an archive has lost its start. That is damage,
    /// not a new agent.
    fn check_no_leftovers(&self) -> Result<(), Error> {
        for name in self.own_files()? {
            let has_data = name.ends_with(".history")
                || name.ends_with(".log") && {
                    let bytes = self.folder.read(&name)?.unwrap_or_default();
                    checksummed_lines::read(&bytes).payloads.len() > 1
                };
            if has_data {
                let reason = format!("it is missing, but {name} exists");
                return Err(self.damaged("json", reason));
            }
        }
        Ok(())
    }

    /// Renames files that cannot be read, so that a delete loses nothing.
    pub(super) fn keep_aside(&self, error: &Error) -> Result<(), Error> {
        tracing::warn!(agent = %self.agent, %error, "keeping damaged files aside");
        let all = self.folder.list()?;
        let is_free = |n: &u64| {
            let prefix = format!("{}.damaged.{n}.", self.stem);
            !all.iter().any(|name| name.starts_with(&prefix))
        };
        let number = (1..).find(is_free).unwrap_or_default();
        // A readable tombstone stays: it holds the epoch.
        let mut kinds = vec![".json", ".log", ".history"];
        if self.read_tombstone().is_err() {
            kinds.push(".deleted");
        }
        for name in self.own_files()? {
            if kinds.iter().any(|kind| name.ends_with(kind)) {
                let (_, kind) = name.split_once('.').unwrap_or_default();
                let aside = format!("{}.damaged.{number}.{kind}", self.stem);
                self.folder.rename(&name, &aside)?;
            }
        }
        self.folder.sync_names()?;
        Ok(())
    }

    pub(super) fn read_tombstone(&self) -> Result<Option<Tombstone>, Error> {
        let Some(bytes) = self.folder.read(&self.name("deleted"))? else {
            return Ok(None);
        };
        let tombstone = Tombstone::from_bytes(&bytes);
        tombstone
            .map(Some)
            .ok_or_else(|| self.damaged("deleted", "it is not readable".to_owned()))
    }

    /// The agent's files, except files that were kept aside.
    pub(super) fn own_files(&self) -> Result<Vec<String>, FileError> {
        let own = format!("{}.", self.stem);
        let aside = format!("{own}damaged.");
        let mut names = self.folder.list()?;
        names.retain(|name| name.starts_with(&own) && !name.starts_with(&aside));
        Ok(names)
    }

    pub(super) fn name(&self, kind: &str) -> String {
        format!("{}.{kind}", self.stem)
    }

    pub(super) fn log_name(&self, generation: u64) -> String {
        self.name(&format!("{generation}.log"))
    }

    pub(super) fn archive_name(&self, birth: u64) -> String {
        self.name(&format!("{birth}.history"))
    }

    pub(super) fn location(&self, kind: &str) -> String {
        let path = self.folder.path().join(self.name(kind));
        path.display().to_string()
    }

    fn damaged(&self, kind: &str, reason: String) -> Error {
        Error::Damaged {
            agent: self.agent.clone(),
            location: self.location(kind),
            reason,
        }
    }

    fn unreadable(&self, kind: &str, unreadable: Unreadable) -> Error {
        match unreadable {
            Unreadable::Damaged(reason) => self.damaged(kind, reason),
            Unreadable::Newer(found) => Error::UnsupportedVersion {
                what: format!("agent {} in {}", self.agent, self.location(kind)),
                found,
                supported: crate::snapshot::SCHEMA_VERSION,
            },
        }
    }
}
