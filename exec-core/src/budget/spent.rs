use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::budget::BudgetResource;

/// What executions have used; see
/// [`ExecutionService::spent_by_group`](crate::ExecutionService::spent_by_group).
///
/// ```
/// use exec_core::Spent;
///
/// let spent = Spent::default();
/// assert_eq!((spent.tokens, spent.cost_usd()), (0, 0.0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Spent {
    /// Milliseconds.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) wall_ms: u64,
    /// Input and output tokens.
    #[serde(skip_serializing_if = "is_zero")]
    pub tokens: u64,
    /// Millionths of a US dollar: sums of integers are exact in any order.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) micro_usd: u64,
    /// Tool calls.
    #[serde(skip_serializing_if = "is_zero")]
    pub tool_calls: u64,
    /// Prompts and messages.
    #[serde(skip_serializing_if = "is_zero")]
    pub turns: u64,
}

impl Spent {
    /// The sum of the wall times.
    pub fn wall_time(&self) -> Duration {
        Duration::from_millis(self.wall_ms)
    }

    /// The cost in US dollars.
    pub fn cost_usd(&self) -> f64 {
        self.micro_usd as f64 / 1e6
    }

    pub(crate) fn amount(&self, resource: BudgetResource) -> u64 {
        match resource {
            BudgetResource::WallTime => self.wall_ms,
            BudgetResource::Tokens => self.tokens,
            BudgetResource::Cost => self.micro_usd,
            BudgetResource::ToolCalls => self.tool_calls,
            BudgetResource::Turns => self.turns,
        }
    }

    fn combine(self, other: Self, with: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            wall_ms: with(self.wall_ms, other.wall_ms),
            tokens: with(self.tokens, other.tokens),
            micro_usd: with(self.micro_usd, other.micro_usd),
            tool_calls: with(self.tool_calls, other.tool_calls),
            turns: with(self.turns, other.turns),
        }
    }
}

impl Add for Spent {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.combine(other, u64::saturating_add)
    }
}

impl Sub for Spent {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.combine(other, u64::saturating_sub)
    }
}

/// Rounded; negative amounts and what is not a number are zero.
pub(super) fn micro_usd(usd: f64) -> u64 {
    // The conversion saturates.
    (usd * 1e6).round() as u64
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
