//! A response marker, and folded text in which it is searched.
//!
//! Programs wrap, indent, colour and frame their text. Folding removes white space and frames and
//! keeps, for each visible character, the kind of gap before it. A marker `CODING OK` then matches
//! `CODING\nOK` and `COD\nING OK` (wrapped inside a word), but not `CODINGOK` or `CODI NG OK`.

use crate::Error;

/// The gap before a visible character.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Gap {
    None,
    Space,
    /// End of a line or a move of the cursor: a word may be wrapped here.
    Break,
}

/// A visible character and the gap before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoldedChar {
    pub(crate) c: char,
    pub(crate) gap: Gap,
}

impl FoldedChar {
    /// Whether this character continues the word that ends with `before`.
    pub(crate) fn continues(self, before: char) -> bool {
        self.gap == Gap::None && is_word(before) && is_word(self.c)
    }
}

/// Number of characters beside a marker that identify an occurrence.
pub(crate) const CONTEXT: usize = 32;

/// A response marker.
#[derive(Clone, Debug)]
pub(crate) struct Marker {
    text: String,
    folded: Vec<FoldedChar>,
}

impl Marker {
    pub(crate) fn new(text: &str) -> Result<Self, Error> {
        let folded = fold(text);
        if folded.is_empty() || text.chars().any(char::is_control) {
            return Err(Error::Invalid {
                what: "marker",
                value: text.to_owned(),
                reason: "it must have a visible character and no control characters",
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

    /// Where the marker ends in `text`, each with whether it is a whole word there.
    pub(crate) fn occurrences(&self, text: &[FoldedChar]) -> impl Iterator<Item = (usize, bool)> {
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

    /// Whether `text` ends with the marker, and no word character precedes it.
    pub(crate) fn ends(&self, text: &[FoldedChar]) -> bool {
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

/// An occurrence of the marker in a message: the characters before and after it.
#[derive(Clone, Debug)]
pub(crate) struct Quote {
    pub(crate) before: Vec<char>,
    pub(crate) after: Vec<char>,
}

/// All occurrences of the marker in `message`.
pub(crate) fn quotes(message: &[FoldedChar], marker: &Marker) -> Vec<Quote> {
    marker
        .occurrences(message)
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

/// Folds text without escape sequences.
pub(crate) fn fold(text: &str) -> Vec<FoldedChar> {
    let mut folded = Vec::with_capacity(text.len());
    let mut gap = Gap::Break;
    for c in text.chars() {
        match gap_of(c) {
            Some(other) => gap = gap.max(other),
            None => {
                folded.push(FoldedChar { c, gap });
                gap = Gap::None;
            }
        }
    }
    folded
}

/// The gap that a character makes; `None` for a visible character.
pub(crate) fn gap_of(c: char) -> Option<Gap> {
    match c {
        '!'..='~' => None,
        '\n' | '\r' => Some(Gap::Break),
        // The frame around an input box or a message. Not a break: it would join two columns of
        // a table into words.
        '\u{2500}'..='\u{259f}' => Some(Gap::Space),
        c if c.is_whitespace() || c.is_control() => Some(Gap::Space),
        _ => None,
    }
}

/// Scripts without spaces have no visible word boundaries: their characters may touch a marker.
fn is_word(c: char) -> bool {
    (c.is_alphanumeric() || c == '_')
        && !matches!(c, '\u{2e80}'..='\u{d7ff}' | '\u{f900}'..='\u{faff}' | '\u{ff00}'..='\u{ffef}' | '\u{20000}'..='\u{3ffff}')
}
