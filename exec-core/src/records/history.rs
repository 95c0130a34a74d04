//! The file of the history: append, rotation, load.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::history_contents::{HistoryContents, SkippedLine};
use crate::shared::json_lines;
use crate::shared::kernel_lock::LockedFile;
use crate::shared::private_file;
use crate::{
    Decision, Error, ExecutionId, ExecutionKind, ExitReport, HistoryState, Sandbox, SessionId,
    SettledBy, Usage,
};

/// The size at which the file is rotated.
const MAX_BYTES: u64 = 8 << 20;

/// The executions of the past and present: `history.jsonl` in the state folder.
///
/// One line when an execution starts, one when its session id is known, one when it ends. Several
/// hosts may write to the same file. At 8 MiB (some ten thousand executions) it is renamed to
/// `history.1.jsonl`, replacing the one before, and a new file is begun. Both are read. An execution
/// whose workspace or sandbox has a path that is not UTF-8 is left out.
///
/// The decisions about the permission requests of live sessions are in `permissions.jsonl` and
/// `permissions.1.jsonl`, by the same rules: an agent that asks without end does not push the
/// executions out of the history.
///
/// ```
/// use exec_core::History;
///
/// # let folder = tempfile::tempdir()?;
/// # let state_dir = folder.path();
/// let contents = History::new(state_dir).load()?;
/// assert!(contents.entries.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct History {
    executions: RotatedFile,
    permissions: RotatedFile,
}

/// A file of JSON lines and its predecessor.
#[derive(Debug)]
struct RotatedFile {
    path: PathBuf,
    rotated: PathBuf,
    max_bytes: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct HistoryLine {
    /// Milliseconds since 1970.
    pub(super) at: u64,
    pub(super) execution_id: ExecutionId,
    #[serde(flatten)]
    pub(super) event: HistoryEvent,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum HistoryEvent {
    Started {
        session_id: SessionId,
        profile: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        variant: Option<String>,
        kind: ExecutionKind,
        workspace: PathBuf,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process_id: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sandbox: Option<Sandbox>,
    },
    Resolved {
        session_id: SessionId,
        /// Whether the agent has named the id; else the minted one has become final.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        reported: bool,
    },
    /// A settled permission request of a live session.
    Permission {
        permission: String,
        tool: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        decision: Option<Decision>,
        by: SettledBy,
    },
    Ended {
        report: Box<ExitReport>,
    },
    Reaped,
}

impl History {
    /// The history in a state folder. Opens no file.
    #[must_use]
    pub fn new(state_dir: impl AsRef<Path>) -> Self {
        Self {
            executions: RotatedFile::new(state_dir.as_ref(), "history"),
            permissions: RotatedFile::new(state_dir.as_ref(), "permissions"),
        }
    }

    /// Reads the whole history; missing files are an empty history.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a file cannot be read, [`Error::NotPrivate`] if another user could have
    /// written it. A damaged line is not an error: it is in
    /// [`HistoryContents::skipped`].
    pub fn load(&self) -> Result<HistoryContents, Error> {
        let mut contents = HistoryContents::default();
        let mut index = HashMap::new();
        self.executions.read_into(&mut contents, &mut index)?;
        self.permissions.read_into(&mut contents, &mut index)?;
        Ok(contents)
    }

    /// The current id of a session, which may have had another one at its start, and its usage
    /// after its last execution, if it is known.
    pub(crate) fn recall(
        &self,
        session_id: &SessionId,
    ) -> Result<(SessionId, Option<Usage>), Error> {
        let mut contents = HistoryContents::default();
        self.executions
            .read_into(&mut contents, &mut HashMap::new())?;
        let entries = contents.entries;
        let renamed = entries.iter().rev().find_map(|entry| {
            let was = entry.former_session_id.as_ref() == Some(session_id);
            was.then(|| entry.session_id.clone())
        });
        let current = renamed.unwrap_or_else(|| session_id.clone());
        let last = entries
            .iter()
            .rev()
            .find(|entry| entry.session_id == current);
        let usage = last.and_then(|entry| match &entry.state {
            HistoryState::Ended(report) => Some(report.usage.session),
            // What it has used was lost with its host.
            HistoryState::Open | HistoryState::Reaped => None,
        });
        Ok((current, usage))
    }

    /// Writes a line. A failure is only logged: an execution does not fail because its history
    /// cannot be written.
    pub(crate) fn write(&self, execution_id: &ExecutionId, event: HistoryEvent) {
        self.write_at(milliseconds(SystemTime::now()), execution_id, event);
    }

    /// As [`write`](Self::write), with the time of the event.
    pub(crate) fn write_at(&self, at: u64, execution_id: &ExecutionId, event: HistoryEvent) {
        let line = HistoryLine {
            at,
            execution_id: execution_id.clone(),
            event,
        };
        let file = match &line.event {
            HistoryEvent::Permission { .. } => &self.permissions,
            _ => &self.executions,
        };
        if let Err(error) = file.append(&line) {
            let cause = std::error::Error::source(&error);
            tracing::error!(%error, cause, "cannot write the history");
        }
    }
}

impl RotatedFile {
    fn new(folder: &Path, name: &str) -> Self {
        Self {
            path: folder.join(format!("{name}.jsonl")),
            rotated: folder.join(format!("{name}.1.jsonl")),
            max_bytes: MAX_BYTES,
        }
    }

    fn read_into(
        &self,
        contents: &mut HistoryContents,
        index: &mut HashMap<ExecutionId, usize>,
    ) -> Result<(), Error> {
        let (rotated, current) = self.open_both()?;
        for (path, file) in [(&self.rotated, rotated), (&self.path, current)] {
            let Some(mut file) = file else { continue };
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)
                .map_err(Error::io("read", path))?;
            for (number, line) in json_lines::whole_lines(&bytes) {
                match serde_json::from_slice(line) {
                    Ok(line) => contents.apply(index, line),
                    Err(error) => contents.skipped.push(SkippedLine {
                        path: path.clone(),
                        line: number,
                        reason: error.to_string(),
                    }),
                }
            }
        }
        Ok(())
    }

    /// Opens both files as they were at one moment.
    ///
    /// Race: a rotation between the two opens would let us miss the file that was just rotated.
    /// The current file is opened first; if it still is the current one after the second open,
    /// there was no rotation in between.
    fn open_both(&self) -> Result<(Option<File>, Option<File>), Error> {
        loop {
            let current = private_file::open_existing(&self.path, File::options().read(true))?;
            let rotated = private_file::open_existing(&self.rotated, File::options().read(true))?;
            if self.is_current(current.as_ref())? {
                return Ok((rotated, current));
            }
        }
    }

    /// Only the holder of the lock of the current file writes to it and rotates it.
    fn append(&self, line: &HistoryLine) -> Result<(), Error> {
        let failed = || Error::io("write", &self.path);
        let line = serde_json::to_vec(line).map_err(|error| failed()(error.into()))?;
        let file = self.lock_current()?;
        let len = json_lines::append(&file, &line).map_err(failed())?;
        if len > self.max_bytes {
            let rotated = std::fs::rename(&self.path, &self.rotated);
            rotated.map_err(Error::io("rename", &self.path))?;
        }
        Ok(())
    }

    /// Race: the file can be rotated between the open and the lock. The lock would then protect the
    /// rotated file, so open again.
    fn lock_current(&self) -> Result<LockedFile, Error> {
        loop {
            let file = json_lines::open_locked(&self.path)?;
            if self.is_current(Some(&file))? {
                return Ok(file);
            }
        }
    }

    /// Whether the path still refers to `file`; for `None`, whether there is still no file.
    fn is_current(&self, file: Option<&File>) -> Result<bool, Error> {
        let inspected = || -> io::Result<bool> {
            let there = match self.path.symlink_metadata() {
                Ok(there) => Some((there.dev(), there.ino())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            let file = file.map(File::metadata).transpose()?;
            Ok(there == file.map(|file| (file.dev(), file.ino())))
        };
        inspected().map_err(Error::io("inspect", &self.path))
    }
}

/// Since 1970.
pub(crate) fn milliseconds(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;
    use crate::HistoryState;

    fn id(number: u64) -> ExecutionId {
        ExecutionId::new(Uuid::from_u128(number.into()).to_string()).unwrap()
    }

    fn write_start(history: &History, number: u64) {
        history.write(
            &id(number),
            HistoryEvent::Started {
                session_id: SessionId::new("A", "p", &number.to_string()).unwrap(),
                profile: "a".into(),
                variant: None,
                kind: ExecutionKind::New,
                workspace: "/tmp".into(),
                process_id: Some(7),
                sandbox: None,
            },
        );
    }

    #[track_caller]
    fn numbers(history: &History) -> Vec<u64> {
        let contents = history.load().unwrap();
        assert_eq!(contents.skipped, []);
        let numbers = contents.entries.iter().map(|entry| {
            let number = entry.session_id.native_id().parse().unwrap();
            assert_eq!(entry.execution_id, id(number));
            number
        });
        numbers.collect()
    }

    /// A history that is rotated after a few lines.
    fn short(dir: &Path) -> History {
        let mut history = History::new(dir);
        history.executions.max_bytes = 1000;
        history.permissions.max_bytes = 1000;
        history
    }

    #[test]
    fn a_torn_line_is_removed_and_a_damaged_one_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let history = History::new(dir.path());
        write_start(&history, 1);
        let mut file = File::options()
            .append(true)
            .open(&history.executions.path)
            .unwrap();
        file.write_all(b"not json\n{\"at\":1,\"exec").unwrap();
        drop(file);
        write_start(&history, 2);
        history.write(&id(1), HistoryEvent::Reaped);
        history.write(&id(99), HistoryEvent::Reaped);
        let contents = history.load().unwrap();
        let ids: Vec<_> = contents.entries.iter().map(|e| &e.execution_id).collect();
        assert_eq!(ids, [&id(1), &id(2)]);
        let skipped: Vec<_> = contents.skipped.iter().map(|line| line.line).collect();
        assert_eq!(skipped, [2]);
        assert_eq!(contents.skipped[0].path, history.executions.path);
        assert!(!contents.skipped[0].reason.contains("not json"));
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
        let history = History::new(dir.path());
        write_start(&history, 1);
        history.write(&id(1), HistoryEvent::Reaped);
        write_start(&history, 1);
        let entries = history.load().unwrap().entries;
        assert_eq!(
            (entries.len(), &entries[0].state),
            (1, &HistoryState::Reaped)
        );
    }

    #[test]
    fn lines_of_the_first_format_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let history = History::new(dir.path());
        std::fs::write(
            &history.executions.path,
            include_str!("../../tests/data/history-1.jsonl"),
        )
        .unwrap();
        let contents = history.load().unwrap();
        assert_eq!(contents.skipped, []);
        assert_eq!(contents.entries.len(), 2);
        let HistoryState::Ended(report) = &contents.entries[0].state else {
            panic!("{:?}", contents.entries[0]);
        };
        assert_eq!(
            (report.code, report.wall_time),
            (Some(0), Duration::from_millis(1500))
        );
        assert_eq!(contents.entries[0].session_id.native_id(), "ses_1");
        assert_eq!(contents.entries[1].state, HistoryState::Open);
    }

    #[test]
    fn times_that_add_up_to_more_than_a_duration_do_not_panic() {
        let dir = tempfile::tempdir().unwrap();
        let history = History::new(dir.path());
        let text = include_str!("../../tests/data/history-1.jsonl");
        let text = text.replace("\"secs\":1", &format!("\"secs\":{}", u64::MAX));
        let again = text.replace("6f9619ff", "7f9619ff");
        std::fs::write(&history.executions.path, format!("{text}{again}")).unwrap();
        let contents = history.load().unwrap();
        assert_eq!(contents.skipped, []);
        assert_eq!(contents.statistics()["a"].wall_time, Duration::MAX);
    }

    #[test]
    fn rotation_keeps_the_files_short_and_the_latest_executions_in_them() {
        let dir = tempfile::tempdir().unwrap();
        let history = short(dir.path());
        for number in 0..200 {
            write_start(&history, number);
        }
        history.write(&id(199), HistoryEvent::Reaped);
        let numbers = numbers(&history);
        assert!(numbers.len() >= 5, "{numbers:?}");
        let latest: Vec<_> = (200 - numbers.len() as u64..200).collect();
        assert_eq!(numbers, latest);
        assert_eq!(
            history.load().unwrap().entries.last().unwrap().state,
            HistoryState::Reaped
        );
        for file in std::fs::read_dir(dir.path()).unwrap() {
            let file = file.unwrap();
            assert!(file.metadata().unwrap().len() < 1300, "{file:?}");
        }
    }

    #[test]
    fn an_agent_that_asks_without_end_does_not_push_executions_out() {
        let dir = tempfile::tempdir().unwrap();
        let history = short(dir.path());
        write_start(&history, 1);
        for number in 0..200 {
            let event = HistoryEvent::Permission {
                permission: number.to_string(),
                tool: "Bash".into(),
                decision: Some(Decision::Deny),
                by: SettledBy::Deadline,
            };
            history.write(&id(1), event);
        }
        let entries = history.load().unwrap().entries;
        assert_eq!(entries.len(), 1);
        let permissions = &entries[0].permissions;
        assert!((4..20).contains(&permissions.len()), "{permissions:?}");
        let last = permissions.last().unwrap();
        assert_eq!(
            (last.permission.as_str(), last.by),
            ("199", SettledBy::Deadline)
        );
    }

    #[test]
    fn hosts_that_rotate_at_the_same_time_lose_no_recent_line() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for host in 0..4 {
                let dir = dir.path();
                scope.spawn(move || {
                    let history = short(dir);
                    for number in 0..200 {
                        write_start(&history, 1000 * host + number);
                        // At any time, at least one full file can be read.
                        let read = numbers(&history).len();
                        assert!(read >= 4 || number < 20, "{read}");
                    }
                });
            }
        });
        let history = short(dir.path());
        write_start(&history, 9000);
        assert_eq!(numbers(&history).last(), Some(&9000));
    }

    #[test]
    fn a_crash_right_after_the_rotation_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let history = short(dir.path());
        write_start(&history, 1);
        std::fs::rename(&history.executions.path, &history.executions.rotated).unwrap();
        assert_eq!(numbers(&history), [1]);
        write_start(&history, 2);
        assert_eq!(numbers(&history), [1, 2]);
    }

    #[test]
    fn a_link_is_neither_written_nor_read() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        std::fs::write(&target, "mine").unwrap();
        let decided = || HistoryEvent::Permission {
            permission: "1".to_owned(),
            tool: "Bash".to_owned(),
            decision: Some(Decision::Allow),
            by: SettledBy::Policy,
        };
        let names = [
            "history.jsonl",
            "history.1.jsonl",
            "permissions.jsonl",
            "permissions.1.jsonl",
        ];
        for name in names {
            let state = dir.path().join(format!("state-{name}"));
            std::fs::create_dir(&state).unwrap();
            let history = History::new(&state);
            std::os::unix::fs::symlink(&target, state.join(name)).unwrap();
            write_start(&history, 1);
            history.write(&id(1), decided());
            assert_eq!(std::fs::read_to_string(&target).unwrap(), "mine", "{name}");
            let error = history.load().unwrap_err();
            assert!(matches!(error, Error::NotPrivate { .. }), "{name}: {error}");
        }
        // A rotation replaces a link, and does not follow it.
        let state = dir.path().join("state-rotated");
        std::fs::create_dir(&state).unwrap();
        let history = short(&state);
        std::os::unix::fs::symlink(&target, state.join("permissions.1.jsonl")).unwrap();
        for _ in 0..50 {
            history.write(&id(1), decided());
        }
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "mine");
        for file in std::fs::read_dir(&state).unwrap() {
            let file = file.unwrap().path();
            let metadata = file.symlink_metadata().unwrap();
            assert!(metadata.is_file(), "{file:?}");
            assert_eq!(metadata.mode() & 0o777, 0o600, "{file:?}");
        }
    }

    #[test]
    fn a_history_that_cannot_be_read_is_not_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("history.jsonl")).unwrap();
        assert!(History::new(dir.path()).load().is_err());
    }
}
