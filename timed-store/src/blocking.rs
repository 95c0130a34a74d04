//! The same store without a runtime: every method of [`TimedStorage`] blocks the calling thread.
//! With `default-features = false` this is the only store.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

#[cfg(feature = "redis")]
use crate::RedisBuilder;
use crate::store::{Blocking, Core, Keeper, RuntimeContext, Value, block_on};
use crate::timed_storage_macro::timed_storage;
use crate::watch::WatchState;
use crate::{
    Change, Claim, Entries, Error, Incident, Lease, SessionId, TimedStorageBuilder, Transaction,
};

macro_rules! blocked {
    ($core:expr, $operation:expr) => {
        block_on(&$core.context, $operation)
    };
}

#[cfg(feature = "redis")]
macro_rules! connected {
    ($builder:expr) => {{
        let context = RuntimeContext::with_runtime()?;
        block_on(&context, $builder.into_core(context.clone()))
    }};
}

timed_storage! {
    runtime: Blocking,
    complete: blocked,
    connect: connected,
    release: release,
    keyword: [],
    cancel_safety: [],
    cancel_safety_of_claims: [],
    /// A map from session to value with expiry, in a JSON file that processes share, or on a server
    /// (feature `redis`).
    ///
    /// Every operation is one atomic step. In a file it takes the lock, drops expired entries, does
    /// its work and unlocks. The [crate's page](crate) lists the guarantees.
    ///
    /// A handle is cheap to clone and to share between threads; clones belong to the same session.
    /// Dropping a handle changes nothing in the store.
    ///
    /// ```
    /// use timed_store::{Claim, SessionId, blocking::TimedStorage};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// let store = TimedStorage::<String>::builder(folder.path().join("operators.json"))
    ///     .session(SessionId::new("terminal-1")?)
    ///     .open()?;
    /// assert!(matches!(store.claim("tsukuyomi".to_owned())?, Claim::Granted(_)));
    /// assert_eq!(store.restore()?.as_deref(), Some("tsukuyomi"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The example program [`status`] prints the live entries of a store.
    ///
    /// [`status`]: https://docs.rs/crate/timed-store/latest/source/examples/status.rs
    pub struct TimedStorage;
    /// Keeps a lease alive: refreshes it on a thread, three times in its time.
    ///
    /// A lease that was lost stays lost; [`is_lost`](Self::is_lost) reports it.
    ///
    /// Dropping the guard stops the refreshes, and the value stays busy until it expires. With
    /// [`release_on_drop`](Self::release_on_drop) the drop releases it too. It may wait two seconds
    /// for the lock, or as long as the policy says; for a server two seconds at most. A release that
    /// failed is a `tracing` warning, and the value stays busy until it expires.
    ///
    /// ```
    /// use timed_store::blocking::TimedStorage;
    ///
    /// # let folder = tempfile::tempdir()?;
    /// let store = TimedStorage::<String>::open(folder.path().join("operators.json"))?;
    /// let lease = store.claim("tsukuyomi".to_owned())?.granted().ok_or("busy")?;
    /// let guard = store.keep_alive(lease)?.release_on_drop();
    /// assert!(!guard.is_lost());
    /// drop(guard);
    /// assert_eq!(store.restore()?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct KeepAlive;
}

/// Releases the value of a dropped guard.
fn release<T: Value + 'static>(core: &Arc<Core>, token: u64) {
    let released = block_on(&core.context, core.release_dropped::<Blocking, T>(token));
    if let Err(error) = released {
        tracing::warn!(token, %error, "cannot release the value of a dropped guard");
    }
}

/// The changes of a store, as an iterator that never ends; `next` blocks until there is one. An
/// error does not end it either: the next item comes from a new attempt, after a change or after a
/// second.
///
/// Changes that follow each other quickly may be merged; the last state is always reported. A refresh
/// is not a change. Dropping it ends the watch.
///
/// ```
/// use timed_store::{Change, blocking::TimedStorage};
///
/// # let folder = tempfile::tempdir()?;
/// let store = TimedStorage::<String>::open(folder.path().join("operators.json"))?;
/// let mut changes = store.watch();
/// store.store(&"tsukuyomi".to_owned())?;
/// assert!(matches!(changes.next(), Some(Ok(Change::Set { .. }))));
/// store.remove()?;
/// assert!(matches!(changes.next(), Some(Ok(Change::Removed { .. }))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "an iterator does nothing unless it is used"]
pub struct Watch<T> {
    state: WatchState<T>,
    context: RuntimeContext,
}

impl<T> Watch<T> {
    fn new(state: WatchState<T>) -> Self {
        Self {
            context: state.context(),
            state,
        }
    }
}

impl<T: Serialize + DeserializeOwned> Iterator for Watch<T> {
    type Item = Result<Change<T>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(block_on(&self.context, self.state.next::<Blocking>()))
    }
}

impl<T> fmt::Debug for Watch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}
