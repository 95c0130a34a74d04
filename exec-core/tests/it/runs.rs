//! What a run reports: text, usage, failure, and the one call that returns them.

use std::time::Duration;

use exec_core::{
    AgentEvent, AgentEventKind, EventKind, EventParser, Failure, FailureKind, FailureMatch,
    MemoryPolicy, StoppedBy, Usage, UsageTotals,
};

use crate::lab::{Lab, Scripted, all_events, script, until_line, within};

/// Reads events in their JSON form, one on each line. `end` is held back until the end of the
/// output.
#[derive(Default)]
struct JsonEvents {
    held: Vec<AgentEvent>,
}

impl EventParser for JsonEvents {
    fn parse_line(&mut self, line: &str) -> Vec<AgentEvent> {
        if let Some(event) = line.strip_prefix("end ") {
            self.held.extend(serde_json::from_str::<AgentEvent>(event));
            return Vec::new();
        }
        serde_json::from_str(line).into_iter().collect()
    }

    fn finish(&mut self) -> Vec<AgentEvent> {
        std::mem::take(&mut self.held)
    }
}

fn classify(text: &str) -> Option<FailureMatch> {
    let kind = if text.contains("LIMIT") {
        FailureKind::Limited {
            scope: None,
            resets_at: None,
        }
    } else if text.contains("LOGIN") {
        FailureKind::Authentication
    } else {
        return None;
    };
    Some(FailureMatch {
        kind,
        retries: text.contains("retrying"),
    })
}

/// An agent that prints these lines, then does what `rest` says.
fn agent(lines: &[&str], rest: &str) -> Scripted {
    let text = format!("cat <<'EOF'\n{}\nEOF\n{rest}", lines.join("\n"));
    script(&text).setup(|_, parameters| {
        parameters.event_parser = Some(Box::<JsonEvents>::default());
        parameters.failure_classifier = Some(Box::new(classify));
    })
}

fn input(tokens: u64) -> Usage {
    let mut usage = Usage::default();
    usage.input_tokens = Some(tokens);
    usage
}

#[tokio::test]
async fn a_run_returns_text_usage_session_and_duration() {
    let lab = Lab::new();
    let service = lab.service(agent(
        &[
            r#"{"type":"text","text":"first"}"#,
            r#"{"type":"tool_call","name":"Bash","input":{}}"#,
            r#"{"type":"text","text":"the ","delta":true}"#,
            r#"{"type":"text","text":"sub-agent","parent":"toolu_1"}"#,
            r#"{"type":"usage","run":{"input_tokens":7,"cost_usd":0.25}}"#,
            r#"{"type":"text","text":"answer","delta":true}"#,
            r#"{"type":"finished","outcome":"success"}"#,
        ],
        "",
    ));
    let result = within("the run", service.run(lab.new_chat("go")).into_future());
    let result = result.await.unwrap();
    assert!(result.is_success(), "{result:?}");
    assert_eq!(result.text, "the answer");
    assert_eq!(result.usage.run.input_tokens, Some(7));
    assert_eq!(result.usage.session, result.usage.run, "a new chat");
    assert_eq!(result.usage.run.cost_usd, Some(0.25));
    assert_eq!(result.failure, None);
    assert_eq!(result.session_id, result.exit.session_id);
    assert!(result.duration > Duration::ZERO);
}

#[tokio::test]
async fn the_text_of_the_final_event_is_the_answer() {
    let lab = Lab::new();
    let service = lab.service(agent(
        &[
            r#"{"type":"text","text":"draft"}"#,
            r#"end {"type":"finished","outcome":"success","text":"final"}"#,
            r#"{"type":"text","text":"still working"}"#,
        ],
        "",
    ));
    let execution = lab.launch(&service).await;
    let events = all_events(&execution).await;
    let at = |wanted: fn(&EventKind) -> bool| events.iter().position(|e| wanted(&e.kind)).unwrap();
    let finish = at(|kind| matches!(kind, EventKind::Agent(_)));
    assert_eq!(finish + 1, at(|kind| matches!(kind, EventKind::Exited(_))));
    let run = service.run(lab.new_chat("go")).into_future();
    assert_eq!(within("the run", run).await.unwrap().text, "final");
}

#[tokio::test]
async fn without_a_parser_the_output_is_the_answer() {
    let lab = Lab::new();
    let service = lab.service(script("echo one; echo no >&2; echo two"));
    let run = service.run(lab.new_chat("go")).into_future();
    assert_eq!(within("the run", run).await.unwrap().text, "one\ntwo");
}

/// The events of the output are larger than the event log, and come faster than the run reads them.
#[tokio::test]
async fn a_run_tells_that_its_text_has_holes() {
    let lab = Lab::new();
    let service = lab
        .builder(script("seq 1 100000"))
        .memory_policy(MemoryPolicy::DropOldest { max_bytes: 10_000 })
        .open()
        .unwrap();
    let run = service.run(lab.new_chat("go")).into_future();
    let result = within("the run", run).await.unwrap();
    assert!(result.text.lines().count() < 100_000);
    assert!(!result.is_whole && result.exit.is_success() && !result.is_success());
}

#[tokio::test]
async fn lines_that_a_parser_does_not_know_are_no_answer() {
    let lab = Lab::new();
    let service = lab.service(agent(&["something went wrong"], "exit 1"));
    let run = service.run(lab.new_chat("go")).into_future();
    let result = within("the run", run).await.unwrap();
    assert_eq!((result.text.as_str(), result.is_success()), ("", false));
}

/// A line that is longer than the cap arrives in part, and is not parsed.
#[tokio::test]
async fn a_run_tells_that_a_line_of_its_text_was_cut() {
    let long = format!(r#"{{"type":"text","text":"{}"}}"#, "x".repeat(200));
    let short = r#"{"type":"text","text":"short"}"#;
    let finished = r#"{"type":"finished","outcome":"success"}"#;
    for (agent, text, is_whole) in [
        (script("printf '%0200d' 7"), "0".repeat(100), false),
        (agent(&[short, &long, finished], ""), "short".into(), false),
        (agent(&[&long, finished], ""), String::new(), false),
        (agent(&[&long, short, finished], ""), "short".into(), true),
    ] {
        let lab = Lab::new();
        let service = lab.builder(agent).max_line_bytes(100).open().unwrap();
        let run = service.run(lab.new_chat("go")).into_future();
        let result = within("the run", run).await.unwrap();
        assert_eq!((result.text.as_str(), result.is_whole), (&*text, is_whole));
        assert_eq!(result.is_success(), is_whole, "{result:?}");
        assert_eq!(result.exit.truncated_lines, 1);
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_run_ends_at_its_time_limit_with_what_was_received() {
    let lab = Lab::new();
    let service = lab.service(agent(
        &[
            r#"{"type":"text","text":"partial"}"#,
            r#"{"type":"usage","run":{"input_tokens":7}}"#,
            r#"{"type":"retry","class":"overloaded","message":"busy","attempt":1}"#,
        ],
        "exec sleep 60",
    ));
    let run = service.run(lab.new_chat("go"));
    // Long enough for the lines of the agent on a busy machine.
    let run = run.time_limit(Duration::from_secs(3)).into_future();
    let result = within("the run", run).await.unwrap();
    assert_eq!(result.exit.stopped_by, Some(StoppedBy::TimeLimit));
    assert!(!result.is_success());
    assert_eq!(result.text, "partial");
    assert_eq!(result.usage.run.input_tokens, Some(7));
    assert_eq!(result.failure.unwrap().kind, FailureKind::Overloaded);
    lab.until_processes(0).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_dropped_run_is_stopped() {
    let lab = Lab::new();
    let service = lab.service(script("exec sleep 60"));
    let run = tokio::spawn(service.run(lab.new_chat("go")).into_future());
    crate::lab::until("the start", || !service.executions().is_empty()).await;
    let execution = service.executions().remove(0);
    run.abort();
    let report = within("the stop", execution.wait()).await.unwrap();
    assert_eq!(report.stopped_by, Some(StoppedBy::Caller));
    lab.until_processes(0).await;
}

#[tokio::test]
async fn a_stopped_run_reports_the_usage_that_was_known() {
    let lab = Lab::new();
    let service = lab.service(agent(
        &[
            r#"{"type":"usage","run":{"input_tokens":7}}"#,
            r#"{"type":"usage","run":{"input_tokens":9}}"#,
            "ready",
        ],
        "exec sleep 60",
    ));
    let execution = lab.launch(&service).await;
    until_line(&execution, "ready").await;
    within("the stop", execution.stop()).await.unwrap();
    let report = execution.wait().await.unwrap();
    assert_eq!(
        report.usage.run,
        input(9),
        "a later value replaces an earlier one"
    );
    let entry = service.history().load().unwrap().entries.remove(0);
    let exec_core::HistoryState::Ended(report) = entry.state else {
        panic!("{:?}", entry.state);
    };
    assert_eq!(report.usage.session, input(9));
}

#[tokio::test]
async fn a_follow_up_adds_to_its_session() {
    let lab = Lab::new();
    // The agent that reports sessions prints the total of its session; the other one, of its run.
    for (half, values) in [("run", [10, 5, 2]), ("session", [10, 15, 17])] {
        let mut session_id = None;
        for (turn, value) in values.iter().enumerate() {
            // A new service each time: it knows the session from the history alone.
            let line = format!(r#"{{"type":"usage","{half}":{{"input_tokens":{value}}}}}"#);
            let service = lab.service(agent(&[&line], ""));
            let execution = match &session_id {
                None => lab.launch(&service).await,
                Some(id) => service.launch(lab.follow_up(id, "more")).await.unwrap(),
            };
            session_id = Some(execution.session_id());
            let events = all_events(&execution).await;
            let usage = execution.wait().await.unwrap().usage;
            let expected = [(10, 10), (5, 15), (2, 17)][turn];
            let tokens = |usage: Usage| usage.input_tokens.unwrap();
            assert_eq!(
                (tokens(usage.run), tokens(usage.session)),
                expected,
                "{half}"
            );
            let published = events.iter().flat_map(|event| event.agent_events());
            let published: Vec<_> = published.map(|event| event.kind.clone()).collect();
            assert_eq!(published, [AgentEventKind::Usage(usage)]);
        }
    }
}

#[tokio::test]
async fn the_usage_before_an_unknown_session_is_unknown() {
    let lab = Lab::new();
    let line = r#"{"type":"usage","session":{"input_tokens":15}}"#;
    let service = lab.service(agent(&[line], ""));
    let session = exec_core::SessionId::new(
        "SCRIPTED",
        &lab.context().actual_project_id,
        "from-elsewhere",
    );
    let request = lab.follow_up(&session.unwrap(), "more");
    let usage = within("the run", service.run(request).into_future());
    assert_eq!(
        usage.await.unwrap().usage,
        UsageTotals::of_session(input(15))
    );
}

/// The failure in the exit report of an agent that prints these lines.
async fn failure_of(lines: &[&str], rest: &str) -> Option<Failure> {
    let lab = Lab::new();
    let execution = lab.launch(&lab.service(agent(lines, rest))).await;
    let report = within("the end", execution.wait()).await.unwrap();
    assert_eq!(report.is_success(), report.failure.is_none(), "{report:?}");
    report.failure.clone()
}

const LIMITED: &str = r#"{"type":"error","class":"agent","message":"LIMIT reached"}"#;
const TEXT: &str = r#"{"type":"text","text":"fine"}"#;
const SUCCESS: &str = r#"{"type":"finished","outcome":"success"}"#;
const FAILURE: &str = r#"{"type":"finished","outcome":"failure"}"#;
const LOGIN: &str = r#"{"type":"finished","outcome":"failure","failure":{"class":"agent","message":"LOGIN first"}}"#;

#[tokio::test]
async fn the_report_says_why_the_agent_failed() {
    let limited = "limited: LIMIT reached";
    for (lines, rest, expected) in [
        (vec![TEXT, SUCCESS], "", None),
        (vec![LIMITED, TEXT, SUCCESS], "", None),
        (vec![LIMITED, SUCCESS], "", None),
        // The agent exits with 0 in spite of its failure.
        (vec![TEXT, LIMITED, FAILURE], "", Some(limited)),
        (
            vec![LIMITED, LOGIN],
            "exit 1",
            Some("authentication: LOGIN first"),
        ),
        (vec![FAILURE], "echo why >&2", Some("agent: why")),
        (vec![FAILURE], "", Some("agent: exit code 0")),
        // No final event.
        (vec![LIMITED], "", Some(limited)),
        (vec![LIMITED, TEXT], "", None),
        (vec![LIMITED], "echo other >&2; exit 3", Some(limited)),
        (vec![TEXT], "echo other >&2; exit 3", Some("agent: other")),
        (vec![TEXT], "exit 3", Some("agent: exit code 3")),
        (vec![TEXT], "kill -9 $$", Some("agent: signal 9")),
        // Known on standard error.
        (
            vec![],
            "echo 'LOGIN please' >&2; echo bye >&2; exit 1",
            Some("authentication: LOGIN please"),
        ),
        (
            vec![],
            r"printf '\033[91m\033[1mError:\033[0m LOGIN\n' >&2; exit 1",
            Some("authentication: Error: LOGIN"),
        ),
        (vec![TEXT], "echo 'LOGIN please' >&2", None),
        (vec![], "echo 'LOGIN please' >&2", None),
        (vec![SUCCESS], "exit 3", Some("agent: exit code 3")),
    ] {
        let failure = failure_of(&lines, rest).await;
        let shown = failure.map(|failure| failure.to_string());
        assert_eq!(shown.as_deref(), expected, "{lines:?} {rest}");
    }
}

#[tokio::test]
async fn a_failure_of_a_sub_agent_is_not_that_of_the_run() {
    let of_sub = r#"{"type":"error","class":"overloaded","message":"busy","parent":"toolu_1"}"#;
    assert_eq!(failure_of(&[of_sub], "").await, None);
    // Nor does its progress mean that the agent itself has recovered.
    let text = r#"{"type":"text","text":"fine","parent":"toolu_1"}"#;
    assert!(failure_of(&[LIMITED, text], "").await.is_some());
}

#[tokio::test]
async fn failures_are_events_while_the_agent_retries() {
    let lab = Lab::new();
    let retrying = r#"{"type":"error","class":"agent","message":"LIMIT, retrying"}"#;
    let service = lab.service(agent(
        &[LIMITED, retrying],
        "echo 'LOGIN retrying' >&2; echo noise >&2; exec sleep 60",
    ));
    let execution = lab.launch(&service).await;
    let mut events = execution.events();
    let mut seen = Vec::new();
    within("three failures", async {
        while seen.len() < 3 {
            let event = events.next().await.unwrap();
            for event in event.agent_events() {
                seen.push(match &event.kind {
                    AgentEventKind::Error(failure) => format!("error {}", failure.kind.name()),
                    AgentEventKind::Retry { failure, .. } => {
                        format!("retry {}", failure.kind.name())
                    }
                    other => panic!("{other:?}"),
                });
            }
        }
    })
    .await;
    seen.sort();
    assert_eq!(
        seen,
        ["error limited", "retry authentication", "retry limited"]
    );
    within("the stop", execution.stop()).await.unwrap();
    // A stopped run has the failure that it was trying to overcome.
    assert!(execution.wait().await.unwrap().failure.is_some());
}

#[tokio::test]
async fn the_session_of_a_sub_agent_is_not_taken() {
    let lab = Lab::new();
    let service = lab.service(agent(
        &[
            r#"{"type":"session_started","session_id":"ses_sub","parent":"toolu_1"}"#,
            r#"{"type":"session_started","session_id":"ses_main"}"#,
            r#"{"type":"session_started","session_id":"ses_sub2","parent":"toolu_1"}"#,
        ],
        "",
    ));
    let execution = lab.launch(&service).await;
    within("the end", execution.wait()).await.unwrap();
    assert_eq!(execution.session_id().native_id(), "ses_main");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_trace_parent_of_the_request_reaches_the_agent() {
    let lab = Lab::new();
    let service = lab.service(script("echo \"${TRACEPARENT-none}\""));
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let mut request = lab.new_chat("go");
    request.context = request.context.with_traceparent(parent);
    let run = service.run(request.clone()).into_future();
    assert_eq!(within("the run", run).await.unwrap().text, parent);

    request.context.traceparent = Some("00-xyz".into());
    let refused = service.launch(request).await.unwrap_err();
    assert!(refused.to_string().contains("traceparent"), "{refused}");
    assert!(lab.processes().is_empty());
}
