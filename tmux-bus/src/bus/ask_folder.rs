//! An ask that outlives its caller.
//!
//! # Theory
//!
//! Each ask has a folder `asks/<id>` in the folder of the session:
//!
//! | file | content |
//! |---|---|
//! | `request.json` | sender, receiver, text, time limit |
//! | `worker` | the id of the process that carries the ask out, which holds the lock of this file |
//! | `result.json` | the outcome; written once, by renaming |
//!
//! - **Invariant.** A result is complete, and never changes.
//! - **Invariant.** Without a result and without a lock the process has died: the outcome is not
//!   known. The lock is looked at before the result is read for the last time, because the process
//!   stores the result first.
//! - The caller gets the id after the process has the lock.
//! - **Bound.** At most [`MAX_ASKS`] asks with [`MAX_BYTES`] bytes are kept. A new ask removes the
//!   oldest ones that have ended; if that is not enough, because the others run or have just ended,
//!   it is refused. The bytes are those of the stored messages and answers; the answers of asks
//!   that run come on top.

use std::fs::{self, DirBuilder, File};
use std::io::{self, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::Error;
use crate::cluster::Answer;
use crate::log::FileWatch;
use crate::shared::kernel_lock::{Access, LockedFile};
use crate::shared::private_file;
use crate::timing::WORKER_LOOK;
use crate::vocabulary::{AskReport, AskState, Failure};

/// Number of asks that a session keeps.
const MAX_ASKS: usize = 1_000;

/// Bytes of the messages and answers that a session keeps: four of the longest answers.
const MAX_BYTES: u64 = 256 << 20;

/// How long the result of an ask is kept at least, for a caller that was ended and calls `wait`.
const RESULT_KEPT: Duration = Duration::from_secs(10);

/// How long an ask without a result and without a process is kept at least: its process may still
/// start, see [`WORKER_LIMIT`](crate::timing::WORKER_LIMIT).
const UNTAKEN_KEPT: Duration = Duration::from_secs(60);

/// Letters and digits of an id. Short, because agents copy it.
const ID_LENGTH: usize = 12;

#[derive(Clone, Debug)]
pub(super) struct AskFolder {
    id: String,
    path: PathBuf,
}

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct AskRequest {
    pub(super) from: String,
    /// Whether the sender is an agent of the cluster.
    pub(super) is_agent: bool,
    pub(super) to: String,
    pub(super) text: String,
    pub(super) limit_ms: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AskResult {
    Answered {
        text: String,
        has_marker: bool,
        altered: Option<String>,
    },
    Failed(Failure),
}

impl AskFolder {
    /// Stores a new request. `session` is the folder of the session, which is not created.
    pub(super) fn create(session: &Path, request: &AskRequest) -> Result<Self, Error> {
        let asks = session.join("asks");
        create_folder(&asks)?;
        private_file::check_folder(&asks)?;
        make_room(&asks, request.text.len() as u64)?;
        let id = uuid::Uuid::new_v4().simple().to_string()[..ID_LENGTH].to_owned();
        let path = asks.join(&id);
        create_folder(&path)?;
        let ask = Self { id, path };
        ask.store("request.json", request)?;
        Ok(ask)
    }

    /// The ask of this id.
    pub(super) fn open(session: &Path, id: &str) -> Result<(Self, AskRequest), Error> {
        let unknown = || Error::UnknownAsk { id: id.to_owned() };
        let is_valid = id.len() == ID_LENGTH && id.bytes().all(|b| b.is_ascii_alphanumeric());
        if !is_valid {
            return Err(unknown());
        }
        let ask = Self {
            id: id.to_owned(),
            path: session.join("asks").join(id),
        };
        let request = ask.load("request.json")?.ok_or_else(unknown)?;
        Ok((ask, request))
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Makes this process the one that carries out the ask; `None` if another one does or has done
    /// so. The lock must be held until the result is stored.
    pub(super) fn take(&self) -> Result<Option<LockedFile>, Error> {
        let path = self.path.join("worker");
        let mut options = File::options();
        // Created here and only here: a second process cannot repeat the ask of one that was
        // killed.
        let file = match private_file::open(&path, options.create_new(true).write(true)) {
            Err(_) if path.exists() => return Ok(None),
            file => file?,
        };
        let lock = LockedFile::try_lock(file, Access::Exclusive);
        let Some(lock) = lock.map_err(Error::io("lock", &path))? else {
            return Ok(None);
        };
        write!(&*lock, "{}", std::process::id()).map_err(Error::io("write", &path))?;
        Ok(Some(lock))
    }

    pub(super) fn store_result(&self, result: Result<Answer, Error>) -> Result<(), Error> {
        let result = match result {
            Ok(answer) => AskResult::Answered {
                text: answer.text,
                has_marker: answer.has_marker,
                altered: answer.altered,
            },
            Err(error) => AskResult::Failed(Failure::from(&error)),
        };
        self.store("result.json", &result)
    }

    /// Waits for the outcome; an ask that still runs at `limit` is reported as running.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn wait(
        &self,
        request: &AskRequest,
        limit: Option<Instant>,
    ) -> Result<AskReport, Error> {
        let mut watch = FileWatch::new();
        loop {
            watch.arm(&self.path.join("result.json"));
            let is_alive = self.is_alive()?;
            if let Some(result) = self.load("result.json")? {
                return Ok(self.report(request, Some(result)));
            }
            if !is_alive {
                return Ok(self.uncertain(request));
            }
            let is_over = limit.is_some_and(|limit| Instant::now() >= limit);
            if is_over {
                return Ok(self.report(request, None));
            }
            // The kernel reports no release of a lock. The id of the process is no event either: it can be that of
            // another process in the pid namespace of the waiter.
            let next_look = Instant::now() + WORKER_LOOK;
            let next_look = limit.map_or(next_look, |limit| limit.min(next_look));
            let _ = tokio::time::timeout_at(next_look, watch.changed()).await;
        }
    }

    /// Whether the process that carries out the ask lives.
    fn is_alive(&self) -> Result<bool, Error> {
        let path = self.path.join("worker");
        let mut options = File::options();
        let Some(file) = private_file::open_existing(&path, options.read(true))? else {
            return Ok(false);
        };
        let free = LockedFile::try_lock(file, Access::Shared).map_err(Error::io("lock", &path))?;
        Ok(free.is_none())
    }

    pub(super) fn running(&self, request: &AskRequest) -> AskReport {
        self.report(request, None)
    }

    fn report(&self, request: &AskRequest, result: Option<AskResult>) -> AskReport {
        let mut report = AskReport {
            id: self.id.clone(),
            from: request.from.clone(),
            to: request.to.clone(),
            state: AskState::Running,
            answer: None,
            has_marker: None,
            altered: None,
            error: None,
        };
        match result {
            None => {}
            Some(AskResult::Answered {
                text,
                has_marker,
                altered,
            }) => {
                report.state = AskState::Answered;
                report.answer = Some(text);
                report.has_marker = Some(has_marker);
                report.altered = altered;
            }
            Some(AskResult::Failed(failure)) => {
                report.state = AskState::Failed;
                report.error = Some(failure);
            }
        }
        report
    }

    fn uncertain(&self, request: &AskRequest) -> AskReport {
        let error = Error::OutcomeUnknown {
            id: self.id.clone(),
        };
        AskReport {
            state: AskState::Uncertain,
            error: Some(Failure::from(&error)),
            ..self.report(request, None)
        }
    }

    fn store(&self, name: &str, value: &impl Serialize) -> Result<(), Error> {
        let path = self.path.join(name);
        let part = self.path.join(format!(".{name}"));
        let bytes =
            serde_json::to_vec(value).map_err(|error| Error::io("write", &path)(error.into()))?;
        let mut file = private_file::open(&part, File::options().write(true).create_new(true))?;
        file.write_all(&bytes)
            .and_then(|()| fs::rename(&part, &path))
            .map_err(Error::io("write", &path))
    }

    fn load<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Error> {
        let path = self.path.join(name);
        let Some(file) = private_file::open_existing(&path, File::options().read(true))? else {
            return Ok(None);
        };
        let value = serde_json::from_reader(BufReader::new(file));
        value
            .map(Some)
            .map_err(|error| Error::io("read", &path)(error.into()))
    }
}

/// Without its parents: the folder of a session is removed with it.
fn create_folder(path: &Path) -> Result<(), Error> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(Error::io("create the folder", path)(error))
        }
        _ => Ok(()),
    }
}

/// An ask among those that are kept.
struct KeptAsk {
    changed_at: SystemTime,
    bytes: u64,
    path: PathBuf,
}

impl KeptAsk {
    fn of(path: PathBuf) -> Option<Self> {
        let length = |name: &str| path.join(name).metadata().map_or(0, |found| found.len());
        Some(Self {
            changed_at: path.metadata().and_then(|found| found.modified()).ok()?,
            bytes: length("request.json") + length("result.json"),
            path,
        })
    }

    /// Whether it has ended, and no caller needs it. The folder changes when the result is stored.
    fn is_removable(&self) -> bool {
        let age = self.changed_at.elapsed().unwrap_or_default();
        if self.path.join("result.json").exists() {
            return age > RESULT_KEPT;
        }
        let ask = AskFolder {
            id: String::new(),
            path: self.path.clone(),
        };
        age > UNTAKEN_KEPT && !ask.is_alive().unwrap_or(true)
    }
}

/// Removes the oldest asks beyond the bounds, which a new ask of so many bytes counts for.
fn make_room(asks: &Path, new: u64) -> Result<(), Error> {
    let entries = fs::read_dir(asks).map_err(Error::io("list", asks))?;
    let kept = entries.flatten().map(|entry| entry.path());
    let mut kept: Vec<KeptAsk> = kept.filter_map(KeptAsk::of).collect();
    let mut count = kept.len();
    let mut bytes: u64 = kept.iter().map(|ask| ask.bytes).sum();
    let is_full = |count, bytes| count >= MAX_ASKS || bytes + new > MAX_BYTES;
    if !is_full(count, bytes) {
        return Ok(());
    }
    kept.sort_by_key(|ask| ask.changed_at);
    for ask in kept {
        if !is_full(count, bytes) {
            return Ok(());
        }
        if ask.is_removable() && fs::remove_dir_all(&ask.path).is_ok() {
            count -= 1;
            bytes -= ask.bytes;
        }
    }
    match is_full(count, bytes) {
        true => Err(Error::TooManyAsks { asks: count, bytes }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> AskRequest {
        AskRequest {
            from: "a".to_owned(),
            is_agent: true,
            to: "b".to_owned(),
            text: "hello".to_owned(),
            limit_ms: 1_000,
        }
    }

    #[tokio::test]
    async fn the_outcome_is_running_then_the_result_and_can_be_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let ask = AskFolder::create(dir.path(), &request()).unwrap();
        let lock = ask.take().unwrap().unwrap();
        let (same, read) = AskFolder::open(dir.path(), ask.id()).unwrap();
        assert_eq!(read.text, "hello");
        let report = same.wait(&read, Some(Instant::now())).await.unwrap();
        assert_eq!(report.state, AskState::Running);
        let waiting = tokio::spawn(async move { same.wait(&read, None).await.unwrap() });
        tokio::task::yield_now().await;
        let error = Error::UnknownAgent {
            name: "b".to_owned(),
            known: Vec::new(),
        };
        ask.store_result(Err(error)).unwrap();
        drop(lock);
        let report = waiting.await.unwrap();
        assert_eq!(report.state, AskState::Failed);
        assert_eq!(ask.wait(&request(), None).await.unwrap(), report);
    }

    /// The lock is free and there is no result.
    #[tokio::test]
    async fn an_ask_whose_process_died_is_uncertain_and_is_not_carried_out_again() {
        let dir = tempfile::tempdir().unwrap();
        let ask = AskFolder::create(dir.path(), &request()).unwrap();
        drop(ask.take().unwrap().unwrap());
        let report = ask.wait(&request(), None).await.unwrap();
        assert_eq!(report.state, AskState::Uncertain);
        assert!(ask.take().unwrap().is_none());
    }

    /// The id in the file is that of a process that lives, as in another pid namespace.
    #[tokio::test]
    async fn the_death_of_the_process_is_told_by_its_lock() {
        let dir = tempfile::tempdir().unwrap();
        let ask = AskFolder::create(dir.path(), &request()).unwrap();
        let lock = ask.take().unwrap().unwrap();
        let waiting = ask.clone();
        let waiting = tokio::spawn(async move { waiting.wait(&request(), None).await.unwrap() });
        tokio::task::yield_now().await;
        drop(lock);
        let report = tokio::time::timeout(Duration::from_secs(40), waiting).await;
        assert_eq!(report.unwrap().unwrap().state, AskState::Uncertain);
    }

    #[test]
    fn an_id_is_no_path() {
        let dir = tempfile::tempdir().unwrap();
        let ask = AskFolder::create(dir.path(), &request()).unwrap();
        for id in [
            "",
            "../asks",
            "aaaaaaaaaaaa",
            &format!("../asks/{}", ask.id()),
        ] {
            let opened = AskFolder::open(dir.path(), id);
            assert!(matches!(opened, Err(Error::UnknownAsk { .. })), "{id:?}");
        }
    }

    /// Asks of ten minutes ago.
    fn make_old(asks: &Path) {
        let old = SystemTime::now() - Duration::from_secs(600);
        for entry in fs::read_dir(asks).unwrap() {
            let folder = File::open(entry.unwrap().path()).unwrap();
            folder.set_modified(old).unwrap();
        }
    }

    #[test]
    fn old_asks_are_removed_and_those_that_run_stay() {
        let dir = tempfile::tempdir().unwrap();
        let running = AskFolder::create(dir.path(), &request()).unwrap();
        let _lock = running.take().unwrap().unwrap();
        let asks = dir.path().join("asks");
        for number in 0..MAX_ASKS {
            fs::create_dir(asks.join(format!("{number:012}"))).unwrap();
        }
        make_old(&asks);
        AskFolder::create(dir.path(), &request()).unwrap();
        assert!(AskFolder::open(dir.path(), running.id()).is_ok());
        assert_eq!(fs::read_dir(&asks).unwrap().count(), MAX_ASKS);
    }

    #[test]
    fn an_ask_is_refused_while_none_can_be_removed() {
        let dir = tempfile::tempdir().unwrap();
        let asks = dir.path().join("asks");
        fs::create_dir(&asks).unwrap();
        for number in 0..MAX_ASKS {
            fs::create_dir(asks.join(format!("{number:012}"))).unwrap();
        }
        let error = AskFolder::create(dir.path(), &request()).unwrap_err();
        assert!(matches!(error, Error::TooManyAsks { asks: MAX_ASKS, .. }));
        assert!(error.is_not_sent());
        assert_eq!(fs::read_dir(&asks).unwrap().count(), MAX_ASKS);
    }

    #[test]
    fn the_bytes_of_answers_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let asks = dir.path().join("asks");
        let answered = |bytes| {
            let ask = AskFolder::create(dir.path(), &request()).unwrap();
            // A sparse file.
            let result = File::create(ask.path.join("result.json")).unwrap();
            result.set_len(bytes).unwrap();
            ask
        };
        let large = answered(MAX_BYTES - 1_000);
        let small = answered(1_000);
        let error = AskFolder::create(dir.path(), &request()).unwrap_err();
        assert!(matches!(error, Error::TooManyAsks { asks: 2, bytes } if bytes >= MAX_BYTES));
        // Only as many as needed are removed, the oldest first.
        make_old(&asks);
        let older = SystemTime::now() - Duration::from_secs(601);
        let folder = File::open(&large.path).unwrap();
        folder.set_modified(older).unwrap();
        AskFolder::create(dir.path(), &request()).unwrap();
        assert!(!large.path.exists() && small.path.exists());
    }
}
