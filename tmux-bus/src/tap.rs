//! A pane's output from a certain moment on.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::error::Exit;

/// Why no more output will come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The pane's program has ended.
    Exited(Exit),
    /// The session or the server is gone.
    ServerGone,
}

/// The end of a wait. One that is longer than clocks can tell is as good as a year.
pub(crate) fn deadline(start: Instant, wait: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    start + wait.min(YEAR)
}

/// Collects the output for one reader. The control client's reader fills it and never waits: past
/// the limit further output is dropped, and the reader of the tap is told.
#[derive(Debug)]
pub(crate) struct Tap {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    open: bool,
    data: Vec<u8>,
    limit: usize,
    overflow: bool,
    end: Option<End>,
    last: Instant,
}

/// What came since the last look.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) bytes: Vec<u8>,
    pub(crate) overflow: bool,
    pub(crate) end: Option<End>,
    /// When output last came.
    pub(crate) last: Instant,
}

impl Tap {
    /// A tap that holds at most `limit` bytes that were not taken yet, closed until [`open`](Self::open).
    pub(crate) fn new(limit: usize) -> Self {
        let state = State {
            open: false,
            data: Vec::new(),
            limit,
            overflow: false,
            end: None,
            last: Instant::now(),
        };
        Self {
            state: Mutex::new(state),
            changed: Notify::new(),
        }
    }

    /// From here on output is collected.
    pub(crate) fn open(&self) {
        let mut state = self.lock();
        state.open = true;
        state.last = Instant::now();
    }

    pub(crate) fn push(&self, bytes: &[u8], now: Instant) {
        let mut state = self.lock();
        if !state.open {
            return;
        }
        let kept = bytes.len().min(state.limit - state.data.len());
        state.overflow |= kept < bytes.len();
        state.data.extend_from_slice(&bytes[..kept]);
        state.last = now;
        drop(state);
        self.changed.notify_one();
    }

    pub(crate) fn end(&self, end: End) {
        self.lock().end.get_or_insert(end);
        self.changed.notify_one();
    }

    pub(crate) fn take(&self) -> Taken {
        let mut state = self.lock();
        Taken {
            bytes: std::mem::take(&mut state.data),
            overflow: state.overflow,
            end: state.end,
            last: state.last,
        }
    }

    /// Waits until something came or ended since the last call, at most until `deadline`. Tells
    /// whether it did.
    pub(crate) async fn changed(&self, deadline: Instant) -> bool {
        tokio::time::timeout_at(deadline, self.changed.notified())
            .await
            .is_ok()
    }

    /// Waits until nothing came for `quiet`, at most until `deadline`.
    pub(crate) async fn quiet(&self, quiet: Duration, deadline: Instant) {
        loop {
            let (last, ended) = {
                let state = self.lock();
                (state.last, state.end.is_some())
            };
            let until = (last + quiet).min(deadline);
            if ended || until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
