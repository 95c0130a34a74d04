use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::{Error, ExecutionKind, ExitReport, Result, SessionId};

/// The executions of the past and present: `history.jsonl` in the state folder.
///
/// One line when an execution starts, one when its session id is known, one when it ends. Several
/// hosts may append to the same file. It is never shortened; whoever wants to can rotate it.
#[derive(Debug)]
pub struct History {
    path: PathBuf,
    file: Mutex<Option<File>>,
}

/// What the history file holds.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct HistoryContents {
    /// The executions, in the order of their start. One whose start is not in the file (it has
    /// been rotated away) is left out.
    pub entries: Vec<HistoryEntry>,
    /// The numbers (from 1) of lines that could not be read and are not in `entries`.
    pub damaged_lines: Vec<usize>,
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
        process_id: u32,
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
            file: Mutex::new(None),
        }
    }

    /// Reads the whole history; one that was never written is empty.
    ///
    /// # Errors
    /// [`Error::State`] if the file cannot be read. A damaged line is not an error: it is listed.
    pub fn read(&self) -> Result<HistoryContents> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(HistoryContents::default());
            }
            Err(error) => return Err(Error::state("open", &self.path)(error)),
        };
        let mut contents = HistoryContents::default();
        let mut index: HashMap<String, usize> = HashMap::new();
        for (number, line) in BufReader::new(file).split(b'\n').enumerate() {
            let line = line.map_err(Error::state("read", &self.path))?;
            if line.is_empty() {
                continue;
            }
            match serde_json::from_slice(&line) {
                Ok(record) => contents.take(&mut index, record),
                Err(_) => contents.damaged_lines.push(number + 1),
            }
        }
        Ok(contents)
    }

    /// Writes a line. A run does not fail because its history cannot be written, so neither does
    /// this: it is reported.
    pub(crate) fn write(&self, execution_id: &str, what: What) {
        if let Err(error) = self.try_write(execution_id, what) {
            tracing::error!(path = %self.path.display(), %error, "cannot write the history");
        }
    }

    fn try_write(&self, execution_id: &str, what: What) -> io::Result<()> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let record = Record {
            at: u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX),
            execution_id: execution_id.to_owned(),
            what,
        };
        let mut line = serde_json::to_vec(&record)?;
        line.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let file = match &mut *file {
            Some(file) => file,
            none => none.insert(self.open()?),
        };
        // One write in append mode: lines of several hosts do not mix.
        file.write_all(&line)
    }

    fn open(&self) -> io::Result<File> {
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .mode(0o600)
            .open(&self.path)?;
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
                process_id: 7,
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
        assert_eq!(contents.damaged_lines, [2]);
        assert_eq!(contents.entries[0].state, HistoryState::Reaped);
        let statistics = &contents.statistics()["a"];
        assert_eq!(
            (statistics.executions, statistics.open, statistics.reaped),
            (2, 1, 1)
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
        assert_eq!(contents.damaged_lines, [0; 0]);
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

    #[test]
    fn a_history_that_cannot_be_read_is_not_empty() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("history.jsonl")).unwrap();
        assert!(History::in_state_dir(dir.path()).read().is_err());
    }
}
