//! Reads the answer of a program that prints lines.
//!
//! # Theory
//!
//! The stream since the submit is the answer: the transcript renders it, the detector finds the
//! marker in the same pass, and the first hit that is newer than the message completes it. Length
//! and scrolling do not matter, because no screen is involved.
//!
//! - **Invariant.** `transcript` and `detector` have taken the same operations, so the line of a
//!   hit is a line of the transcript.
//! - **Race.** Output that the program printed before the message arrived can follow the submit in
//!   the stream (see `Tap`). These bytes are `early`. A hit in them counts only if it follows the
//!   echo of the message. Without a terminal echo every hit counts, because a missed answer would
//!   only end at the timeout.
//! - A program that *draws* (moves to another line, clears) ends the validity of this reader, and
//!   the screen reader decides from then on. The stream is still taken in: its hits decide when
//!   to capture the screen, and it is the only record of lines that ran off the screen.
//!
//! **Example.** `cat`-like program with terminal echo, message `hi`, marker `X OK`: stream
//! `hi\nyes\nX OK\n` gives the transcript lines 0 `hi`, 1 `yes`, 2 `X OK`; the hit is on line 2,
//! and the answer is `yes\nX OK`.

use super::answer_target::AnswerTarget;
use super::detector::{Detector, MarkerHit};
use super::extract;
use super::tokenizer::{TerminalOp, Tokenizer};
use super::transcript::Transcript;
use crate::control::tap::TapOutput;
use crate::pane::sender::Submitted;

/// Longest transcript of a program that draws. It is on the screen anyway, and a spinner that
/// turns for an hour is not an answer.
const MAX_DRAWN: usize = 1 << 20;

pub(crate) struct LineReader {
    tokenizer: Tokenizer,
    transcript: Transcript,
    detector: Detector,
    /// Size of the pane at the submit.
    width: usize,
    height: usize,
    /// The terminal echoes the message after the submit.
    echoed: bool,
    /// Number of visible characters that may be older than the message.
    early: u64,
    draws: bool,
    lines_since_drawing: usize,
    /// The scroll-back was cleared since the submit.
    is_history_cleared: bool,
    /// It had text of the answer.
    has_lost_text: bool,
    /// Position of a hit that was followed by a screenful of lines without drawing.
    scrolled_off: Option<u64>,
}

impl LineReader {
    pub(crate) fn new(target: &AnswerTarget, submitted: &Submitted) -> Self {
        Self {
            tokenizer: Tokenizer::default(),
            transcript: Transcript::new(submitted.width),
            detector: Detector::new(target, submitted.echoed),
            width: submitted.width,
            height: submitted.height,
            echoed: submitted.echoed,
            early: 0,
            draws: false,
            lines_since_drawing: 0,
            is_history_cleared: false,
            has_lost_text: false,
            scrolled_off: None,
        }
    }

    pub(crate) fn feed(&mut self, output: &TapOutput) {
        let (early, rest) = output.bytes.split_at(output.early);
        self.feed_bytes(early);
        if !early.is_empty() {
            self.early = self.detector.count();
        }
        self.feed_bytes(rest);
        if self.draws && self.transcript.len() > MAX_DRAWN {
            self.transcript = Transcript::new(self.width);
        }
    }

    fn feed_bytes(&mut self, bytes: &[u8]) {
        self.tokenizer.feed(bytes, |op| {
            self.detector.apply(op, self.transcript.line_number());
            self.transcript.apply(op);
            match op {
                TerminalOp::Draw => {
                    self.draws = true;
                    self.lines_since_drawing = 0;
                }
                TerminalOp::ClearHistory => {
                    self.draws = true;
                    self.is_history_cleared = true;
                    let echo = self.detector.last_echo().unwrap_or(0);
                    self.has_lost_text |= self.detector.count() > echo;
                }
                TerminalOp::Feed => {
                    self.lines_since_drawing += 1;
                    if self.lines_since_drawing > self.height && self.scrolled_off.is_none() {
                        self.scrolled_off = self.detector.hits().last().map(|hit| hit.at);
                    }
                }
                _ => {}
            }
        });
    }

    /// Whether the program draws on the screen.
    pub(crate) fn draws(&self) -> bool {
        self.draws
    }

    /// The output has stopped: candidates become hits, or are dropped.
    pub(crate) fn quiet(&mut self) {
        self.detector.quiet();
    }

    pub(crate) fn is_undecided(&self) -> bool {
        self.detector.is_undecided()
    }

    pub(crate) fn hit_count(&self) -> usize {
        self.detector.hits().len()
    }

    /// The line of the first marker that is newer than the message.
    pub(crate) fn first_hit(&self) -> Option<usize> {
        let echo = self.detector.first_echo();
        let is_newer = |hit: &&MarkerHit| {
            hit.at > self.early || !self.echoed || echo.is_some_and(|echo| echo < hit.at)
        };
        let hit = self.detector.hits().iter().find(is_newer)?;
        Some(hit.line)
    }

    /// Whether a marker ran off the screen below the last echo of the message. Above the echo it is
    /// an older one that was printed again with the whole conversation.
    pub(crate) fn hit_scrolled_off(&self) -> bool {
        let echo = self.detector.last_echo();
        self.scrolled_off
            .is_some_and(|at| echo.is_none_or(|echo| at > echo))
    }

    /// Whether the scroll-back was cleared since the submit.
    pub(crate) fn is_history_cleared(&self) -> bool {
        self.is_history_cleared
    }

    /// Whether the program cleared text that it had printed since the submit.
    pub(crate) fn has_lost_text(&self) -> bool {
        self.has_lost_text
    }

    /// Whether the output ends with a prompt.
    pub(crate) fn ends_with_prompt(&self) -> bool {
        extract::is_prompt(&self.transcript.last_line())
    }

    pub(crate) fn is_line_complete(&self, line: usize) -> bool {
        self.transcript.line_number() > line
    }

    /// Length of the transcript in bytes.
    pub(crate) fn len(&self) -> usize {
        self.transcript.len()
    }

    /// The transcript without the echo of the message and prompts.
    pub(crate) fn answer(&self, submitted: &Submitted) -> String {
        extract::from_transcript(&self.transcript.text(), &submitted.folded, self.echoed)
    }
}
