//! Refreshes a lease beside the caller.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::backend::Value;
use super::changes::{Changes, Signal, Source};
use super::core::{CLOCK_CHECK, Core};
use super::runtime::Runtime;
use crate::clock::Moment;
use crate::{Error, Lease};

/// The refresher of one lease. Dropping it stops the refreshes.
#[derive(Debug)]
pub(crate) struct Keeper {
    state: Arc<KeeperState>,
    core: Arc<Core>,
    /// The time on the clock of the runtime.
    now: fn(&Core) -> Moment,
}

#[derive(Debug)]
struct KeeperState {
    step: Mutex<KeeperStep>,
    signal: Arc<Signal>,
}

#[derive(Clone, Copy, Debug)]
enum KeeperStep {
    Held {
        /// The moment before the last successful refresh, or the claim, was sent.
        since: Moment,
        /// How long the lease lasts from there.
        time: Duration,
    },
    Lost,
    Stopped,
}

/// A lease is refreshed this often in its time, so that two refreshes may fail.
const REFRESHES: u32 = 3;

/// The time of the first refresh, if that of the lease is over.
const LATE: Duration = Duration::from_secs(1);

/// The pause after a failed refresh, at most.
const RETRY: Duration = Duration::from_secs(1);

impl Keeper {
    pub(crate) fn start<R, T>(core: &Arc<Core>, lease: &Lease<T>) -> Result<Self, Error>
    where
        R: Runtime,
        T: Value + 'static,
    {
        let (now, claimed) = (core.now::<R>(), lease.sent.0);
        // The timeout of the entry. The handle may have another one: a refresh by another handle
        // does not change it, and a renewal does not shorten it.
        let ttl = lease.expires_in;
        let is_late = now.since(claimed) >= ttl;
        let state = Arc::new(KeeperState {
            step: Mutex::new(KeeperStep::Held {
                since: if is_late { now } else { claimed },
                time: if is_late { LATE } else { ttl },
            }),
            signal: Arc::default(),
        });
        let ended = LostAtEnd(Arc::clone(&state));
        let due = (ttl / REFRESHES).saturating_sub(now.since(claimed));
        let refresher = refresh::<R, T>(Arc::clone(core), lease.token, ttl, due, ended);
        R::spawn(&core.context, refresher)?;
        Ok(Self {
            state,
            core: Arc::clone(core),
            now: Core::now::<R>,
        })
    }

    /// Whether the lease is lost. The clocks are read here too: the refresher may not have run.
    pub(crate) fn is_lost(&self) -> bool {
        self.state.time_left((self.now)(&self.core));
        matches!(*self.state.step(), KeeperStep::Lost)
    }

    /// Waits until the lease is lost.
    pub(crate) async fn lost(&self) {
        let mut changes = self.state.changes();
        loop {
            changes.mark();
            if self.is_lost() {
                return;
            }
            changes.changed().await;
        }
    }

    pub(crate) fn stop(&self) {
        self.state.end(KeeperStep::Stopped);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop();
    }
}

impl KeeperState {
    fn step(&self) -> MutexGuard<'_, KeeperStep> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first end counts.
    fn end(&self, end: KeeperStep) {
        let mut step = self.step();
        if let KeeperStep::Held { .. } = *step {
            *step = end;
        }
        drop(step);
        self.signal.notify();
    }

    /// The time until the lease ends; `None` if it has ended or was stopped. A lease whose time is over
    /// is lost from now on.
    fn time_left(&self, now: Moment) -> Option<Duration> {
        let KeeperStep::Held { since, time } = *self.step() else {
            return None;
        };
        let left = time.saturating_sub(now.since(since));
        if left.is_zero() {
            self.end(KeeperStep::Lost);
            return None;
        }
        Some(left)
    }

    fn refreshed(&self, since: Moment, time: Duration) {
        let mut step = self.step();
        if let KeeperStep::Held { .. } = *step {
            *step = KeeperStep::Held { since, time };
        }
    }

    fn changes(&self) -> Changes {
        Changes::new(Arc::clone(&self.signal), Source::Interval, None)
    }
}

/// Ends the lease with the refresher, also if a runtime that shuts down drops it.
struct LostAtEnd(Arc<KeeperState>);

impl Drop for LostAtEnd {
    fn drop(&mut self) {
        self.0.end(KeeperStep::Lost);
    }
}

/// Refreshes until the lease is lost or the keeper stops, for the first time after `due`.
///
/// The lease is lost when the store says so, or when no refresh has succeeded for its whole time.
/// The time counts from the moment before the claim or a refresh was sent, on the clock that shows
/// more, so that this side never counts on more time than the store gives. A lease that is kept late
/// is refreshed at once, also if its time is over: its holder may have refreshed it by hand, which
/// only the store knows.
///
/// A refresh has no more time than the lease: a server that is away and a lock that is held must not
/// delay the report of the loss until another session has the value.
async fn refresh<R: Runtime, T: Value>(
    core: Arc<Core>,
    token: u64,
    ttl: Duration,
    mut due: Duration,
    ended: LostAtEnd,
) {
    let state = &ended.0;
    let mut changes = state.changes();
    let mut start = core.now::<R>();
    loop {
        changes.mark();
        let now = core.now::<R>();
        let Some(left) = state.time_left(now) else {
            return;
        };
        let pause = due.saturating_sub(now.since(start));
        if !pause.is_zero() {
            R::at_most(pause.min(left).min(CLOCK_CHECK), changes.changed()).await;
            continue;
        }
        start = now;
        match core.refresh_within::<R, T>(token, left).await {
            Some(Ok(true)) => {
                state.refreshed(now, ttl);
                due = ttl / REFRESHES;
            }
            Some(Ok(false)) | None => return,
            Some(Err(error)) => {
                let path = core.settings.path.display();
                tracing::warn!(%path, token, %error, "cannot refresh the lease");
                start = core.now::<R>();
                due = RETRY.min(ttl / (4 * REFRESHES));
            }
        }
    }
}
