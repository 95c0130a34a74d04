//! The state folder: who owns which live executions.
//!
//! ```text
//! <state>/owners/<uuid>.jsonl   one file for each service, locked as long as the service lives
//! <state>/history.jsonl         see `history`
//! ```
//!
//! An owner file is a journal: a header line, then a line before each start (a crash right after
//! the start must not hide the process), one with the process id after it, one at the end. The
//! kernel lets go of the lock when the owner dies, however it dies; so 'still owned' is a fact.
//! Nothing is synced to disk: what the journal is for does not survive a power cut either.

use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::Result;
use crate::shared::proc_stat::ProcessKey;
use crate::state_folder;
use crate::{Error, ExecutionKind, SessionId};

/// A journal is written anew when it has grown to this, or to twice of what it was the last time,
/// whichever is more.
const COMPACT_AT: u64 = 256 << 10;

/// The header of an owner file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) host: String,
    pub(crate) boot_id: String,
}

/// A live execution, as the journal knows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LiveRecord {
    pub(crate) execution_id: Uuid,
    pub(crate) session_id: SessionId,
    pub(crate) profile: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) process: Option<(u32, u64)>,
    /// `None` in a record of an earlier version, and for a workspace that JSON cannot name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) start: Option<Start>,
}

/// What the history says of a start: a host may die before it has written it there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Milliseconds since 1970.
    pub(crate) at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) variant: Option<String>,
    pub(crate) kind: ExecutionKind,
    pub(crate) workspace: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Entry {
    Owner(Header),
    Launch(LiveRecord),
    Started {
        execution_id: Uuid,
        pid: u32,
        start_time: u64,
    },
    Ended {
        execution_id: Uuid,
    },
}

/// The journal of one service. Dropped when its last execution has ended; then the file goes.
#[derive(Debug)]
pub(crate) struct Owner {
    folder: PathBuf,
    header: Header,
    journal: Mutex<Journal>,
}

#[derive(Debug)]
struct Journal {
    path: PathBuf,
    file: File,
    len: u64,
    compact_at: u64,
    live: HashMap<Uuid, LiveRecord>,
}

impl Owner {
    /// Makes the folder and a locked journal in it.
    pub(crate) fn open(state_dir: &Path, host: &str) -> Result<Self> {
        let folder = owners_folder(state_dir);
        state_folder::create(state_dir)?;
        state_folder::create(&folder)?;
        let header = Header {
            host: host.to_owned(),
            boot_id: boot_id().map_err(Error::state("read the boot id of", &folder))?,
        };
        let journal = Journal::create(&folder, &header, HashMap::new())?;
        Ok(Self {
            folder,
            header,
            journal: Mutex::new(journal),
        })
    }

    /// Before the process is started.
    pub(crate) fn launching(&self, record: LiveRecord) -> Result<()> {
        let mut journal = self.lock();
        let entry = Entry::Launch(record);
        journal.append(&entry)?;
        if let Entry::Launch(record) = entry {
            journal.live.insert(record.execution_id, record);
        }
        Ok(())
    }

    pub(crate) fn started(&self, execution_id: Uuid, process: ProcessKey) -> Result<()> {
        self.write(|live| {
            if let Some(record) = live.get_mut(&execution_id) {
                record.process = Some((process.pid, process.start_time));
            }
            Entry::Started {
                execution_id,
                pid: process.pid,
                start_time: process.start_time,
            }
        })
    }

    pub(crate) fn ended(&self, execution_id: Uuid) -> Result<()> {
        self.write(|live| {
            live.remove(&execution_id);
            Entry::Ended { execution_id }
        })?;
        // Here rather than at a start, where someone waits.
        let mut journal = self.lock();
        if journal.len > journal.compact_at {
            // The new file is locked before the old one goes: at no time is nothing owned.
            let live = journal.live.clone();
            let old = journal.path.clone();
            *journal = Journal::create(&self.folder, &self.header, live)?;
            remove(&old)?;
        }
        Ok(())
    }

    fn write(&self, change: impl FnOnce(&mut HashMap<Uuid, LiveRecord>) -> Entry) -> Result<()> {
        let mut journal = self.lock();
        let entry = change(&mut journal.live);
        journal.append(&entry)
    }

    fn lock(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let journal = self
            .journal
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        // With executions that nobody supervises any more (their runtime is gone) it stays, for
        // the next start to find.
        if journal.live.is_empty() {
            let _ = remove(&journal.path);
        }
    }
}

impl Journal {
    fn create(folder: &Path, header: &Header, live: HashMap<Uuid, LiveRecord>) -> Result<Self> {
        let name = Uuid::new_v4();
        let path = folder.join(format!("{name}.jsonl"));
        // Under another name until it is locked: nobody may find it without an owner.
        let hidden = folder.join(format!(".{name}.new"));
        let mut options = OpenOptions::new();
        let file = state_folder::open(options.create_new(true).append(true), &hidden)
            .map_err(Error::state("create", &hidden))?;
        file.try_lock()
            .map_err(io::Error::from)
            .map_err(Error::state("lock", &hidden))?;
        let mut journal = Self {
            path: hidden.clone(),
            file,
            len: 0,
            compact_at: COMPACT_AT,
            live: HashMap::new(),
        };
        journal.append(&Entry::Owner(header.clone()))?;
        for record in live.into_values() {
            journal.append(&Entry::Launch(record.clone()))?;
            journal.live.insert(record.execution_id, record);
        }
        journal.compact_at = COMPACT_AT.max(2 * journal.len);
        std::fs::rename(&hidden, &path).map_err(Error::state("rename", &hidden))?;
        journal.path = path;
        Ok(journal)
    }

    fn append(&mut self, entry: &Entry) -> Result<()> {
        let mut line = serde_json::to_vec(entry)
            .map_err(io::Error::from)
            .map_err(Error::state("write", &self.path))?;
        line.push(b'\n');
        if let Err(error) = self.file.write_all(&line) {
            // Half a line would spoil the next one, too.
            let _ = self.file.set_len(self.len);
            return Err(Error::state("write", &self.path)(error));
        }
        self.len += line.len() as u64;
        Ok(())
    }
}

/// The journal of an owner that is gone, locked by us: nobody else cleans up after it.
#[derive(Debug)]
pub(crate) struct Estate {
    path: PathBuf,
    /// Holds the lock.
    _file: File,
    pub(crate) header: Header,
    pub(crate) live: Vec<LiveRecord>,
}

impl Estate {
    /// What the dead owners of `host` left behind.
    pub(crate) fn find_all(state_dir: &Path, host: &str) -> Result<Vec<Self>> {
        let folder = owners_folder(state_dir);
        let mut estates = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(Error::state("read", &folder))? {
            let path = entry.map_err(Error::state("read", &folder))?.path();
            if path
                .extension()
                .is_none_or(|extension| extension != "jsonl")
            {
                continue;
            }
            estates.extend(Self::open(path)?.filter(|estate| estate.header.host == host));
        }
        Ok(estates)
    }

    /// `None` if it has an owner or has just been removed.
    fn open(path: PathBuf) -> Result<Option<Self>> {
        let file = match state_folder::open(OpenOptions::new().read(true), &path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::state("open", &path)(error)),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(Error::state("lock", &path)(error)),
        }
        let text = io::read_to_string(&file).map_err(Error::state("read", &path))?;
        let mut header = None;
        let mut live: HashMap<Uuid, LiveRecord> = HashMap::new();
        for line in text.lines() {
            match serde_json::from_str(line) {
                Ok(Entry::Owner(found)) => header = Some(found),
                Ok(Entry::Launch(record)) => {
                    live.insert(record.execution_id, record);
                }
                Ok(Entry::Started {
                    execution_id,
                    pid,
                    start_time,
                }) => {
                    if let Some(record) = live.get_mut(&execution_id) {
                        record.process = Some((pid, start_time));
                    }
                }
                Ok(Entry::Ended { execution_id }) => {
                    live.remove(&execution_id);
                }
                // The owner died while it wrote its last line. A start is written down whole
                // before it happens, so what is cut off here was never started, or is still
                // found by the line before.
                Err(error) => tracing::warn!(path = %path.display(), %error, "torn line"),
            }
        }
        let header = header.ok_or_else(|| {
            Error::state("understand", &path)(io::Error::new(
                io::ErrorKind::InvalidData,
                "the first line does not name the owner; remove the file by hand",
            ))
        })?;
        Ok(Some(Self {
            path,
            _file: file,
            header,
            live: live.into_values().collect(),
        }))
    }

    /// Once everything in it has ended.
    pub(crate) fn remove(self) -> Result<()> {
        remove(&self.path)
    }
}

fn owners_folder(state_dir: &Path) -> PathBuf {
    state_dir.join("owners")
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::state("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// Differs from boot to boot: start times of another boot mean nothing.
pub(crate) fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u128) -> LiveRecord {
        LiveRecord {
            execution_id: Uuid::from_u128(number),
            session_id: SessionId::new("A", "p", &number.to_string()).unwrap(),
            profile: "a".into(),
            process: None,
            start: None,
        }
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        std::fs::read_dir(owners_folder(folder))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect()
    }

    #[test]
    fn what_a_live_owner_has_is_not_up_for_grabs() {
        let dir = tempfile::tempdir().unwrap();
        let owner = Owner::open(dir.path(), "host").unwrap();
        owner.launching(record(1)).unwrap();
        assert!(Estate::find_all(dir.path(), "host").unwrap().is_empty());
    }

    #[test]
    fn what_a_dead_owner_had_is_found_once_and_only_by_its_own_host() {
        let dir = tempfile::tempdir().unwrap();
        let owner = Owner::open(dir.path(), "host").unwrap();
        for number in 1..=3 {
            owner.launching(record(number)).unwrap();
        }
        let process = ProcessKey {
            pid: 7,
            start_time: 8,
        };
        owner.started(Uuid::from_u128(2), process).unwrap();
        owner.ended(Uuid::from_u128(3)).unwrap();
        drop(owner);
        assert!(Estate::find_all(dir.path(), "other").unwrap().is_empty());
        let mut estates = Estate::find_all(dir.path(), "host").unwrap();
        assert!(
            Estate::find_all(dir.path(), "host").unwrap().is_empty(),
            "held by the first"
        );
        let estate = estates.pop().unwrap();
        let mut live: Vec<_> = estate
            .live
            .iter()
            .map(|r| (r.execution_id.as_u128(), r.process))
            .collect();
        live.sort_unstable();
        assert_eq!(live, [(1, None), (2, Some((7, 8)))]);
        estate.remove().unwrap();
        assert!(files(dir.path()).is_empty());
    }

    #[test]
    fn a_record_without_what_the_history_says_is_one() {
        let dir = tempfile::tempdir().unwrap();
        drop(Owner::open(dir.path(), "host").unwrap());
        let lines = [
            r#"{"owner":{"host":"host","boot_id":"b"}}"#,
            r#"{"launch":{"execution_id":"00000000-0000-0000-0000-000000000001","session_id":"A:p:1","profile":"a"}}"#,
        ];
        let path = owners_folder(dir.path()).join("x.jsonl");
        std::fs::write(&path, lines.join("\n")).unwrap();
        let estates = Estate::find_all(dir.path(), "host").unwrap();
        assert!(estates[0].live[0].start.is_none());
    }

    #[test]
    fn a_line_cut_off_by_a_crash_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let owner = Owner::open(dir.path(), "host").unwrap();
        owner.launching(record(1)).unwrap();
        drop(owner);
        let path = files(dir.path()).pop().unwrap();
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"ended\":{\"execution_id\":\"0000")
            .unwrap();
        drop(file);
        let estates = Estate::find_all(dir.path(), "host").unwrap();
        assert_eq!(estates[0].live.len(), 1);
    }

    #[test]
    fn a_file_that_names_no_owner_is_an_error_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        drop(Owner::open(dir.path(), "host").unwrap());
        let path = owners_folder(dir.path()).join("x.jsonl");
        std::fs::write(&path, "gibberish\n").unwrap();
        let error = Estate::find_all(dir.path(), "host").unwrap_err();
        assert!(error.to_string().contains("x.jsonl"), "{error}");
        assert!(path.exists());
    }

    #[test]
    fn the_journal_does_not_grow_for_ever_and_keeps_what_lives() {
        let dir = tempfile::tempdir().unwrap();
        let owner = Owner::open(dir.path(), "host").unwrap();
        owner.launching(record(u128::MAX)).unwrap();
        for number in 0..4000 {
            owner.launching(record(number)).unwrap();
            owner.ended(Uuid::from_u128(number)).unwrap();
        }
        let files_now = files(dir.path());
        assert_eq!(files_now.len(), 1);
        assert!(std::fs::metadata(&files_now[0]).unwrap().len() <= COMPACT_AT + 1024);
        drop(owner);
        let estates = Estate::find_all(dir.path(), "host").unwrap();
        assert_eq!(estates[0].live.len(), 1);
    }

    #[test]
    fn many_live_executions_do_not_keep_the_journal_from_being_shortened() {
        let dir = tempfile::tempdir().unwrap();
        let owner = Owner::open(dir.path(), "host").unwrap();
        for number in 0..2000 {
            owner.launching(record(number)).unwrap();
        }
        for number in 2000..12_000 {
            owner.launching(record(number)).unwrap();
            owner.ended(Uuid::from_u128(number)).unwrap();
        }
        let live: usize = owner.lock().live.len();
        let longest = 4 * COMPACT_AT;
        let files_now = files(dir.path());
        assert_eq!((files_now.len(), live), (1, 2000));
        let length = std::fs::metadata(&files_now[0]).unwrap().len();
        assert!(length <= longest, "{length} bytes");
        drop(owner);
        let estates = Estate::find_all(dir.path(), "host").unwrap();
        assert_eq!(estates[0].live.len(), 2000);
    }

    #[test]
    fn a_record_that_is_a_link_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(Owner::open(dir.path(), "host").unwrap());
        let forged = dir.path().join("forged");
        std::fs::write(&forged, "").unwrap();
        let link = owners_folder(dir.path()).join("x.jsonl");
        std::os::unix::fs::symlink(&forged, &link).unwrap();
        let error = Estate::find_all(dir.path(), "host").unwrap_err();
        assert!(error.to_string().contains("x.jsonl"), "{error}");
    }

    #[test]
    fn an_owner_without_executions_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        drop(Owner::open(dir.path(), "host").unwrap());
        assert!(files(dir.path()).is_empty());
    }
}
