//! The answers that agents owe.
//!
//! # Theory
//!
//! An agent that got a message will answer it, also after the sender has given up. Its pane *owes* the answer: until it
//! is settled, another message must wait, or it would get this answer. The record is a file in the folder of the
//! session, so it holds for all processes, and after the crash of the sender.
//!
//! - A record is made before the message is typed, by the holder of the pane's lock, and removed with the answer.
//! - **Invariant.** The process that removes a record, and only that one, may log the late answer: a file is removed
//!   once. Each record has its own name, so the record of another message is never removed in its place.
//! - A record is settled by the answer, by a state that proves the end of the turn, by a restart of the program
//!   (another launch id), by `reset`, or by its bound.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::log::Message;
use crate::pane::PaneId;
use crate::shared::private_file;

/// How many times the time limit of an answer a pane owes it.
const BOUND: u32 = 10;

/// A record that a pane owes an answer.
#[derive(Debug)]
pub(super) struct OwedAnswer {
    path: PathBuf,
    pub(super) record: OwedRecord,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OwedRecord {
    pub(super) from: String,
    pub(super) to: String,
    /// The launch id of the program that got the message.
    pub(super) launch: String,
    /// The text as it was typed.
    pub(super) text: String,
    /// The id of the message in the log.
    pub(super) message: Option<String>,
    /// Whether the sender asked for an answer.
    #[serde(default)]
    pub(super) wants_answer: bool,
    since_ms: u64,
    until_ms: u64,
}

impl OwedRecord {
    /// For a message that is typed now, and whose sender wants an answer.
    pub(super) fn new(message: &Message, text: &str, launch: String, timeout: Duration) -> Self {
        let since = since_epoch(SystemTime::now());
        let until = since.saturating_add(timeout.saturating_mul(BOUND));
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            from: message.from_agent.clone(),
            to: message.to_agent.clone(),
            launch,
            text: text.to_owned(),
            message: None,
            wants_answer: true,
            since_ms: milliseconds(since),
            until_ms: milliseconds(until),
        }
    }

    pub(super) fn since(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.since_ms)
    }

    /// Time until the bound; zero when it is reached.
    pub(super) fn left(&self) -> Duration {
        Duration::from_millis(self.until_ms).saturating_sub(since_epoch(SystemTime::now()))
    }
}

impl OwedAnswer {
    /// Records that a pane owes an answer. `folder` is that of the session.
    pub(super) fn create(folder: &Path, pane: PaneId, record: OwedRecord) -> Result<Self, Error> {
        let id = uuid::Uuid::new_v4().simple();
        let path = folder.join(format!("{}{id}", prefix(pane)));
        let owed = Self { path, record };
        owed.write()?;
        Ok(owed)
    }

    /// The open records of a pane. A record that cannot be read is removed: its writer was killed.
    pub(super) fn of_pane(folder: &Path, pane: PaneId) -> Result<Vec<Self>, Error> {
        let mut open = Vec::new();
        for path in paths(folder, pane)? {
            let mut options = File::options();
            let Some(file) = private_file::open_existing(&path, options.read(true))? else {
                continue;
            };
            match serde_json::from_reader(io::BufReader::new(file)) {
                Ok(record) => open.push(Self { path, record }),
                Err(_) => drop(fs::remove_file(&path)),
            }
        }
        Ok(open)
    }

    /// Whether a pane owes an answer.
    pub(super) fn is_owed(folder: &Path, pane: PaneId) -> bool {
        paths(folder, pane).is_ok_and(|paths| !paths.is_empty())
    }

    /// Settles all records of a pane.
    pub(super) fn settle_all(folder: &Path, pane: PaneId) -> Result<(), Error> {
        for path in paths(folder, pane)? {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io("remove", &path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether no process has settled it yet.
    pub(super) fn is_open(&self) -> bool {
        self.path.exists()
    }

    /// Adds the id of the message in the log, for the process that will settle the record. A record that is settled
    /// stays settled, except for a `reset` between the look and the rename of this call, within microseconds: the
    /// record is then open again, and a second `reset` settles it.
    pub(super) fn add_message(&mut self, id: Option<String>) {
        self.record.message = id;
        self.update();
    }

    /// Sets the launch that got the message: by another one the next sender would take it for settled.
    pub(super) fn set_launch(&mut self, launch: String) {
        self.record.launch = launch;
        self.update();
    }

    fn update(&self) {
        if self.is_open()
            && let Err(error) = self.write()
        {
            tracing::warn!(%error, "cannot complete the record of an owed answer");
        }
    }

    /// Settles it; `false` if another process was first.
    pub(super) fn settle(&self) -> bool {
        fs::remove_file(&self.path).is_ok()
    }

    /// By a rename, so that a reader never sees a part of it.
    fn write(&self) -> Result<(), Error> {
        let part = self.path.with_extension("part");
        let json = serde_json::to_vec(&self.record);
        let json = json.map_err(|error| Error::io("write", &self.path)(error.into()))?;
        let mut options = File::options();
        let mut file = private_file::open(&part, options.write(true).create(true).truncate(true))?;
        file.write_all(&json)
            .and_then(|()| fs::rename(&part, &self.path))
            .map_err(Error::io("write", &self.path))
    }
}

fn prefix(pane: PaneId) -> String {
    format!("owed-{}-", pane.number())
}

fn paths(folder: &Path, pane: PaneId) -> Result<Vec<PathBuf>, Error> {
    let prefix = prefix(pane);
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(Error::io("list", folder))?,
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let owed = names.filter(|name| name.starts_with(&prefix) && !name.contains('.'));
    Ok(owed.map(|name| folder.join(name)).collect())
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(timeout: Duration) -> OwedRecord {
        let message = Message::new("boss", "coder", "hello");
        OwedRecord::new(&message, "hello", "launch".to_owned(), timeout)
    }

    #[test]
    fn a_record_is_seen_by_all_and_settled_once() {
        let dir = tempfile::tempdir().unwrap();
        let (pane, other) = (PaneId::new("%1").unwrap(), PaneId::new("%11").unwrap());
        let mut owed =
            OwedAnswer::create(dir.path(), pane, record(Duration::from_secs(30))).unwrap();
        assert!(OwedAnswer::is_owed(dir.path(), pane) && !OwedAnswer::is_owed(dir.path(), other));
        owed.add_message(Some("id".to_owned()));
        let seen = OwedAnswer::of_pane(dir.path(), pane).unwrap();
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].record.message.as_deref(), Some("id"));
        assert_eq!(
            (seen[0].record.from.as_str(), seen[0].record.text.as_str()),
            ("boss", "hello")
        );
        owed.set_launch("restarted".to_owned());
        let again = OwedAnswer::of_pane(dir.path(), pane).unwrap();
        assert_eq!(again[0].record.launch, "restarted");
        assert!(seen[0].settle() && !owed.settle() && !owed.is_open());
        owed.add_message(None);
        assert!(!OwedAnswer::is_owed(dir.path(), pane), "it stays settled");
        assert!(!OwedAnswer::is_owed(&dir.path().join("gone"), pane));
    }

    #[test]
    fn a_record_ends_at_ten_times_the_limit() {
        let left = record(Duration::from_secs(30)).left();
        assert!(
            left > Duration::from_secs(299) && left <= Duration::from_secs(300),
            "{left:?}"
        );
        assert_eq!(record(Duration::ZERO).left(), Duration::ZERO);
        assert!(record(Duration::MAX).left() > Duration::from_secs(1 << 40));
    }

    #[test]
    fn reset_settles_the_records_of_one_pane() {
        let dir = tempfile::tempdir().unwrap();
        let (pane, other) = (PaneId::new("%1").unwrap(), PaneId::new("%2").unwrap());
        for pane in [pane, pane, other] {
            OwedAnswer::create(dir.path(), pane, record(Duration::from_secs(1))).unwrap();
        }
        OwedAnswer::settle_all(dir.path(), pane).unwrap();
        assert!(!OwedAnswer::is_owed(dir.path(), pane) && OwedAnswer::is_owed(dir.path(), other));
    }

    #[test]
    fn a_damaged_record_does_not_block_the_pane() {
        let dir = tempfile::tempdir().unwrap();
        let pane = PaneId::new("%1").unwrap();
        fs::write(dir.path().join("owed-1-x"), "{").unwrap();
        assert!(OwedAnswer::of_pane(dir.path(), pane).unwrap().is_empty());
        assert!(!OwedAnswer::is_owed(dir.path(), pane));
    }
}
