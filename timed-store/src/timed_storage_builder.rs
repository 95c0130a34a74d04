use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, duration_ms};
use crate::disk::Location;
use crate::store::{
    AnyBackend, Core, FileBackend, FileSettings, IncidentHandler, LARGEST_NUMBER, RuntimeContext,
    Settings, config,
};
use crate::{Durability, Error, Incident, LockPolicy, ManualClock, OwnerProcess, SessionId};

/// The options of a store. `S` is the store that `open` returns: the async `TimedStorage` or
/// [`blocking::TimedStorage`](crate::blocking::TimedStorage).
///
/// ```
/// use std::time::Duration;
/// use timed_store::{LockPolicy, OwnerProcess, SessionId, blocking::TimedStorage};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let store = TimedStorage::<String>::builder(folder.path().join("operators.json"))
///     .session(SessionId::new("terminal-1")?)
///     .owner(OwnerProcess::current())
///     .ttl(Duration::from_secs(3600))
///     .lock(LockPolicy::Wait(Duration::from_secs(2)))
///     .open()?;
/// # assert_eq!(store.session().as_str(), "terminal-1");
/// # Ok::<(), timed_store::Error>(())
/// ```
#[must_use = "nothing is opened until `open`"]
pub struct TimedStorageBuilder<S> {
    path: Result<PathBuf, Error>,
    session: Option<SessionId>,
    ttl: Duration,
    owner: Option<OwnerProcess>,
    lock: LockPolicy,
    durability: Durability,
    clock: Clock,
    on_incident: Option<IncidentHandler>,
    store: PhantomData<fn() -> S>,
}

impl<S> TimedStorageBuilder<S> {
    /// Sets how long an entry lives without a refresh; the default is four hours. The entry keeps
    /// this timeout, so that a reader with a shorter one does not remove it.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Reads the timeout from a JSON configuration file: `{"operatorTimeout": 14400000}`, in
    /// milliseconds. Other keys are ignored; without this key the timeout stays unchanged.
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

    /// Sets the session whose entry this handle changes; the default is [`SessionId::detect`].
    pub fn session(mut self, session: SessionId) -> Self {
        self.session = Some(session);
        self
    }

    /// Sets a process as the owner of the values that are claimed (not stored) through this handle:
    /// when the process ends, the value is free. By default the entries of a terminal session have
    /// no owner, because a session outlives its short-lived processes. A claim that renews a lease
    /// with another owner, or with none, leaves it without one.
    pub fn owner(mut self, process: OwnerProcess) -> Self {
        self.owner = Some(process);
        self
    }

    /// Sets what an operation does while the lock is held; the default is [`LockPolicy::Fail`].
    pub fn lock(mut self, policy: LockPolicy) -> Self {
        self.lock = policy;
        self
    }

    /// Sets which failures a write survives; the default is [`Durability::Process`].
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets a handler for damage. It runs after the unlock, on the thread of the operation, and may
    /// use the store. Incidents also go to `tracing` as errors.
    pub fn on_incident(mut self, handler: impl Fn(&Incident) + Send + Sync + 'static) -> Self {
        self.on_incident = Some(Arc::new(handler));
        self
    }

    /// Sets a clock that the caller moves, for tests.
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
            store: PhantomData,
        }
    }

    pub(crate) fn into_core(self) -> Result<Arc<Core>, Error> {
        let location = Arc::new(Location::new(&self.path?)?);
        let settings = Arc::new(Settings {
            path: location.data.clone(),
            session: self.session.unwrap_or_else(SessionId::detect),
            slot: None,
            ttl_ms: ttl_ms(self.ttl),
            owner: self.owner,
            on_incident: self.on_incident,
            found: Default::default(),
        });
        let files = FileSettings {
            location,
            policy: self.lock,
            durability: self.durability,
            clock: self.clock,
        };
        Ok(Arc::new(Core {
            backend: AnyBackend::File(FileBackend::new(Arc::clone(&settings), files)),
            settings,
            context: RuntimeContext::default(),
        }))
    }
}

/// Milliseconds that every JSON tool keeps exactly.
pub(crate) fn ttl_ms(ttl: Duration) -> u64 {
    let ttl = u64::try_from(duration_ms(ttl));
    ttl.unwrap_or(0).min(LARGEST_NUMBER)
}

impl<S> fmt::Debug for TimedStorageBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimedStorageBuilder")
            .field("path", &self.path)
            .field("session", &self.session)
            .field("ttl", &self.ttl)
            .field("owner", &self.owner)
            .field("lock", &self.lock)
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}
