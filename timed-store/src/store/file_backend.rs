//! Entries in locked JSON files: one operation, from lock to unlock.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::backend::{Backend, Queue, Value, WaitLimit};
use super::changes::Changes;
use super::core::LAST_ATTEMPT;
use super::decision::{Decision, decide};
use super::runtime::Runtime;
use super::settings::{FileSettings, Settings};
use super::working_copy::{Scope, WorkingCopy};
use crate::disk::{self, Contents, FileWatch, HeldLock, LockFile, WaitQueue, WaitTicket};
use crate::format::{
    Document, NextVersion, SalvagedEntry, StoredEntry, TokenRecord, is_recognisable, salvage,
};
use crate::shared::kernel_lock::Access;
use crate::{Durability, Entries, Error, Incident, LockPolicy, SessionId, Transaction};

/// Keeps the entries in a locked JSON file, and those of named slots in a second one.
///
/// Every operation works on a [`WorkingCopy`], which knows nothing of files.
pub(crate) struct FileBackend {
    settings: Arc<Settings>,
    files: FileSettings,
    lock: Arc<LockFile>,
    watch: FileWatch,
}

/// Whether JSON is a value of the store's type. Recovery uses it to distinguish entries from other
/// objects.
type IsValue = fn(&str) -> bool;

/// Which files an operation reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// The file with the own entry.
    Own,
    /// The slots too: other sessions may have entries there.
    All,
}

/// The answer of an operation, and the damage that it found.
struct Answer<A> {
    answer: A,
    incidents: Vec<Incident>,
}

impl FileBackend {
    pub(crate) fn new(settings: Arc<Settings>, files: FileSettings) -> Self {
        Self {
            lock: Arc::new(LockFile::new(Arc::clone(&files.location))),
            watch: FileWatch::default(),
            settings,
            files,
        }
    }

    /// The same files for another slot.
    pub(crate) fn with_settings(&self, settings: Arc<Settings>) -> Self {
        Self {
            settings,
            files: self.files.clone(),
            lock: Arc::clone(&self.lock),
            watch: self.watch.clone(),
        }
    }

    pub(crate) fn files(&self) -> &FileSettings {
        &self.files
    }

    /// Lets `query` read the live entries, and returns its answer.
    ///
    /// Cleanup by readers: a reader holds a shared lock and may not write, and a shared lock
    /// cannot become an exclusive one without a moment in between. So the reader answers first,
    /// unlocks, and then removes expired entries in an operation of its own, which reads the file
    /// again: another process may have refreshed an entry in that moment. The cleanup never waits
    /// and never overtakes a waiter. If the lock is not free, the next writer cleans up.
    async fn read<R: Runtime, A>(
        &self,
        policy: LockPolicy,
        extent: Extent,
        is_value: IsValue,
        query: impl FnOnce(&WorkingCopy<'_>) -> Result<A, Error>,
    ) -> Result<Answer<A>, Error> {
        let held = self.lock::<R>(Access::Shared, policy).await?;
        let contents = disk::read(&self.own_file())?;
        let other = self.read_other(extent)?;
        drop(held);
        let mut salvaged_elsewhere = Vec::new();
        let mut copy = WorkingCopy::new(&self.settings, Scope::Read, self.files.clock.now_ms());
        let damage = match contents.as_ref().map(|file| parse(&file.bytes)) {
            Some(Ok(document)) => {
                copy.load(document);
                None
            }
            Some(Err(damage)) => Some(damage),
            None => None,
        };
        if let Some(reason) = damage {
            drop(copy);
            let files = (contents.as_ref(), other.as_ref());
            return self
                .read_damaged::<R, A>(files, reason, extent, is_value, query)
                .await;
        }
        let elsewhere = (other.as_ref(), &mut salvaged_elsewhere);
        self.load_elsewhere(&mut copy, elsewhere, is_value, || self.lock.record())?;
        let answer = query(&copy)?;
        let mut incidents = std::mem::take(&mut copy.incidents);
        let mut repaired = Vec::new();
        if copy.is_changed {
            match self.clean::<R>(is_value).await {
                // The cleanup has reported what it found in the own file.
                Ok(Some(found)) => {
                    let other = self.other_file();
                    incidents.retain(|incident| incident.path() == other);
                    repaired = found;
                }
                Ok(None) => {}
                Err(error) => self.warn_about_cleanup(&error),
            }
        }
        self.settings.report(&incidents);
        incidents.extend(repaired);
        Ok(Answer { answer, incidents })
    }

    /// Reads a corrupt file, and repairs it in the same step if the lock is free at once.
    async fn read_damaged<R: Runtime, A>(
        &self,
        (contents, other): (Option<&Contents>, Option<&Contents>),
        reason: String,
        extent: Extent,
        is_value: IsValue,
        query: impl FnOnce(&WorkingCopy<'_>) -> Result<A, Error>,
    ) -> Result<Answer<A>, Error> {
        let (mut query, mut answer) = (Some(query), None);
        match self.lock.try_lock(Access::Exclusive) {
            Ok(None) => {}
            Err(error) => self.warn_about_cleanup(&error),
            Ok(Some(held)) => {
                let ask = |copy: &mut WorkingCopy<'_>| {
                    if let Some(query) = query.take() {
                        answer = Some((query(copy)?, copy.salvaged(), copy.incidents.clone()));
                    }
                    Ok(())
                };
                let repaired = match self.prepare(held, Scope::Change, extent, is_value, ask) {
                    Ok(((), commit)) => commit.run::<R>().await,
                    Err(error) => Err(error),
                };
                match (repaired, answer) {
                    (Ok(incidents), Some((answer, ..))) => return Ok(Answer { answer, incidents }),
                    (Err(error), Some((answer, saved, incidents))) => {
                        self.warn_about_cleanup(&error);
                        return Ok(self.damaged(answer, incidents, saved, reason));
                    }
                    (Err(error), None) => return Err(error),
                    (Ok(_), None) => {
                        return Err(Error::NotAStore {
                            path: self.own_file(),
                        });
                    }
                }
            }
        }
        let (mut salvaged, mut salvaged_elsewhere) = (Vec::new(), Vec::new());
        let mut copy = WorkingCopy::new(&self.settings, Scope::Read, self.files.clock.now_ms());
        load(&mut copy, contents, &mut salvaged, is_value);
        if copy.salvaged() == 0 {
            check_is_ours(&self.own_file(), contents, || self.lock.record())?;
        }
        let elsewhere = (other, &mut salvaged_elsewhere);
        self.load_elsewhere(&mut copy, elsewhere, is_value, || self.lock.record())?;
        match query.take() {
            Some(query) => {
                let (answer, saved) = (query(&copy)?, copy.salvaged());
                Ok(self.damaged(answer, copy.incidents, saved, reason))
            }
            None => Err(Error::NotAStore {
                path: self.own_file(),
            }),
        }
    }

    /// The answer from a corrupt file that was not repaired.
    fn damaged<A>(
        &self,
        answer: A,
        mut incidents: Vec<Incident>,
        saved: usize,
        reason: String,
    ) -> Answer<A> {
        incidents.push(Incident::Damaged {
            path: self.own_file(),
            saved,
            reason,
        });
        self.settings.report(&incidents);
        Answer { answer, incidents }
    }

    fn warn_about_cleanup(&self, error: &Error) {
        let path = self.settings.path.display();
        tracing::warn!(%path, %error, "cannot clean up after a read");
    }

    /// Lets `change` work on the live entries, and writes the result.
    async fn change<R: Runtime, A>(
        &self,
        policy: LockPolicy,
        scope: Scope,
        extent: Extent,
        is_value: IsValue,
        change: impl FnOnce(&mut WorkingCopy<'_>) -> Result<A, Error>,
    ) -> Result<Answer<A>, Error> {
        let held = self.lock::<R>(Access::Exclusive, policy).await?;
        let (answer, commit) = self.prepare(held, scope, extent, is_value, change)?;
        let incidents = commit.run::<R>().await?;
        Ok(Answer { answer, incidents })
    }

    /// A change of the entry of this session.
    async fn change_own<R: Runtime, T: Value, A>(
        &self,
        policy: LockPolicy,
        change: impl FnOnce(&mut WorkingCopy<'_>) -> Result<A, Error>,
    ) -> Result<A, Error> {
        self.change::<R, _>(policy, Scope::Change, Extent::Own, is_value::<T>, change)
            .await
            .map(|done| done.answer)
    }

    /// Removes expired entries from the own file; `None` if the lock is held.
    async fn clean<R: Runtime>(&self, is_value: IsValue) -> Result<Option<Vec<Incident>>, Error> {
        let Some(held) = self.lock.try_lock(Access::Exclusive)? else {
            return Ok(None);
        };
        let ((), commit) = self.prepare(held, Scope::Change, Extent::Own, is_value, |_| Ok(()))?;
        commit.run::<R>().await.map(Some)
    }

    async fn lock<R: Runtime>(
        &self,
        access: Access,
        policy: LockPolicy,
    ) -> Result<HeldLock, Error> {
        let (held, waited) = match policy {
            LockPolicy::Fail => (self.lock.try_lock_barging(access)?, Duration::ZERO),
            LockPolicy::Wait(limit) => match self.lock.try_lock(access)? {
                Some(held) => (Some(held), Duration::ZERO),
                None => (self.lock.wait::<R>(access, limit).await?, limit),
            },
        };
        held.ok_or_else(|| Error::Locked {
            path: self.settings.path.clone(),
            holder: self.lock.holder(),
            waited,
        })
    }

    fn policy(&self, limit: WaitLimit) -> LockPolicy {
        match (limit, self.files.policy) {
            (WaitLimit::AtLeast(limit), _) => self.at_least(limit),
            (WaitLimit::AtMost(limit), LockPolicy::Wait(wait)) => LockPolicy::Wait(wait.min(limit)),
            (_, policy) => policy,
        }
    }

    /// The handle's policy, but at least this long.
    fn at_least(&self, limit: Duration) -> LockPolicy {
        match self.files.policy {
            LockPolicy::Wait(wait) => LockPolicy::Wait(wait.max(limit)),
            LockPolicy::Fail if limit.is_zero() => LockPolicy::Fail,
            LockPolicy::Fail => LockPolicy::Wait(limit),
        }
    }

    fn own_file(&self) -> PathBuf {
        match self.settings.slot {
            None => self.files.location.data.clone(),
            Some(_) => self.files.location.slots(),
        }
    }

    fn other_file(&self) -> PathBuf {
        match self.settings.slot {
            None => self.files.location.slots(),
            Some(_) => self.files.location.data.clone(),
        }
    }

    fn read_other(&self, extent: Extent) -> Result<Option<Contents>, Error> {
        match extent {
            Extent::Own => Ok(None),
            Extent::All => disk::read(&self.other_file()),
        }
    }

    /// Loads the other file of the store, which the operation does not change, and returns its
    /// document if it is not corrupt. The damage of a corrupt one is an incident: the entries that
    /// it has lost may hold the value that the operation takes. The next change of an entry in that
    /// file recovers it.
    fn load_elsewhere<'a>(
        &self,
        copy: &mut WorkingCopy<'a>,
        (contents, salvaged): (Option<&'a Contents>, &'a mut Vec<SalvagedEntry>),
        is_value: IsValue,
        lock_record: impl FnOnce() -> Result<disk::LockRecord, Error>,
    ) -> Result<Option<Document<'a>>, Error> {
        let Some(file) = contents else {
            return Ok(None);
        };
        let reason = match parse(&file.bytes) {
            Ok(document) => {
                copy.load_elsewhere(document.record, document.entries.iter().cloned());
                return Ok(Some(document));
            }
            Err(reason) => reason,
        };
        let path = self.other_file();
        *salvaged = salvage(&file.bytes, is_value);
        if salvaged.is_empty() {
            check_is_ours(&path, contents, lock_record)?;
        }
        let lines = salvaged.iter().map(|entry| entry.line.as_str());
        copy.load_elsewhere(None, lines.filter_map(StoredEntry::parse));
        copy.incidents.push(Incident::Damaged {
            path,
            saved: salvaged.len(),
            reason,
        });
        Ok(None)
    }

    /// The token record that marks a new file of the store as ours. A store without a lock file may
    /// have its identity in the other file.
    fn first_record(&self, now_ms: i64) -> Result<TokenRecord, Error> {
        let other = disk::read(&self.other_file())?;
        let document = other.as_ref().and_then(|file| parse(&file.bytes).ok());
        let known = document.and_then(|document| document.record);
        let new = TokenRecord::new(now_ms);
        Ok(TokenRecord {
            store_id: known.map_or(new.store_id, |known| known.store_id),
            last_token: known
                .map_or(0, |known| known.last_token)
                .max(new.last_token),
        })
    }

    /// Does everything but the write.
    fn prepare<A>(
        &self,
        held: HeldLock,
        scope: Scope,
        extent: Extent,
        is_value: IsValue,
        change: impl FnOnce(&mut WorkingCopy<'_>) -> Result<A, Error>,
    ) -> Result<(A, Commit), Error> {
        let path = self.own_file();
        let contents = disk::read(&path)?;
        let other = self.read_other(extent)?;
        let now_ms = self.files.clock.now_ms();
        let (mut salvaged, mut salvaged_elsewhere) = (Vec::new(), Vec::new());
        let mut copy = WorkingCopy::new(&self.settings, scope, now_ms);
        if scope == Scope::Claim {
            copy.set_lock_record(held.record());
        }
        let damage = load(&mut copy, contents.as_ref(), &mut salvaged, is_value);
        if damage.is_some() && copy.salvaged() == 0 {
            check_is_ours(&path, contents.as_ref(), || Ok(held.record()))?;
        }
        let elsewhere = (other.as_ref(), &mut salvaged_elsewhere);
        let elsewhere =
            self.load_elsewhere(&mut copy, elsewhere, is_value, || Ok(held.record()))?;
        let answer = change(&mut copy)?;
        let is_read_only = contents.as_ref().is_some_and(|file| file.is_read_only);
        if copy.is_changed && is_read_only {
            return Err(Error::ReadOnly { path });
        }
        let mut new_record = copy.new_record;
        // The record in the lock file marks a new store as ours, also before its first claim.
        if copy.is_changed && contents.is_none() && new_record.is_none() {
            let is_marked = held.record().is_written();
            new_record = (!is_marked)
                .then(|| self.first_record(now_ms))
                .transpose()?;
        }
        let is_other_writable = other.as_ref().is_some_and(|file| !file.is_read_only);
        let other_next = elsewhere
            .filter(|_| is_other_writable)
            .zip(copy.new_record)
            .map(|(document, record)| {
                let mut next = NextVersion::with_capacity(document.entries.len());
                for entry in &document.entries {
                    next.push(entry.line.into());
                }
                (
                    self.other_file(),
                    next.to_bytes(&document.extra, Some(record)),
                )
            });
        let next = copy.is_changed.then(|| copy.to_bytes());
        let (saved, incidents) = (copy.salvaged(), std::mem::take(&mut copy.incidents));
        let corrupt = damage.zip(contents).map(|(reason, contents)| CorruptFile {
            bytes: contents.bytes,
            saved,
            reason,
        });
        let commit = Commit {
            settings: Arc::clone(&self.settings),
            durability: self.files.durability,
            now_ms,
            held,
            path,
            next,
            other_next,
            new_record,
            corrupt,
            incidents,
        };
        Ok((answer, commit))
    }
}

impl Backend for FileBackend {
    type Turn = WaitTicket;

    async fn store<R: Runtime, T: Value>(&self, value: &T) -> Result<(), Error> {
        let change = |copy: &mut WorkingCopy<'_>| copy.store(value);
        self.change_own::<R, T, _>(self.files.policy, change).await
    }

    async fn remove<R: Runtime, T: Value>(
        &self,
        token: Option<u64>,
        limit: WaitLimit,
    ) -> Result<bool, Error> {
        let change = |copy: &mut WorkingCopy<'_>| Ok(copy.remove(token));
        self.change_own::<R, T, _>(self.policy(limit), change).await
    }

    async fn refresh<R: Runtime, T: Value>(
        &self,
        token: Option<u64>,
        limit: WaitLimit,
    ) -> Result<bool, Error> {
        let change = |copy: &mut WorkingCopy<'_>| Ok(copy.refresh(token));
        self.change_own::<R, T, _>(self.policy(limit), change).await
    }

    async fn restore<R: Runtime, T: Value>(&self) -> Result<Option<T>, Error> {
        let query = |copy: &WorkingCopy<'_>| copy.restore();
        self.read::<R, _>(self.files.policy, Extent::Own, is_value::<T>, query)
            .await
            .map(|done| done.answer)
    }

    async fn other_values<R: Runtime, T: Value>(&self) -> Result<BTreeMap<SessionId, T>, Error> {
        let query = |copy: &WorkingCopy<'_>| copy.other_values();
        self.read::<R, _>(self.files.policy, Extent::All, is_value::<T>, query)
            .await
            .map(|done| done.answer)
    }

    async fn entries<R: Runtime, T: Value>(
        &self,
        watcher: Option<&Changes>,
    ) -> Result<Entries<T>, Error> {
        let policy = self.at_least(watcher.map_or(Duration::ZERO, |_| WATCHER_LIMIT));
        let query = |copy: &WorkingCopy<'_>| Ok((copy.entries()?, copy.owners()));
        let read = self.read::<R, _>(policy, Extent::All, is_value::<T>, query);
        let Answer {
            answer: (mut entries, owners),
            incidents,
        } = read.await?;
        if let Some(changes) = watcher {
            changes.watch_processes(&owners);
        }
        entries.incidents = incidents;
        Ok(entries)
    }

    async fn has_token<R: Runtime, T: Value>(&self, token: u64) -> Result<bool, Error> {
        let query = |copy: &WorkingCopy<'_>| Ok(copy.has_token(token));
        self.read::<R, _>(self.files.policy, Extent::All, is_value::<T>, query)
            .await
            .map(|done| done.answer)
    }

    async fn claim<R: Runtime, T: Value + PartialEq>(
        &self,
        candidates: &[T],
        queue: Queue<'_, WaitTicket>,
    ) -> Result<(Decision, Vec<Incident>), Error> {
        let (turn, policy, changes) = match queue {
            Queue::Barge { limit } => {
                let policy = limit.map_or(self.files.policy, LockPolicy::Wait);
                (None, policy, None)
            }
            Queue::Join {
                turn,
                left,
                changes,
            } => {
                let policy = LockPolicy::Wait(left.saturating_add(LAST_ATTEMPT));
                (Some(turn), policy, Some(changes))
            }
        };
        let held = self.lock::<R>(Access::Exclusive, policy).await?;
        let waiters = WaitQueue::new(self.files.location.waiters());
        let mut ahead: Vec<T> = Vec::new();
        if let Some(turn) = &turn {
            for text in waiters.earlier(turn.as_ref())? {
                // A waiter of another type wants a value that no candidate equals.
                ahead.extend(serde_json::from_str::<Vec<T>>(&text).unwrap_or_default());
            }
        }
        let change = |copy: &mut WorkingCopy<'_>| {
            let decision = decide(copy, candidates, &ahead)?;
            Ok((decision, copy.owners()))
        };
        let prepared = self.prepare(held, Scope::Claim, Extent::All, is_value::<T>, change);
        let ((decision, owners), commit) = prepared?;
        // Before the commit unlocks: numbers are given out under the lock.
        if let Some(turn) = turn
            && turn.is_none()
            && !matches!(decision, Decision::Granted { .. })
        {
            let wanted = serde_json::to_string(candidates).map_err(|source| Error::Encode {
                source: source.into(),
            })?;
            *turn = Some(waiters.join(&wanted)?);
        }
        if let Some(changes) = changes {
            changes.watch_queue();
            changes.watch_processes(&owners);
        }
        Ok((decision, commit.run::<R>().await?))
    }

    async fn transaction<R: Runtime, T: Value, A>(
        &self,
        body: &mut impl FnMut(&mut Transaction<T>) -> A,
    ) -> Result<A, Error> {
        let change = |copy: &mut WorkingCopy<'_>| copy.transaction(body);
        self.change::<R, _>(
            self.files.policy,
            Scope::Change,
            Extent::All,
            is_value::<T>,
            change,
        )
        .await
        .map(|done| done.answer)
    }

    async fn leave<R: Runtime>(&self, turn: WaitTicket, _limit: Duration) {
        drop(turn);
    }

    fn changes(&self) -> Changes {
        self.watch.changes(&self.files.location)
    }
}

/// How long a watcher waits for the lock, with any policy.
const WATCHER_LIMIT: Duration = Duration::from_secs(5);

fn is_value<T: Value>(json: &str) -> bool {
    serde_json::from_str::<T>(json).is_ok()
}

/// Loads the own file. If it is corrupt, loads the entries that can be recovered, and returns the
/// damage.
fn load<'a>(
    copy: &mut WorkingCopy<'a>,
    contents: Option<&'a Contents>,
    salvaged: &'a mut Vec<SalvagedEntry>,
    is_value: IsValue,
) -> Option<String> {
    let bytes = &contents?.bytes;
    match parse(bytes) {
        Ok(document) => {
            copy.load(document);
            None
        }
        Err(damage) => {
            *salvaged = salvage(bytes, is_value);
            copy.load_salvaged(salvaged);
            Some(damage)
        }
    }
}

/// Refuses a corrupt file that was never a store, to leave it as it is.
fn check_is_ours(
    path: &Path,
    contents: Option<&Contents>,
    lock_record: impl FnOnce() -> Result<disk::LockRecord, Error>,
) -> Result<(), Error> {
    let is_ours =
        contents.is_none_or(|file| is_recognisable(&file.bytes)) || lock_record()?.is_written();
    if is_ours {
        return Ok(());
    }
    Err(Error::NotAStore {
        path: path.to_owned(),
    })
}

fn parse(bytes: &[u8]) -> Result<Document<'_>, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    Document::parse(text)
}

/// The write of a decided operation. Holds the lock.
struct Commit {
    settings: Arc<Settings>,
    durability: Durability,
    now_ms: i64,
    held: HeldLock,
    path: PathBuf,
    next: Option<Vec<u8>>,
    /// The other file with its new token record.
    other_next: Option<(PathBuf, Vec<u8>)>,
    new_record: Option<TokenRecord>,
    corrupt: Option<CorruptFile>,
    incidents: Vec<Incident>,
}

struct CorruptFile {
    bytes: Vec<u8>,
    /// How many entries were recovered.
    saved: usize,
    reason: String,
}

impl Commit {
    /// Writes. If that includes a sync to disk, it happens off the async runtime's threads, and
    /// continues if the caller is cancelled.
    async fn run<R: Runtime>(self) -> Result<Vec<Incident>, Error> {
        let has_sync = self.next.is_some() && self.durability == Durability::Power;
        if has_sync {
            R::run_blocking(move || self.write()).await
        } else {
            self.write()
        }
    }

    /// The copy of a corrupt file exists before the file is replaced.
    fn write(mut self) -> Result<Vec<Incident>, Error> {
        if let Some(corrupt) = self.corrupt.take() {
            let path = self.path.clone();
            let copy = disk::keep_aside(&path, &corrupt.bytes, self.now_ms, self.durability)?;
            if let Err(error) = self.write_files() {
                // The copies of repeated attempts would fill the disk.
                disk::discard_copy(&copy, &path, &corrupt.bytes);
                return Err(error);
            }
            self.incidents.push(Incident::Recovered {
                path,
                copy,
                saved: corrupt.saved,
                reason: corrupt.reason,
            });
        } else {
            self.write_files()?;
        }
        // Handlers are the caller's code and may use the store.
        drop(self.held);
        self.settings.report(&self.incidents);
        Ok(self.incidents)
    }

    /// The order matters: a token is counted before it is visible. A kill between two steps wastes a
    /// token at worst.
    fn write_files(&self) -> Result<(), Error> {
        let durability = self.durability;
        if let Some(record) = self.new_record {
            self.held.set_record(record, durability)?;
        }
        if let Some((other, next)) = &self.other_next {
            disk::replace(other, next, durability)?;
        }
        if let Some(next) = &self.next {
            disk::replace(&self.path, next, durability)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tests/it/corrupt.rs` does the same through files, for fewer values.
    #[test]
    fn every_single_byte_change_keeps_every_other_entry() {
        let fields = r#""updated_at":"2025-08-18T10:20:30.456Z","token":7"#;
        let lines =
            ["a", "b"].map(|session| format!(r#""{session}":{{"data":"x{session}",{fields}}}"#));
        let text = format!("{{\"storage\":{{\n{}\n}}}}\n", lines.join(",\n"));
        let now_ms = 1_755_512_430_456;
        let settings = Settings {
            path: "x.json".into(),
            session: SessionId::from_key("me"),
            slot: None,
            ttl_ms: 1000,
            owner: None,
            on_incident: None,
            found: Default::default(),
        };
        for at in 0..text.len() {
            for value in 0..=255 {
                let mut bytes = text.clone().into_bytes();
                bytes[at] = value;
                let contents = Contents {
                    bytes,
                    is_read_only: false,
                };
                let mut salvaged = Vec::new();
                let mut copy = WorkingCopy::new(&settings, Scope::Claim, now_ms);
                load(&mut copy, Some(&contents), &mut salvaged, |json| {
                    serde_json::from_str::<String>(json).is_ok()
                });
                let after = String::from_utf8(copy.to_bytes()).unwrap();
                for line in &lines {
                    let start = text.find(line).unwrap();
                    let is_hit = (start..start + line.len()).contains(&at);
                    assert!(
                        is_hit || after.contains(line),
                        "byte {at} = {value} loses {line}\nin {after}"
                    );
                }
            }
        }
    }
}
