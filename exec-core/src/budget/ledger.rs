//! What the executions of a group or a session have used: a file that several hosts write.
//!
//! # Theory
//!
//! A line is the total of one execution so far. A later line of the same execution replaces the
//! earlier one, so that every execution counts exactly once, whatever was written how often, and
//! however its host ended. The sum over all executions is what the group has used.
//!
//! Only the holder of the file's lock reads and writes. A reader remembers how far it has read, and
//! reads on from there; to read a line twice has no effect. A line without its newline (a torn
//! write of a killed host) was never acknowledged: `json_lines` cuts it off.
//!
//! **Compaction.** Executions that have ended become one `base` line. The new file replaces the old
//! one by a rename, under the lock of the old one. A writer that has opened the old file before the
//! rename sees, with the lock, that the path refers to another file, and opens again; a reader that
//! remembers the old file begins anew. An execution that was killed with its host never ends in the
//! file, and keeps its line. Every update can compact, not only the last one of an execution: a live
//! session writes a line each second, for days.
//!
//! **Example.** `A` and `B` are executions of two hosts; B's host is killed.
//!
//! | line | sum of the tokens |
//! |---|---|
//! | `A 10` | 10 |
//! | `B 7` | 17 |
//! | `A 30` | 37 |
//! | `B 9`, torn | 37 |
//! | `A 35, ended` | 42 |
//! | compacted: `base 35`, `B 7` | 42 |

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::spent::Spent;
use crate::shared::json_lines;
use crate::shared::kernel_lock::LockedFile;
use crate::shared::private_file;
use crate::{Error, ExecutionId, SessionId};

/// A ledger is rewritten when it reaches this size, or twice the size of the lines that stay.
const COMPACT_AT: u64 = 256 << 10;
/// Twice the length of the longest line.
const TWO_LINES: u64 = 512;
/// The longest name of a group.
const MAX_NAME: usize = 64;
/// How long the ledger of a session is kept after its last line, and how often old ones are searched.
const KEEP_SESSION: Duration = Duration::from_secs(90 * 24 * 3600);
const SEARCH_INTERVAL: Duration = Duration::from_secs(24 * 3600);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LedgerLine {
    /// The sum of executions that have ended.
    Base(Spent),
    Execution {
        id: ExecutionId,
        spent: Spent,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ended: bool,
    },
}

#[derive(Debug)]
pub(crate) struct Ledger {
    path: PathBuf,
    /// The file that `read_to` and the sums belong to: device and inode.
    file: Option<(u64, u64)>,
    read_to: u64,
    /// The line that ends at `read_to`.
    last_line: Vec<u8>,
    compact_at: u64,
    base: Spent,
    live: HashMap<ExecutionId, Spent>,
}

impl Ledger {
    /// Opens no file.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            file: None,
            read_to: 0,
            last_line: Vec::new(),
            compact_at: COMPACT_AT,
            base: Spent::default(),
            live: HashMap::new(),
        }
    }

    /// The sum of all executions.
    pub(crate) fn total(&mut self) -> Result<Spent, Error> {
        // Without a file nothing was used, and the look does not create one.
        if !exists(&self.path)? {
            return Ok(Spent::default());
        }
        self.lock()?;
        Ok(self.sum())
    }

    /// Enters an execution if `check` accepts the sum of the others. Both happen under one lock:
    /// two launches cannot both take the last turn.
    pub(crate) fn enter<E: From<Error>>(
        &mut self,
        id: &ExecutionId,
        spent: Spent,
        check: impl FnOnce(Spent) -> Result<(), E>,
    ) -> Result<Spent, E> {
        if let Some(folder) = self.path.parent() {
            private_file::create_folder(folder).map_err(Error::from)?;
        }
        let file = self.lock()?;
        let others = self.others(id);
        check(others)?;
        self.append(&file, id, spent, false)?;
        Ok(others)
    }

    /// Replaces what an execution has used. Returns what the others have used.
    pub(crate) fn update(
        &mut self,
        id: &ExecutionId,
        spent: Spent,
        ended: bool,
    ) -> Result<Spent, Error> {
        let file = self.lock()?;
        let others = self.others(id);
        if ended || self.live.get(id) != Some(&spent) {
            let len = self.append(&file, id, spent, ended)?;
            // Without `file`, the line is not in the sums yet.
            if self.file.is_some() && len > self.compact_at.max(TWO_LINES * self.live.len() as u64)
            {
                self.compact()?;
            }
        }
        Ok(others)
    }

    /// The session has got another id: its ledger gets another name. If the other id has a ledger
    /// already, the execution moves there.
    pub(crate) fn rename(
        &mut self,
        path: PathBuf,
        id: &ExecutionId,
        spent: Spent,
    ) -> Result<(), Error> {
        // A minted id can become the final one.
        if path == self.path {
            return Ok(());
        }
        let _file = self.lock()?;
        if exists(&path)? {
            // Entered there first: the other order could lose the execution.
            let mut other = Self::new(path);
            other.update(id, spent, false)?;
            std::fs::remove_file(&self.path).map_err(Error::io("remove", &self.path))?;
            *self = other;
        } else {
            std::fs::rename(&self.path, &path).map_err(Error::io("rename", &self.path))?;
            self.path = path;
        }
        Ok(())
    }

    fn sum(&self) -> Spent {
        self.live
            .values()
            .fold(self.base, |sum, spent| sum + *spent)
    }

    fn others(&self, id: &ExecutionId) -> Spent {
        self.sum() - self.live.get(id).copied().unwrap_or_default()
    }

    /// Locks the current file, and reads what is new in it.
    fn lock(&mut self) -> Result<LockedFile, Error> {
        let file = loop {
            let file = json_lines::open_locked(&self.path)?;
            if self.is_current(&file)? {
                break file;
            }
        };
        let mut bytes = Vec::new();
        let read = (&*file)
            .seek(SeekFrom::Start(self.read_to))
            .and_then(|_| (&*file).read_to_end(&mut bytes));
        read.map_err(Error::io("read", &self.path))?;
        for (_, line) in json_lines::whole_lines(&bytes) {
            match serde_json::from_slice(line) {
                Ok(line) => self.apply(line),
                Err(error) => {
                    let path = self.path.display();
                    tracing::warn!(%path, %error, "damaged line of a budget");
                }
            }
        }
        let whole = bytes.iter().rposition(|byte| *byte == b'\n');
        let whole = whole.map_or(0, |at| at + 1);
        self.read_to += whole as u64;
        let mut lines = bytes[..whole].split_inclusive(|byte| *byte == b'\n');
        if let Some(last) = lines.next_back() {
            last.clone_into(&mut self.last_line);
        }
        Ok(file)
    }

    /// Whether the path refers to the file. Forgets what was read from another file.
    fn is_current(&mut self, file: &File) -> Result<bool, Error> {
        let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        let there = match self.path.symlink_metadata() {
            Ok(there) => Some(identity(there)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(Error::io("inspect", &self.path)(error)),
        };
        let locked = file.metadata().map(identity);
        let locked = locked.map_err(Error::io("inspect", &self.path))?;
        if self.file != Some(locked) || !self.has_last_line(file) {
            self.file = Some(locked);
            self.read_to = 0;
            self.last_line.clear();
            self.base = Spent::default();
            self.live.clear();
        }
        Ok(there == Some(locked))
    }

    /// Whether the file still has the last line that was read. A person can have replaced the contents,
    /// and a file that was created since can have the inode of the removed one that was read.
    fn has_last_line(&self, file: &File) -> bool {
        let mut there = vec![0; self.last_line.len()];
        let start = self.read_to - there.len() as u64;
        file.read_exact_at(&mut there, start).is_ok() && there == self.last_line
    }

    fn apply(&mut self, line: LedgerLine) {
        match line {
            LedgerLine::Base(spent) => self.base = spent,
            LedgerLine::Execution { id, spent, ended } => {
                self.live.remove(&id);
                if ended {
                    self.base = self.base + spent;
                } else {
                    self.live.insert(id, spent);
                }
            }
        }
    }

    fn append(
        &mut self,
        file: &LockedFile,
        id: &ExecutionId,
        spent: Spent,
        ended: bool,
    ) -> Result<u64, Error> {
        let line = LedgerLine::Execution {
            id: id.clone(),
            spent,
            ended,
        };
        let mut bytes = serde_json::to_vec(&line)
            .map_err(|error| Error::io("write", &self.path)(error.into()))?;
        let appended = json_lines::append(file, &bytes);
        let len = appended.map_err(Error::io("write", &self.path))?;
        bytes.push(b'\n');
        if len == self.read_to + bytes.len() as u64 {
            self.read_to = len;
            self.last_line = bytes;
            self.apply(line);
        } else {
            // The tail before the line was repaired: read all lines again.
            self.file = None;
        }
        Ok(len)
    }

    /// The caller holds the lock of the current file.
    fn compact(&mut self) -> Result<(), Error> {
        let new = self.path.with_extension("new");
        let mut options = File::options();
        let options = options.create(true).write(true).truncate(true);
        let mut file = private_file::open(&new, options)?;
        let mut text = Vec::new();
        let executions = self.live.iter().map(|(id, spent)| LedgerLine::Execution {
            id: id.clone(),
            spent: *spent,
            ended: false,
        });
        for line in [LedgerLine::Base(self.base)].into_iter().chain(executions) {
            serde_json::to_writer(&mut text, &line)
                .map_err(|error| Error::io("write", &new)(error.into()))?;
            text.push(b'\n');
        }
        file.write_all(&text).map_err(Error::io("write", &new))?;
        std::fs::rename(&new, &self.path).map_err(Error::io("rename", &new))
    }
}

fn exists(path: &Path) -> Result<bool, Error> {
    path.try_exists().map_err(Error::io("inspect", path))
}

/// The ledger of a group.
pub(crate) fn group_path(state_dir: &Path, name: &str) -> Result<PathBuf, Error> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !begins_well || name.len() > MAX_NAME || !name.chars().all(plain) {
        return Err(Error::Invalid {
            what: "name of a group",
            value: name.to_owned(),
            reason: format!(
                "a name has at most {MAX_NAME} letters, digits, '-', '_' and '.', and begins with a \
                 letter or digit"
            ),
        });
    }
    Ok(state_dir.join(format!("budgets/group-{name}.jsonl")))
}

/// The ledger of a session. Named by the agent's id, because the name of the whole id may be too
/// long for a file: it contains the path of the workspace.
pub(super) fn session_path(state_dir: &Path, session_id: &SessionId) -> Result<PathBuf, Error> {
    let name = format!("{}:{}", session_id.executor_type(), session_id.native_id());
    let name = URL_SAFE_NO_PAD.encode(name);
    if name.len() > 230 {
        return Err(Error::Invalid {
            what: "session id",
            value: session_id.to_string(),
            reason: "it is too long for a budget of the session".to_owned(),
        });
    }
    Ok(state_dir.join(format!("budgets/session-{name}.jsonl")))
}

/// Removes the ledgers of sessions that were not used for [`KEEP_SESSION`]: every session has a file of
/// its own, and no call ends a session for good. Once in [`SEARCH_INTERVAL`], for all hosts of the state
/// folder.
pub(super) fn remove_old_sessions(state_dir: &Path) -> Result<(), Error> {
    let folder = state_dir.join("budgets");
    let mark = folder.join("searched");
    if exists(&mark)? && age(&mark)? < SEARCH_INTERVAL {
        return Ok(());
    }
    let mut options = File::options();
    let file = private_file::open(&mark, options.create(true).write(true).truncate(false))?;
    let marked = file.set_modified(SystemTime::now());
    marked.map_err(Error::io("write", &mark))?;
    for entry in std::fs::read_dir(&folder).map_err(Error::io("read", &folder))? {
        let path = entry.map_err(Error::io("read", &folder))?.path();
        let name = path.file_name().map(OsStr::as_encoded_bytes);
        if name.is_some_and(|name| name.starts_with(b"session-"))
            && let Err(error) = remove_if_old(&path)
        {
            tracing::warn!(%error, "cannot remove the budget of an old session");
        }
    }
    Ok(())
}

fn remove_if_old(path: &Path) -> Result<(), Error> {
    // The session can get another id, and with it another file, meanwhile.
    let is_old = || age(path).is_ok_and(|age| age >= KEEP_SESSION);
    if !is_old() {
        return Ok(());
    }
    // An execution that waits for this lock sees that the file is gone, and begins a new one.
    let _file = json_lines::open_locked(path)?;
    if is_old() {
        std::fs::remove_file(path).map_err(Error::io("remove", path))?;
    }
    Ok(())
}

/// How long ago the file was changed.
fn age(path: &Path) -> Result<Duration, Error> {
    let modified = path.symlink_metadata().and_then(|found| found.modified());
    let modified = modified.map_err(Error::io("inspect", path))?;
    Ok(modified.elapsed().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn id(number: u128) -> ExecutionId {
        ExecutionId::new(Uuid::from_u128(number).to_string()).unwrap()
    }

    fn tokens(tokens: u64) -> Spent {
        Spent {
            tokens,
            ..Spent::default()
        }
    }

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("group-a.jsonl");
        (folder, path)
    }

    fn total(path: &Path) -> u64 {
        Ledger::new(path.to_owned()).total().unwrap().tokens
    }

    #[test]
    fn every_execution_counts_once_for_every_reader() {
        let (_folder, path) = folder();
        assert_eq!(total(&path), 0);
        assert!(!path.exists(), "a look creates nothing");
        let (mut a, mut b) = (Ledger::new(path.clone()), Ledger::new(path.clone()));
        assert_eq!(a.update(&id(1), tokens(10), false).unwrap(), tokens(0));
        assert_eq!(b.update(&id(2), tokens(7), false).unwrap(), tokens(10));
        assert_eq!(a.update(&id(1), tokens(30), false).unwrap(), tokens(7));
        assert_eq!(a.update(&id(1), tokens(35), true).unwrap(), tokens(7));
        assert_eq!(b.update(&id(2), tokens(7), false).unwrap(), tokens(35));
        assert_eq!(total(&path), 42);
    }

    #[test]
    fn a_ledger_that_cannot_be_reached_is_not_an_empty_one() {
        let (_folder, path) = folder();
        std::fs::write(&path, "").unwrap();
        let below = path.join("group-b.jsonl");
        assert!(matches!(Ledger::new(below).total(), Err(Error::Io { .. })));
    }

    #[test]
    fn a_torn_line_does_not_count_and_hides_no_other() {
        let (_folder, path) = folder();
        let mut a = Ledger::new(path.clone());
        a.update(&id(1), tokens(10), false).unwrap();
        let mut b = Ledger::new(path.clone());
        b.update(&id(2), tokens(7), false).unwrap();
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(br#"{"execution":{"id":"00000000-0000"#)
            .unwrap();
        assert_eq!(total(&path), 17);
        a.update(&id(1), tokens(11), true).unwrap();
        b.update(&id(2), tokens(8), false).unwrap();
        assert_eq!((total(&path), a.total().unwrap().tokens), (19, 19));
    }

    #[test]
    fn a_last_line_without_a_newline_is_not_lost_by_a_compaction() {
        let (_folder, path) = folder();
        let mut ledger = Ledger::new(path.clone());
        ledger.compact_at = 1;
        ledger.update(&id(1), tokens(10), false).unwrap();
        let edited = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, edited.trim_end()).unwrap();
        ledger.update(&id(1), tokens(35), true).unwrap();
        assert_eq!(total(&path), 35);
    }

    /// ext4 gives the inode of a removed file to the next one: after two compactions, a reader can
    /// find another file under the same inode.
    #[test]
    fn other_contents_under_the_same_inode_are_read_from_the_beginning() {
        let (folder, path) = folder();
        let mut ledger = Ledger::new(path.clone());
        ledger.update(&id(1), tokens(10), false).unwrap();
        let second = folder.path().join("second.jsonl");
        let mut other = Ledger::new(second.clone());
        other.update(&id(2), tokens(30), true).unwrap();
        other.update(&id(3), tokens(7), false).unwrap();
        let inode = path.metadata().unwrap().ino();
        std::fs::write(&path, std::fs::read(&second).unwrap()).unwrap();
        assert_eq!(path.metadata().unwrap().ino(), inode);
        assert_eq!(ledger.total().unwrap(), tokens(37));
    }

    #[test]
    fn a_compaction_changes_no_sum_for_any_reader() {
        let (_folder, path) = folder();
        let mut other = Ledger::new(path.clone());
        other.update(&id(0), tokens(5), false).unwrap();
        let mut ledger = Ledger::new(path.clone());
        for number in 1..=4000 {
            ledger.update(&id(number), tokens(1), false).unwrap();
            ledger.update(&id(number), tokens(2), true).unwrap();
            if number % 1000 == 0 {
                let expected = u64::try_from(number).unwrap() * 2;
                let others = other.update(&id(0), tokens(5), false).unwrap();
                assert_eq!(others, tokens(expected));
            }
        }
        assert!(path.metadata().unwrap().len() <= COMPACT_AT + 1024);
        assert_eq!(total(&path), 8005);
    }

    #[test]
    fn a_ledger_of_an_execution_that_does_not_end_stays_short() {
        let (_folder, path) = folder();
        let mut other = Ledger::new(path.clone());
        other.update(&id(0), tokens(5), false).unwrap();
        let mut ledger = Ledger::new(path.clone());
        // A line each second, for three hours.
        for used in 1..=10_000 {
            ledger.update(&id(1), tokens(used), false).unwrap();
        }
        assert!(path.metadata().unwrap().len() <= COMPACT_AT + 1024);
        let others = other.update(&id(0), tokens(5), false).unwrap();
        assert_eq!(others, tokens(10_000));
        assert_eq!(total(&path), 10_005);
    }

    #[test]
    fn a_ledger_of_many_open_executions_is_not_rewritten_for_each_line() {
        let (_folder, path) = folder();
        let mut ledger = Ledger::new(path.clone());
        for number in 0..5000 {
            ledger.update(&id(number), tokens(1), false).unwrap();
        }
        let before = path.metadata().unwrap();
        assert!(before.len() > COMPACT_AT);
        let mut next = Ledger::new(path.clone());
        next.update(&id(7), tokens(2), true).unwrap();
        assert_eq!(path.metadata().unwrap().ino(), before.ino());
        assert_eq!(total(&path), 5001);
    }

    #[test]
    fn the_last_turn_is_taken_once() {
        let (_folder, path) = folder();
        let taken: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8u128)
                .map(|thread| {
                    let path = path.clone();
                    scope.spawn(move || {
                        let mut ledger = Ledger::new(path);
                        let one = tokens(1);
                        (0..20u128)
                            .filter(|number| {
                                let id = id(thread * 100 + number);
                                let check = |others: Spent| match others.tokens < 10 {
                                    true => Ok(()),
                                    false => Err(Error::NoStateFolder),
                                };
                                ledger.enter(&id, one, check).is_ok()
                            })
                            .count()
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!((taken, total(&path)), (10, 10));
    }

    #[test]
    fn a_renamed_ledger_keeps_its_sum() {
        let (folder, path) = folder();
        let mut ledger = Ledger::new(path.clone());
        ledger.update(&id(1), tokens(3), false).unwrap();
        ledger.rename(path.clone(), &id(1), tokens(3)).unwrap();
        assert_eq!(total(&path), 3);
        let second = folder.path().join("second.jsonl");
        ledger.rename(second.clone(), &id(1), tokens(3)).unwrap();
        assert_eq!((total(&second), path.exists()), (3, false));
        ledger.update(&id(1), tokens(4), false).unwrap();
        let third = folder.path().join("third.jsonl");
        let mut existing = Ledger::new(third.clone());
        existing.update(&id(9), tokens(100), true).unwrap();
        ledger.rename(third.clone(), &id(1), tokens(4)).unwrap();
        assert_eq!((total(&third), second.exists()), (104, false));
    }

    #[test]
    fn a_link_or_a_file_of_others_is_neither_read_nor_written() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        std::fs::write(&target, "mine").unwrap();
        let enter = |path: &Path| {
            let accept = |_: Spent| Ok::<_, Error>(());
            Ledger::new(path.to_owned()).enter(&id(1), tokens(1), accept)
        };
        let budgets = folder.path().join("budgets");
        let path = budgets.join("group-a.jsonl");
        enter(&path).unwrap();
        let mode = |path: &Path| path.symlink_metadata().unwrap().mode() & 0o777;
        assert_eq!((mode(&budgets), mode(&path)), (0o700, 0o600));
        for mode in [0o620, 0o602] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let refused = enter(&path);
            assert!(
                matches!(refused, Err(Error::NotPrivate { .. })),
                "{refused:?}"
            );
            let refused = Ledger::new(path.clone()).total();
            assert!(
                matches!(refused, Err(Error::NotPrivate { .. })),
                "{refused:?}"
            );
        }
        let missing = folder.path().join("missing");
        for (name, to) in [("group-b.jsonl", &target), ("group-c.jsonl", &missing)] {
            symlink(to, budgets.join(name)).unwrap();
            let refused = enter(&budgets.join(name));
            assert!(
                matches!(refused, Err(Error::NotPrivate { .. })),
                "{refused:?}"
            );
        }
        symlink(&budgets, folder.path().join("link")).unwrap();
        let refused = enter(&folder.path().join("link/group-d.jsonl"));
        assert!(
            matches!(refused, Err(Error::NotPrivate { .. })),
            "{refused:?}"
        );
        // The file of a compaction.
        let path = budgets.join("group-e.jsonl");
        symlink(&target, path.with_extension("new")).unwrap();
        enter(&path).unwrap();
        let mut ledger = Ledger::new(path);
        ledger.compact_at = 1;
        let refused = ledger.update(&id(1), tokens(1), true);
        assert!(
            matches!(refused, Err(Error::NotPrivate { .. })),
            "{refused:?}"
        );
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "mine");
        assert!(!missing.exists());
    }

    #[test]
    fn names_of_groups_are_names_of_files() {
        let state = Path::new("/s");
        assert_eq!(
            group_path(state, "a-1_b.c").unwrap(),
            Path::new("/s/budgets/group-a-1_b.c.jsonl")
        );
        for name in ["", ".", "../a", "a/b", "-a", "a b", &"a".repeat(65)] {
            assert!(group_path(state, name).is_err(), "{name:?}");
        }
    }
}
