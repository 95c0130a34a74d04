//! What an execution, a session and a group may use.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use exec_core::{
    AgentEvent, AgentEventKind, Budget, BudgetResource, BudgetScope, Error, Event, EventKind,
    EventParser, ExecutionService, FollowUpRequest, HistoryState, LaunchRequest, LiveRequest,
    NewChatRequest, Price, PriceTable, StoppedBy, ToolInput, Usage, UsageTotals,
};

use crate::lab::{Lab, Scripted, all_events, files_in, helper, helper_lab, script, until, within};
use crate::live_agent;

/// Reads `tokens <total of the run>`, `cost <total>`, `call <id>`, `say <text>`, `session: <id>`.
#[derive(Default)]
struct MeterParser {
    run: Usage,
    reports_cost: bool,
}

impl EventParser for MeterParser {
    fn parse_line(&mut self, line: &str) -> Vec<AgentEvent> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "tokens" => self.run.input_tokens = rest.parse().ok(),
            "cost" => self.run.cost_usd = rest.parse().ok(),
            "call" => {
                let call = AgentEventKind::ToolCall {
                    id: Some(rest.to_owned()),
                    name: "Bash".to_owned(),
                    input: ToolInput::default(),
                };
                return vec![call.into()];
            }
            "say" => {
                let text = rest.to_owned();
                return vec![AgentEventKind::Text { text, delta: false }.into()];
            }
            "session:" => {
                let session_id = rest.to_owned();
                let started = AgentEventKind::SessionStarted {
                    session_id,
                    model: None,
                };
                return vec![started.into()];
            }
            _ => return Vec::new(),
        }
        vec![AgentEventKind::Usage(UsageTotals::of_run(self.run)).into()]
    }

    fn reports_cost(&self) -> bool {
        self.reports_cost
    }
}

fn metered(text: &str) -> Scripted {
    script(text).setup(|_, parameters| {
        parameters.event_parser = Some(Box::<MeterParser>::default());
    })
}

/// Uses more and more until it is stopped.
const GREEDY: &str = "echo say working; for n in 50 90 150 500; do echo tokens $n; sleep 0.05; done
    sleep 600";

fn limited(request: NewChatRequest, budget: Budget) -> LaunchRequest {
    LaunchRequest::try_from(request).unwrap().budget(budget)
}

fn notices(events: &[Arc<Event>]) -> Vec<String> {
    let notice = |event: &Arc<Event>| match &event.kind {
        EventKind::BudgetWarning(notice) => Some(format!("warning {notice}")),
        EventKind::BudgetExceeded(notice) => Some(format!("exceeded {notice}")),
        _ => None,
    };
    events.iter().filter_map(notice).collect()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_budget_warns_then_stops_and_the_partial_result_is_kept() {
    let lab = Lab::new();
    let service = lab.service(metered(
        "echo say half; echo tokens 90; echo tokens 150; sleep 600",
    ));
    let request = limited(lab.new_chat("go"), Budget::new().tokens(100));
    let execution = service.launch(request.clone()).await.unwrap();
    let events = all_events(&execution).await;
    assert_eq!(
        notices(&events),
        [
            "warning execution: 90 of 100 tokens",
            "exceeded execution: 150 of 100 tokens"
        ]
    );
    let result = within("the run", service.run(request)).await.unwrap();
    assert_eq!(result.text, "half");
    assert_eq!(result.usage.run.input_tokens, Some(150));
    assert_eq!(result.exit.stopped_by, Some(StoppedBy::Budget));
    let budget = result.exit.budget.as_ref().unwrap();
    assert_eq!(budget.scope, BudgetScope::Execution);
    assert_eq!(budget.resource, BudgetResource::Tokens);
    assert_eq!((budget.used, budget.limit), (150, 100));
    assert_eq!(lab.processes(), [0; 0]);
    let entry = service.history().load().unwrap().entries.remove(0);
    assert!(matches!(entry.state, HistoryState::Ended(report) if report.budget.is_some()));
}

#[tokio::test]
async fn an_agent_that_ends_within_its_budget_was_not_stopped_by_it() {
    let lab = Lab::new();
    let service = lab.service(metered("echo tokens 90"));
    let request = limited(lab.new_chat("go"), Budget::new().tokens(100).tool_calls(1));
    let result = within("the run", service.run(request)).await.unwrap();
    assert!(result.is_success(), "{:?}", result.exit);
    assert!(result.exit.budget.is_none());
}

#[tokio::test]
async fn wall_time_and_tool_calls_are_limited() {
    let lab = Lab::new();
    let service = lab.service(metered("echo call 1; echo call 1; echo call 2; sleep 600"));
    let time = Budget::new().wall_time(Duration::from_millis(100));
    let slow = within("the run", service.run(limited(lab.new_chat("go"), time))).await;
    let report = &slow.unwrap().exit;
    assert_eq!(
        report.budget.as_ref().unwrap().resource,
        BudgetResource::WallTime
    );
    assert!(report.wall_time >= Duration::from_millis(100));
    let calls = limited(lab.new_chat("go"), Budget::new().tool_calls(1));
    let busy = within("the run", service.run(calls)).await.unwrap();
    let budget = busy.exit.budget.as_ref().unwrap();
    assert_eq!(
        (budget.resource, budget.used),
        (BudgetResource::ToolCalls, 2)
    );
}

#[tokio::test]
async fn a_limit_that_cannot_be_measured_is_refused() {
    let lab = Lab::new();
    let without_events = lab.service(script("true"));
    for budget in [
        Budget::new().tokens(1),
        Budget::new().cost_usd(1.0),
        Budget::for_group("g").tool_calls(1),
    ] {
        let refused = without_events.launch(limited(lab.new_chat("go"), budget));
        let refused = refused.await.unwrap_err();
        assert!(
            matches!(refused, Error::BudgetNotMeasurable { .. }),
            "{refused}"
        );
    }
    let timed = Budget::new().wall_time(Duration::from_secs(60)).turns(1);
    let timed = without_events.launch(limited(lab.new_chat("go"), timed));
    within("the end", timed.await.unwrap().wait())
        .await
        .unwrap();

    let costly = || limited(lab.new_chat("go"), Budget::new().cost_usd(0.5));
    let without_cost = lab.service(metered("echo tokens 1000; sleep 600"));
    let refused = without_cost.launch(costly()).await.unwrap_err();
    assert!(refused.to_string().contains("price_table"), "{refused}");
    let prices = PriceTable::new(Price::new(1000.0, 0.0));
    let priced = metered("echo tokens 1000; sleep 600");
    let priced = lab.builder(priced).price_table(prices).open().unwrap();
    let stopped = within("the run", priced.run(costly())).await.unwrap();
    assert_eq!(stopped.exit.budget.as_ref().unwrap().used, 1_000_000);

    let with_cost = script("echo cost 0.7; sleep 600").setup(|_, parameters| {
        parameters.event_parser = Some(Box::new(MeterParser {
            reports_cost: true,
            ..MeterParser::default()
        }));
    });
    let stopped = within("the run", lab.service(with_cost).run(costly())).await;
    assert_eq!(stopped.unwrap().exit.budget.as_ref().unwrap().used, 700_000);
}

#[tokio::test]
async fn a_session_has_one_account_under_all_its_ids() {
    let lab = Lab::new();
    let service = lab.service(metered("echo session: own; echo tokens 60"));
    let budget = || Budget::for_session().tokens(100).turns(3);
    let first = service.run(limited(lab.new_chat("go"), budget()));
    let session_id = within("the run", first).await.unwrap().session_id;
    assert_eq!(session_id.native_id(), "own");

    let follow_up = || -> FollowUpRequest { lab.follow_up(&session_id, "more") };
    // Of another service, as after a restart of the host.
    let service = lab.service(metered("echo session: own; echo tokens 60; sleep 600"));
    let second = LaunchRequest::try_from(follow_up())
        .unwrap()
        .budget(budget());
    let stopped = within("the run", service.run(second.clone()))
        .await
        .unwrap();
    let budget_notice = stopped.exit.budget.as_ref().unwrap();
    assert_eq!(budget_notice.scope, BudgetScope::Session);
    assert_eq!(budget_notice.used, 120);
    let refused = service.launch(second).await.unwrap_err();
    assert!(
        matches!(refused, Error::BudgetExhausted { .. }),
        "{refused}"
    );
    // A request without the budget does not ask.
    let free = within("the launch", service.launch(follow_up()))
        .await
        .unwrap();
    free.stop().await.unwrap();
}

#[tokio::test]
async fn the_account_of_a_session_is_removed_long_after_its_last_use() {
    let lab = Lab::new();
    let service = lab.service(script("true"));
    let session = || limited(lab.new_chat("go"), Budget::for_session().turns(3));
    let group = || limited(lab.new_chat("go"), Budget::for_group("g").turns(3));
    for request in [session(), group(), session()] {
        within("the run", service.run(request)).await.unwrap();
    }
    let budgets = lab.path("state/budgets");
    let files = || -> HashSet<_> { files_in(&budgets).into_iter().collect() };
    let before = files();
    let day = Duration::from_secs(24 * 3600);
    let mut sessions = before.iter().filter(|path| is_session(path));
    let (old, recent) = (sessions.next().unwrap(), sessions.next().unwrap());
    for path in &before {
        // Those of groups, and what tells when the files were last looked at, are as old.
        let days = if path == recent { 80 } else { 100 };
        let at = std::time::SystemTime::now() - days * day;
        let file = std::fs::File::options().append(true).open(path).unwrap();
        file.set_modified(at).unwrap();
    }
    within("the run", service.run(session())).await.unwrap();
    let after = files();
    assert!(!after.contains(old) && after.contains(recent), "{after:?}");
    assert_eq!(service.spent_by_group("g").unwrap().turns, 1);
    assert_eq!(after.iter().filter(|path| is_session(path)).count(), 2);
}

fn is_session(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_str().unwrap();
    name.starts_with("session-")
}

#[tokio::test]
async fn a_refused_or_failed_launch_uses_no_turn() {
    let lab = Lab::new();
    let group = || Budget::for_group("g").turns(1);
    let missing = lab.service(script("true").binary("/nowhere/agent"));
    let failed = missing.launch(limited(lab.new_chat("go"), group())).await;
    assert!(failed.is_err());
    assert_eq!(missing.spent_by_group("g").unwrap().turns, 0);
    let not_a_program = lab.path("not-a-program");
    std::fs::write(&not_a_program, "").unwrap();
    let broken = lab.service(script("true").binary(not_a_program.to_str().unwrap()));
    let failed = broken.launch(limited(lab.new_chat("go"), group())).await;
    assert!(failed.is_err());
    assert_eq!(broken.spent_by_group("g").unwrap().turns, 0);
    let service = lab.service(script("true"));
    let first = service.launch(limited(lab.new_chat("go"), group()));
    within("the end", first.await.unwrap().wait())
        .await
        .unwrap();
    let second = service.launch(limited(lab.new_chat("go"), group())).await;
    assert!(matches!(second, Err(Error::BudgetExhausted { .. })));
    let invalid = Budget::for_group("../g").turns(1);
    let invalid = service.launch(limited(lab.new_chat("go"), invalid)).await;
    assert!(matches!(invalid, Err(Error::Invalid { .. })));
    assert_eq!(service.active_executions().active_sessions(), []);
}

#[tokio::test]
async fn the_executions_of_a_group_are_stopped_together() {
    let lab = Lab::new();
    let silent = lab.service(metered("echo tokens 40; echo ready > ready; sleep 600"));
    let request = || limited(lab.new_chat("go"), Budget::for_group("night").tokens(100));
    let waiting = silent.launch(request()).await.unwrap();
    lab.until_written("ready").await;
    let greedy: ExecutionService = lab.service(metered(GREEDY));
    let greedy = within("the greedy one", greedy.run(request()))
        .await
        .unwrap();
    assert_eq!(greedy.exit.stopped_by, Some(StoppedBy::Budget));
    let report = within("the silent one", waiting.wait()).await.unwrap();
    assert_eq!(report.stopped_by, Some(StoppedBy::Budget));
    let budget = report.budget.as_ref().unwrap();
    assert_eq!(budget.scope, BudgetScope::Group("night".to_owned()));
    let spent = silent.spent_by_group("night").unwrap();
    let both = greedy.usage.run.input_tokens.unwrap() + 40;
    assert_eq!((spent.tokens, spent.turns), (both, 2));
    assert!(spent.wall_time() > Duration::ZERO);
}

#[tokio::test]
async fn a_live_session_counts_its_messages_and_its_usage() {
    let lab = Lab::new();
    let service = lab.service(live_agent::agent());
    let request = |budget| LiveRequest::new(lab.context()).budget(budget);
    let turns = request(Budget::for_group("live").turns(3));
    let session = within("the session", service.open_live(turns))
        .await
        .unwrap();
    assert_eq!(service.spent_by_group("live").unwrap().turns, 0);
    let first = session.prompt("work").unwrap();
    let second = session.prompt("say two").unwrap();
    session.prompt("say three").unwrap();
    let refused = session.prompt("say four").unwrap_err();
    assert!(
        matches!(refused, Error::BudgetExhausted { .. }),
        "{refused}"
    );
    // A message that is taken back does not count.
    session.take_back(second.id().into()).unwrap();
    session.prompt("say four").unwrap();
    assert!(session.prompt("say five").is_err());
    within("the interrupt", session.interrupt(first.id()))
        .await
        .unwrap();
    within("the close", session.close()).await.unwrap();
    assert_eq!(service.spent_by_group("live").unwrap().turns, 3);

    let tokens = request(Budget::new().tokens(100));
    let session = within("the session", service.open_live(tokens))
        .await
        .unwrap();
    session.prompt("usage 90").unwrap();
    session.prompt("usage 101").unwrap();
    let report = within("the end", session.execution().wait()).await.unwrap();
    assert_eq!(report.stopped_by, Some(StoppedBy::Budget));
    assert_eq!(report.usage.run.output_tokens, Some(101));
    let costly = request(Budget::new().cost_usd(1.0));
    let refused = service.open_live(costly).await.unwrap_err();
    assert!(
        matches!(refused, Error::BudgetNotMeasurable { .. }),
        "{refused}"
    );
}

/// How many hosts and launches the referee of the ledger sees: `<hosts>x<launches of each>`.
const SIZE: &str = "EXEC_CORE_BUDGETS";
const KILL_EVERY: usize = 7;

/// Each run uses 100 tokens and two tool calls.
fn counted() -> Scripted {
    metered(
        "echo $NORMALIZED_EXECUTION_ID >> started; echo call 1; for n in 10 20 30 40 50 60 70 80 90
        do echo tokens $n; done; echo call 2; echo call 1; echo tokens 100",
    )
}

#[test]
#[ignore = "a helper process of another test"]
fn host_of_a_group() {
    let Some(lab) = helper_lab() else { return };
    let launches: usize = std::env::var(SIZE).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let service = lab.service(counted());
        for _ in 0..launches {
            let budget = Budget::for_group("all").tokens(u64::MAX);
            let execution = service.launch(limited(lab.new_chat("go"), budget)).await;
            execution.unwrap().wait().await.unwrap();
        }
    });
    // Dropping it would kill the agents of the other hosts.
    std::mem::forget(lab);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_group_counts_every_execution_once_although_hosts_are_killed() {
    let size = std::env::var(SIZE).unwrap_or_else(|_| "6x20".to_owned());
    let (hosts, launches) = size.split_once('x').expect("<hosts>x<launches>");
    let (hosts, launches): (usize, usize) = (hosts.parse().unwrap(), launches.parse().unwrap());
    let lab = Lab::new();
    let start = || -> Child {
        let mut host = helper(&lab, "budgets::host_of_a_group");
        let host = host.env(SIZE, launches.to_string()).stdout(Stdio::null());
        host.spawn().unwrap()
    };
    let mut live: Vec<Child> = (0..hosts).map(|_| start()).collect();
    let (mut killed, mut seen) = (0, 0);
    until("the launches", || {
        let started = lab.written("started").lines().count();
        while started / KILL_EVERY > seen / KILL_EVERY && started < hosts * launches {
            seen += KILL_EVERY;
            let mut host = live.remove(seen % live.len());
            host.kill().unwrap();
            host.wait().unwrap();
            killed += 1;
            live.push(start());
        }
        started >= hosts * launches
    })
    .await;
    for host in &mut live {
        host.kill().unwrap();
        host.wait().unwrap();
        killed += 1;
    }
    lab.until_processes(0).await;

    let service = lab.service(counted());
    let entries = service.history().load().unwrap().entries;
    let ended: HashSet<String> = entries
        .iter()
        .filter(|entry| matches!(entry.state, HistoryState::Ended(_)))
        .map(|entry| entry.execution_id.to_string())
        .collect();
    let started: HashSet<String> = lab.written("started").lines().map(str::to_owned).collect();
    let ledger = std::fs::read_to_string(lab.path("state/budgets/group-all.jsonl")).unwrap();
    let mut rows: HashMap<String, (u64, u64)> = HashMap::new();
    let mut is_compacted = false;
    for line in ledger.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        is_compacted |= line.get("base").is_some();
        let row = &line["execution"];
        if let Some(id) = row["id"].as_str() {
            let number = |name: &str| row["spent"][name].as_u64().unwrap_or(0);
            rows.insert(id.to_owned(), (number("tokens"), number("tool_calls")));
        }
    }
    let spent = service.spent_by_group("all").unwrap();
    eprintln!(
        "{} launches, {killed} hosts killed, {} executions ended, {} tokens",
        started.len(),
        ended.len(),
        spent.tokens
    );
    // A host that is killed between its entry and the start of the process leaves a turn.
    let open = u64::try_from(started.len() - ended.len()).unwrap();
    let known = u64::try_from(started.len()).unwrap();
    assert!(known <= spent.turns && spent.turns <= known + killed);
    let complete = u64::try_from(ended.len()).unwrap() * 100;
    assert!(complete <= spent.tokens && spent.tokens <= complete + open * 100);
    if !is_compacted {
        assert_eq!(
            rows.values().map(|(tokens, _)| tokens).sum::<u64>(),
            spent.tokens
        );
        assert_eq!(
            rows.values().map(|(_, calls)| calls).sum::<u64>(),
            spent.tool_calls
        );
        for id in &ended {
            assert_eq!(rows[id], (100, 2), "{id} has ended");
        }
        assert!(
            rows.values()
                .all(|(tokens, calls)| *tokens <= 100 && *calls <= 2)
        );
    }
    assert!(ended.len() * 2 > started.len(), "most executions end");
}
