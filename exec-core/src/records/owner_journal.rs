//! The journal of a service: the executions that it owns.
//!
//! Lines: a header; `launch`, written before the spawn; `started`, with the process id; `resolved`, with
//! the id of the session that the agent has reported; `ended`. The `launch` line makes a crash safe: if
//! the host dies right after the spawn, the journal has the execution id, and the process carries it in
//! its environment. The history has the ids of sessions, too, but a long execution can outlive its lines
//! there.
//!
//! The journal is locked as long as its service lives. The kernel releases the lock when the
//! process dies, for whatever reason, so a free lock proves that the owner is gone.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::host_watcher::HostWatcher;
use crate::shared::json_lines;
use crate::shared::kernel_lock::{Access, LockedFile};
use crate::shared::private_file;
use crate::shared::proc_stat::ProcessKey;
use crate::shared::process_tree::{self, PROCESS_LIST, TreeRoot};
use crate::{Error, ExecutionId, ExecutionKind, Sandbox, SessionId};

/// A journal is rewritten when it reaches this size, or twice its size after the last rewrite,
/// whichever is more.
const COMPACT_AT: u64 = 256 << 10;

/// The first line of a journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OwnerHeader {
    pub(crate) host: String,
    pub(crate) boot_id: String,
    /// The process id and the start time of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) process: Option<(u32, u64)>,
}

/// A live execution in a journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LiveRecord {
    pub(crate) execution_id: ExecutionId,
    pub(crate) session_id: SessionId,
    pub(crate) profile: String,
    /// Process id and start time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) process: Option<(u32, u64)>,
    /// `None` in a record of an earlier version, and if a path of the launch is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) start: Option<LaunchRecord>,
    /// Whether the agent itself has named the id of the session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_id_reported: bool,
}

/// The data of a launch for the history. A host can die before it has written the history.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LaunchRecord {
    /// Milliseconds since 1970.
    pub(crate) at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) variant: Option<String>,
    pub(crate) kind: ExecutionKind,
    pub(crate) workspace: String,
    /// Whether the agent makes the id of a new session by itself. An earlier version did not tell.
    #[serde(default = "unknown_id")]
    pub(crate) id_awaited: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sandbox: Option<Box<Sandbox>>,
}

fn unknown_id() -> bool {
    true
}

impl LiveRecord {
    /// The processes of the execution, if it was started since the last boot.
    pub(crate) fn root(&self) -> TreeRoot {
        let leader = self
            .process
            .map(|(pid, start_time)| ProcessKey { pid, start_time });
        TreeRoot::recorded(Some(self.execution_id.to_string()), leader)
    }
}

type LiveRecords = HashMap<ExecutionId, LiveRecord>;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum JournalLine {
    Owner(OwnerHeader),
    Launch(LiveRecord),
    Started {
        execution_id: ExecutionId,
        pid: u32,
        start_time: u64,
    },
    Resolved {
        execution_id: ExecutionId,
        session_id: SessionId,
    },
    Ended {
        execution_id: ExecutionId,
    },
}

impl JournalLine {
    fn apply(self, live: &mut LiveRecords) {
        match self {
            Self::Owner(_) => {}
            Self::Launch(record) => drop(live.insert(record.execution_id.clone(), record)),
            Self::Started {
                execution_id,
                pid,
                start_time,
            } => {
                if let Some(record) = live.get_mut(&execution_id) {
                    record.process = Some((pid, start_time));
                }
            }
            Self::Resolved {
                execution_id,
                session_id,
            } => {
                if let Some(record) = live.get_mut(&execution_id) {
                    record.session_id = session_id;
                    record.is_id_reported = true;
                }
            }
            Self::Ended { execution_id } => drop(live.remove(&execution_id)),
        }
    }
}

/// The journal of a running service. Dropping it removes the file, unless executions are left
/// whose supervisors are gone (their runtime was shut down): the next host finds these
/// executions.
#[derive(Debug)]
pub(crate) struct OwnerJournal {
    folder: PathBuf,
    header: OwnerHeader,
    file: Mutex<JournalFile>,
    /// Other journals that still name executions of this service. Locked, because another host would
    /// end these executions.
    outdated: Mutex<Vec<OrphanedJournal>>,
    watcher: Option<HostWatcher>,
}

#[derive(Debug)]
struct JournalFile {
    path: PathBuf,
    file: LockedFile,
    len: u64,
    compact_at: u64,
    live: LiveRecords,
}

impl OwnerJournal {
    /// Creates the state folder and a locked journal in it.
    pub(crate) fn open(state_dir: &Path, host: &str) -> Result<Self, Error> {
        let folder = owners_folder(state_dir);
        private_file::create_folder(state_dir)?;
        private_file::create_folder(&folder)?;
        let header = OwnerHeader {
            host: host.to_owned(),
            boot_id: boot_id()?,
            process: process_tree::key_of(std::process::id()).map(|own| (own.pid, own.start_time)),
        };
        let file = JournalFile::create(&folder, &header, LiveRecords::new())?;
        Ok(Self {
            folder,
            header,
            file: Mutex::new(file),
            outdated: Mutex::default(),
            watcher: None,
        })
    }

    /// Ends the executions when this process has ended.
    pub(crate) fn with_watcher(mut self) -> Self {
        self.watcher = Some(HostWatcher::default());
        self
    }

    /// To be called before the process is spawned. After an error, [`ended`](Self::ended) undoes
    /// what was done.
    pub(crate) fn launching(&self, record: LiveRecord) -> Result<(), Error> {
        let id = record.execution_id.clone();
        self.write(JournalLine::Launch(record))?;
        match &self.watcher {
            Some(watcher) => watcher.add(&id),
            None => Ok(()),
        }
    }

    pub(crate) fn started(&self, id: &ExecutionId, process: ProcessKey) -> Result<(), Error> {
        if let Some(watcher) = &self.watcher {
            watcher.started(id, process.pid);
        }
        self.write(JournalLine::Started {
            execution_id: id.clone(),
            pid: process.pid,
            start_time: process.start_time,
        })
    }

    /// The agent has reported the id of its session.
    pub(crate) fn resolved(&self, id: &ExecutionId, session_id: &SessionId) -> Result<(), Error> {
        self.write(JournalLine::Resolved {
            execution_id: id.clone(),
            session_id: session_id.clone(),
        })
    }

    /// Compacts the journal if it has grown: at an end rather than at a launch, because callers
    /// wait for launches.
    pub(crate) fn ended(&self, id: &ExecutionId) -> Result<(), Error> {
        if let Some(watcher) = &self.watcher {
            watcher.remove(id);
        }
        self.write(JournalLine::Ended {
            execution_id: id.clone(),
        })?;
        let mut file = self.lock();
        if file.len > file.compact_at {
            // The new file is locked before the old one is removed, and the old one is removed
            // before it is unlocked: the executions always have an owner.
            let live = file.live.clone();
            let new = JournalFile::create(&self.folder, &self.header, live)?;
            let old = std::mem::replace(&mut *file, new);
            if let Err(error) = remove(&old.path) {
                self.outdated().push(OrphanedJournal {
                    path: old.path,
                    lock: old.file,
                    header: self.header.clone(),
                    live: Vec::new(),
                    is_outdated: true,
                });
                return Err(error);
            }
        }
        Ok(())
    }

    /// The executions that have not ended.
    pub(crate) fn live_records(&self) -> Vec<LiveRecord> {
        self.lock().live.values().cloned().collect()
    }

    fn write(&self, line: JournalLine) -> Result<(), Error> {
        let mut file = self.lock();
        let written = file.append(&line);
        // A launch that is not on disk does not happen. A start or an end has happened.
        if written.is_ok() || !matches!(line, JournalLine::Launch(_)) {
            line.apply(&mut file.live);
        }
        written
    }

    fn lock(&self) -> MutexGuard<'_, JournalFile> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn outdated(&self) -> MutexGuard<'_, Vec<OrphanedJournal>> {
        self.outdated.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OwnerJournal {
    fn drop(&mut self) {
        let file = self.file.get_mut().unwrap_or_else(PoisonError::into_inner);
        if file.live.is_empty() {
            let _ = remove(&file.path);
            let outdated = self.outdated.get_mut();
            for journal in outdated.unwrap_or_else(PoisonError::into_inner) {
                if journal.live.is_empty() {
                    let _ = journal.remove();
                }
            }
        }
    }
}

impl JournalFile {
    /// The file gets its name after it is locked and complete: another host never sees a journal
    /// that looks as if it had no owner.
    fn create(folder: &Path, header: &OwnerHeader, live: LiveRecords) -> Result<Self, Error> {
        let name = Uuid::new_v4();
        let hidden = folder.join(format!(".{name}.new"));
        let path = folder.join(format!("{name}.jsonl"));
        // On a full disk, each attempt would leave a file.
        Self::create_as(&hidden, path, header, live).inspect_err(|_| {
            let _ = remove(&hidden);
        })
    }

    fn create_as(
        hidden: &Path,
        path: PathBuf,
        header: &OwnerHeader,
        live: LiveRecords,
    ) -> Result<Self, Error> {
        let mut options = File::options();
        let file = private_file::open(hidden, options.create_new(true).read(true).append(true))?;
        let file = LockedFile::lock(file, Access::Exclusive).map_err(Error::io("lock", hidden))?;
        let mut journal = Self {
            path: hidden.to_owned(),
            file,
            len: 0,
            compact_at: COMPACT_AT,
            live: LiveRecords::new(),
        };
        journal.append(&JournalLine::Owner(header.clone()))?;
        for record in live.into_values() {
            let line = JournalLine::Launch(record);
            journal.append(&line)?;
            line.apply(&mut journal.live);
        }
        journal.compact_at = COMPACT_AT.max(2 * journal.len);
        std::fs::rename(hidden, &path).map_err(Error::io("rename", hidden))?;
        journal.path = path;
        Ok(journal)
    }

    fn append(&mut self, line: &JournalLine) -> Result<(), Error> {
        let appended = serde_json::to_vec(line)
            .map_err(io::Error::from)
            .and_then(|line| json_lines::append(&self.file, &line));
        self.len = appended.map_err(Error::io("write", &self.path))?;
        Ok(())
    }
}

/// The journal of a service that is gone. It is locked, so that only one host cleans up.
#[derive(Debug)]
pub(crate) struct OrphanedJournal {
    path: PathBuf,
    lock: LockedFile,
    pub(crate) header: OwnerHeader,
    pub(crate) live: Vec<LiveRecord>,
    /// Whether the file still names executions of a living service.
    pub(crate) is_outdated: bool,
}

impl OrphanedJournal {
    /// The journals that dead services of `host` have left.
    pub(crate) fn find_all(state_dir: &Path, host: &str) -> Result<Vec<Self>, Error> {
        let folder = owners_folder(state_dir);
        let mut orphaned = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(Error::io("read", &folder))? {
            let path = entry.map_err(Error::io("read", &folder))?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "jsonl")
            {
                orphaned.extend(Self::open(path)?.filter(|journal| journal.header.host == host));
            }
        }
        Ok(orphaned)
    }

    /// `None` if the service lives, if its file has been removed since the listing, or if no line
    /// names its owner.
    fn open(path: PathBuf) -> Result<Option<Self>, Error> {
        let mut options = File::options();
        match private_file::open_existing(&path, options.read(true).append(true))? {
            Some(file) => Self::lock(path, file),
            None => Ok(None),
        }
    }

    /// Race: a live service removes a file that it has replaced, and then unlocks it. A file that
    /// was opened before the removal can be locked after it, and still names live executions. So
    /// the links are counted under the lock.
    fn lock(path: PathBuf, file: File) -> Result<Option<Self>, Error> {
        let Some(lock) = lock_of_dead(file, &path)? else {
            return Ok(None);
        };
        if lock.metadata().map_err(Error::io("read", &path))?.nlink() == 0 {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        (&*lock)
            .read_to_end(&mut bytes)
            .map_err(Error::io("read", &path))?;
        let mut header = None;
        let mut live = LiveRecords::new();
        // A torn last line is ignored. A torn `launch`: no process was spawned. A torn `ended`: the
        // next scan finds no process and records the end.
        for (number, line) in json_lines::whole_lines(&bytes) {
            match serde_json::from_slice(line) {
                Ok(JournalLine::Owner(found)) => header = Some(found),
                Ok(line) => line.apply(&mut live),
                Err(error) => {
                    let path = path.display();
                    tracing::warn!(%path, line = number, %error, "damaged line of a journal");
                }
            }
        }
        let Some(header) = header else {
            skip_without_owner(&path, bytes.is_empty());
            return Ok(None);
        };
        Ok(Some(Self {
            path,
            lock,
            header,
            live: live.into_values().collect(),
            is_outdated: false,
        }))
    }

    /// The execution has another owner. If that cannot be written, the journal must stay locked as long
    /// as the other owner lives. Afterwards, both journals name the execution, which does no harm.
    pub(crate) fn disown(&mut self, id: &ExecutionId) {
        if let Err(error) = self.ended(id) {
            tracing::warn!(%error, "the journal of a dead host stays locked");
            self.live.retain(|record| record.execution_id != *id);
            self.is_outdated = true;
        }
    }

    pub(crate) fn ended(&mut self, id: &ExecutionId) -> Result<(), Error> {
        let line = JournalLine::Ended {
            execution_id: id.clone(),
        };
        let appended = serde_json::to_vec(&line)
            .map_err(io::Error::from)
            .and_then(|line| json_lines::append(&self.lock, &line));
        appended.map_err(Error::io("write", &self.path))?;
        self.live.retain(|record| record.execution_id != *id);
        Ok(())
    }

    /// To be called when all executions of the journal have ended.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        remove(&self.path)
    }
}

/// How long the lock of a dead owner is waited for, and how often it is tried.
const EXEC_LIMIT: Duration = Duration::from_secs(2);
const EXEC_INTERVAL: Duration = Duration::from_millis(2);

/// Locks the journal of a dead service; `None` if the service lives.
///
/// Race: a child that the service was starting when it was killed has a copy of its descriptors, and
/// with them the lock, until its exec. So the lock of a service whose process is gone is waited for.
fn lock_of_dead(file: File, path: &Path) -> Result<Option<LockedFile>, Error> {
    let failed = || Error::io("lock", path);
    let begin = Instant::now();
    loop {
        let again = file.try_clone().map_err(failed())?;
        if let Some(lock) = LockedFile::try_lock(again, Access::Exclusive).map_err(failed())? {
            return Ok(Some(lock));
        }
        if begin.elapsed() > EXEC_LIMIT || !is_owner_dead(&file)? {
            return Ok(None);
        }
        std::thread::sleep(EXEC_INTERVAL);
    }
}

/// Whether the header names a process of this boot that is gone.
fn is_owner_dead(file: &File) -> Result<bool, Error> {
    let mut head = [0; 1024];
    let read = file.read_at(&mut head, 0).unwrap_or(0);
    let first = json_lines::whole_lines(&head[..read]).next();
    let header = first.and_then(|(_, line)| match serde_json::from_slice(line) {
        Ok(JournalLine::Owner(header)) => Some(header),
        _ => None,
    });
    let Some((header, (pid, start_time))) = header.and_then(|h| Some((h.clone(), h.process?)))
    else {
        return Ok(false);
    };
    let is_alive = process_tree::is_alive(ProcessKey { pid, start_time });
    Ok(!is_alive && header.boot_id == boot_id()?)
}

/// Start times are comparable only within one boot.
pub(crate) fn boot_id() -> Result<String, Error> {
    let failed = Error::io("read the boot id from", Path::new(PROCESS_LIST));
    process_tree::boot_id().map_err(failed)
}

fn owners_folder(state_dir: &Path) -> PathBuf {
    state_dir.join("owners")
}

/// A crash of the machine can leave a journal without its header. One such file must not keep the
/// other journals from being read. The caller holds the lock.
fn skip_without_owner(path: &Path, is_empty: bool) {
    let removed = if is_empty { remove(path) } else { Ok(()) };
    let path = path.display();
    match removed {
        Ok(()) if is_empty => tracing::warn!(%path, "removed an empty journal"),
        Ok(()) => tracing::warn!(%path, "skipped a journal: no line names the owner"),
        Err(error) => tracing::warn!(%path, %error, "cannot remove an empty journal"),
    }
}

fn remove(path: &Path) -> Result<(), Error> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn id(number: u128) -> ExecutionId {
        ExecutionId::new(Uuid::from_u128(number).to_string()).unwrap()
    }

    fn record(number: u128) -> LiveRecord {
        LiveRecord {
            execution_id: id(number),
            session_id: SessionId::new("A", "p", &number.to_string()).unwrap(),
            profile: "a".into(),
            process: None,
            start: None,
            is_id_reported: false,
        }
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        std::fs::read_dir(owners_folder(folder))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect()
    }

    fn write_journal(state_dir: &Path, text: &str) -> PathBuf {
        drop(OwnerJournal::open(state_dir, "host").unwrap());
        let path = owners_folder(state_dir).join("x.jsonl");
        let mut options = File::options();
        let mut file = private_file::open(&path, options.create(true).append(true)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        path
    }

    #[test]
    fn the_journal_of_a_live_service_is_not_orphaned() {
        let dir = tempfile::tempdir().unwrap();
        let owner = OwnerJournal::open(dir.path(), "host").unwrap();
        owner.launching(record(1)).unwrap();
        let orphaned = OrphanedJournal::find_all(dir.path(), "host").unwrap();
        assert!(orphaned.is_empty());
    }

    #[test]
    fn the_journal_of_a_dead_service_is_found_once_and_only_by_the_same_host() {
        let dir = tempfile::tempdir().unwrap();
        let owner = OwnerJournal::open(dir.path(), "host").unwrap();
        for number in 1..=3 {
            owner.launching(record(number)).unwrap();
        }
        let process = ProcessKey {
            pid: 7,
            start_time: 8,
        };
        owner.started(&id(2), process).unwrap();
        owner.ended(&id(3)).unwrap();
        drop(owner);
        let find = |host| OrphanedJournal::find_all(dir.path(), host).unwrap();
        assert!(find("other").is_empty());
        let mut orphaned = find("host");
        assert!(find("host").is_empty(), "locked by the first");
        let journal = orphaned.pop().unwrap();
        let mut live: Vec<_> = journal
            .live
            .iter()
            .map(|record| (record.execution_id.clone(), record.process))
            .collect();
        live.sort_unstable();
        assert_eq!(live, [(id(1), None), (id(2), Some((7, 8)))]);
        journal.remove().unwrap();
        assert!(files(dir.path()).is_empty());
    }

    #[test]
    fn a_record_of_an_earlier_version_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let text = concat!(
            r#"{"owner":{"host":"host","boot_id":"b"}}"#,
            "\n",
            r#"{"launch":{"execution_id":"00000000-0000-0000-0000-000000000001","session_id":"A:p:1","profile":"a"}}"#,
            "\n",
        );
        write_journal(dir.path(), text);
        let orphaned = OrphanedJournal::find_all(dir.path(), "host").unwrap();
        assert_eq!(orphaned[0].live[0].execution_id, id(1));
        assert!(orphaned[0].live[0].start.is_none());
    }

    #[test]
    fn a_torn_line_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let owner = OwnerJournal::open(dir.path(), "host").unwrap();
        owner.launching(record(1)).unwrap();
        drop(owner);
        let path = files(dir.path()).pop().unwrap();
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"{\"ended\":{\"execution_id\":\"0000")
            .unwrap();
        drop(file);
        let orphaned = OrphanedJournal::find_all(dir.path(), "host").unwrap();
        assert_eq!(orphaned[0].live.len(), 1);
    }

    #[track_caller]
    fn check_without_owner(text: &str, stays: bool) {
        let dir = tempfile::tempdir().unwrap();
        let path = write_journal(dir.path(), text);
        let owner = OwnerJournal::open(dir.path(), "host").unwrap();
        owner.launching(record(1)).unwrap();
        drop(owner);
        let orphaned = OrphanedJournal::find_all(dir.path(), "host").unwrap();
        assert_eq!(orphaned.len(), 1);
        assert_eq!(orphaned[0].live[0].execution_id, id(1));
        assert_eq!(path.exists(), stays);
    }

    #[test]
    fn a_journal_without_an_owner_hides_no_other_and_stays() {
        check_without_owner("gibberish\n", true);
    }

    #[test]
    fn the_lock_of_a_dead_owner_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let header = OwnerHeader {
            host: "host".to_owned(),
            boot_id: boot_id().unwrap(),
            // The first process of the system has another start time.
            process: Some((1, u64::MAX)),
        };
        let line = serde_json::to_string(&JournalLine::Owner(header)).unwrap();
        let path = write_journal(dir.path(), &format!("{line}\n"));
        // As a child does before its exec.
        let held = File::open(&path).unwrap();
        let held = LockedFile::lock(held, Access::Exclusive).unwrap();
        let found = std::thread::scope(|scope| {
            let finding = scope.spawn(|| OrphanedJournal::find_all(dir.path(), "host").unwrap());
            std::thread::sleep(EXEC_INTERVAL * 5);
            drop(held);
            finding.join().unwrap()
        });
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn an_empty_journal_hides_no_other_and_is_removed() {
        check_without_owner("", false);
    }

    #[test]
    fn a_journal_that_is_a_link_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = write_journal(dir.path(), "");
        let target = dir.path().join("target");
        std::fs::rename(&path, &target).unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let error = OrphanedJournal::find_all(dir.path(), "host").unwrap_err();
        assert!(matches!(error, Error::NotPrivate { .. }), "{error}");
    }

    #[test]
    fn compaction_keeps_the_journal_short_and_the_live_executions_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let owner = OwnerJournal::open(dir.path(), "host").unwrap();
        owner.launching(record(u128::MAX)).unwrap();
        for number in 0..4000 {
            owner.launching(record(number)).unwrap();
            owner.ended(&id(number)).unwrap();
        }
        let files_now = files(dir.path());
        assert_eq!(files_now.len(), 1);
        assert!(files_now[0].metadata().unwrap().len() <= COMPACT_AT + 1024);
        drop(owner);
        let orphaned = OrphanedJournal::find_all(dir.path(), "host").unwrap();
        assert_eq!(orphaned[0].live.len(), 1);
    }

    #[test]
    fn a_journal_of_many_live_executions_is_compacted_too() {
        let dir = tempfile::tempdir().unwrap();
        let owner = OwnerJournal::open(dir.path(), "host").unwrap();
        for number in 0..2000 {
            owner.launching(record(number)).unwrap();
        }
        for number in 2000..12_000 {
            owner.launching(record(number)).unwrap();
            owner.ended(&id(number)).unwrap();
        }
        let files_now = files(dir.path());
        assert_eq!((files_now.len(), owner.lock().live.len()), (1, 2000));
        let len = files_now[0].metadata().unwrap().len();
        assert!(len <= 4 * COMPACT_AT, "{len} bytes");
        drop(owner);
        let orphaned = OrphanedJournal::find_all(dir.path(), "host").unwrap();
        assert_eq!(orphaned[0].live.len(), 2000);
    }

    fn compact(owner: &OwnerJournal) {
        owner.lock().compact_at = 0;
        owner.ended(&id(0)).unwrap();
    }

    #[test]
    fn a_journal_that_was_opened_before_a_compaction_is_not_orphaned() {
        let dir = tempfile::tempdir().unwrap();
        let owner = OwnerJournal::open(dir.path(), "host").unwrap();
        owner.launching(record(1)).unwrap();
        let path = files(dir.path()).pop().unwrap();
        let file = File::open(&path).unwrap();
        compact(&owner);
        assert!(!path.exists());
        assert!(OrphanedJournal::lock(path, file).unwrap().is_none());
    }

    #[test]
    fn no_scan_during_a_compaction_finds_the_live_executions() {
        let dir = tempfile::tempdir().unwrap();
        let owner = OwnerJournal::open(dir.path(), "host").unwrap();
        owner.launching(record(1)).unwrap();
        std::thread::scope(|scope| {
            let compactions = scope.spawn(|| (0..2000).for_each(|_| compact(&owner)));
            while !compactions.is_finished() {
                let orphaned = OrphanedJournal::find_all(dir.path(), "host").unwrap();
                assert!(orphaned.is_empty(), "{orphaned:?}");
            }
        });
    }

    #[test]
    fn a_service_without_executions_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        drop(OwnerJournal::open(dir.path(), "host").unwrap());
        assert!(files(dir.path()).is_empty());
    }
}
