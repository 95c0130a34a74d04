//! Notifications that a store may have changed.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::OwnerProcess;
use crate::disk::FileWatcher;

/// Wakes all waiters for a change.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    state: Mutex<SignalState>,
}

#[derive(Debug, Default)]
struct SignalState {
    /// The number of changes so far.
    changes: u64,
    wakers: BTreeMap<u64, Waker>,
    next_id: u64,
}

impl Signal {
    pub(crate) fn notify(&self) {
        let mut state = self.lock();
        state.changes += 1;
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_values().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, SignalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The source of the notifications. Dropping the last owner ends its thread or task.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Files(Arc<FileWatcher>),
    /// No notifications: the waiter checks the store after an interval.
    Interval,
    #[cfg(feature = "redis")]
    Server(#[expect(dead_code, reason = "keeps the task alive")] Arc<crate::redis::Subscriber>),
}

/// A waiter for changes.
///
/// Lost wake-ups: the waiter calls [`mark`](Self::mark), then checks the store, then waits. A
/// change after the mark ends the wait at once, even if it came before the look.
#[derive(Debug)]
pub(crate) struct Changes {
    signal: Arc<Signal>,
    source: Source,
    interval: Option<Duration>,
    id: u64,
    seen: u64,
}

impl Changes {
    /// `interval` is the time after which a waiter checks the store without a notification; `None` if
    /// no change can be missed.
    pub(crate) fn new(signal: Arc<Signal>, source: Source, interval: Option<Duration>) -> Self {
        let mut state = signal.lock();
        state.next_id += 1;
        let (id, seen) = (state.next_id, state.changes);
        drop(state);
        Self {
            signal,
            source,
            interval,
            id,
            seen,
        }
    }

    /// Makes the next wait end with a change that comes after this call.
    pub(crate) fn mark(&mut self) {
        self.seen = self.signal.lock().changes;
    }

    /// Waits for a change since the last mark.
    pub(crate) async fn changed(&self) {
        poll_fn(|context| {
            let mut state = self.signal.lock();
            if state.changes != self.seen {
                return Poll::Ready(());
            }
            state.wakers.insert(self.id, context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Shortens a wait to the interval of a source that can miss changes.
    pub(crate) fn limit(&self, pause: Duration) -> Duration {
        self.interval.map_or(pause, |interval| pause.min(interval))
    }

    /// Counts the end of these processes as a change.
    pub(crate) fn watch_processes(&self, owners: &[OwnerProcess]) {
        if let Source::Files(watcher) = &self.source {
            watcher.watch_processes(owners);
        }
    }

    /// Counts the end of a waiter in the queue as a change.
    pub(crate) fn watch_queue(&self) {
        if let Source::Files(watcher) = &self.source {
            watcher.watch_queue();
        }
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.signal.lock().wakers.remove(&self.id);
    }
}
