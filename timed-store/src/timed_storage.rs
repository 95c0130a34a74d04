use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use serde::Serialize;
use serde::de::DeserializeOwned;

#[cfg(feature = "redis")]
use crate::RedisBuilder;
use crate::store::{AnyBackend, Blocking, Core, Keeper, Tokio, Value, block_on};
#[cfg(feature = "redis")]
use crate::store::{RELEASE_LIMIT, RuntimeContext};
use crate::timed_storage_macro::timed_storage;
use crate::watch::WatchState;
use crate::{
    Change, Claim, Entries, Error, Incident, Lease, SessionId, TimedStorageBuilder, Transaction,
};

macro_rules! awaited {
    ($core:expr, $operation:expr) => {
        $operation.await
    };
}

#[cfg(feature = "redis")]
macro_rules! connected {
    ($builder:expr) => {
        $builder.into_core(RuntimeContext::default()).await
    };
}

timed_storage! {
    runtime: Tokio,
    complete: awaited,
    connect: connected,
    release: release,
    keyword: [async],
    cancel_safety: [
        ///
        /// # Cancel safety
        ///
        /// Cancel safe: the operation is done as a whole or not at all.
    ],
    cancel_safety_of_claims: [
        ///
        /// # Cancel safety
        ///
        /// Cancel safe: the claim is done as a whole or not at all. A claim that is cancelled while
        /// it waits for the disk or for the answer of a server may be granted; claim again, or call
        /// [`restore`](Self::restore). A waiter that is cancelled leaves the queue: in a file at
        /// once, on a server within three seconds.
    ],
    /// A map from session to value with expiry, in a JSON file that processes share, or on a server
    /// (feature `redis`).
    ///
    /// Every operation is one atomic step. In a file it takes the lock, drops expired entries, does
    /// its work and unlocks. The [crate's page](crate) lists the guarantees;
    /// [`blocking::TimedStorage`](crate::blocking::TimedStorage) is the same without a runtime.
    ///
    /// A handle is cheap to clone and to share between tasks; clones belong to the same session.
    /// Dropping a handle changes nothing in the store.
    ///
    /// ```
    /// use timed_store::{SessionId, TimedStorage};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), timed_store::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// let store = TimedStorage::<String>::builder(folder.path().join("operators.json"))
    ///     .session(SessionId::new("terminal-1")?)
    ///     .open()?;
    /// store.store(&"tsukuyomi".to_owned()).await?;
    /// assert_eq!(store.restore().await?.as_deref(), Some("tsukuyomi"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Example programs: [`claim`] takes a value that only one session may hold, [`seats`] limits
    /// the number of sessions by a transaction.
    ///
    /// [`claim`]: https://docs.rs/crate/timed-store/latest/source/examples/claim.rs
    /// [`seats`]: https://docs.rs/crate/timed-store/latest/source/examples/seats.rs
    ///
    /// # Runtime
    ///
    /// Operations run in place, because that takes less time than handing them to another thread:
    /// about ten microseconds for a read of a small file. Only waits need a Tokio runtime with its
    /// timer: for the lock ([`LockPolicy::Wait`](crate::LockPolicy::Wait)), for a value
    /// ([`claim_within`](Self::claim_within)), for changes ([`watch`](Self::watch)), for the disk
    /// ([`Durability::Power`](crate::Durability::Power), on a blocking thread), and
    /// [`keep_alive`](Self::keep_alive). Without a runtime `keep_alive` is an error, and the others
    /// panic. A store on a server needs a runtime for every operation.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: all methods. A future that is dropped while it waits for the lock has done
    /// nothing; one that is dropped while it waits for the disk completes in the background.
    #[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
    pub struct TimedStorage;
    /// Keeps a lease alive: refreshes it in the background, three times in its time.
    ///
    /// A lease that was lost stays lost; [`lost`](Self::lost) reports when (if the machine
    /// slept, within ten seconds after it). The runtime that made the guard runs the refreshes: a guard
    /// that outlives it has lost its lease.
    ///
    /// Dropping the guard stops the refreshes, and the value stays busy until it expires. With
    /// [`release_on_drop`](Self::release_on_drop) it is released too, before the drop returns, so
    /// also at the end of `main`. The drop blocks its thread: for a file until it has the lock, two
    /// seconds or as long as the policy says; for a server until a thread with a connection of its
    /// own has the answer, two seconds at most. A release that failed is a `tracing` warning, and
    /// the value stays busy until it expires. [`release`](Self::release) does not block the thread,
    /// and returns the result. If it is cancelled, the drop releases the value with
    /// [`release_on_drop`](Self::release_on_drop), else the value stays busy until it expires.
    ///
    /// On a current-thread runtime, use `release` if tasks wait for the lock of the same file, for
    /// example the refresher of the guard with [`LockPolicy::Wait`](crate::LockPolicy::Wait): a lock
    /// that was just handed to a task of the blocked thread is free only after the drop, which then
    /// waits for its whole time and fails.
    ///
    /// ```
    /// use timed_store::TimedStorage;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// let store = TimedStorage::<String>::open(folder.path().join("operators.json"))?;
    /// let lease = store.claim("tsukuyomi".to_owned()).await?.granted().ok_or("busy")?;
    /// let guard = store.keep_alive(lease)?.release_on_drop();
    /// tokio::select! {
    ///     () = guard.lost() => return Err("another session has it".into()),
    ///     () = async { /* the work */ } => {}
    /// }
    /// drop(guard);
    /// assert_eq!(store.restore().await?, None);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
    pub struct KeepAlive;
}

/// Releases the value of a dropped guard.
fn release<T: Value + 'static>(core: &Arc<Core>, token: u64) {
    let released = match &core.backend {
        AnyBackend::File(_) => block_on(&core.context, core.release_dropped::<Blocking, T>(token)),
        #[cfg(feature = "redis")]
        AnyBackend::Redis(server) => server.release_on_thread(token, RELEASE_LIMIT),
    };
    if let Err(error) = released {
        tracing::warn!(token, %error, "cannot release the value of a dropped guard");
    }
}

/// The changes of a store, as a [`Stream`] that never ends. An error does not end it either: the
/// next item comes from a new attempt, after a change or after a second.
///
/// Changes that follow each other quickly may be merged; the last state is always reported. A refresh
/// is not a change. Dropping it ends the watch.
///
/// ```
/// use timed_store::{Change, TimedStorage};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let store = TimedStorage::<String>::open(folder.path().join("operators.json"))?;
/// let mut changes = store.watch();
/// store.store(&"tsukuyomi".to_owned()).await?;
/// assert!(matches!(changes.next().await?, Change::Set { .. }));
/// store.remove().await?;
/// assert!(matches!(changes.next().await?, Change::Removed { .. }));
/// # Ok(())
/// # }
/// ```
#[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
#[must_use = "a stream does nothing unless it is polled"]
pub struct Watch<T> {
    step: WatchStep<T>,
}

type Looked<T> = (WatchState<T>, Result<Change<T>, Error>);

enum WatchStep<T> {
    Idle(WatchState<T>),
    Looking(Pin<Box<dyn Future<Output = Looked<T>> + Send>>),
    /// Only inside `poll_next`, or after a panic in it.
    Empty,
}

impl<T> Watch<T> {
    fn new(state: WatchState<T>) -> Self {
        Self {
            step: WatchStep::Idle(state),
        }
    }
}

impl<T: Serialize + DeserializeOwned + Send + 'static> Watch<T> {
    /// Waits for the next change.
    ///
    /// # Errors
    ///
    /// Any [`Error`] of [`TimedStorage::entries`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no change is lost.
    pub async fn next(&mut self) -> Result<Change<T>, Error> {
        let next = poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await;
        next.unwrap_or(Err(Error::ShuttingDown))
    }
}

// The state is never pinned in place.
impl<T> Unpin for Watch<T> {}

impl<T: Serialize + DeserializeOwned + Send + 'static> Stream for Watch<T> {
    type Item = Result<Change<T>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut looking = match std::mem::replace(&mut self.step, WatchStep::Empty) {
            WatchStep::Idle(mut state) => Box::pin(async move {
                let change = state.next::<Tokio>().await;
                (state, change)
            }),
            WatchStep::Looking(looking) => looking,
            WatchStep::Empty => return Poll::Ready(None),
        };
        match looking.as_mut().poll(context) {
            Poll::Ready((state, change)) => {
                self.step = WatchStep::Idle(state);
                Poll::Ready(Some(change))
            }
            Poll::Pending => {
                self.step = WatchStep::Looking(looking);
                Poll::Pending
            }
        }
    }
}

impl<T> fmt::Debug for Watch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}
