//! Reads the answer of a program that draws on the screen.
//!
//! # Theory
//!
//! The screen is the answer, and the stream only tells when to look at it: after a new hit in the
//! stream, or when the pane has been quiet for `FRAME_QUIET`. The answer is complete when the screen
//! has a new marker (see [`ScreenMarkers`]).
//!
//! - Invariant: `old` holds the markers that do not count; it only ever shrinks, except by
//!   [`reject`](ScreenReader::reject).
//! - Race: between a hit and the capture the program may have drawn on. A marker that became the
//!   beginning of a longer word (`CODING OK` -> `CODING OKAY`) is noticed when the answer is
//!   extracted. The caller then rejects it: `old` goes back to its value before that look, so that
//!   the real marker is still new.
//! - A hit in the stream whose marker is not on the screen any more is the line reader's case.

use super::detector::Question;
use super::screen_markers::ScreenMarkers;

#[derive(Debug)]
pub(crate) struct ScreenReader {
    /// The markers that do not count.
    old: ScreenMarkers,
    /// `old` before the last look.
    before_look: Option<ScreenMarkers>,
    /// Number of hits in the stream at the last look.
    seen_hits: usize,
    /// Output has arrived since the last look.
    is_stale: bool,
}

impl ScreenReader {
    /// `screen` is the screen at the submit.
    pub(crate) fn new(screen: &str, question: &Question) -> Self {
        Self {
            old: ScreenMarkers::find(screen, question),
            before_look: None,
            seen_hits: 0,
            is_stale: true,
        }
    }

    pub(crate) fn output_arrived(&mut self) {
        self.is_stale = true;
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Whether the stream has hits that no look has taken into account.
    pub(crate) fn is_due(&self, hits: usize) -> bool {
        hits > self.seen_hits
    }

    /// Call it before the capture: output during the capture makes the look stale again.
    pub(crate) fn begin_look(&mut self, hits: usize) {
        self.seen_hits = hits;
        self.is_stale = false;
    }

    /// Whether the captured screen has a new marker.
    pub(crate) fn look(&mut self, screen: &str, question: &Question) -> bool {
        self.before_look = Some(self.old.clone());
        ScreenMarkers::find(screen, question).has_new(&mut self.old)
    }

    /// Takes the last look back: its marker was not one.
    pub(crate) fn reject(&mut self) {
        if let Some(old) = self.before_look.take() {
            self.old = old;
        }
    }
}
