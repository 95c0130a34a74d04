//! Finds the marker in the output of a pane, in one pass.
//!
//! # Theory
//!
//! An occurrence of the marker is a *hit* unless it is a part of a longer word (`ENCODING OK`,
//! `CODING OKAY`) or the echo of the message, which may quote the marker. Both depend on characters
//! that follow the occurrence and may not have arrived yet, so an occurrence starts as a
//! *candidate*:
//!
//! - `bounded`: a gap or a character that belongs to no word has followed.
//! - `echo_of`: the quotes of the message that this occurrence can still be the echo of. It starts
//!   with the quotes that have the same characters before the marker. Each following character
//!   removes the quotes that continue differently. A quote that is matched to its end makes the
//!   candidate an echo, and it is dropped.
//!
//! A candidate that is bounded and has no quote left is a hit.
//!
//! - **Invariant.** The result does not depend on how the output is cut into pieces. Every
//!   occurrence is a candidate, a hit, or dropped, and never changes back.
//! - **Race.** The output can stop behind any character. After `WORD_QUIET` the caller decides by
//!   [`Detector::quiet`]: the end of the output bounds a candidate, and a candidate with words of
//!   the message on one side is an echo that was cut.
//! - A message that is nothing but the marker has no characters to identify its echo by. Then the
//!   first occurrence is the echo, if the terminal echoes at all.
//!
//! **Example.** Message `say CODING OK now`, output `say CODING OK now\nyes\nCODING OK\n`. The
//! first occurrence follows `say`, so it can be the echo; `now` follows: dropped. The second one
//! follows `nowyes`, which is not `say`; the line end bounds it: hit.

use std::collections::VecDeque;

use super::answer_target::AnswerTarget;
use super::echo_finder::EchoFinder;
use super::marker::{CONTEXT, FoldedChar, Gap, Marker, Quote, gap_of};
use super::tokenizer::TerminalOp;

/// An occurrence of the marker that is neither an echo of the message nor part of a longer word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MarkerHit {
    /// The line on which the marker ends, as counted by the caller.
    pub(crate) line: usize,
    /// Number of visible characters up to its end.
    pub(crate) at: u64,
    /// The characters before it, which identify it among other hits.
    pub(crate) before: Vec<char>,
}

#[derive(Debug)]
pub(crate) struct Detector {
    marker: Marker,
    quotes: Vec<Quote>,
    echo: EchoFinder,
    /// Number of occurrences to come that are the terminal's echo of a bare marker.
    bare_echoes: u32,
    /// The last characters: the marker, its context, and one more for the word boundary.
    window: VecDeque<FoldedChar>,
    gap: Gap,
    count: u64,
    candidates: Vec<Candidate>,
    /// Those that were not taken yet.
    hits: Vec<MarkerHit>,
    first_echo: Option<u64>,
    last_echo: Option<u64>,
}

/// An occurrence whose following characters have not all arrived. See the theory above.
#[derive(Debug)]
struct Candidate {
    hit: MarkerHit,
    bounded: bool,
    /// Indexes of quotes.
    echo_of: Vec<usize>,
    /// Number of characters that have followed.
    followed: usize,
}

impl Detector {
    /// `echoed`: the terminal echoes the message once before the program reads it.
    pub(crate) fn new(target: &AnswerTarget, echoed: bool) -> Self {
        Self {
            echo: EchoFinder::new(&target.end),
            bare_echoes: u32::from(target.is_bare_marker && echoed),
            quotes: target.quotes.clone(),
            marker: target.marker.clone(),
            window: VecDeque::new(),
            gap: Gap::Break,
            count: 0,
            candidates: Vec::new(),
            hits: Vec::new(),
            first_echo: None,
            last_echo: None,
        }
    }

    pub(crate) fn hits(&self) -> &[MarkerHit] {
        &self.hits
    }

    /// Takes the hits since the last call. The detector itself does not bound them.
    pub(crate) fn take_hits(&mut self) -> Vec<MarkerHit> {
        std::mem::take(&mut self.hits)
    }

    pub(crate) fn is_undecided(&self) -> bool {
        !self.candidates.is_empty()
    }

    /// Number of visible characters so far.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Where the end of the message was first shown.
    pub(crate) fn first_echo(&self) -> Option<u64> {
        self.first_echo
    }

    /// Where the end of the message was last shown.
    pub(crate) fn last_echo(&self) -> Option<u64> {
        self.last_echo
    }

    /// Takes an operation that happened on the line `line`.
    pub(crate) fn apply(&mut self, op: TerminalOp<'_>, line: usize) {
        match op {
            TerminalOp::Print(c) => match gap_of(c) {
                Some(gap) => self.gap(gap),
                None => self.print(c, line),
            },
            TerminalOp::Feed
            | TerminalOp::Return
            | TerminalOp::Draw
            | TerminalOp::Column(_)
            | TerminalOp::Back(_) => {
                self.gap(Gap::Break);
            }
            TerminalOp::Tab
            | TerminalOp::Forward(_)
            | TerminalOp::EraseRight
            | TerminalOp::EraseLine
            | TerminalOp::EraseChars(_) => self.gap(Gap::Space),
            TerminalOp::Backspace => {
                if self.gap == Gap::None {
                    self.window.pop_back();
                }
            }
            TerminalOp::DeleteChars(_)
            | TerminalOp::InsertBlanks(_)
            | TerminalOp::ClearHistory
            | TerminalOp::Bracketing(_)
            | TerminalOp::Osc(_) => {}
        }
    }

    /// Decides all candidates: no more output is expected.
    pub(crate) fn quiet(&mut self) {
        for mut candidate in std::mem::take(&mut self.candidates) {
            candidate.bounded = true;
            let is_cut_echo = candidate
                .echo_of
                .iter()
                .any(|&quote| candidate.followed > 0 || !self.quotes[quote].before.is_empty());
            if !is_cut_echo {
                candidate.echo_of.clear();
                self.classify(candidate);
            }
        }
    }

    fn gap(&mut self, gap: Gap) {
        self.gap = self.gap.max(gap);
        if self.candidates.iter().any(|candidate| !candidate.bounded) {
            for mut candidate in std::mem::take(&mut self.candidates) {
                candidate.bounded = true;
                self.classify(candidate);
            }
        }
    }

    fn print(&mut self, c: char, line: usize) {
        let folded = FoldedChar {
            c,
            gap: std::mem::replace(&mut self.gap, Gap::None),
        };
        self.count += 1;
        if !self.candidates.is_empty() {
            self.follow(folded);
        }
        if self.window.len() > CONTEXT + self.marker.len() + 1 {
            self.window.pop_front();
        }
        self.window.push_back(folded);
        if self.echo.print(c) {
            self.first_echo.get_or_insert(self.count);
            self.last_echo = Some(self.count);
        }
        if c == self.marker.last() && self.marker.ends(self.window.make_contiguous()) {
            self.add_candidate(line);
        }
    }

    fn add_candidate(&mut self, line: usize) {
        let start = self.window.len() - self.marker.len();
        let before: Vec<char> = self.window.iter().take(start).map(|f| f.c).collect();
        let before = before[before.len().saturating_sub(CONTEXT)..].to_vec();
        let echo_of = (0..self.quotes.len())
            .filter(|&quote| before.ends_with(&self.quotes[quote].before))
            .collect();
        let hit = MarkerHit {
            line,
            at: self.count,
            before,
        };
        self.classify(Candidate {
            hit,
            bounded: false,
            echo_of,
            followed: 0,
        });
    }

    /// Applies the next character to every candidate.
    fn follow(&mut self, next: FoldedChar) {
        let last = self.marker.last();
        for mut candidate in std::mem::take(&mut self.candidates) {
            if candidate.followed == 0 && !candidate.bounded && next.continues(last) {
                continue;
            }
            candidate.bounded = true;
            let at = candidate.followed;
            candidate
                .echo_of
                .retain(|&quote| self.quotes[quote].after.get(at) == Some(&next.c));
            candidate.followed += 1;
            self.classify(candidate);
        }
    }

    /// Drops, keeps or accepts a candidate.
    fn classify(&mut self, candidate: Candidate) {
        if candidate
            .echo_of
            .iter()
            .any(|&quote| self.quotes[quote].after.len() == candidate.followed)
        {
            return;
        }
        if !candidate.bounded || !candidate.echo_of.is_empty() {
            self.candidates.push(candidate);
        } else if self.bare_echoes > 0 {
            self.bare_echoes -= 1;
        } else {
            self.hits.push(candidate.hit);
        }
    }
}

#[cfg(test)]
#[path = "detector_tests.rs"]
mod tests;
