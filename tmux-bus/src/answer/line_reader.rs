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
//! - **Bound.** A program can draw a marker any number of times, so [`SeenHits`] keeps what is needed of the
//!   hits, not the hits.
//! - A program that *draws* (moves to another line, clears) ends the validity of this reader, and
//!   the screen reader decides from then on. The stream is still taken in: its hits decide when
//!   to capture the screen, and it is the only record of lines that ran off the screen.
//!
//! **Example.** `cat`-like program with terminal echo, message `hi`, marker `X OK`: stream
//! `hi\nyes\nX OK\n` gives the transcript lines 0 `hi`, 1 `yes`, 2 `X OK`; the hit is on line 2,
//! and the answer is `yes\nX OK`.

use super::answer_target::AnswerTarget;
use super::detector::Detector;
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
    hits: SeenHits,
    draws: bool,
    lines_since_drawing: usize,
    /// The scroll-back was cleared since the submit.
    is_history_cleared: bool,
    /// It had text of the answer.
    has_lost_text: bool,
    /// Position of the last hit in a screenful of lines, or more, without drawing.
    scrolled_off: Option<u64>,
}

/// What is known of the hits so far.
struct SeenHits {
    /// The terminal echoes the message after the submit.
    echoed: bool,
    /// Number of visible characters that may be older than the message.
    early: u64,
    count: usize,
    /// The line of the first one that is newer than the message.
    first_new: Option<usize>,
    /// The position of the last one.
    last: Option<u64>,
}

impl SeenHits {
    fn take(&mut self, detector: &mut Detector) {
        if detector.hits().is_empty() {
            return;
        }
        let echo = detector.first_echo();
        for hit in detector.take_hits() {
            let follows_echo = echo.is_some_and(|echo| echo < hit.at);
            if hit.at > self.early || !self.echoed || follows_echo {
                self.first_new.get_or_insert(hit.line);
            }
            self.count += 1;
            self.last = Some(hit.at);
        }
    }
}

impl LineReader {
    pub(crate) fn new(target: &AnswerTarget, submitted: &Submitted) -> Self {
        Self {
            tokenizer: Tokenizer::default(),
            transcript: Transcript::new(submitted.width),
            detector: Detector::new(target, submitted.echoed),
            width: submitted.width,
            height: submitted.height,
            hits: SeenHits {
                echoed: submitted.echoed,
                early: 0,
                count: 0,
                first_new: None,
                last: None,
            },
            draws: false,
            lines_since_drawing: 0,
            is_history_cleared: false,
            has_lost_text: false,
            scrolled_off: None,
        }
    }

    pub(crate) fn feed(&mut self, output: &TapOutput) {
        let (early, rest) = output.bytes.split_at(output.early);
        if !early.is_empty() {
            // All of them; their number is known afterwards.
            self.hits.early = u64::MAX;
            self.feed_bytes(early);
            self.hits.early = self.detector.count();
        }
        self.feed_bytes(rest);
        if self.draws && self.transcript.len() > MAX_DRAWN {
            self.transcript = Transcript::new(self.width);
        }
    }

    fn feed_bytes(&mut self, bytes: &[u8]) {
        self.tokenizer.feed(bytes, |op| {
            self.detector.apply(op, self.transcript.line_number());
            self.hits.take(&mut self.detector);
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
                    if self.lines_since_drawing > self.height {
                        self.scrolled_off = self.hits.last;
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
        self.hits.take(&mut self.detector);
    }

    pub(crate) fn is_undecided(&self) -> bool {
        self.detector.is_undecided()
    }

    pub(crate) fn hit_count(&self) -> usize {
        self.hits.count
    }

    /// The line of the first marker that is newer than the message.
    pub(crate) fn first_hit(&self) -> Option<usize> {
        self.hits.first_new
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
        extract::from_transcript(&self.transcript.text(), &submitted.folded, self.hits.echoed)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::answer::marker::{Marker, fold};

    /// A pane of 80 columns and 3 rows, and the message `hi`.
    fn reader() -> LineReader {
        let target = AnswerTarget::new(Marker::new("X OK").unwrap(), &fold("hi"));
        LineReader::new(&target, &Submitted::to_small_pane())
    }

    fn feed(reader: &mut LineReader, text: &str) {
        reader.feed(&TapOutput {
            bytes: text.as_bytes().to_vec(),
            early: 0,
            overflow: false,
            end: None,
            last: Instant::now(),
        });
    }

    #[test]
    fn the_hits_of_a_marker_that_is_drawn_again_and_again_are_counted_and_not_kept() {
        let mut reader = reader();
        for _ in 0..1_000 {
            feed(&mut reader, "\x1b[H\x1b[2J> hi\r\nX OK\r\n");
        }
        assert_eq!(reader.hit_count(), 1_000);
        assert!(reader.detector.hits().is_empty());
        assert_eq!(reader.first_hit(), Some(1));
    }

    /// A program draws, prints its whole conversation again, and then answers with more than a screen.
    #[test]
    fn an_older_marker_that_ran_off_the_screen_does_not_hide_a_newer_one() {
        let mut reader = reader();
        feed(
            &mut reader,
            "\x1b[H\x1b[2J> one\r\nX OK\r\n1\r\n2\r\n3\r\n> hi\r\n",
        );
        assert!(!reader.hit_scrolled_off(), "above the message");
        feed(&mut reader, "X OK\r\n1\r\n2\r\n3\r\n4\r\n");
        assert!(reader.hit_scrolled_off());
    }
}
