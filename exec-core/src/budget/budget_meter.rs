//! What one execution uses, compared with its budgets.

use std::collections::HashSet;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::budget::{Budget, BudgetNotice, BudgetResource, BudgetScope};
use super::ledger::{Ledger, group_path, remove_old_sessions, session_path};
use super::price_table::PriceTable;
use super::spent::{Spent, micro_usd};
use crate::process::LONGEST_LIMIT;
use crate::{AgentEvent, AgentEventKind, Error, ExecutionId, SessionId, Usage, UsageTotals};

/// How often the wall time is written to a ledger, and how late an execution notices what others of
/// its group have used.
const LEDGER_INTERVAL: Duration = Duration::from_secs(1);
/// How long the events of an agent that prints many of them are collected before they are written: a
/// write takes as long as ten events.
const WRITE_INTERVAL: Duration = Duration::from_millis(10);

/// A limit that is nearly or fully used, once each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BudgetVerdict {
    Warning(BudgetNotice),
    Exceeded(BudgetNotice),
}

/// The meter of one execution with budgets.
///
/// The numbers of an execution are totals that replace earlier ones: an event that is repeated
/// counts once.
pub(crate) struct BudgetMeter {
    id: ExecutionId,
    state_dir: PathBuf,
    started: Instant,
    spent: Spent,
    /// Hashes of the ids of the calls that were counted. An agent can repeat a call, for example when
    /// it is finished. Not the ids: an agent chooses their length, and a budget without a limit of
    /// tool calls does not end it.
    tool_calls: HashSet<u64>,
    counts_tool_calls: bool,
    model: Option<String>,
    prices: Option<Arc<PriceTable>>,
    reported_cost: ReportedCost,
    accounts: Vec<Account>,
    first_exceeded: Option<BudgetNotice>,
    /// The numbers are final. A line after the last one would count the execution twice.
    has_ended: bool,
    last_write: Instant,
    /// Whether there is something to write, after [`WRITE_INTERVAL`].
    is_dirty: bool,
    /// Tells that [`next_tick`](BudgetMeter::next_tick) has moved.
    moved: Arc<Notify>,
}

/// The cost that the agent has last reported.
#[derive(Default)]
struct ReportedCost {
    usd: f64,
    /// The price of the tokens of that report.
    price: f64,
}

/// One budget, with what others have used of it.
struct Account {
    budget: Budget,
    /// `None` for the budget of the execution alone.
    ledger: Option<Ledger>,
    others: Spent,
    warned: [bool; BudgetResource::ALL.len()],
    exceeded: [bool; BudgetResource::ALL.len()],
}

impl BudgetMeter {
    /// Begins to count. The launch is refused if a budget has nothing left.
    ///
    /// `turns`: the prompts of the launch itself.
    pub(crate) fn open(
        budgets: Vec<Budget>,
        turns: u64,
        state_dir: &Path,
        id: &ExecutionId,
        session_id: &SessionId,
        prices: Option<Arc<PriceTable>>,
    ) -> Result<Self, Error> {
        let budgets = merge(budgets);
        let has_limit = |budget: &Budget| budget.limit_of(BudgetResource::ToolCalls).is_some();
        let mut meter = Self {
            id: id.clone(),
            state_dir: state_dir.to_owned(),
            started: Instant::now(),
            spent: Spent {
                turns,
                ..Spent::default()
            },
            tool_calls: HashSet::new(),
            counts_tool_calls: budgets
                .iter()
                .any(|budget| has_limit(budget) || budget.scope != BudgetScope::Execution),
            model: None,
            prices,
            reported_cost: ReportedCost::default(),
            accounts: Vec::with_capacity(budgets.len()),
            first_exceeded: None,
            has_ended: false,
            last_write: Instant::now(),
            is_dirty: false,
            moved: Arc::default(),
        };
        for budget in budgets {
            match meter.open_account(budget, session_id) {
                Ok(account) => meter.accounts.push(account),
                Err(error) => {
                    meter.cancel();
                    return Err(error);
                }
            }
        }
        Ok(meter)
    }

    fn open_account(&self, budget: Budget, session_id: &SessionId) -> Result<Account, Error> {
        let state_dir = &self.state_dir;
        let path = match &budget.scope {
            BudgetScope::Execution => None,
            BudgetScope::Session => Some(session_path(state_dir, session_id)?),
            BudgetScope::Group(name) => Some(group_path(state_dir, name)?),
        };
        let check = |others: Spent| match budget.exhausted(&others) {
            Some(notice) => Err(Error::BudgetExhausted { notice }),
            None => Ok(()),
        };
        let mut ledger = path.map(Ledger::new);
        let others = match &mut ledger {
            Some(ledger) => ledger.enter(&self.id, self.spent, check)?,
            None => {
                check(Spent::default())?;
                Spent::default()
            }
        };
        // After the entry, which has created the folder.
        if budget.scope == BudgetScope::Session
            && let Err(error) = remove_old_sessions(state_dir)
        {
            tracing::warn!(%error, "cannot remove the budgets of old sessions");
        }
        Ok(Account {
            budget,
            ledger,
            others,
            warned: Default::default(),
            exceeded: Default::default(),
        })
    }

    /// The process was not started: the turn does not count.
    pub(crate) fn cancel(&mut self) {
        self.spent = Spent::default();
        self.write(true);
    }

    /// Counts the events of the agent. The usage in them is complete.
    pub(crate) fn observe(&mut self, events: &[AgentEvent]) -> Vec<BudgetVerdict> {
        let before = self.spent;
        for event in events {
            match &event.kind {
                AgentEventKind::SessionStarted { model, .. } if event.parent.is_none() => {
                    self.model.clone_from(model);
                }
                AgentEventKind::Usage(totals) => self.count_usage(totals),
                AgentEventKind::ToolCall { id, .. } if self.counts_tool_calls => {
                    let is_new = id.as_ref().is_none_or(|id| {
                        let hash = self.tool_calls.hasher().hash_one(id);
                        self.tool_calls.insert(hash)
                    });
                    self.spent.tool_calls += u64::from(is_new);
                }
                _ => {}
            }
        }
        if self.spent == before {
            return Vec::new();
        }
        self.update()
    }

    fn count_usage(&mut self, totals: &UsageTotals) {
        // The agent reports only the total of the session, and the total before this run is
        // unknown. The whole total counts: a smaller number could hide usage.
        let usage = match totals.run == Usage::default() {
            true => &totals.session,
            false => &totals.run,
        };
        let tokens = [usage.input_tokens, usage.output_tokens];
        self.spent.tokens = tokens.into_iter().flatten().fold(0, u64::saturating_add);
        let prices = self.prices.as_ref();
        let price = prices.map(|prices| prices.cost_usd(self.model.as_deref(), usage));
        let cost = match (usage.cost_usd, price) {
            // Some agents report the cost at the end of a turn only. During the next turn they repeat
            // it, with more tokens. A cost of zero is one that the agent does not charge.
            (Some(usd), Some(price)) if usd > 0.0 => {
                if usd != self.reported_cost.usd {
                    self.reported_cost = ReportedCost { usd, price };
                }
                Some(usd + (price - self.reported_cost.price).max(0.0))
            }
            (cost, price) => cost.or(price),
        };
        self.spent.micro_usd = cost.map_or(0, micro_usd);
    }

    /// One more prompt of the same process.
    pub(crate) fn begin_turn(&mut self) -> Result<(), Error> {
        // A message can be handed over to a process that has just ended.
        if self.has_ended {
            return Ok(());
        }
        let mut spent = self.spent;
        spent.turns += 1;
        for index in 0..self.accounts.len() {
            let account = &mut self.accounts[index];
            if let Err(error) = account.begin_turn(&self.id, self.spent, spent) {
                // The ledgers before this one have counted the turn.
                self.write(false);
                return Err(error);
            }
        }
        self.spent = spent;
        Ok(())
    }

    /// Prompts that were counted were not delivered.
    pub(crate) fn drop_turns(&mut self, turns: u64) {
        if turns > 0 {
            self.spent.turns = self.spent.turns.saturating_sub(turns);
            self.write(false);
        }
    }

    /// The time at which [`tick`](Self::tick) is to be called; `None` if time has no effect.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        let deadlines = self.accounts.iter().flat_map(|account| {
            let limit = account.budget.limit_of(BudgetResource::WallTime);
            let limits = limit.into_iter().flat_map(|limit| {
                let warning = BudgetNotice::warn_above(limit);
                let index = BudgetResource::WallTime as usize;
                let warning = (!account.warned[index]).then_some(warning);
                let limit = (!account.exceeded[index]).then_some(limit);
                warning.into_iter().chain(limit)
            });
            limits.map(|amount| {
                let own = Duration::from_millis(amount.saturating_sub(account.others.wall_ms));
                self.started + own.min(LONGEST_LIMIT)
            })
        });
        let has_ledger = self.accounts.iter().any(|account| account.ledger.is_some());
        let pause = match self.is_dirty {
            true => WRITE_INTERVAL,
            false => LEDGER_INTERVAL,
        };
        let interval = has_ledger.then(|| self.last_write + pause);
        deadlines.chain(interval).min()
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self) -> Vec<BudgetVerdict> {
        self.spent.wall_ms = self.elapsed_ms();
        self.write(false);
        self.judge()
    }

    pub(crate) fn moved(&self) -> Arc<Notify> {
        Arc::clone(&self.moved)
    }

    /// The session has got another id.
    pub(crate) fn rename_session(&mut self, session_id: &SessionId) {
        for account in &mut self.accounts {
            if account.budget.scope == BudgetScope::Session
                && let Some(ledger) = &mut account.ledger
            {
                let path = session_path(&self.state_dir, session_id);
                let renamed = path.and_then(|path| ledger.rename(path, &self.id, self.spent));
                if let Err(error) = renamed {
                    tracing::error!(%error, "cannot rename the budget of the session");
                }
            }
        }
    }

    /// The execution has ended: its numbers are final.
    pub(crate) fn finish(&mut self) {
        self.spent.wall_ms = self.elapsed_ms();
        self.write(true);
    }

    /// The first limit that was exceeded.
    pub(crate) fn first_exceeded(&self) -> Option<&BudgetNotice> {
        self.first_exceeded.as_ref()
    }

    fn update(&mut self) -> Vec<BudgetVerdict> {
        self.spent.wall_ms = self.elapsed_ms();
        if self.last_write.elapsed() >= WRITE_INTERVAL {
            self.write(false);
        } else if !self.is_dirty {
            self.is_dirty = true;
            self.moved.notify_one();
        }
        self.judge()
    }

    fn judge(&mut self) -> Vec<BudgetVerdict> {
        let mut verdicts = Vec::new();
        for account in &mut self.accounts {
            account.judge(&self.spent, &mut verdicts);
        }
        let exceeded = verdicts.iter().find_map(|verdict| match verdict {
            BudgetVerdict::Exceeded(notice) => Some(notice),
            BudgetVerdict::Warning(_) => None,
        });
        if self.first_exceeded.is_none() {
            self.first_exceeded = exceeded.cloned();
        }
        verdicts
    }

    /// A ledger that cannot be written is reported, and the last known numbers are used: a full
    /// disk is no reason to stop an agent, and other budgets still hold.
    fn write(&mut self, ended: bool) {
        self.last_write = Instant::now();
        self.is_dirty = false;
        if self.has_ended {
            return;
        }
        self.has_ended = ended;
        for account in &mut self.accounts {
            let Some(ledger) = &mut account.ledger else {
                continue;
            };
            match ledger.update(&self.id, self.spent, ended) {
                Ok(others) => account.others = others,
                Err(error) => tracing::error!(%error, "cannot write a budget"),
            }
        }
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// One budget for each scope: two accounts of one ledger would count the execution twice.
fn merge(budgets: Vec<Budget>) -> Vec<Budget> {
    let mut merged: Vec<Budget> = Vec::with_capacity(budgets.len());
    for budget in budgets {
        match merged.iter_mut().find(|other| other.scope == budget.scope) {
            Some(other) => other.restrict(&budget),
            None => merged.push(budget),
        }
    }
    merged
}

impl Account {
    /// Checks and counts under one lock of the ledger: of two executions only one can take the last
    /// turn.
    fn begin_turn(&mut self, id: &ExecutionId, before: Spent, after: Spent) -> Result<(), Error> {
        let budget = &self.budget;
        let check = |others: Spent| match budget.exhausted(&(others + before)) {
            Some(notice) => Err(Error::BudgetExhausted { notice }),
            None => Ok(()),
        };
        match &mut self.ledger {
            Some(ledger) => self.others = ledger.enter(id, after, check)?,
            None => check(self.others)?,
        }
        Ok(())
    }

    fn judge(&mut self, own: &Spent, verdicts: &mut Vec<BudgetVerdict>) {
        let used = self.others + *own;
        for resource in BudgetResource::ALL {
            let Some(notice) = self.budget.notice(resource, &used) else {
                continue;
            };
            let index = resource as usize;
            if notice.is_warning() && !self.warned[index] {
                self.warned[index] = true;
                verdicts.push(BudgetVerdict::Warning(notice.clone()));
            }
            // A turn beyond the limit is refused before it begins.
            let is_refused = resource == BudgetResource::Turns;
            if notice.is_exceeded() && !is_refused && !self.exceeded[index] {
                self.exceeded[index] = true;
                verdicts.push(BudgetVerdict::Exceeded(notice));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Price, ToolInput};

    fn session() -> SessionId {
        SessionId::new("A", "p", "1").unwrap()
    }

    fn meter_at(state_dir: &Path, budget: Budget) -> Result<BudgetMeter, Error> {
        let id = ExecutionId::mint();
        BudgetMeter::open(vec![budget], 1, state_dir, &id, &session(), None)
    }

    fn meter(budget: Budget) -> BudgetMeter {
        meter_at(Path::new("/nowhere"), budget).unwrap()
    }

    fn usage(input: u64, cost_usd: Option<f64>) -> AgentEvent {
        let run = Usage {
            input_tokens: Some(input),
            output_tokens: Some(1),
            reasoning_tokens: Some(1),
            cost_usd,
            ..Usage::default()
        };
        AgentEventKind::Usage(UsageTotals::of_run(run)).into()
    }

    fn call(id: Option<&str>) -> AgentEventKind {
        AgentEventKind::ToolCall {
            id: id.map(str::to_owned),
            name: "Bash".to_owned(),
            input: ToolInput::default(),
        }
    }

    fn names(verdicts: &[BudgetVerdict]) -> Vec<String> {
        let name = |verdict: &BudgetVerdict| match verdict {
            BudgetVerdict::Warning(notice) => format!("warning {notice}"),
            BudgetVerdict::Exceeded(notice) => format!("exceeded {notice}"),
        };
        verdicts.iter().map(name).collect()
    }

    #[tokio::test]
    async fn a_later_total_replaces_the_earlier_one_and_each_notice_comes_once() {
        let mut meter = meter(Budget::new().tokens(100));
        for input in [10, 40, 40, 70] {
            assert!(meter.observe(&[usage(input, None)]).is_empty(), "{input}");
        }
        let warned = meter.observe(&[usage(80, None)]);
        assert_eq!(names(&warned), ["warning execution: 81 of 100 tokens"]);
        assert!(meter.observe(&[usage(99, None)]).is_empty());
        let exceeded = meter.observe(&[usage(100, None), usage(120, None)]);
        assert_eq!(names(&exceeded), ["exceeded execution: 121 of 100 tokens"]);
        assert!(meter.observe(&[usage(500, None)]).is_empty());
        assert_eq!(meter.first_exceeded().unwrap().used, 121);
    }

    #[tokio::test]
    async fn a_tool_call_counts_once_and_calls_of_sub_agents_count() {
        let mut meter = meter(Budget::new().tool_calls(3));
        let calls = [
            call(Some("1")).into(),
            call(Some("1")).into(),
            AgentEvent::of_sub_agent("1", call(Some("2"))),
            call(None).into(),
        ];
        let verdicts = meter.observe(&calls);
        assert_eq!(names(&verdicts), ["warning execution: 3 of 3 tool calls"]);
        let verdicts = meter.observe(&[call(None).into()]);
        assert_eq!(names(&verdicts), ["exceeded execution: 4 of 3 tool calls"]);
    }

    #[tokio::test]
    async fn a_price_table_gives_the_cost_that_the_agent_does_not_report() {
        let mut meter = meter(Budget::new().cost_usd(1.0));
        meter.prices = Some(Arc::new(PriceTable::new(Price::new(10_000.0, 0.0))));
        assert!(meter.observe(&[usage(50, None)]).is_empty());
        assert_eq!(meter.spent.micro_usd, 500_000);
        assert_eq!(meter.observe(&[usage(50, Some(3.0))]).len(), 2);
        assert_eq!(meter.spent.micro_usd, 3_000_000);
    }

    #[tokio::test]
    async fn a_price_table_gives_the_cost_of_tokens_since_the_last_report() {
        let mut meter = meter(Budget::new().cost_usd(1.0));
        meter.prices = Some(Arc::new(PriceTable::new(Price::new(10_000.0, 0.0))));
        for (input, reported, expected) in [
            (10, None, 100_000),
            // The end of the first turn.
            (20, Some(0.15), 150_000),
            (40, Some(0.15), 350_000),
            (70, Some(0.15), 650_000),
            (70, Some(0.5), 500_000),
            (80, Some(0.5), 600_000),
        ] {
            assert!(meter.observe(&[usage(input, reported)]).is_empty());
            assert_eq!(meter.spent.micro_usd, expected, "{input}");
        }
        assert_eq!(meter.observe(&[usage(140, Some(0.5))]).len(), 2);

        let mut free = self::meter(Budget::new().cost_usd(1.0));
        free.prices.clone_from(&meter.prices);
        assert!(free.observe(&[usage(500, Some(0.0))]).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn time_warns_and_ends_without_an_event() {
        let mut meter = meter(Budget::new().wall_time(Duration::from_secs(10)));
        let begin = Instant::now();
        tokio::time::sleep_until(meter.next_tick().unwrap()).await;
        assert_eq!(begin.elapsed().as_secs(), 8);
        let warned = names(&meter.tick());
        assert_eq!(warned, ["warning execution: 8000 of 10000 milliseconds"]);
        tokio::time::sleep_until(meter.next_tick().unwrap()).await;
        assert_eq!(begin.elapsed().as_secs(), 10);
        let exceeded = names(&meter.tick());
        assert_eq!(
            exceeded,
            ["exceeded execution: 10000 of 10000 milliseconds"]
        );
        assert!(meter.next_tick().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_executions_of_a_group_see_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let open = || meter_at(folder.path(), Budget::for_group("g").tokens(100).turns(3));
        let mut first = open().unwrap();
        let mut second = open().unwrap();
        tokio::time::advance(WRITE_INTERVAL).await;
        assert!(first.observe(&[usage(49, None)]).is_empty());
        let verdicts = names(&second.observe(&[usage(59, None)]));
        assert_eq!(
            verdicts,
            [
                "warning group g: 110 of 100 tokens",
                "exceeded group g: 110 of 100 tokens"
            ]
        );
        // The silent one notices at its next tick.
        assert_eq!(first.next_tick(), Some(Instant::now() + LEDGER_INTERVAL));
        assert_eq!(first.tick().len(), 2);
        first.finish();
        second.finish();
        let refused = open().err().unwrap();
        assert!(matches!(&refused, Error::BudgetExhausted { notice } if notice.used == 110));
    }

    #[tokio::test]
    async fn the_turns_of_a_session_are_checked_before_they_begin() {
        let folder = tempfile::tempdir().unwrap();
        let open = || meter_at(folder.path(), Budget::for_session().turns(3));
        let mut first = open().unwrap();
        first.begin_turn().unwrap();
        first.finish();
        let mut failed = open().unwrap();
        failed.cancel();
        let mut second = open().unwrap();
        let error = second.begin_turn().unwrap_err();
        assert!(matches!(error, Error::BudgetExhausted { .. }), "{error}");
        second.finish();
        assert!(open().is_err());
    }

    #[test]
    fn two_executions_cannot_both_take_the_last_turn() {
        let folder = tempfile::tempdir().unwrap();
        let limit = 24;
        let open = |_| {
            let budget = Budget::for_group("g").turns(limit);
            let id = ExecutionId::mint();
            BudgetMeter::open(vec![budget], 0, folder.path(), &id, &session(), None).unwrap()
        };
        // All before the first turn: a launch for which nothing is left is refused.
        let meters: Vec<_> = (0..4).map(open).collect();
        let begin = |mut meter: BudgetMeter| {
            let turns = 0..limit;
            turns.filter(|_| meter.begin_turn().is_ok()).count()
        };
        let begun: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = meters
                .into_iter()
                .map(|meter| scope.spawn(move || begin(meter)))
                .collect();
            let begun = threads.into_iter().map(|thread| thread.join().unwrap());
            begun.sum()
        });
        assert_eq!(begun as u64, limit);
    }

    #[tokio::test]
    async fn a_turn_that_one_budget_refuses_counts_in_none() {
        let folder = tempfile::tempdir().unwrap();
        let budgets = vec![
            Budget::for_group("g").turns(10),
            Budget::for_group("h").turns(1),
        ];
        let id = ExecutionId::mint();
        let mut meter =
            BudgetMeter::open(budgets, 0, folder.path(), &id, &session(), None).unwrap();
        meter.begin_turn().unwrap();
        assert!(meter.begin_turn().is_err());
        let path = group_path(folder.path(), "g").unwrap();
        assert_eq!(Ledger::new(path).total().unwrap().turns, 1);
    }

    #[tokio::test]
    async fn the_last_turns_are_announced_and_end_nothing() {
        let mut meter = meter(Budget::new().turns(5));
        meter.begin_turn().unwrap();
        meter.begin_turn().unwrap();
        assert!(meter.observe(&[usage(1, None)]).is_empty());
        meter.begin_turn().unwrap();
        let warned = names(&meter.observe(&[usage(2, None)]));
        assert_eq!(warned, ["warning execution: 4 of 5 turns"]);
        meter.begin_turn().unwrap();
        assert!(meter.observe(&[usage(3, None)]).is_empty());
        assert!(meter.begin_turn().is_err());
    }

    #[tokio::test]
    async fn a_turn_that_is_dropped_after_the_end_does_not_count_the_execution_twice() {
        let folder = tempfile::tempdir().unwrap();
        let mut meter = meter_at(folder.path(), Budget::for_group("g").turns(10)).unwrap();
        meter.begin_turn().unwrap();
        meter.drop_turns(1);
        meter.finish();
        meter.drop_turns(1);
        let path = group_path(folder.path(), "g").unwrap();
        assert_eq!(Ledger::new(path).total().unwrap().turns, 1);
    }

    #[tokio::test]
    async fn a_turn_that_begins_after_the_end_does_not_count_the_execution_twice() {
        let folder = tempfile::tempdir().unwrap();
        let mut meter = meter_at(folder.path(), Budget::for_group("g").turns(10)).unwrap();
        meter.finish();
        meter.begin_turn().unwrap();
        let path = group_path(folder.path(), "g").unwrap();
        assert_eq!(Ledger::new(path).total().unwrap().turns, 1);
    }

    #[tokio::test]
    async fn two_budgets_of_one_scope_count_the_execution_once_and_both_hold() {
        let folder = tempfile::tempdir().unwrap();
        let budgets = vec![
            Budget::for_group("g").turns(10).tokens(50),
            Budget::for_group("g").tokens(100).tool_calls(7),
            Budget::new().tokens(1000),
        ];
        let id = ExecutionId::mint();
        let mut meter =
            BudgetMeter::open(budgets, 1, folder.path(), &id, &session(), None).unwrap();
        let verdicts = names(&meter.observe(&[usage(60, None)]));
        assert_eq!(
            verdicts,
            [
                "warning group g: 61 of 50 tokens",
                "exceeded group g: 61 of 50 tokens"
            ]
        );
        let calls: Vec<AgentEvent> = (0..8).map(|_| call(None).into()).collect();
        assert_eq!(meter.observe(&calls).len(), 2);
        meter.finish();
        let path = group_path(folder.path(), "g").unwrap();
        let total = Ledger::new(path).total().unwrap();
        assert_eq!((total.turns, total.tokens), (1, 61));
    }

    #[tokio::test]
    async fn a_session_that_gets_its_own_id_keeps_its_account() {
        let folder = tempfile::tempdir().unwrap();
        let budget = || Budget::for_session().tokens(100);
        let mut meter = meter_at(folder.path(), budget()).unwrap();
        meter.observe(&[usage(60, None)]);
        let own = session().with_native_id("own").unwrap();
        meter.rename_session(&own);
        meter.finish();
        let id = ExecutionId::mint();
        let mut next =
            BudgetMeter::open(vec![budget()], 1, folder.path(), &id, &own, None).unwrap();
        assert_eq!(next.observe(&[usage(60, None)]).len(), 2);
    }
}
