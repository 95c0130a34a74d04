//! One operation on the files of a store, from lock to unlock.

use std::sync::Arc;
use std::time::Duration;

use super::runtime::Runtime;
use super::settings::Settings;
use super::working_copy::{Scope, WorkingCopy};
use crate::disk::{self, Contents, HeldLock, LockFile};
use crate::format::{Document, SalvagedEntry, salvage};
use crate::shared::kernel_lock::Access;
use crate::{Durability, Error, Incident, LockPolicy};

/// Keeps the entries in a locked JSON file.
///
/// [`read`](Self::read) and [`change`](Self::change) are all that [`Core`](super::Core) uses;
/// both work on a [`WorkingCopy`], which knows nothing of files.
pub(crate) struct FileBackend {
    settings: Arc<Settings>,
    lock: LockFile,
}

/// Whether JSON is a value of the store's type. Recovery uses it to distinguish entries from other
/// objects.
pub(crate) type IsValue = fn(&str) -> bool;

impl FileBackend {
    pub(crate) fn new(settings: Arc<Settings>) -> Self {
        Self {
            lock: LockFile::new(Arc::clone(&settings.location)),
            settings,
        }
    }

    /// Lets `query` read the live entries, and returns its answer.
    ///
    /// Cleanup by readers: a reader holds a shared lock and may not write, and a shared lock
    /// cannot become an exclusive one without a moment in between. So the reader answers first,
    /// unlocks, and then removes expired entries in an operation of its own, which reads the file
    /// again: another process may have refreshed an entry in that moment. The cleanup never waits
    /// and never overtakes a waiter. If the lock is not free, the next writer cleans up.
    pub(crate) async fn read<R: Runtime, A>(
        &self,
        is_value: IsValue,
        query: impl FnOnce(&WorkingCopy<'_>) -> Result<A, Error>,
    ) -> Result<A, Error> {
        let held = self.lock::<R>(Access::Shared).await?;
        let (answer, is_clean) = self.read_under(held, is_value, query)?;
        if !is_clean && let Err(error) = self.clean::<R>(is_value).await {
            let path = self.settings.location.data.display();
            tracing::warn!(%path, %error, "cannot clean up after a read");
        }
        Ok(answer)
    }

    /// Lets `change` work on the live entries, and writes the result.
    ///
    /// `change` is `FnMut`, although this backend calls it once: a backend that detects conflicts
    /// by compare-and-swap calls it again with fresh entries.
    pub(crate) async fn change<R: Runtime, A>(
        &self,
        scope: Scope,
        is_value: IsValue,
        mut change: impl FnMut(&mut WorkingCopy<'_>) -> Result<A, Error>,
    ) -> Result<A, Error> {
        let held = self.lock::<R>(Access::Exclusive).await?;
        let (answer, commit) = self.prepare(held, scope, is_value, &mut change)?;
        commit.run::<R>().await?;
        Ok(answer)
    }

    async fn clean<R: Runtime>(&self, is_value: IsValue) -> Result<(), Error> {
        let Some(held) = self.lock.try_lock(Access::Exclusive)? else {
            return Ok(());
        };
        let ((), commit) = self.prepare(held, Scope::Change, is_value, &mut |_| Ok(()))?;
        commit.run::<R>().await
    }

    async fn lock<R: Runtime>(&self, access: Access) -> Result<HeldLock, Error> {
        let (held, waited) = match self.settings.policy {
            LockPolicy::Fail => (self.lock.try_lock_barging(access)?, Duration::ZERO),
            LockPolicy::Wait(limit) => match self.lock.try_lock(access)? {
                Some(held) => (Some(held), Duration::ZERO),
                None => (self.lock.wait::<R>(access, limit).await?, limit),
            },
        };
        held.ok_or_else(|| Error::Locked {
            path: self.settings.path(),
            holder: self.lock.holder(),
            waited,
        })
    }

    /// Reads the file and unlocks. Returns the answer, and whether the file needs no cleanup.
    fn read_under<A>(
        &self,
        held: HeldLock,
        is_value: IsValue,
        query: impl FnOnce(&WorkingCopy<'_>) -> Result<A, Error>,
    ) -> Result<(A, bool), Error> {
        let contents = disk::read(&self.settings.location)?;
        drop(held);
        let mut salvaged = Vec::new();
        let mut copy = WorkingCopy::new(&self.settings, Scope::Read, None);
        load(&mut copy, contents.as_ref(), &mut salvaged, is_value);
        Ok((query(&copy)?, !copy.is_changed))
    }

    /// Does everything but the write.
    fn prepare<A>(
        &self,
        held: HeldLock,
        scope: Scope,
        is_value: IsValue,
        change: &mut impl FnMut(&mut WorkingCopy<'_>) -> Result<A, Error>,
    ) -> Result<(A, Commit), Error> {
        let contents = disk::read(&self.settings.location)?;
        let counter = match scope {
            Scope::Claim => held.counter(),
            _ => None,
        };
        let mut salvaged = Vec::new();
        let mut copy = WorkingCopy::new(&self.settings, scope, counter);
        let damage = load(&mut copy, contents.as_ref(), &mut salvaged, is_value);
        let answer = change(&mut copy)?;
        let is_read_only = contents.as_ref().is_some_and(|file| file.is_read_only);
        if copy.is_changed && is_read_only {
            return Err(Error::ReadOnly {
                path: self.settings.path(),
            });
        }
        let next = copy.is_changed.then(|| copy.to_bytes());
        let (new_token, incidents) = (copy.new_token, std::mem::take(&mut copy.incidents));
        let corrupt = damage.zip(contents).map(|(reason, contents)| CorruptFile {
            bytes: contents.bytes,
            entries: salvaged.len(),
            reason,
        });
        let commit = Commit {
            settings: Arc::clone(&self.settings),
            held,
            next,
            new_token,
            corrupt,
            incidents,
        };
        Ok((answer, commit))
    }
}

/// Loads the file. If it is corrupt, loads the entries that can be recovered, and returns the
/// damage.
fn load<'a>(
    copy: &mut WorkingCopy<'a>,
    contents: Option<&'a Contents>,
    salvaged: &'a mut Vec<SalvagedEntry>,
    is_value: IsValue,
) -> Option<String> {
    let bytes = &contents?.bytes;
    let damage = match std::str::from_utf8(bytes) {
        Ok(text) => match Document::parse(text) {
            Ok(document) => {
                copy.load(document);
                return None;
            }
            Err(reason) => reason,
        },
        Err(error) => error.to_string(),
    };
    *salvaged = salvage(bytes, is_value);
    copy.load_salvaged(salvaged);
    Some(damage)
}

/// The write of a decided operation. Holds the lock.
struct Commit {
    settings: Arc<Settings>,
    held: HeldLock,
    next: Option<Vec<u8>>,
    new_token: Option<u64>,
    corrupt: Option<CorruptFile>,
    incidents: Vec<Incident>,
}

struct CorruptFile {
    bytes: Vec<u8>,
    /// How many entries were recovered.
    entries: usize,
    reason: String,
}

impl Commit {
    /// Writes. If that includes a sync to disk, it happens off the async runtime's threads, and
    /// continues if the caller is cancelled.
    async fn run<R: Runtime>(self) -> Result<(), Error> {
        let has_sync = self.next.is_some() && self.settings.durability == Durability::Power;
        if has_sync {
            R::run_blocking(move || self.write()).await
        } else {
            self.write()
        }
    }

    /// The order matters: the copy of a corrupt file exists before the file is replaced, and a
    /// token is counted before it is visible. A kill between two steps wastes a token at worst.
    fn write(mut self) -> Result<(), Error> {
        let (location, durability) = (&*self.settings.location, self.settings.durability);
        if let Some(corrupt) = self.corrupt.take() {
            let now_ms = self.settings.clock.now_ms();
            let copy = disk::keep_aside(location, &corrupt.bytes, now_ms, durability)?;
            self.incidents.push(Incident::Recovered {
                path: self.settings.path(),
                copy,
                saved: corrupt.entries,
                reason: corrupt.reason,
            });
        }
        if let Some(token) = self.new_token {
            self.held.set_counter(token, durability)?;
        }
        if let Some(next) = &self.next {
            disk::replace(location, next, durability)?;
        }
        // Handlers are the caller's code and may use the store.
        drop(self.held);
        for incident in &self.incidents {
            tracing::warn!("{incident}");
            if let Some(handler) = &self.settings.on_incident {
                handler(incident);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::disk::Location;
    use crate::{ManualClock, SessionId};

    /// `tests/it/corrupt.rs` does the same through files, for fewer values.
    #[test]
    fn every_single_byte_change_keeps_every_other_entry() {
        let fields = r#""updated_at":"2025-08-18T10:20:30.456Z","token":7"#;
        let lines =
            ["a", "b"].map(|session| format!(r#""{session}":{{"data":"x{session}",{fields}}}"#));
        let text = format!("{{\"storage\":{{\n{}\n}}}}\n", lines.join(",\n"));
        let time = std::time::UNIX_EPOCH + Duration::from_millis(1_755_512_430_456);
        let settings = Settings {
            location: Arc::new(Location::new("x.json".as_ref()).unwrap()),
            session: SessionId::from_key("me"),
            ttl_ms: 1000,
            owner: None,
            policy: LockPolicy::Fail,
            durability: Durability::Process,
            clock: Clock::Manual(ManualClock::new(time)),
            on_incident: None,
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
                let mut copy = WorkingCopy::new(&settings, Scope::Claim, None);
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
