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

/// How much of the stream must lie between the writing of a command and its block before output that
/// followed the command may stand before the block. tmux writes the block in its place among the
/// outputs, but gives each pane its turn: while other panes have more to say than it writes in one
/// go, 8 KB, an answer may overtake the block of its question.
const OVERTAKEN: u64 = 4096;

/// Collects the output for one reader. The control client's reader fills it and never waits: past
/// the limit further output is dropped, and the reader of the tap is told.
#[derive(Debug)]
pub(crate) struct Tap {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    data: Vec<u8>,
    /// How much of the data came before the block of the command.
    early: usize,
    limit: usize,
    overflow: bool,
    end: Option<End>,
    last: Instant,
}

#[derive(Debug)]
enum Phase {
    Closed,
    /// The command is on its way, since this place in the stream.
    Armed(u64),
    Open,
}

/// What came since the last look.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) bytes: Vec<u8>,
    /// How many of the bytes may have come before the command ran.
    pub(crate) early: usize,
    pub(crate) overflow: bool,
    pub(crate) end: Option<End>,
    /// When output last came.
    pub(crate) last: Instant,
}

impl Tap {
    /// A tap that holds at most `limit` bytes that were not taken yet, closed until [`open`](Self::open).
    pub(crate) fn new(limit: usize) -> Self {
        let state = State {
            phase: Phase::Closed,
            data: Vec::new(),
            early: 0,
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

    /// The command at which it is to be opened is about to be written, while the stream is at `at`.
    pub(crate) fn arm(&self, at: u64) {
        self.lock().phase = Phase::Armed(at);
    }

    /// The command's block has come, at this place in the stream: from here on output is collected.
    pub(crate) fn open_at(&self, at: u64) {
        let mut state = self.lock();
        match state.phase {
            Phase::Armed(since) if at.saturating_sub(since) >= OVERTAKEN => {
                state.early = state.data.len();
            }
            _ => {
                state.data.clear();
                state.overflow = false;
            }
        }
        state.phase = Phase::Open;
        state.last = Instant::now();
    }

    /// From now on output is collected.
    pub(crate) fn open(&self) {
        self.open_at(0);
    }

    pub(crate) fn push(&self, bytes: &[u8], now: Instant) {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Closed) {
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
            early: std::mem::take(&mut state.early),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(begin: u64) -> (Vec<u8>, usize) {
        let tap = Tap::new(100);
        let push = |text: &str| tap.push(text.as_bytes(), Instant::now());
        push("long before ");
        tap.arm(1000);
        push("answ");
        tap.open_at(begin);
        push("er");
        let taken = tap.take();
        (taken.bytes, taken.early)
    }

    #[test]
    fn output_counts_from_the_block_on_unless_the_block_was_overtaken() {
        assert_eq!(taken(1000 + OVERTAKEN - 1), (b"er".to_vec(), 0));
        assert_eq!(taken(1000 + OVERTAKEN), (b"answer".to_vec(), 4));
    }
}
