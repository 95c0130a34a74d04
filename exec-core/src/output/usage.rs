//! Tokens and cost, and their totals of a run and of a session.

use serde::{Deserialize, Serialize};

/// Tokens and cost, as far as they are known. A field that is `None` is unknown, not zero.
///
/// ```
/// use exec_core::Usage;
///
/// let usage: Usage = serde_json::from_str(r#"{"input_tokens":12,"output_tokens":3}"#)?;
/// assert_eq!((usage.input_tokens, usage.cost_usd), (Some(12), None));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens sent to the model, including tokens read from and written to the provider's cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Tokens read from the provider's cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_read_tokens: Option<u64>,
    /// Tokens written to the provider's cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_write_tokens: Option<u64>,
    /// Tokens that the model wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Tokens that the model used for reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// Cost in US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}

impl Usage {
    /// Field by field, the sum of what both know. A field that one of them does not know counts as
    /// zero there.
    ///
    /// ```
    /// use exec_core::Usage;
    ///
    /// let mut first = Usage::default();
    /// first.input_tokens = Some(3);
    /// let mut second = Usage::default();
    /// second.input_tokens = Some(4);
    /// second.output_tokens = Some(1);
    /// let sum = first.plus(&second);
    /// assert_eq!((sum.input_tokens, sum.output_tokens), (Some(7), Some(1)));
    /// ```
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.combine(other, either_sum, |a, b| match (a, b) {
            (Some(a), Some(b)) => Some(a + b),
            (known, None) | (None, known) => known,
        })
    }

    /// Field by field, this minus `earlier`; unknown where one of them is unknown, and where the
    /// later total is smaller: the agent then counts something else than the session.
    fn minus(&self, earlier: &Self) -> Self {
        self.combine(
            earlier,
            |a, b| a?.checked_sub(b?),
            |a, b| Some(a? - b?).filter(|difference| *difference >= 0.0),
        )
    }

    /// Field by field, this, or else `other`.
    pub(crate) fn or(&self, other: &Self) -> Self {
        self.combine(other, Option::or, Option::or)
    }

    fn combine(
        &self,
        other: &Self,
        tokens: impl Fn(Option<u64>, Option<u64>) -> Option<u64>,
        cost: impl Fn(Option<f64>, Option<f64>) -> Option<f64>,
    ) -> Self {
        Self {
            input_tokens: tokens(self.input_tokens, other.input_tokens),
            cache_read_tokens: tokens(self.cache_read_tokens, other.cache_read_tokens),
            cache_write_tokens: tokens(self.cache_write_tokens, other.cache_write_tokens),
            output_tokens: tokens(self.output_tokens, other.output_tokens),
            reasoning_tokens: tokens(self.reasoning_tokens, other.reasoning_tokens),
            cost_usd: cost(self.cost_usd, other.cost_usd),
        }
    }
}

fn either_sum(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (known, None) | (None, known) => known,
    }
}

/// What an execution and its session have used so far. Tokens of sub-agents are included.
///
/// Totals, not increments: a later value replaces an earlier one of the same execution. The sum of
/// `run` over all executions is what they have used together.
///
/// A parser reports what its agent prints, and leaves the other half empty. The service fills it
/// in: the session of a new chat has used what the run has used; a follow-up adds to the last known
/// total of its session. A total that cannot be known stays empty.
///
/// ```
/// use exec_core::{Usage, UsageTotals};
///
/// let mut used = Usage::default();
/// used.output_tokens = Some(5);
/// let totals = UsageTotals::of_run(used);
/// assert_eq!(serde_json::to_string(&totals)?, r#"{"run":{"output_tokens":5},"session":{}}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct UsageTotals {
    /// Used by this execution.
    pub run: Usage,
    /// Used by the session: by this execution and by all before it.
    pub session: Usage,
}

impl UsageTotals {
    /// For an agent that reports the totals of a run.
    #[must_use]
    pub fn of_run(run: Usage) -> Self {
        Self {
            run,
            session: Usage::default(),
        }
    }

    /// For an agent that reports the totals of a session.
    #[must_use]
    pub fn of_session(session: Usage) -> Self {
        Self {
            run: Usage::default(),
            session,
        }
    }

    /// Fills in what the agent does not report. `before` is the total of the session before this
    /// run: zero for a new chat, `None` if it is not known.
    pub(crate) fn complete(&mut self, before: Option<&Usage>) {
        let Some(before) = before else { return };
        let reported = *self;
        let known = |usage: &Usage| *usage != Usage::default();
        if known(&reported.session) {
            let difference = reported.session.minus(before);
            self.run = reported.run.or(&difference);
        }
        if known(&reported.run) {
            let sum = before.combine(
                &reported.run,
                |a, b| Some(a?.saturating_add(b?)),
                |a, b| Some(a? + b?),
            );
            self.session = reported.session.or(&sum);
        }
    }

    /// The total before a new chat.
    pub(crate) const NOTHING: Usage = Usage {
        input_tokens: Some(0),
        cache_read_tokens: Some(0),
        cache_write_tokens: Some(0),
        output_tokens: Some(0),
        reasoning_tokens: Some(0),
        cost_usd: Some(0.0),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(input: Option<u64>, cost: Option<f64>) -> Usage {
        Usage {
            input_tokens: input,
            cost_usd: cost,
            ..Usage::default()
        }
    }

    #[track_caller]
    fn check(reported: UsageTotals, before: Option<Usage>, run: Usage, session: Usage) {
        let mut totals = reported;
        totals.complete(before.as_ref());
        assert_eq!((totals.run, totals.session), (run, session));
    }

    #[test]
    fn the_missing_half_is_filled_in() {
        let ten = usage(Some(10), None);
        let thirty = usage(Some(30), None);
        let twenty = usage(Some(20), None);
        let nothing = Some(UsageTotals::NOTHING);
        check(UsageTotals::of_run(ten), nothing, ten, ten);
        check(UsageTotals::of_session(ten), nothing, ten, ten);
        check(UsageTotals::of_run(ten), Some(twenty), ten, thirty);
        check(UsageTotals::of_session(thirty), Some(twenty), ten, thirty);
    }

    #[test]
    fn an_unknown_total_stays_unknown() {
        let ten = usage(Some(10), None);
        let none = Usage::default();
        check(UsageTotals::of_session(ten), None, none, ten);
        check(UsageTotals::of_run(ten), None, ten, none);
        // The tokens before this run are known, the cost is not.
        let with_cost = usage(Some(10), Some(0.5));
        let sum = usage(Some(20), None);
        check(UsageTotals::of_run(with_cost), Some(ten), with_cost, sum);
    }

    #[test]
    fn a_total_that_went_back_is_no_difference_of_zero() {
        let before = Some(usage(Some(20), Some(0.5)));
        let less = usage(Some(10), Some(0.1));
        check(
            UsageTotals::of_session(less),
            before,
            Usage::default(),
            less,
        );
    }

    #[test]
    fn a_reported_half_is_kept() {
        let both = UsageTotals {
            run: usage(Some(1), Some(0.1)),
            session: usage(Some(100), None),
        };
        let before = usage(Some(7), Some(0.2));
        let mut totals = both;
        totals.complete(Some(&before));
        assert_eq!(totals.run, both.run);
        assert_eq!(totals.session.input_tokens, Some(100));
        assert!((totals.session.cost_usd.unwrap() - 0.3).abs() < 1e-9);
    }
}
