use super::marker::{CONTEXT, FoldedChar, Marker, Quote, quotes};

/// A message and the marker of its answer.
#[derive(Debug)]
pub(crate) struct AnswerTarget {
    pub(super) marker: Marker,
    /// The occurrences of the marker in the message that have other characters beside them.
    pub(super) quotes: Vec<Quote>,
    /// The message is nothing but the marker.
    pub(super) is_bare_marker: bool,
    /// The last characters of the message.
    pub(super) end: String,
}

impl AnswerTarget {
    pub(crate) fn new(marker: Marker, message: &[FoldedChar]) -> Self {
        let is_bare = |quote: &Quote| quote.before.is_empty() && quote.after.is_empty();
        let (bare, quotes): (Vec<_>, _) = quotes(message, &marker).into_iter().partition(is_bare);
        Self {
            quotes,
            is_bare_marker: !bare.is_empty(),
            end: message[message.len().saturating_sub(CONTEXT)..]
                .iter()
                .map(|folded| folded.c)
                .collect(),
            marker,
        }
    }

    pub(crate) fn marker(&self) -> &Marker {
        &self.marker
    }
}
