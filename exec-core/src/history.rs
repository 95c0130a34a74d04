use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::state_folder;
use crate::{Error, ExecutionKind, ExitReport, SessionId};

/// How long the file becomes before it is put aside.
const MAX_BYTES: u64 = 8 << 20;

/// The executions of the past and present: `history.jsonl` in the state folder.
///
/// One line when an execution starts, one when its session id is known, one when it ends. Several
/// hosts may append to the same file. At 8 MiB, some ten thousand executions, it becomes
/// `history.1.jsonl` in place of the one before, and a new file is begun; both are read. So the
/// latest executions are there, and the two files never hold more than 16 MiB and a line for each
/// host.
#[derive(Debug)]
pub struct History {
    path: PathBuf,
    /// The one before `path`.
    older: PathBuf,
    file: Mutex<Option<File>>,
    max_bytes: u64,
}

/// What the history file holds.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct HistoryContents {
    /// The executions, in the order of their start; one whose host died before it had written the
    /// start down, in that of its reaping. One that started so long ago that its start is no
    /// longer on file is left out.
    pub entries: Vec<HistoryEntry>,
    /// How many lines could not be understood, such as one that a host died over. Which ones is in
    /// the `tracing` events.
    pub damaged_lines: usize,
}

/// One execution.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// The id of this launch (`NORMALIZED_EXECUTION_ID`).
    pub execution_id: String,
    /// The session, as far as it was resolved.
    pub session_id: SessionId,
    /// The profile.
    pub profile_label: String,
    /// The variant.
    pub variant_label: Option<String>,
    /// New or follow-up.
    pub kind: ExecutionKind,
    /// Where it ran.
    pub workspace_path: PathBuf,
    /// When it started.
    pub started_at: SystemTime,
    /// How it stands.
    pub state: HistoryState,
}

/// How an execution of the history stands.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum HistoryState {
    /// It has not ended, or its host died and nobody has cleaned up yet.
    Open,
    /// It ended.
    Ended(Box<ExitReport>),
    /// Its host died; what was left of it was ended later by `reap_orphans`.
    Reaped,
}

/// The executions of one profile, summed up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProfileStatistics {
    /// All of them.
    pub executions: u64,
    /// Ended by themselves with code 0.
    pub succeeded: u64,
    /// Ended by themselves with another code or by a signal.
    pub failed: u64,
    /// Stopped by a caller or a watchdog.
    pub stopped: u64,
    /// Ended after their host had died.
    pub reaped: u64,
    /// Not ended, as far as is known.
    pub open: u64,
    /// The wall time of those that ended.
    pub wall_time: Duration,
    /// The CPU time of those that ended.
    pub cpu_time: Duration,
    /// The largest peak of memory.
    pub peak_memory_bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct Record {
    /// Milliseconds since 1970.
    at: u64,
    execution_id: String,
    #[serde(flatten)]
    what: What,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum What {
    Started {
        session_id: SessionId,
        profile: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        variant: Option<String>,
        kind: ExecutionKind,
        workspace: PathBuf,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process_id: Option<u32>,
    },
    Resolved {
        session_id: SessionId,
    },
    Ended {
        report: Box<ExitReport>,
    },
    Reaped,
}

impl History {
    /// The history in a state folder. Nothing is opened or created before it is needed.
    pub fn in_state_dir(state_dir: impl AsRef<Path>) -> Self {
        Self {
            path: state_dir.as_ref().join("history.jsonl"),
            older: state_dir.as_ref().join("history.1.jsonl"),
            file: Mutex::new(None),
            max_bytes: MAX_BYTES,
        }
    }

    /// Reads the whole history; one that was never written is empty.
    ///
    /// # Errors
    /// [`Error::State`] if a file cannot be read. A damaged line is not an error: it is counted.
    pub fn read(&self) -> Result<HistoryContents> {
        let (older, current) = self.open_both()?;
        let mut contents = HistoryContents::default();
        let mut index: HashMap<String, usize> = HashMap::new();
        for (path, file) in [(&self.older, older), (&self.path, current)] {
            let Some(file) = file else { continue };
            for (number, line) in BufReader::new(file).split(b'\n').enumerate() {
                let line = line.map_err(Error::state("read", path))?;
                if line.is_empty() {
                    continue;
                }
                match serde_json::from_slice(&line) {
                    Ok(record) => contents.take(&mut index, record),
                    Err(error) => {
                        let (path, number) = (path.display(), number + 1);
                        tracing::warn!(%path, line = number, %error, "damaged line of the history");
                        contents.damaged_lines += 1;
                    }
                }
            }
        }
        Ok(contents)
    }

    /// The two files as they were at one moment.
    fn open_both(&self) -> Result<(Option<File>, Option<File>)> {
        let open = |path: &Path| match File::open(path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::state("open", path)(error)),
        };
        loop {
            let current = open(&self.path)?;
            let older = open(&self.older)?;
            // If the current one was put aside in between, what was opened as the older one is
            // the same file or an even later one.
            if is_at(current.as_ref(), &self.path).map_err(Error::state("look at", &self.path))? {
                return Ok((older, current));
            }
        }
    }

    /// Writes a line. A run does not fail because its history cannot be written, so neither does
    /// this: it is reported.
    pub(crate) fn write(&self, execution_id: &str, what: What) {
        self.write_at(milliseconds(SystemTime::now()), execution_id, what);
    }

    /// As [`write`](Self::write), of something that happened earlier.
    pub(crate) fn write_at(&self, at: u64, execution_id: &str, what: What) {
        let record = Record {
            at,
            execution_id: execution_id.to_owned(),
            what,
        };
        if let Err(error) = self.try_write(&record) {
            tracing::error!(path = %self.path.display(), %error, "cannot write the history");
        }
    }

    fn try_write(&self, record: &Record) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        let mut slot = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // Another host may have put the file aside.
        if !is_at(slot.as_ref(), &self.path)? {
            *slot = None;
        }
        let file = match &mut *slot {
            Some(file) => file,
            none => none.insert(self.open()?),
        };
        // One write in append mode: lines of several hosts do not mix.
        file.write_all(&line)?;
        if file.metadata()?.len() > self.max_bytes {
            self.put_aside(file)?;
        }
        Ok(())
    }

    /// One step that happens or not, for all hosts: only who holds the lock of the file that is
    /// current moves it, so nobody moves its successor by mistake.
    fn put_aside(&self, file: &File) -> io::Result<()> {
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let moved = match is_at(Some(file), &self.path) {
            Ok(true) => std::fs::rename(&self.path, &self.older),
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        file.unlock()?;
        moved
    }

    fn open(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let mut file =
            state_folder::open(options.create(true).read(true).append(true), &self.path)?;
        // A host that died in the middle of a line must not spoil the next one, too.
        if file.seek(SeekFrom::End(0))? > 0 {
            file.seek(SeekFrom::End(-1))?;
            let mut last = [0];
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        Ok(file)
    }
}

/// Since 1970.
pub(crate) fn milliseconds(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

/// Whether the path names this file, or nothing if there is no file.
fn is_at(file: Option<&File>, path: &Path) -> io::Result<bool> {
    let there = match std::fs::metadata(path) {
        Ok(there) => Some((there.dev(), there.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let file = file.map(File::metadata).transpose()?;
    Ok(there == file.map(|file| (file.dev(), file.ino())))
}

impl HistoryContents {
    /// The executions summed up by profile.
    pub fn statistics(&self) -> BTreeMap<String, ProfileStatistics> {
        let mut statistics: BTreeMap<String, ProfileStatistics> = BTreeMap::new();
        for entry in &self.entries {
            let profile = statistics.entry(entry.profile_label.clone()).or_default();
            profile.executions += 1;
            match &entry.state {
                HistoryState::Open => profile.open += 1,
                HistoryState::Reaped => profile.reaped += 1,
                HistoryState::Ended(report) => {
                    match (report.stopped_by, report.is_success()) {
                        (Some(_), _) => profile.stopped += 1,
                        (None, true) => profile.succeeded += 1,
                        (None, false) => profile.failed += 1,
                    }
                    profile.wall_time += report.wall_time;
                    profile.cpu_time += report.cpu_time;
                    profile.peak_memory_bytes =
                        profile.peak_memory_bytes.max(report.peak_memory_bytes);
                }
            }
        }
        statistics
    }

    fn take(&mut self, index: &mut HashMap<String, usize>, record: Record) {
        let Record {
            at,
            execution_id,
            what,
        } = record;
        if let What::Started {
            session_id,
            profile,
            variant,
            kind,
            workspace,
            ..
        } = what
        {
            // Written again by who cleaned up after its host, which may have died too early.
            if index.contains_key(&execution_id) {
                return;
            }
            index.insert(execution_id.clone(), self.entries.len());
            self.entries.push(HistoryEntry {
                execution_id,
                session_id,
                profile_label: profile,
                variant_label: variant,
                kind,
                workspace_path: workspace,
                started_at: SystemTime::UNIX_EPOCH + Duration::from_millis(at),
                state: HistoryState::Open,
            });
            return;
        }
        let at = index.get(&execution_id).copied();
        let Some(entry) = at.and_then(|at| self.entries.get_mut(at)) else {
            return;
        };
        match what {
            What::Resolved { session_id } => entry.session_id = session_id,
            What::Ended { report } => {
                entry.session_id = report.session_id.clone();
                entry.state = HistoryState::Ended(report);
            }
            What::Reaped => entry.state = HistoryState::Reaped,
            What::Started { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(history: &History, id: &str) {
        history.write(
            id,
            What::Started {
                session_id: SessionId::new("A", "p", id).unwrap(),
                profile: "a".into(),
                variant: None,
                kind: ExecutionKind::New,
                workspace: "/tmp".into(),
                process_id: Some(7),
            },
        );
    }

    #[test]
    fn a_torn_line_is_listed_and_spoils_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history.jsonl");
        started(&History::in_state_dir(dir.path()), "1");
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"at\":1,\"exec").unwrap();
        drop(file);
        let again = History::in_state_dir(dir.path());
        started(&again, "2");
        again.write("1", What::Reaped);
        again.write("unknown", What::Reaped);
        let contents = again.read().unwrap();
        let ids: Vec<_> = contents
            .entries
            .iter()
            .map(|e| e.execution_id.as_str())
            .collect();
        assert_eq!(ids, ["1", "2"]);
        assert_eq!(contents.damaged_lines, 1);
        assert_eq!(contents.entries[0].state, HistoryState::Reaped);
        let statistics = &contents.statistics()["a"];
        assert_eq!(
            (statistics.executions, statistics.open, statistics.reaped),
            (2, 1, 1)
        );
    }

    #[test]
    fn a_start_that_is_written_twice_is_one_execution() {
        let dir = tempfile::tempdir().unwrap();
        let history = History::in_state_dir(dir.path());
        started(&history, "1");
        history.write("1", What::Reaped);
        started(&history, "1");
        let entries = history.read().unwrap().entries;
        assert_eq!(
            (entries.len(), &entries[0].state),
            (1, &HistoryState::Reaped)
        );
    }

    #[test]
    fn lines_of_the_first_format_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(
            dir.path().join("history.jsonl"),
            include_str!("../tests/data/history-1.jsonl"),
        )
        .unwrap();
        let contents = History::in_state_dir(dir.path()).read().unwrap();
        assert_eq!(contents.damaged_lines, 0);
        assert_eq!(contents.entries.len(), 2);
        let HistoryState::Ended(report) = &contents.entries[0].state else {
            panic!("{:?}", contents.entries[0]);
        };
        assert_eq!(
            (report.code, report.wall_time),
            (Some(0), Duration::from_millis(1500))
        );
        assert_eq!(contents.entries[0].session_id.agent_id(), "ses_1");
        assert_eq!(contents.entries[1].state, HistoryState::Open);
    }

    /// A history whose file is put aside after a few lines.
    fn short(dir: &Path) -> History {
        History {
            max_bytes: 1000,
            ..History::in_state_dir(dir)
        }
    }

    #[track_caller]
    fn ids(history: &History) -> Vec<usize> {
        let contents = history.read().unwrap();
        assert_eq!(contents.damaged_lines, 0);
        let ids = contents.entries.iter().map(|entry| &entry.execution_id);
        ids.map(|id| id.parse().unwrap()).collect()
    }

    #[test]
    fn the_files_stay_short_and_hold_the_latest() {
        let dir = tempfile::tempdir().unwrap();
        let history = short(dir.path());
        for number in 0..200 {
            started(&history, &number.to_string());
        }
        history.write("199", What::Reaped);
        let ids = ids(&history);
        assert!(ids.len() >= 5, "{ids:?}");
        assert_eq!(ids, (200 - ids.len()..200).collect::<Vec<_>>());
        assert_eq!(
            history.read().unwrap().entries.last().unwrap().state,
            HistoryState::Reaped
        );
        let files = std::fs::read_dir(dir.path()).unwrap();
        for file in files.map(|file| file.unwrap()) {
            assert!(file.metadata().unwrap().len() < 1300, "{file:?}");
        }
    }

    #[test]
    fn hosts_that_put_the_file_aside_at_once_lose_none_of_the_latest() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for host in 0..4 {
                let dir = dir.path();
                scope.spawn(move || {
                    let history = short(dir);
                    for number in 0..200 {
                        started(&history, &(1000 * host + number).to_string());
                        // While others write, what is read is never less than a file's worth.
                        let read = ids(&history).len();
                        assert!(read >= 4 || number < 20, "{read}");
                    }
                });
            }
        });
        let history = short(dir.path());
        started(&history, "9000");
        assert_eq!(ids(&history).last(), Some(&9000));
    }

    #[test]
    fn a_crash_after_the_file_was_put_aside_costs_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let history = short(dir.path());
        started(&history, "1");
        std::fs::rename(&history.path, &history.older).unwrap();
        assert_eq!(ids(&history), [1]);
        started(&history, "2");
        assert_eq!(ids(&history), [1, 2]);
    }

    #[test]
    fn a_link_in_the_place_of_the_history_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "mine").unwrap();
        let history = History::in_state_dir(dir.path());
        std::os::unix::fs::symlink(&victim, &history.path).unwrap();
        started(&history, "1");
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "mine");
    }

    #[test]
    fn a_history_that_cannot_be_read_is_not_empty() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("history.jsonl")).unwrap();
        assert!(History::in_state_dir(dir.path()).read().is_err());
    }
}
