//! The operations of a store, written once for the async and the blocking type, and for every
//! backend.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::backend::{Backend, Queue, Value, WaitLimit};
use super::changes::Changes;
use super::decision::{Decision, no_candidates};
use super::file_backend::FileBackend;
use super::runtime::{Runtime, RuntimeContext};
use super::settings::Settings;
#[cfg(feature = "redis")]
use crate::clock::Clock;
use crate::clock::Moment;
use crate::{Claim, Entries, Error, SessionId, Transaction};

/// A handle of a store. Each operation is an async function that is generic over the [`Runtime`] on
/// which it waits.
pub(crate) struct Core {
    pub(crate) settings: Arc<Settings>,
    pub(crate) backend: AnyBackend,
    pub(crate) context: RuntimeContext,
}

/// An enum and not a `dyn Backend`, because the operations are generic.
pub(crate) enum AnyBackend {
    File(FileBackend),
    #[cfg(feature = "redis")]
    Redis(crate::redis::RedisBackend),
}

/// Calls a method of the backend.
macro_rules! each {
    ($core:expr, $backend:ident => $call:expr) => {
        match &$core.backend {
            AnyBackend::File($backend) => $call,
            #[cfg(feature = "redis")]
            AnyBackend::Redis($backend) => $call,
        }
    };
}

/// How long a waiter leaves a free value to the waiters before it. A waiter that was stopped
/// (SIGSTOP) keeps its place and does not take the value; the others must not wait for it for ever.
const STALLED: Duration = Duration::from_secs(1);

/// How long after its limit a waiter may wait for the lock, or for the server.
pub(super) const LAST_ATTEMPT: Duration = Duration::from_secs(1);

/// How long the release of a guard may wait for the lock, at least. On a server it is the time that
/// the release by a dropped guard has.
pub(crate) const RELEASE_LIMIT: Duration = Duration::from_secs(2);

/// An entry expires when its age is above its timeout, which is a millisecond later.
pub(crate) const EXPIRED: Duration = Duration::from_millis(1);

/// How often a wait compares the clocks: timers stand still while the machine sleeps.
pub(super) const CLOCK_CHECK: Duration = Duration::from_secs(10);

/// Long waits are split, because timers have a maximum duration.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(24 * 60 * 60);

impl Core {
    pub(crate) async fn store<R: Runtime, T: Value>(&self, value: &T) -> Result<(), Error> {
        each!(self, backend => backend.store::<R, T>(value).await)
    }

    pub(crate) async fn remove<R: Runtime, T: Value>(&self) -> Result<bool, Error> {
        each!(self, backend => backend.remove::<R, T>(None, WaitLimit::Policy).await)
    }

    /// Removes the entry of a guard. The guard is gone afterwards, so a removal that finds the lock held
    /// could not be repeated: it waits for the lock with any policy. A call to a server repeats
    /// itself, and needs no other limit.
    pub(crate) async fn release<R: Runtime, T: Value>(&self, token: u64) -> Result<bool, Error> {
        let limit = match &self.backend {
            AnyBackend::File(_) => WaitLimit::AtLeast(RELEASE_LIMIT),
            #[cfg(feature = "redis")]
            AnyBackend::Redis(_) => WaitLimit::Policy,
        };
        each!(self, backend => backend.remove::<R, T>(Some(token), limit).await)
    }

    /// As [`release`](Self::release) for a dropped guard, whose drop blocks its thread: on a server
    /// it has a limit.
    pub(crate) async fn release_dropped<R: Runtime, T: Value>(
        &self,
        token: u64,
    ) -> Result<bool, Error> {
        let limit = WaitLimit::AtLeast(RELEASE_LIMIT);
        each!(self, backend => backend.remove::<R, T>(Some(token), limit).await)
    }

    pub(crate) async fn refresh<R: Runtime, T: Value>(&self) -> Result<bool, Error> {
        each!(self, backend => backend.refresh::<R, T>(None, WaitLimit::Policy).await)
    }

    /// A refresh that ends within `limit`; `None` if its result is unknown then.
    ///
    /// The blocking runtime waits for the lock of the files inside `poll`, where `at_most` cannot
    /// end the wait. So the wait for the lock has the limit, too.
    pub(crate) async fn refresh_within<R: Runtime, T: Value>(
        &self,
        token: u64,
        limit: Duration,
    ) -> Option<Result<bool, Error>> {
        let for_lock = WaitLimit::AtMost(limit);
        each!(self, backend => {
            R::at_most(limit, backend.refresh::<R, T>(Some(token), for_lock)).await
        })
    }

    pub(crate) async fn restore<R: Runtime, T: Value>(&self) -> Result<Option<T>, Error> {
        each!(self, backend => backend.restore::<R, T>().await)
    }

    pub(crate) async fn get_other_entries<R: Runtime, T: Value>(
        &self,
    ) -> Result<BTreeMap<SessionId, T>, Error> {
        each!(self, backend => backend.other_values::<R, T>().await)
    }

    pub(crate) async fn entries<R: Runtime, T: Value>(
        &self,
        watcher: Option<&Changes>,
    ) -> Result<Entries<T>, Error> {
        each!(self, backend => backend.entries::<R, T>(watcher).await)
    }

    pub(crate) async fn validate<R: Runtime, T: Value>(&self, token: u64) -> Result<bool, Error> {
        each!(self, backend => backend.has_token::<R, T>(token).await)
    }

    pub(crate) async fn claim_any<R, T>(&self, candidates: Vec<T>) -> Result<Claim<T>, Error>
    where
        R: Runtime,
        T: Value + PartialEq,
    {
        self.barge::<R, T>(candidates, None).await
    }

    pub(crate) async fn claim_any_within<R, T>(
        &self,
        candidates: Vec<T>,
        limit: Duration,
    ) -> Result<Claim<T>, Error>
    where
        R: Runtime,
        T: Value + PartialEq,
    {
        if candidates.is_empty() {
            return Err(no_candidates());
        }
        each!(self, backend => self.wait_for::<R, T, _>(backend, candidates, limit).await)
    }

    pub(crate) async fn transaction<R: Runtime, T: Value, A>(
        &self,
        mut body: impl FnMut(&mut Transaction<T>) -> A,
    ) -> Result<A, Error> {
        each!(self, backend => backend.transaction::<R, T, A>(&mut body).await)
    }

    /// The time on the clock of the timers and on that of the store. A server has a clock of its own;
    /// the system's clock stands for it.
    pub(crate) fn now<R: Runtime>(&self) -> Moment {
        let clock = match &self.backend {
            AnyBackend::File(files) => &files.files().clock,
            #[cfg(feature = "redis")]
            AnyBackend::Redis(_) => &Clock::System,
        };
        Moment {
            timer: R::now(),
            clock_ms: clock.now_ms(),
        }
    }

    /// Waits for a change, at most `pause` on the clock that shows more: the entry that a waiter waits
    /// for also expires while the machine sleeps.
    pub(crate) async fn pause<R: Runtime>(&self, changes: &Changes, pause: Duration) {
        let start = self.now::<R>();
        loop {
            let left = pause.saturating_sub(self.now::<R>().since(start));
            let step = left.min(CLOCK_CHECK);
            if left.is_zero() || R::at_most(step, changes.changed()).await.is_some() {
                return;
            }
        }
    }

    pub(crate) fn changes(&self) -> Changes {
        each!(self, backend => backend.changes())
    }

    /// A handle of the same store and session for another slot.
    pub(crate) fn with_slot(&self, slot: &str) -> Result<Self, Error> {
        let settings = Arc::new(self.settings.with_slot(slot)?);
        let backend = match &self.backend {
            AnyBackend::File(files) => AnyBackend::File(files.with_settings(Arc::clone(&settings))),
            #[cfg(feature = "redis")]
            AnyBackend::Redis(server) => {
                AnyBackend::Redis(server.with_settings(Arc::clone(&settings)))
            }
        };
        Ok(Self {
            settings,
            backend,
            context: self.context.clone(),
        })
    }

    /// One attempt, ahead of all waiters.
    async fn barge<R: Runtime, T: Value + PartialEq>(
        &self,
        candidates: Vec<T>,
        limit: Option<Duration>,
    ) -> Result<Claim<T>, Error> {
        let sent = self.now::<R>();
        let (decision, incidents) = each!(self, backend => {
            backend.claim::<R, T>(&candidates, Queue::Barge { limit }).await?
        });
        granted_or_busy(decision.into_claim(candidates, incidents, sent)?)
    }

    /// Attempts a claim after each change, until it is granted or the time is over.
    ///
    /// A wait ends with a change of the store, with the end of an owner process, when the holder's
    /// entry expires, or at the deadline. The last attempt is made ahead of the other waiters: if
    /// the value is free, a waiter before this one has not taken it. Every attempt ends at the latest
    /// [`LAST_ATTEMPT`] after the limit. If its answer came after the limit and was "busy", it is the
    /// last one.
    ///
    /// Cancel safety: all state is in this future. Dropping it drops `turn`, which leaves the queue.
    async fn wait_for<R, T, B>(
        &self,
        backend: &B,
        candidates: Vec<T>,
        limit: Duration,
    ) -> Result<Claim<T>, Error>
    where
        R: Runtime,
        T: Value + PartialEq,
        B: Backend,
    {
        let start = R::now();
        let end = limit.saturating_add(LAST_ATTEMPT);
        let until_end = || end.saturating_sub(R::now() - start);
        let mut changes = backend.changes();
        let mut turn = None;
        let mut queued_since = None;
        let mut late = None;
        loop {
            changes.mark();
            let left = limit.saturating_sub(R::now() - start);
            if left.is_zero() {
                break;
            }
            let is_stalled = queued_since.is_some_and(|since| R::now() - since >= STALLED);
            let queue = if is_stalled {
                Queue::Barge {
                    limit: Some(until_end()),
                }
            } else {
                Queue::Join {
                    turn: &mut turn,
                    left,
                    changes: &changes,
                }
            };
            let sent = self.now::<R>();
            let (decision, incidents) = backend.claim::<R, T>(&candidates, queue).await?;
            let pause = match &decision {
                Decision::Granted { .. } => {
                    let claim = granted_or_busy(decision.into_claim(candidates, incidents, sent)?);
                    // A claim ahead of the waiters does not end the place of this one.
                    if let Some(turn) = turn.filter(|_| is_stalled) {
                        backend
                            .leave::<R>(turn, LAST_ATTEMPT.min(until_end()))
                            .await;
                    }
                    return claim;
                }
                Decision::Busy { expires_in, .. } => {
                    if R::now() - start >= limit {
                        late = Some(decision);
                        break;
                    }
                    queued_since = None;
                    *expires_in + EXPIRED
                }
                Decision::Queued => {
                    queued_since = queued_since.or_else(|| Some(R::now()));
                    STALLED
                }
            };
            let left = limit.saturating_sub(R::now() - start);
            let pause = changes.limit(pause.min(left).min(LONGEST_PAUSE));
            self.pause::<R>(&changes, pause).await;
        }
        let claim = match late {
            Some(busy) => {
                granted_or_busy(busy.into_claim(candidates, Vec::new(), self.now::<R>())?)
            }
            None => self.barge::<R, T>(candidates, Some(until_end())).await,
        };
        // After an error the place is left to expire: the server is away.
        if let (Some(turn), Ok(_)) = (turn, &claim) {
            backend.leave::<R>(turn, until_end()).await;
        }
        claim
    }
}

/// A claim ahead of the waiters is never queued.
fn granted_or_busy<T>(claim: Option<Claim<T>>) -> Result<Claim<T>, Error> {
    claim.ok_or_else(no_candidates)
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("TimedStorage");
        debug
            .field("path", &self.settings.path)
            .field("session", &self.settings.session)
            .field("slot", &self.settings.slot)
            .field("ttl_ms", &self.settings.ttl_ms);
        match &self.backend {
            AnyBackend::File(backend) => debug
                .field("policy", &backend.files().policy)
                .field("durability", &backend.files().durability),
            #[cfg(feature = "redis")]
            AnyBackend::Redis(_) => &mut debug,
        };
        debug.finish_non_exhaustive()
    }
}
