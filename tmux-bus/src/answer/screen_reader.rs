//! Reads the answer of a program that draws on the screen.
//!
//! # Theory
//!
//! The screen is the answer. The stream only decides when to capture it: after a new hit in the
//! stream, or when the pane has been quiet for `FRAME_QUIET`. The answer is complete when the screen
//! has a new marker (see [`ScreenMarkers`]).
//!
//! - **Invariant.** `old` holds the markers that do not count; it only ever shrinks, except by
//!   [`reject`](ScreenReader::reject).
//! - **Race.** Between a hit and the capture the program may have drawn on. A marker that became
//!   the beginning of a longer word (`CODING OK` -> `CODING OKAY`) is noticed when the answer is
//!   extracted. The caller then rejects it: `old` gets its value before that capture again, so that
//!   the real marker is still new.
//! - A hit in the stream whose marker is not on the screen any more is left to the line reader.

use super::answer_target::AnswerTarget;
use super::screen_markers::ScreenMarkers;

#[derive(Debug)]
pub(crate) struct ScreenReader {
    /// The markers that do not count.
    old: ScreenMarkers,
    /// `old` before the last capture.
    before_capture: Option<ScreenMarkers>,
    /// Number of hits in the stream at the last capture.
    seen_hits: usize,
    /// Output has arrived since the last capture.
    is_stale: bool,
}

impl ScreenReader {
    /// `screen` is the screen at the submit.
    pub(crate) fn new(screen: &str, target: &AnswerTarget) -> Self {
        Self {
            old: ScreenMarkers::find(screen, target),
            before_capture: None,
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

    /// Whether the stream has hits since the last capture.
    pub(crate) fn is_due(&self, hits: usize) -> bool {
        hits > self.seen_hits
    }

    /// Call it before the capture: output during the capture makes it stale again.
    pub(crate) fn mark_captured(&mut self, hits: usize) {
        self.seen_hits = hits;
        self.is_stale = false;
    }

    /// Whether the captured screen has a new marker.
    pub(crate) fn has_new_marker(&mut self, screen: &str, target: &AnswerTarget) -> bool {
        self.before_capture = Some(self.old.clone());
        ScreenMarkers::find(screen, target).has_new(&mut self.old)
    }

    /// Rejects the marker of the last capture: it was a part of a longer word.
    pub(crate) fn reject(&mut self) {
        if let Some(old) = self.before_capture.take() {
            self.old = old;
        }
    }
}
