use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, ManualClock, duration_ms};
use crate::config;
use crate::core::{Core, IncidentHandler, Settings};
use crate::file::Durability;
use crate::incident::Incident;
use crate::location::Location;
use crate::lock::LockPolicy;
use crate::state::LARGEST_NUMBER;
use crate::{Error, Process, SessionId, blocking};

/// How a store is to be opened. `S` is what comes of it: a [`TimedStorage`](crate::TimedStorage)
/// or a [`blocking::TimedStorage`].
#[must_use = "nothing is opened until `open`"]
pub struct Builder<S> {
    path: Result<PathBuf, Error>,
    session: Option<SessionId>,
    ttl: Duration,
    owner: Option<Process>,
    lock: LockPolicy,
    durability: Durability,
    clock: Clock,
    on_incident: Option<IncidentHandler>,
    opens: PhantomData<fn() -> S>,
}

impl<S> Builder<S> {
    /// How long an entry lives without a refresh. Four hours if nothing else is said. It is
    /// kept in the entry, so that a reader with another timeout leaves it alone.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Takes the timeout from a JSON configuration file: `{"operatorTimeout": 14400000}`, in
    /// milliseconds. Other keys are ignored; without this one the timeout stays as it is.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file cannot be read, [`Error::Config`] if it is not a JSON object or
    /// the timeout is not a number of milliseconds.
    pub fn ttl_from_config(self, path: impl AsRef<Path>) -> Result<Self, Error> {
        Ok(match config::read_timeout(path.as_ref())? {
            Some(ttl) => self.ttl(ttl),
            None => self,
        })
    }

    /// Whose entry this handle changes. [`SessionId::detect`] if nothing else is said.
    pub fn session(mut self, session: SessionId) -> Self {
        self.session = Some(session);
        self
    }

    /// Names a process as the owner of what is *claimed* through this handle: when it ends, the
    /// value is free. Entries of a terminal session have no owner without this, because the
    /// short-lived processes of a session come and go.
    pub fn owner(mut self, process: Process) -> Self {
        self.owner = Some(process);
        self
    }

    /// What to do when somebody else holds the lock. [`LockPolicy::Fail`] if nothing else is said.
    pub fn lock(mut self, policy: LockPolicy) -> Self {
        self.lock = policy;
        self
    }

    /// What a write is to survive. [`Durability::Process`] if nothing else is said.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Is called when a file was put right. It runs after the lock was given up, on the thread
    /// that did the operation. Incidents go to `tracing` as warnings in any case.
    pub fn on_incident(mut self, handler: impl Fn(&Incident) + Send + Sync + 'static) -> Self {
        self.on_incident = Some(Arc::new(handler));
        self
    }

    /// Takes the time from a clock that the caller moves, for tests.
    pub fn manual_clock(mut self, clock: ManualClock) -> Self {
        self.clock = Clock::Manual(clock);
        self
    }

    pub(crate) fn at(path: impl Into<PathBuf>) -> Self {
        Self::with(Ok(path.into()))
    }

    pub(crate) fn in_temp(name: &str) -> Self {
        Self::with(Location::in_temp(name))
    }

    fn with(path: Result<PathBuf, Error>) -> Self {
        Self {
            path,
            session: None,
            ttl: config::DEFAULT_TIMEOUT,
            owner: None,
            lock: LockPolicy::default(),
            durability: Durability::default(),
            clock: Clock::System,
            on_incident: None,
            opens: PhantomData,
        }
    }

    fn core(self) -> Result<Arc<Core>, Error> {
        Ok(Arc::new(Core::new(Settings {
            location: Arc::new(Location::new(&self.path?)?),
            session: self.session.unwrap_or_else(SessionId::detect),
            ttl_ms: u64::try_from(duration_ms(self.ttl))
                .unwrap_or(0)
                .min(LARGEST_NUMBER),
            owner: self.owner,
            policy: self.lock,
            durability: self.durability,
            clock: self.clock,
            on_incident: self.on_incident,
        })))
    }
}

#[cfg(feature = "tokio")]
impl<T> Builder<crate::TimedStorage<T>> {
    /// Makes the handle. Nothing is read or created yet.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the name or the path cannot be one of a file.
    pub fn open(self) -> Result<crate::TimedStorage<T>, Error> {
        self.core().map(crate::TimedStorage::of_core)
    }
}

impl<T> Builder<blocking::TimedStorage<T>> {
    /// Makes the handle. Nothing is read or created yet.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the name or the path cannot be one of a file.
    pub fn open(self) -> Result<blocking::TimedStorage<T>, Error> {
        self.core().map(blocking::TimedStorage::of_core)
    }
}

impl<S> fmt::Debug for Builder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("path", &self.path)
            .field("session", &self.session)
            .field("ttl", &self.ttl)
            .field("owner", &self.owner)
            .field("lock", &self.lock)
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}
