//! The limits that a caller sets, and the notices about them.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::spent::Spent;

/// How much of a limit is used when the warning is published, in percent.
const WARN_AT: u64 = 80;

/// Limits of what an execution may use; set by
/// [`LaunchRequest::budget`](crate::LaunchRequest::budget).
///
/// At 80 % of a limit the execution publishes [`BudgetWarning`](crate::EventKind::BudgetWarning),
/// beyond it [`BudgetExceeded`](crate::EventKind::BudgetExceeded), and is stopped by its ladder.
/// The exit report then has [`StoppedBy::Budget`](crate::StoppedBy::Budget) and the notice; text
/// and usage until the stop are kept. If a limit is reached, the next launch or prompt fails with
/// [`Error::BudgetExhausted`](crate::Error::BudgetExhausted). A limit of turns therefore never stops
/// a running agent.
///
/// **Scopes.** [`new`](Self::new) limits this execution alone. [`for_session`](Self::for_session)
/// limits the session, and [`for_group`](Self::for_group) all executions of the state folder that
/// name the group, in all processes: what they have used is in a file of the state folder, and each
/// execution compares the sum with the limits of its own request. An execution counts for a session
/// or a group only if its request has a budget for it. The files are written within ten
/// milliseconds of an event that changes a number, and every second for the wall time. The numbers
/// that a killed host had written count once. The file of a session is removed if it was not used for
/// 90 days; that of a group never is.
///
/// **How far an agent can go beyond a limit.** Tokens and cost are known when the agent reports
/// them.
///
/// | agent | tokens | cost |
/// |---|---|---|
/// | Claude Code, one prompt and live | after each message of the model | at the end of the run or turn; with a price table during it |
/// | Opencode, one prompt | after each step | after each step |
/// | Codex, one prompt | at the end | with a price table, at the end |
/// | Codex, live | during the turn, after each request | with a price table, during the turn |
/// | Gemini CLI, Cursor, one prompt | at the end | with a price table, at the end |
/// | others, live | when the agent sends an update, mostly at the end of a turn | with a price table, then |
///
/// Where the number is known during the run, each running execution can use one request to the
/// model too much. Where it is known at the end, a limit ends nothing in this run, and refuses the
/// next launch. Tool calls are known when the agent prints them: the call beyond the limit may have
/// begun. An execution notices within a second what other executions of its group have used.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, service) = doctest::open("exec sleep 60");
/// # let request = doctest::request("go");
/// use std::time::Duration;
/// use exec_core::{Budget, BudgetResource, LaunchRequest, StoppedBy};
///
/// let request = LaunchRequest::try_from(request)?
///     .budget(Budget::new().wall_time(Duration::from_millis(200)))
///     .budget(Budget::for_group("nightly").turns(100));
/// let result = service.run(request).await?;
/// assert_eq!(result.exit.stopped_by, Some(StoppedBy::Budget));
/// assert_eq!(result.exit.budget.as_ref().unwrap().resource, BudgetResource::WallTime);
/// assert_eq!(service.spent_by_group("nightly")?.turns, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    pub(super) scope: BudgetScope,
    /// In the order of [`BudgetResource::ALL`].
    limits: [Option<u64>; BudgetResource::ALL.len()],
}

/// What a [`Budget`] covers.
///
/// ```
/// use exec_core::BudgetScope;
///
/// assert_eq!(BudgetScope::Group("nightly".to_owned()).to_string(), "group nightly");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BudgetScope {
    /// One execution.
    Execution,
    /// A session: all its executions.
    Session,
    /// All executions of a state folder that name this group.
    Group(String),
}

/// What a [`Budget`] limits.
///
/// ```
/// use exec_core::BudgetResource;
///
/// assert_eq!(BudgetResource::ToolCalls.to_string(), "tool calls");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BudgetResource {
    /// The time from the start to the end of the process. Of executions that run at the same time:
    /// the sum.
    WallTime,
    /// Input and output tokens, with those of sub-agents and of the provider's cache.
    Tokens,
    /// The cost in US dollars.
    Cost,
    /// Tool calls, with those of sub-agents.
    ToolCalls,
    /// Prompts and messages: a launch is one.
    Turns,
}

/// A limit that is nearly or fully used.
///
/// ```
/// use exec_core::BudgetNotice;
///
/// let notice: BudgetNotice = serde_json::from_str(
///     r#"{"scope":{"group":"nightly"},"resource":"tokens","used":1200,"limit":1000}"#,
/// )?;
/// assert_eq!(notice.to_string(), "group nightly: 1200 of 1000 tokens");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BudgetNotice {
    /// What the budget covers.
    pub scope: BudgetScope,
    /// What it limits.
    pub resource: BudgetResource,
    /// How much is used: milliseconds, tokens, millionths of a US dollar, calls, or turns.
    pub used: u64,
    /// The limit, in the same unit.
    pub limit: u64,
}

impl Budget {
    /// A budget of one execution, without limits yet.
    #[must_use]
    pub fn new() -> Self {
        Self::with_scope(BudgetScope::Execution)
    }

    /// A budget of the session.
    #[must_use]
    pub fn for_session() -> Self {
        Self::with_scope(BudgetScope::Session)
    }

    /// A budget of all executions of the state folder that name this group. The name has at most 64
    /// letters, digits, `-`, `_` and `.`, and begins with none of the last three; the launch checks
    /// it.
    #[must_use]
    pub fn for_group(name: impl Into<String>) -> Self {
        Self::with_scope(BudgetScope::Group(name.into()))
    }

    fn with_scope(scope: BudgetScope) -> Self {
        Self {
            scope,
            limits: [None; BudgetResource::ALL.len()],
        }
    }

    /// Limits the wall time.
    #[must_use]
    pub fn wall_time(self, limit: Duration) -> Self {
        let milliseconds = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        self.limit(BudgetResource::WallTime, milliseconds)
    }

    /// Limits the tokens: input and output, with those of sub-agents and of the provider's cache.
    #[must_use]
    pub fn tokens(self, limit: u64) -> Self {
        self.limit(BudgetResource::Tokens, limit)
    }

    /// Limits the cost in US dollars. Refused for agents that report no cost, unless the service
    /// has a [price table](crate::ExecutionServiceBuilder::price_table).
    #[must_use]
    pub fn cost_usd(self, limit: f64) -> Self {
        self.limit(BudgetResource::Cost, super::spent::micro_usd(limit))
    }

    /// Limits the tool calls.
    #[must_use]
    pub fn tool_calls(self, limit: u64) -> Self {
        self.limit(BudgetResource::ToolCalls, limit)
    }

    /// Limits the prompts and messages. Useful for sessions and groups: an execution is one turn.
    #[must_use]
    pub fn turns(self, limit: u64) -> Self {
        self.limit(BudgetResource::Turns, limit)
    }

    fn limit(mut self, resource: BudgetResource, limit: u64) -> Self {
        self.limits[resource as usize] = Some(limit);
        self
    }

    /// Takes over the limits of another budget that are lower.
    pub(super) fn restrict(&mut self, other: &Self) {
        for (limit, other) in self.limits.iter_mut().zip(other.limits) {
            *limit = match (*limit, other) {
                (Some(limit), Some(other)) => Some(limit.min(other)),
                (limit, other) => limit.or(other),
            };
        }
    }

    pub(crate) fn limit_of(&self, resource: BudgetResource) -> Option<u64> {
        self.limits[resource as usize]
    }

    /// The limits of which `used` leaves nothing.
    pub(super) fn exhausted(&self, used: &Spent) -> Option<BudgetNotice> {
        let mut reached = BudgetResource::ALL.into_iter();
        reached.find_map(|resource| {
            let notice = self.notice(resource, used)?;
            (notice.used >= notice.limit).then_some(notice)
        })
    }

    pub(super) fn notice(&self, resource: BudgetResource, used: &Spent) -> Option<BudgetNotice> {
        Some(BudgetNotice {
            scope: self.scope.clone(),
            resource,
            used: used.amount(resource),
            limit: self.limit_of(resource)?,
        })
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::new()
    }
}

impl BudgetResource {
    pub(crate) const ALL: [Self; 5] = [
        Self::WallTime,
        Self::Tokens,
        Self::Cost,
        Self::ToolCalls,
        Self::Turns,
    ];
}

impl BudgetNotice {
    /// The amount with which the warning is published.
    pub(super) fn warn_above(limit: u64) -> u64 {
        let percent = u128::from(limit) * u128::from(WARN_AT);
        u64::try_from(percent.div_ceil(100)).unwrap_or(limit)
    }

    /// Whether the limit is passed. Time passes without an event that could be too much: its limit
    /// is reached.
    pub(super) fn is_exceeded(&self) -> bool {
        match self.resource {
            BudgetResource::WallTime => self.used >= self.limit,
            _ => self.used > self.limit,
        }
    }

    pub(super) fn is_warning(&self) -> bool {
        self.used >= Self::warn_above(self.limit) && self.used > 0
    }
}

impl fmt::Display for BudgetScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Execution => f.write_str("execution"),
            Self::Session => f.write_str("session"),
            Self::Group(name) => write!(f, "group {name}"),
        }
    }
}

impl fmt::Display for BudgetResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WallTime => "wall time",
            Self::Tokens => "tokens",
            Self::Cost => "cost",
            Self::ToolCalls => "tool calls",
            Self::Turns => "turns",
        })
    }
}

impl fmt::Display for BudgetNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            scope,
            resource,
            used,
            limit,
        } = self;
        let usd = |micro: u64| micro as f64 / 1e6;
        match resource {
            BudgetResource::WallTime => {
                write!(f, "{scope}: {used} of {limit} milliseconds")
            }
            BudgetResource::Cost => {
                write!(
                    f,
                    "{scope}: {:.4} of {:.4} US dollars",
                    usd(*used),
                    usd(*limit)
                )
            }
            _ => write!(f, "{scope}: {used} of {limit} {resource}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(used: u64) -> Spent {
        Spent {
            tokens: used,
            ..Spent::default()
        }
    }

    #[test]
    fn a_limit_warns_then_is_exceeded_by_more_than_it() {
        let budget = Budget::new().tokens(1000);
        let notice = |used| {
            budget
                .notice(BudgetResource::Tokens, &tokens(used))
                .unwrap()
        };
        for (used, warns, exceeds) in [
            (0, false, false),
            (799, false, false),
            (800, true, false),
            (1000, true, false),
            (1001, true, true),
        ] {
            let notice = notice(used);
            assert_eq!(
                (notice.is_warning(), notice.is_exceeded()),
                (warns, exceeds),
                "{used}"
            );
        }
        assert!(budget.exhausted(&tokens(999)).is_none());
        assert!(budget.exhausted(&tokens(1000)).is_some());
    }

    #[test]
    fn an_enormous_limit_does_not_overflow() {
        let budget = Budget::new().wall_time(Duration::MAX).cost_usd(f64::MAX);
        assert!(budget.exhausted(&Spent::default()).is_none());
        assert_eq!(BudgetNotice::warn_above(u64::MAX), u64::MAX / 5 * 4);
        let none = Budget::new().cost_usd(f64::NAN).cost_usd(-1.0);
        assert_eq!(none.limit_of(BudgetResource::Cost), Some(0));
    }

    #[test]
    fn a_notice_is_a_short_sentence() {
        let notice = Budget::for_session()
            .cost_usd(1.5)
            .notice(BudgetResource::Cost, &Spent::default());
        assert_eq!(
            notice.unwrap().to_string(),
            "session: 0.0000 of 1.5000 US dollars"
        );
    }
}
