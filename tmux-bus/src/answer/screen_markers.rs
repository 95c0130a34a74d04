//! Finds new markers on a screen.
//!
//! # Theory
//!
//! The stream of a full-screen program contains old answers again and again, because the program
//! redraws them. So screens are compared instead: a marker is new if it is on this screen and does
//! not correspond to a marker of the screens before.
//!
//! Two markers correspond if they stand in the same place of a side bar, beside changing text, or if
//! the [`CONTEXT`](super::marker::CONTEXT) characters before them are equal. Text that scrolled off
//! the top is missing from the context, so a context that is a suffix of the other one is equal too.
//! The order on the screen counts: the correspondence is a longest common subsequence. A
//! conversation only moves up, so a marker below the last echo of the message that stands lower than
//! the old one is new, also with the same context: the same answer again. A marker above the last
//! echo of the message is never new: it is an older answer that returned into view.
//!
//! - **Invariant.** `old` holds the markers that were on every screen since the submit. A marker
//!   that disappears and returns is therefore new.
//! - **Race.** A capture can show a half-drawn frame. A marker that is missing from it counts as
//!   new in the next frame. Screens are therefore captured after a hit in the stream or after
//!   `FRAME_QUIET`, not at each output.
//! - **Bound.** The comparison takes the square of the number of markers, so of a screen only the lowest
//!   [`MAX_HITS`] count. With more of them, older ones that return into view can be taken for new ones.
//! - **Not decidable.** A program that clears the screen and draws the same marker with the same 32
//!   characters before it between two captures. `docs/answer-life.md` states it.
//!
//! **Example.** Marker `X OK`, message `two`:
//!
//! | screen | markers, by context | common with old | new |
//! |---|---|---|---|
//! | at the submit: `> one / yes / X OK` | `>oneyes` | | |
//! | `yes / X OK / > two / wait` | `yes`, a suffix of `>oneyes` | `yes` | none |
//! | `X OK / > two / yes / X OK` | empty, `XOK>twoyes` | the first | the second: hit |

use super::answer_target::AnswerTarget;
use super::detector::{Detector, MarkerHit};
use super::tokenizer::TerminalOp;

/// More than the columns of any screen.
const COLUMNS: usize = 1 << 16;

/// Number of markers of a screen that are compared.
const MAX_HITS: usize = 256;

/// Text that begins right of this column, behind a gap, belongs to a side bar.
const SIDE_BAR: usize = 24;

/// A marker on a screen.
#[derive(Clone, Debug)]
struct ScreenHit {
    row: usize,
    /// Column of its last character.
    column: usize,
    /// It stands in a side bar.
    is_aside: bool,
    hit: MarkerHit,
}

/// The markers on a screen, from top to bottom.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScreenMarkers {
    hits: Vec<ScreenHit>,
    last_echo: Option<u64>,
}

impl ScreenMarkers {
    pub(crate) fn find(screen: &str, target: &AnswerTarget) -> Self {
        let mut detector = Detector::new(target, false);
        let rows: Vec<&str> = screen.lines().collect();
        for (row, text) in rows.iter().enumerate() {
            for (column, c) in text.chars().enumerate() {
                detector.apply(TerminalOp::Print(c), position(row, column));
            }
            detector.apply(TerminalOp::Feed, position(row, 0));
        }
        detector.quiet();
        let hits = detector.take_hits();
        let above = hits.len().saturating_sub(MAX_HITS);
        let hits = hits.into_iter().skip(above);
        Self {
            last_echo: detector.last_echo(),
            hits: hits.map(|hit| ScreenHit::new(hit, &rows)).collect(),
        }
    }

    /// Whether this screen has a new marker. `old` becomes the markers that the two have in common.
    pub(crate) fn has_new(self, old: &mut ScreenMarkers) -> bool {
        let is_below_the_echo = |new: &ScreenHit| self.last_echo.is_some_and(|at| new.hit.at > at);
        let common = common_subsequence(&old.hits, &self.hits, |old, new| {
            let stays_aside = new.is_aside && (old.row, old.column) == (new.row, new.column);
            let is_lower = old.row < new.row && is_below_the_echo(new);
            stays_aside || (has_same_context(&old.hit, &new.hit) && !is_lower)
        });
        let found = self.hits.iter().enumerate().any(|(i, new)| {
            !common.contains(&i) && (self.last_echo.is_none() || is_below_the_echo(new))
        });
        old.hits = common.into_iter().map(|i| self.hits[i].clone()).collect();
        found
    }
}

/// The indexes in `new` of a longest common subsequence; the earliest if there are several.
fn common_subsequence(
    old: &[ScreenHit],
    new: &[ScreenHit],
    corresponds: impl Fn(&ScreenHit, &ScreenHit) -> bool,
) -> Vec<usize> {
    let mut best = vec![vec![0usize; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            best[i][j] = if corresponds(&old[i], &new[j]) {
                best[i + 1][j + 1] + 1
            } else {
                best[i + 1][j].max(best[i][j + 1])
            };
        }
    }
    let (mut i, mut j, mut common) = (0, 0, Vec::new());
    while i < old.len() && j < new.len() {
        if corresponds(&old[i], &new[j]) && best[i][j] == best[i + 1][j + 1] + 1 {
            common.push(j);
            i += 1;
            j += 1;
        } else if best[i + 1][j] >= best[i][j + 1] {
            i += 1;
        } else {
            j += 1;
        }
    }
    common
}

impl ScreenHit {
    fn new(hit: MarkerHit, rows: &[&str]) -> Self {
        let (row, column) = (hit.line / COLUMNS, hit.line % COLUMNS);
        let before: Vec<char> = rows[row].chars().take(column).collect();
        let gap = [' '; 4];
        let begin = before.windows(gap.len()).rposition(|part| part == gap);
        Self {
            row,
            column,
            is_aside: begin.is_some_and(|at| at + gap.len() > SIDE_BAR),
            hit,
        }
    }
}

/// The place of a character on the screen, as the line of a hit.
fn position(row: usize, column: usize) -> usize {
    row * COLUMNS + column.min(COLUMNS - 1)
}

fn has_same_context(a: &MarkerHit, b: &MarkerHit) -> bool {
    a.before.ends_with(&b.before) || b.before.ends_with(&a.before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::marker::{Marker, fold};

    #[track_caller]
    fn check(message: &str, before: &str, after: &[&str], expected: bool) {
        let target = AnswerTarget::new(Marker::new("CODING OK").unwrap(), &fold(message));
        let mut old = ScreenMarkers::find(before, &target);
        let mut found = false;
        for screen in after {
            found = ScreenMarkers::find(screen, &target).has_new(&mut old);
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn a_redrawn_old_answer_is_not_new() {
        let old = "> one\nfirst answer\nCODING OK\n";
        check("two", old, &[old], false);
        check(
            "two",
            old,
            &["first answer\nCODING OK\n> two\nthinking\n"],
            false,
        );
        check("two", old, &["CODING OK\n> two\nthinking\n"], false);
        check("two", old, &["CODING OK\n> two\nyes\nCODING OK\n"], true);
        check("two", old, &["> two\nCODING OK\n"], true);
        // An older answer returns into view above the new message.
        check(
            "two",
            "> one\n",
            &["older\nCODING OK\n> two\nthinking\n"],
            false,
        );
        // The same message and answer, with a screen without the answer in between.
        let same = "> two\nCODING OK\n";
        check("two", same, &[same], false);
        // The old answer moved up and out; the same answer stands in its place.
        let moved = "yes\nCODING OK\n> two\n";
        check(
            "two",
            "> two\nyes\nCODING OK\n",
            &[moved, "> two\nyes\nCODING OK\n"],
            true,
        );
        // A marker beside text that changes.
        let aside = " ".repeat(30) + "CODING OK";
        let (before, after) = (format!("12:00\n{aside}"), format!("> two\n{aside}"));
        check("two", &before, &[&after], false);
        check("two", same, &["> two\n", same], true);
    }

    #[test]
    fn of_many_markers_the_lowest_are_compared() {
        let many = "CODING OK CODING OK\n".repeat(MAX_HITS);
        let target = AnswerTarget::new(Marker::new("CODING OK").unwrap(), &fold("two"));
        assert_eq!(ScreenMarkers::find(&many, &target).hits.len(), MAX_HITS);
        check("two", &many, &[&many], false);
        check("two", &many, &[&format!("{many}yes\nCODING OK\n")], true);
    }

    proptest::proptest! {
        #[test]
        fn any_screens_do_not_panic(before: String, after: String, message: String) {
            check_any(&before, &after, &message);
        }
    }

    fn check_any(before: &str, after: &str, message: &str) {
        let target = AnswerTarget::new(Marker::new("X").unwrap(), &fold(message));
        let mut old = ScreenMarkers::find(before, &target);
        ScreenMarkers::find(after, &target).has_new(&mut old);
    }
}
