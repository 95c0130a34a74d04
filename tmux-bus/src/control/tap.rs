//! The output of a pane from a certain moment on.
//!
//! # Theory
//!
//! A tap answers one question: which output of a pane is newer than a command, such as the paste of
//! a return? tmux writes the output of panes and the blocks of commands (`%begin` ... `%end`) into
//! one stream, and a block is placed behind the output that the pane had printed before. So the
//! `%begin` of the command is the *submit offset*: output behind it is newer.
//!
//! - **Phases.** `Closed` drops output. `Armed(at)`: the command is about to be written, and the
//!   stream has been read up to offset `at`; output is kept. `Open`: `%begin` was read.
//! - **Race.** tmux gives each pane its share of a write of 8 KB. It may emit a pane's output
//!   before the `%begin` of the command that caused it when more than 4 KB of other output lies
//!   between. So the bytes that arrived while armed are dropped only if less than [`OVERTAKEN`]
//!   bytes of stream lie between the offsets. Otherwise they are kept and marked as `early`: older
//!   or newer than the command, the reader decides by the echo of the message.
//! - **Bound and policy.** The reader of the control stream fills the tap and never waits, because
//!   a control client that stops reading blocks the programs in the panes. Past `limit` bytes that
//!   were not taken yet, output is dropped and `overflow` is set; the wait for the answer then
//!   fails. No output is lost silently.
//!
//! **Example.** `OVERTAKEN` = 4096:
//!
//! | offset | event | tap |
//! |---|---|---|
//! | 1,000 | the command is written | armed at 1,000 |
//! | 1,200 | output `late` of the pane | kept |
//! | 1,300 | `%begin` | 300 < 4096: `late` is dropped; open |
//! | 1,400 | output `answer` | taken: `answer`, early 0 |
//!
//! With `%begin` at offset 9,000 the taken bytes are `lateanswer`, early 4.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::Exit;
use crate::timing::LONGEST_WAIT;

/// Why no more output will come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputEnd {
    Exited(Exit),
    ServerGone,
}

/// The end of a wait, also for a duration that the clock cannot represent.
pub(crate) fn deadline(start: Instant, wait: Duration) -> Instant {
    start + wait.min(LONGEST_WAIT)
}

/// See the theory above.
const OVERTAKEN: u64 = 4096;

#[derive(Debug)]
pub(crate) struct Tap {
    buffer: Mutex<TapBuffer>,
    changed: Notify,
    ended: Notify,
}

#[derive(Debug)]
struct TapBuffer {
    phase: TapPhase,
    bytes: Vec<u8>,
    early: usize,
    limit: usize,
    overflow: bool,
    end: Option<OutputEnd>,
    last: Instant,
}

#[derive(Debug)]
enum TapPhase {
    Closed,
    Armed(u64),
    Open,
}

/// The output since the last call of [`Tap::take`].
#[derive(Debug)]
pub(crate) struct TapOutput {
    pub(crate) bytes: Vec<u8>,
    /// Number of leading bytes that may be older than the command.
    pub(crate) early: usize,
    /// Output was dropped.
    pub(crate) overflow: bool,
    pub(crate) end: Option<OutputEnd>,
    /// Time of the last output.
    pub(crate) last: Instant,
}

impl Tap {
    /// A closed tap that holds at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        let buffer = TapBuffer {
            phase: TapPhase::Closed,
            bytes: Vec::new(),
            early: 0,
            limit,
            overflow: false,
            end: None,
            last: Instant::now(),
        };
        Self {
            buffer: Mutex::new(buffer),
            changed: Notify::new(),
            ended: Notify::new(),
        }
    }

    /// The command is about to be written; the stream has been read up to `at`.
    pub(crate) fn arm(&self, at: u64) {
        self.lock().phase = TapPhase::Armed(at);
    }

    /// The `%begin` of the command was read; it ends at `at`.
    pub(crate) fn open_at(&self, at: u64) {
        let mut buffer = self.lock();
        match buffer.phase {
            TapPhase::Armed(since) if at.saturating_sub(since) >= OVERTAKEN => {
                buffer.early = buffer.bytes.len();
            }
            _ => {
                buffer.bytes.clear();
                buffer.overflow = false;
            }
        }
        buffer.phase = TapPhase::Open;
        buffer.last = Instant::now();
    }

    /// Opens the tap without a command.
    pub(crate) fn open(&self) {
        self.open_at(0);
    }

    pub(crate) fn push(&self, bytes: &[u8], now: Instant) {
        let mut buffer = self.lock();
        if matches!(buffer.phase, TapPhase::Closed) {
            return;
        }
        let kept = bytes.len().min(buffer.limit - buffer.bytes.len());
        buffer.overflow |= kept < bytes.len();
        buffer.bytes.extend_from_slice(&bytes[..kept]);
        buffer.last = now;
        drop(buffer);
        self.changed.notify_one();
    }

    pub(crate) fn end(&self, end: OutputEnd) {
        self.lock().end.get_or_insert(end);
        self.changed.notify_one();
        self.ended.notify_one();
    }

    /// Wakes the waiter without output.
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    pub(crate) fn take(&self) -> TapOutput {
        let mut buffer = self.lock();
        TapOutput {
            bytes: std::mem::take(&mut buffer.bytes),
            early: std::mem::take(&mut buffer.early),
            overflow: buffer.overflow,
            end: buffer.end,
            last: buffer.last,
        }
    }

    /// Waits for output or an end since the last call, at most until `deadline`.
    pub(crate) async fn changed(&self, deadline: Instant) {
        let _ = tokio::time::timeout_at(deadline, self.changed.notified()).await;
    }

    /// Waits until the pane has been quiet for `quiet`, at most until `deadline`.
    pub(crate) async fn quiet(&self, quiet: Duration, deadline: Instant) {
        loop {
            let (last, has_ended) = {
                let buffer = self.lock();
                (buffer.last, buffer.end.is_some())
            };
            let until = (last + quiet).min(deadline);
            if has_ended || until <= Instant::now() {
                return;
            }
            // Not by `changed`: output would end this wait, and only a look after it tells the quiet.
            let _ = tokio::time::timeout_at(until, self.ended.notified()).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, TapBuffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(begin: u64) -> (Vec<u8>, usize) {
        let tap = Tap::new(100);
        let push = |text: &str| tap.push(text.as_bytes(), Instant::now());
        push("before the command ");
        tap.arm(1000);
        push("answ");
        tap.open_at(begin);
        push("er");
        let output = tap.take();
        (output.bytes, output.early)
    }

    #[test]
    fn output_counts_from_the_block_on_unless_the_block_was_overtaken() {
        assert_eq!(taken(1000 + OVERTAKEN - 1), (b"er".to_vec(), 0));
        assert_eq!(taken(1000 + OVERTAKEN), (b"answer".to_vec(), 4));
    }

    #[test]
    fn output_past_the_limit_is_dropped_and_reported() {
        let tap = Tap::new(4);
        tap.open();
        tap.push(b"abc", Instant::now());
        assert!(!tap.take().overflow);
        tap.push(b"defgh", Instant::now());
        tap.push(b"i", Instant::now());
        let output = tap.take();
        assert_eq!(output.bytes, b"defg");
        assert!(output.overflow);
        assert!(tap.take().overflow, "a gap in the output stays a gap");
    }
}
