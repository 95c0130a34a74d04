//! Sums of tokens and money.

use super::super::entities::Usage;

/// The usage of an execution, as the board shows it.
pub(super) fn usage(of: &exec_core::Usage) -> Usage {
    Usage {
        input_tokens: of.input_tokens.unwrap_or_default(),
        output_tokens: of.output_tokens.unwrap_or_default(),
        cost_usd: of.cost_usd,
    }
}

pub(super) fn plus(one: Usage, two: Usage) -> Usage {
    Usage {
        input_tokens: one.input_tokens + two.input_tokens,
        output_tokens: one.output_tokens + two.output_tokens,
        cost_usd: match (one.cost_usd, two.cost_usd) {
            (None, cost) | (cost, None) => cost,
            (Some(one), Some(two)) => Some(one + two),
        },
    }
}
