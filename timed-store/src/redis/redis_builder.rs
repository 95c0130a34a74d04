use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::connection::Acknowledgement;
use super::redis_backend::RedisBackend;
use crate::store::{AnyBackend, Core, LONGEST_PAUSE, RuntimeContext, Settings, config};
use crate::timed_storage_builder::ttl_ms;
use crate::{Error, OwnerProcess, SessionId};

/// The options of a store on a server. `S` is the store that `connect` returns: the async
/// `TimedStorage` or [`blocking::TimedStorage`](crate::blocking::TimedStorage).
///
/// ```no_run
/// use std::time::Duration;
/// use timed_store::blocking::TimedStorage;
///
/// let store = TimedStorage::<String>::redis_builder("redis://127.0.0.1/0", "operators")
///     .ttl(Duration::from_secs(60))
///     .acknowledged_by(1, Duration::from_millis(200))
///     .connect()?;
/// # Ok::<(), timed_store::Error>(())
/// ```
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
#[must_use = "nothing is opened until `connect`"]
pub struct RedisBuilder<S> {
    url: String,
    name: String,
    session: Option<SessionId>,
    ttl: Duration,
    owner: Option<OwnerProcess>,
    acknowledgement: Option<Acknowledgement>,
    store: PhantomData<fn() -> S>,
}

impl<S> RedisBuilder<S> {
    pub(crate) fn new(url: &str, name: &str) -> Self {
        Self {
            url: url.to_owned(),
            name: name.to_owned(),
            session: None,
            ttl: config::DEFAULT_TIMEOUT,
            owner: None,
            acknowledgement: None,
            store: PhantomData,
        }
    }

    /// Sets how long an entry lives without a refresh; the default is four hours.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Reads the timeout from a JSON configuration file, as
    /// [`TimedStorageBuilder::ttl_from_config`](crate::TimedStorageBuilder::ttl_from_config).
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

    /// Sets the session whose entry this handle changes. The default is [`SessionId::detect`] with
    /// the host's name and boot: a detected id has a meaning on its own host only. An id of
    /// [`SessionId::new`] keeps its text, and is the same session on every host.
    pub fn session(mut self, session: SessionId) -> Self {
        self.session = Some(session);
        self
    }

    /// Sets a process as the owner of the values that are claimed through this handle. Handles on
    /// the same machine free the value when the process has ended; elsewhere the timeout decides.
    /// A claim that renews a lease with another owner, or with none, leaves it without one.
    pub fn owner(mut self, process: OwnerProcess) -> Self {
        self.owner = Some(process);
        self
    }

    /// Makes a claim, a store and a refresh wait until so many replicas have it. A change that was
    /// not acknowledged `within` this time (at most a day) is taken back, and the operation fails
    /// with [`Error::NotAcknowledged`]. If the session held another value before, the call waits
    /// as long again for the acknowledgement that it was taken back.
    ///
    /// A failover gives no value to two holders only if all replicas must acknowledge, every server
    /// has `appendfsync always`, the clocks of the servers differ by less than the time of a
    /// failover, and a session gives up its earlier value after an error that says so
    /// (`earlier_may_be_lost`, `may_be_done`). See "Failover" on the crate's page. Not for clusters.
    pub fn acknowledged_by(mut self, replicas: u32, within: Duration) -> Self {
        self.acknowledgement = Some(Acknowledgement {
            replicas,
            // Server and timers have a maximum duration.
            within: within.min(LONGEST_PAUSE),
        });
        self
    }

    pub(crate) async fn into_core(self, context: RuntimeContext) -> Result<Arc<Core>, Error> {
        let session = self.session.unwrap_or_else(SessionId::detect);
        let settings = Settings {
            path: Default::default(),
            session: session.on_this_host(),
            slot: None,
            ttl_ms: ttl_ms(self.ttl),
            owner: self.owner,
            on_incident: None,
            found: Default::default(),
        };
        let backend =
            RedisBackend::connect(&self.url, &self.name, settings, self.acknowledgement).await?;
        Ok(Arc::new(Core {
            settings: Arc::clone(backend.settings()),
            backend: AnyBackend::Redis(backend),
            context,
        }))
    }
}

// The address may contain a password.
impl<S> fmt::Debug for RedisBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBuilder")
            .field("name", &self.name)
            .field("session", &self.session)
            .field("ttl", &self.ttl)
            .field("owner", &self.owner)
            .field("acknowledgement", &self.acknowledgement)
            .finish_non_exhaustive()
    }
}
