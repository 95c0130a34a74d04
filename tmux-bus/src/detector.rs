//! Finds the marker in a pane's output as it comes.

use std::collections::VecDeque;

use crate::{
    marker::{CONTEXT, Folded, Gap, Marker, Quote, kind, quotes},
    vt::Step,
};

/// An occurrence of the marker that is neither an echo of the message nor part of another word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hit {
    /// The line, as counted by the caller, on which the marker ends.
    pub(crate) line: usize,
    /// How many characters came before its end.
    pub(crate) at: u64,
    /// What stands before it, to tell it from others.
    pub(crate) before: Vec<char>,
}

/// A message and the marker that its answer will have.
#[derive(Debug)]
pub(crate) struct Question {
    marker: Marker,
    /// Where the message has the marker among other words.
    quotes: Vec<Quote>,
    /// The message has the marker and nothing else, by which its echo could be told.
    bare: bool,
    end: String,
}

impl Question {
    pub(crate) fn new(marker: Marker, folded: &[Folded]) -> Self {
        let is_bare = |quote: &Quote| quote.before.is_empty() && quote.after.is_empty();
        let (bare, quotes): (Vec<_>, _) = quotes(folded, &marker).into_iter().partition(is_bare);
        Self {
            quotes,
            bare: !bare.is_empty(),
            end: folded[folded.len().saturating_sub(CONTEXT)..]
                .iter()
                .map(|f| f.c)
                .collect(),
            marker,
        }
    }

    pub(crate) fn marker(&self) -> &Marker {
        &self.marker
    }
}

/// Searches a stream of characters in one pass.
#[derive(Debug)]
pub(crate) struct Detector {
    marker: Marker,
    quotes: Vec<Quote>,
    echo: Echo,
    /// How many occurrences are the terminal's own echo of a message that is nothing but the marker.
    echoes: u32,
    tail: VecDeque<Folded>,
    gap: Gap,
    count: u64,
    pending: Vec<Pending>,
    hits: Vec<Hit>,
    first_echo: Option<u64>,
    last_echo: Option<u64>,
}

/// An occurrence of which it is not yet known what follows it.
#[derive(Debug)]
struct Pending {
    hit: Hit,
    /// Nothing may directly continue the marker's last word.
    bounded: bool,
    /// Places of the message that this may be the echo of, by index.
    echo_of: Vec<usize>,
    followed: usize,
}

impl Detector {
    /// `echoed` tells that the terminal will echo the message once before the program sees it.
    pub(crate) fn new(question: &Question, echoed: bool) -> Self {
        Self {
            echo: Echo::of(&question.end),
            echoes: u32::from(question.bare && echoed),
            quotes: question.quotes.clone(),
            marker: question.marker.clone(),
            tail: VecDeque::new(),
            gap: Gap::Break,
            count: 0,
            pending: Vec::new(),
            hits: Vec::new(),
            first_echo: None,
            last_echo: None,
        }
    }

    pub(crate) fn hits(&self) -> &[Hit] {
        &self.hits
    }

    /// Whether an occurrence waits for what follows it.
    pub(crate) fn is_undecided(&self) -> bool {
        !self.pending.is_empty()
    }

    /// How many characters have come.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Where the message's end was first seen.
    pub(crate) fn first_echo(&self) -> Option<u64> {
        self.first_echo
    }

    /// Where the message's end was last seen.
    pub(crate) fn last_echo(&self) -> Option<u64> {
        self.last_echo
    }

    /// Takes a step of the output, printed on the line `line`.
    pub(crate) fn step(&mut self, step: Step<'_>, line: usize) {
        match step {
            Step::Print(c) => match kind(c) {
                Some(gap) => self.gap(gap),
                None => self.print(c, line),
            },
            Step::Feed | Step::Return | Step::Draw | Step::Column(_) | Step::Back(_) => {
                self.gap(Gap::Break);
            }
            Step::Tab
            | Step::Forward(_)
            | Step::EraseRight
            | Step::EraseLine
            | Step::EraseChars(_) => self.gap(Gap::Space),
            Step::Backspace => {
                if self.gap == Gap::None {
                    self.tail.pop_back();
                }
            }
            Step::DeleteChars(_) | Step::InsertBlanks(_) | Step::Bracketing(_) | Step::Osc(_) => {}
        }
    }

    /// The output has stopped: decides what it can without what may still follow.
    pub(crate) fn quiet(&mut self) {
        for mut pending in std::mem::take(&mut self.pending) {
            pending.bounded = true;
            // What has the message's own words on one side is its echo, cut short.
            let echo = pending
                .echo_of
                .iter()
                .any(|&q| pending.followed > 0 || !self.quotes[q].before.is_empty());
            if !echo {
                pending.echo_of.clear();
                self.settle(pending);
            }
        }
    }

    fn gap(&mut self, gap: Gap) {
        self.gap = self.gap.max(gap);
        if self.pending.iter().any(|p| !p.bounded) {
            for mut pending in std::mem::take(&mut self.pending) {
                pending.bounded = true;
                self.settle(pending);
            }
        }
    }

    fn print(&mut self, c: char, line: usize) {
        let folded = Folded {
            c,
            gap: std::mem::replace(&mut self.gap, Gap::None),
        };
        self.count += 1;
        if !self.pending.is_empty() {
            self.follow(folded);
        }
        // One more than the marker and its context, for the word boundary on the left.
        if self.tail.len() > CONTEXT + self.marker.len() + 1 {
            self.tail.pop_front();
        }
        self.tail.push_back(folded);
        if self.echo.print(c) {
            self.first_echo.get_or_insert(self.count);
            self.last_echo = Some(self.count);
        }
        if c == self.marker.last() && self.marker.ends(self.tail.make_contiguous()) {
            self.candidate(line);
        }
    }

    fn candidate(&mut self, line: usize) {
        let start = self.tail.len() - self.marker.len();
        let before: Vec<char> = self.tail.iter().take(start).map(|f| f.c).collect();
        let before = before[before.len().saturating_sub(CONTEXT)..].to_vec();
        let echo_of = (0..self.quotes.len())
            .filter(|&q| before.ends_with(&self.quotes[q].before))
            .collect();
        let hit = Hit {
            line,
            at: self.count,
            before,
        };
        self.settle(Pending {
            hit,
            bounded: false,
            echo_of,
            followed: 0,
        });
    }

    /// Takes the character that follows into account for each pending occurrence.
    fn follow(&mut self, next: Folded) {
        let last = self.marker.last();
        for mut pending in std::mem::take(&mut self.pending) {
            if pending.followed == 0 && !pending.bounded && next.continues(last) {
                continue;
            }
            pending.bounded = true;
            let at = pending.followed;
            pending
                .echo_of
                .retain(|&q| self.quotes[q].after.get(at) == Some(&next.c));
            pending.followed += 1;
            self.settle(pending);
        }
    }

    /// Keeps, drops or accepts an occurrence.
    fn settle(&mut self, pending: Pending) {
        if pending
            .echo_of
            .iter()
            .any(|&q| self.quotes[q].after.len() == pending.followed)
        {
            return;
        }
        if !pending.bounded || !pending.echo_of.is_empty() {
            self.pending.push(pending);
        } else if self.echoes > 0 {
            self.echoes -= 1;
        } else {
            self.hits.push(pending.hit);
        }
    }
}

/// Finds the end of a message where it is echoed.
#[derive(Debug)]
pub(crate) struct Echo {
    end: Vec<char>,
    tail: VecDeque<char>,
}

impl Echo {
    pub(crate) fn of(message: &str) -> Self {
        let counts = message.chars().rev().filter(|&c| kind(c).is_none());
        let mut end: Vec<char> = counts.take(CONTEXT).collect();
        end.reverse();
        Self {
            end,
            tail: VecDeque::new(),
        }
    }

    /// Takes a character that counts; tells whether the message ends with it.
    pub(crate) fn print(&mut self, c: char) -> bool {
        if self.tail.len() == self.end.len() {
            self.tail.pop_front();
        }
        self.tail.push_back(c);
        self.end.last() == Some(&c) && self.tail == self.end
    }
}

/// The markers on a screen.
#[derive(Debug, Default, Clone)]
pub(crate) struct Sighting {
    marks: Vec<Hit>,
    last_echo: Option<u64>,
}

impl Sighting {
    pub(crate) fn of(screen: &str, question: &Question) -> Self {
        let mut detector = Detector::new(question, false);
        for (line, text) in screen.lines().enumerate() {
            text.chars()
                .for_each(|c| detector.step(Step::Print(c), line));
            detector.step(Step::Feed, line);
        }
        detector.quiet();
        Self {
            last_echo: detector.last_echo,
            marks: detector.hits,
        }
    }

    /// Whether a marker stands here that did not stand on the older screen, and below the message
    /// where that is shown. Remembers what the two have in common, so that a marker that went away
    /// and came back is new.
    pub(crate) fn has_new(self, older: &mut Sighting) -> bool {
        let old = std::mem::take(&mut older.marks);
        let kept = common(&old, &self.marks);
        let found = self.marks.iter().enumerate().any(|(i, mark)| {
            !kept.contains(&i) && self.last_echo.is_none_or(|echo| mark.at > echo)
        });
        older.marks = kept.into_iter().map(|i| self.marks[i].clone()).collect();
        found
    }
}

/// The places in `new` of a longest common subsequence, the earliest where there is a choice.
fn common(old: &[Hit], new: &[Hit]) -> Vec<usize> {
    let mut best = vec![vec![0usize; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            best[i][j] = if same(&old[i], &new[j]) {
                best[i + 1][j + 1] + 1
            } else {
                best[i + 1][j].max(best[i][j + 1])
            };
        }
    }
    let (mut i, mut j, mut kept) = (0, 0, Vec::new());
    while i < old.len() && j < new.len() {
        if same(&old[i], &new[j]) && best[i][j] == best[i + 1][j + 1] + 1 {
            kept.push(j);
            i += 1;
            j += 1;
        } else if best[i + 1][j] >= best[i][j + 1] {
            i += 1;
        } else {
            j += 1;
        }
    }
    kept
}

/// What scrolled off the top is missing from the context: the shorter one decides.
fn same(a: &Hit, b: &Hit) -> bool {
    a.before.ends_with(&b.before) || b.before.ends_with(&a.before)
}

#[cfg(test)]
mod tests;
