use std::iter::Sum;

use super::TokenCounter;
use super::media::media_tokens;
use crate::conversation::{Message, Provider};

/// The tokens of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenCount {
    pub(crate) tokens: usize,
    /// The part of `tokens` that is an estimate.
    pub(crate) estimated: usize,
}

impl TokenCount {
    pub(crate) fn new(
        counter: &dyn TokenCounter,
        provider: Option<Provider>,
        message: &Message,
    ) -> Self {
        let in_results = message.tool_results.iter().flat_map(|result| &result.parts);
        let parts = message.parts.iter().chain(in_results);
        let estimated = parts.map(|part| media_tokens(provider, part)).sum();
        Self {
            tokens: counter.count_message(message) + estimated,
            estimated,
        }
    }
}

impl Sum for TokenCount {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |sum, count| Self {
            tokens: sum.tokens + count.tokens,
            estimated: sum.estimated + count.estimated,
        })
    }
}
