//! Refreshes a lease beside the caller.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::backend::Value;
use super::changes::{Changes, Signal, Source};
use super::core::Core;
use super::runtime::Runtime;
use crate::{Error, Lease};

/// The refresher of one lease. Dropping it stops the refreshes.
#[derive(Debug)]
pub(crate) struct Keeper {
    state: Arc<KeeperState>,
}

#[derive(Debug, Default)]
struct KeeperState {
    step: Mutex<KeeperStep>,
    signal: Arc<Signal>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum KeeperStep {
    #[default]
    Held,
    Lost,
    Stopped,
}

/// The parts of a lease that the refreshes need.
struct KeptLease {
    token: u64,
    /// The timeout of the entry. The handle may have another one: an entry keeps the timeout that it
    /// was claimed with, also when another handle refreshes it.
    ttl: Duration,
    /// The moment before the claim was sent.
    sent: Instant,
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
        let state = Arc::new(KeeperState::default());
        let kept = KeptLease {
            token: lease.token,
            ttl: lease.expires_in,
            sent: lease.sent.0,
        };
        let refresher = refresh::<R, T>(Arc::clone(core), kept, Arc::clone(&state));
        R::spawn(&core.context, refresher)?;
        Ok(Self { state })
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.state.step() == KeeperStep::Lost
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
        self.state.set(KeeperStep::Stopped);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop();
    }
}

impl KeeperState {
    fn step(&self) -> KeeperStep {
        *self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first end counts.
    fn set(&self, next: KeeperStep) {
        let mut step = self.step.lock().unwrap_or_else(PoisonError::into_inner);
        if *step == KeeperStep::Held {
            *step = next;
        }
        drop(step);
        self.signal.notify();
    }

    fn changes(&self) -> Changes {
        Changes::new(Arc::clone(&self.signal), Source::Interval, None)
    }
}

/// Refreshes until the lease is lost or the keeper stops.
///
/// The lease is lost when the store says so, or when no refresh has succeeded for its whole time.
/// The time counts from the moment before the claim or a refresh was sent, so that this side never
/// counts on more time than the store gives. A lease that is kept late is refreshed at once, also if
/// its time is over: its holder may have refreshed it by hand, which only the store knows.
///
/// A refresh has no more time than the lease: a server that is away and a lock that is held must not
/// delay the news of the loss until another session has the value.
async fn refresh<R: Runtime, T: Value>(core: Arc<Core>, lease: KeptLease, state: Arc<KeeperState>) {
    let KeptLease {
        token,
        ttl,
        sent: claimed,
    } = lease;
    let mut changes = state.changes();
    let mut last_refresh = claimed;
    let mut overtime = LATE;
    let mut pause = (ttl / REFRESHES).saturating_sub(R::now() - claimed);
    loop {
        changes.mark();
        if state.step() != KeeperStep::Held {
            return;
        }
        R::at_most(pause, changes.changed()).await;
        if state.step() != KeeperStep::Held {
            return;
        }
        let sent = R::now();
        let limit = match ttl.saturating_sub(sent - last_refresh) {
            Duration::ZERO => overtime,
            left => left,
        };
        overtime = Duration::ZERO;
        match core.refresh_within::<R, T>(token, limit).await {
            Some(Ok(true)) => {
                last_refresh = sent;
                pause = ttl / REFRESHES;
            }
            Some(Ok(false)) | None => return state.set(KeeperStep::Lost),
            Some(Err(error)) => {
                let path = core.settings.path.display();
                tracing::warn!(%path, token, %error, "cannot refresh the lease");
                let left = ttl.saturating_sub(R::now() - last_refresh);
                if left.is_zero() {
                    return state.set(KeeperStep::Lost);
                }
                pause = left.min(RETRY).min(ttl / (4 * REFRESHES));
            }
        }
    }
}
