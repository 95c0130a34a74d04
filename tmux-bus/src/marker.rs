//! A marker, and the text in which it is looked for.

use crate::error::{Error, Result};

/// What stood between two characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Gap {
    None,
    Space,
    /// A line's end or a move of the cursor: a word may have been wrapped here.
    Break,
}

/// One character that is not white space, and what stood before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Folded {
    pub(crate) c: char,
    pub(crate) gap: Gap,
}

impl Folded {
    /// Whether this character directly continues a word that ends with `before`.
    pub(crate) fn continues(self, before: char) -> bool {
        self.gap == Gap::None && is_word(before) && is_word(self.c)
    }
}

/// How many characters beside a marker tell one occurrence from another.
pub(crate) const CONTEXT: usize = 32;

/// A response marker, folded for the search.
#[derive(Debug, Clone)]
pub(crate) struct Marker {
    text: String,
    folded: Vec<Folded>,
}

impl Marker {
    pub(crate) fn new(text: &str) -> Result<Self> {
        let folded = fold(text);
        if folded.is_empty() || text.chars().any(char::is_control) {
            return Err(Error::InvalidName {
                what: "marker",
                name: text.to_owned(),
                reason: "a marker has at least one visible character and no control characters",
            });
        }
        Ok(Self {
            text: text.to_owned(),
            folded,
        })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn len(&self) -> usize {
        self.folded.len()
    }

    pub(crate) fn last(&self) -> char {
        self.folded[self.folded.len() - 1].c
    }

    /// The places where this marker ends in `text`, each with whether it stands on its own there.
    pub(crate) fn places(&self, text: &[Folded]) -> impl Iterator<Item = (usize, bool)> {
        (1..=text.len())
            .filter(|&end| text[end - 1].c == self.last() && self.ends(&text[..end]))
            .map(|end| {
                (
                    end,
                    !text
                        .get(end)
                        .is_some_and(|next| next.continues(self.last())),
                )
            })
    }

    /// Whether `text` ends with this marker, standing on its own on the left.
    pub(crate) fn ends(&self, text: &[Folded]) -> bool {
        let Some(start) = text.len().checked_sub(self.len()) else {
            return false;
        };
        let found = &text[start..];
        let same = self.folded.iter().zip(found).skip(1).all(|(want, have)| {
            want.c == have.c
                && match want.gap {
                    Gap::None => have.gap != Gap::Space,
                    _ => have.gap != Gap::None,
                }
        });
        same && self.folded[0].c == found[0].c
            && (start == 0 || !found[0].continues(text[start - 1].c))
    }
}

/// Where a message quotes the marker: what stands before and after it there.
#[derive(Debug, Clone)]
pub(crate) struct Quote {
    pub(crate) before: Vec<char>,
    pub(crate) after: Vec<char>,
}

/// The places where `message` has the marker.
pub(crate) fn quotes(message: &[Folded], marker: &Marker) -> Vec<Quote> {
    marker
        .places(message)
        .map(|(end, _)| {
            let start = end - marker.len();
            let before = &message[start.saturating_sub(CONTEXT)..start];
            let after = &message[end..(end + CONTEXT).min(message.len())];
            Quote {
                before: before.iter().map(|f| f.c).collect(),
                after: after.iter().map(|f| f.c).collect(),
            }
        })
        .collect()
}

/// Folds plain text.
pub(crate) fn fold(text: &str) -> Vec<Folded> {
    let mut folded = Vec::with_capacity(text.len());
    let mut gap = Gap::Break;
    for c in text.chars() {
        match kind(c) {
            Some(other) => gap = gap.max(other),
            None => {
                folded.push(Folded { c, gap });
                gap = Gap::None;
            }
        }
    }
    folded
}

/// The gap that a character makes, if it is not one that counts.
pub(crate) fn kind(c: char) -> Option<Gap> {
    match c {
        '!'..='~' => None,
        '\n' | '\r' => Some(Gap::Break),
        // The frame around an input box or a message. It makes no break by itself, or two columns
        // of a table would join into words.
        '\u{2500}'..='\u{259f}' => Some(Gap::Space),
        c if c.is_whitespace() || c.is_control() => Some(Gap::Space),
        _ => None,
    }
}

/// Scripts without spaces have no word boundaries that one could look at: there a marker may touch
/// its neighbours.
fn is_word(c: char) -> bool {
    (c.is_alphanumeric() || c == '_')
        && !matches!(c, '\u{2e80}'..='\u{d7ff}' | '\u{f900}'..='\u{faff}' | '\u{ff00}'..='\u{ffef}' | '\u{20000}'..='\u{3ffff}')
}
