//! One operation from lock to unlock, without saying who waits for it. The two faces of the
//! store, async and blocking, differ only in how they wait.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::clock::Clock;
use crate::file::{self, Contents, Durability};
use crate::incident::Incident;
use crate::location::Location;
use crate::lock::{Access, Held, LockPolicy};
use crate::process::Process;
use crate::queue::Queue;
use crate::salvage::{self, Saved};
use crate::state::{Scope, State};
use crate::{Error, SessionId};

/// What a handle was opened with.
pub(crate) struct Settings {
    pub(crate) location: Arc<Location>,
    pub(crate) session: SessionId,
    pub(crate) ttl_ms: u64,
    pub(crate) owner: Option<Process>,
    pub(crate) policy: LockPolicy,
    pub(crate) durability: Durability,
    pub(crate) clock: Clock,
    pub(crate) on_incident: Option<IncidentHandler>,
}

pub(crate) type IncidentHandler = Arc<dyn Fn(&Incident) + Send + Sync>;

pub(crate) struct Core {
    pub(crate) settings: Settings,
    lock: Queue,
}

impl Core {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            lock: Queue::new(Arc::clone(&settings.location)),
            settings,
        }
    }

    /// Takes the lock if it is free.
    pub(crate) fn try_lock(&self, access: Access) -> Result<Option<Held>, Error> {
        match self.settings.policy {
            LockPolicy::Fail => self.lock.attempt(access),
            LockPolicy::Wait(_) => self.lock.attempt_in_turn(access),
        }
    }

    /// Whether [`wait_lock`](Self::wait_lock) takes its time.
    #[cfg(feature = "tokio")]
    pub(crate) fn waits(&self) -> bool {
        self.settings.policy != LockPolicy::Fail
    }

    /// Waits for the lock as the policy says.
    pub(crate) fn wait_lock(&self, access: Access) -> Result<Held, Error> {
        let (held, waited) = match self.settings.policy {
            LockPolicy::Fail => (None, Duration::ZERO),
            LockPolicy::Wait(limit) => (self.lock.wait(access, limit)?, limit),
        };
        held.ok_or_else(|| Error::Locked {
            path: self.settings.location.file.clone(),
            holder: self.lock.holder(),
            waited,
        })
    }

    /// Answers from the file. The flag says that there is something to clean, which is a
    /// writer's work.
    pub(crate) fn read<T: DeserializeOwned, R>(
        &self,
        held: Held,
        scope: Scope,
        answer: impl FnOnce(&State<'_>) -> Result<R, Error>,
    ) -> Result<(R, bool), Error> {
        let contents = file::read(&self.settings.location)?;
        let mut saved = Vec::new();
        let mut state = State::new(&self.settings, &held, scope);
        load::<T>(&mut state, contents.as_ref(), &mut saved);
        Ok((answer(&state)?, state.changed))
    }

    /// Does everything but the writing, which is left to the caller, to be done where it may
    /// take its time.
    pub(crate) fn change<T: DeserializeOwned, R>(
        self: &Arc<Self>,
        held: Held,
        scope: Scope,
        change: impl FnOnce(&mut State<'_>) -> Result<R, Error>,
    ) -> Result<(R, Commit), Error> {
        let contents = file::read(&self.settings.location)?;
        let read_only = contents.as_ref().is_some_and(|contents| contents.read_only);
        let mut saved = Vec::new();
        let mut state = State::new(&self.settings, &held, scope);
        let corrupt = load::<T>(&mut state, contents.as_ref(), &mut saved);
        let answer = change(&mut state)?;
        let write = state.changed;
        if write && read_only {
            let reason = "it is read-only; `chmod u+w` it to allow changes";
            return Err(Error::Refused {
                path: self.settings.location.file.clone(),
                reason,
            });
        }
        let next = write.then(|| state.to_bytes());
        let (token, incidents) = (state.token, std::mem::take(&mut state.incidents));
        let saved = saved.len();
        let corrupt = corrupt
            .zip(contents)
            .map(|(reason, Contents { bytes, .. })| Corrupt {
                bytes,
                saved,
                reason,
            });
        Ok((
            answer,
            Commit {
                core: Arc::clone(self),
                held,
                next,
                token,
                corrupt,
                incidents,
            },
        ))
    }

    /// A reader has its answer already: what it could not clean, the next writer will.
    pub(crate) fn after_read(&self, cleaned: Result<(), Error>) {
        if let Err(error) = cleaned {
            let path = self.settings.location.file.display();
            tracing::warn!(%path, %error, "cannot clean up after a read");
        }
    }

    fn report(&self, incidents: &[Incident]) {
        for incident in incidents {
            tracing::warn!("{incident}");
            if let Some(handler) = &self.settings.on_incident {
                handler(incident);
            }
        }
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimedStorage")
            .field("path", &self.settings.location.file)
            .field("session", &self.settings.session)
            .field("ttl_ms", &self.settings.ttl_ms)
            .field("policy", &self.settings.policy)
            .field("durability", &self.settings.durability)
            .finish_non_exhaustive()
    }
}

/// What is still to be written when the decision has been made. Holds the lock.
pub(crate) struct Commit {
    core: Arc<Core>,
    held: Held,
    next: Option<Vec<u8>>,
    token: Option<u64>,
    corrupt: Option<Corrupt>,
    incidents: Vec<Incident>,
}

impl Commit {
    /// Whether [`run`](Self::run) waits for a disk.
    #[cfg(feature = "tokio")]
    pub(crate) fn waits(&self) -> bool {
        self.next.is_some() && self.core.settings.durability == Durability::Power
    }

    /// In this order: the corrupt file is kept before it is replaced, and a token counts as
    /// given out before anybody can see it.
    pub(crate) fn run(mut self) -> Result<(), Error> {
        let Settings {
            location,
            durability,
            ..
        } = &self.core.settings;
        if let Some(Corrupt {
            bytes,
            saved,
            reason,
        }) = self.corrupt
        {
            let now_ms = self.core.settings.clock.now_ms();
            let copy = file::keep_aside(location, &bytes, now_ms, *durability)?;
            let path = location.file.clone();
            self.incidents.push(Incident::Recovered {
                path,
                copy,
                saved,
                reason,
            });
        }
        if let Some(token) = self.token {
            let counted = self
                .held
                .set_counter(token)
                .and_then(|()| match durability {
                    Durability::Process => Ok(()),
                    Durability::Power => self.held.sync(),
                });
            counted.map_err(Error::io("write", &location.lock))?;
        }
        if let Some(next) = &self.next {
            file::replace(location, next, *durability)?;
        }
        // Handlers are the caller's code, and may use the store.
        drop(self.held);
        self.core.report(&self.incidents);
        Ok(())
    }
}

struct Corrupt {
    bytes: Vec<u8>,
    saved: usize,
    reason: String,
}

/// Loads the file; if it is corrupt, what can be saved of it, and returns what is wrong.
fn load<'a, T: DeserializeOwned>(
    state: &mut State<'a>,
    contents: Option<&'a Contents>,
    saved: &'a mut Vec<Saved>,
) -> Option<String> {
    let Contents { bytes, .. } = contents?;
    let damage = match std::str::from_utf8(bytes) {
        Ok(text) => state.load(text).err()?.to_string(),
        Err(error) => error.to_string(),
    };
    *saved = salvage::salvage(bytes, |data| serde_json::from_str::<T>(data).is_ok());
    state.load_saved(saved);
    Some(damage)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same through files, for fewer values, is in `tests/it/corrupt.rs`.
    #[test]
    fn every_single_byte_change_keeps_every_other_entry() {
        let stamp = r#""updated_at":"2025-08-18T10:20:30.456Z","token":7"#;
        let lines =
            ["a", "b"].map(|session| format!(r#""{session}":{{"data":"x{session}",{stamp}}}"#));
        let text = format!("{{\"storage\":{{\n{}\n}}}}\n", lines.join(",\n"));
        let folder = tempfile::tempdir().unwrap();
        let time = std::time::UNIX_EPOCH + Duration::from_millis(1_755_512_430_456);
        let settings = Settings {
            location: Arc::new(Location::new(&folder.path().join("x.json")).unwrap()),
            session: SessionId::of_entry("me"),
            ttl_ms: 1000,
            owner: None,
            policy: LockPolicy::Fail,
            durability: Durability::Process,
            clock: Clock::Manual(crate::ManualClock::new(time)),
            on_incident: None,
        };
        let held = Queue::new(Arc::clone(&settings.location))
            .attempt(Access::Shared)
            .unwrap()
            .unwrap();
        for at in 0..text.len() {
            for value in 0..=255 {
                let mut bytes = text.clone().into_bytes();
                bytes[at] = value;
                let contents = Contents {
                    bytes,
                    read_only: false,
                };
                let mut saved = Vec::new();
                let mut state = State::new(&settings, &held, Scope::ChangeAll);
                load::<String>(&mut state, Some(&contents), &mut saved);
                let after = String::from_utf8(state.to_bytes()).unwrap();
                for line in &lines {
                    let start = text.find(line).unwrap();
                    let touched = (start..start + line.len()).contains(&at);
                    assert!(
                        touched || after.contains(line),
                        "byte {at} = {value} loses {line}\nin {after}"
                    );
                }
            }
        }
    }
}
