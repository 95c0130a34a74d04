//! Runs whose agent fails, and what is sent to it then.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use exec_core::{
    AgentEvent, AgentEventKind, Budget, EventParser, ExecutionKind, Failure, FailureKind,
    FailureMatch, LaunchRequest, LimitPolicy, LiveRequest, Outcome, RestartPolicy, WaitReason,
};

use crate::lab::{Lab, Scripted, script, until, within};
use crate::live_agent::WordDriver;

/// Reads `session: <id>`, `say <text>`, `failed <class> <seconds until the reset>`.
struct FailureParser;

impl EventParser for FailureParser {
    fn parse_line(&mut self, line: &str) -> Vec<AgentEvent> {
        let words: Vec<&str> = line.split(' ').collect();
        let event = match words[..] {
            ["session:", id] => AgentEventKind::SessionStarted {
                session_id: id.to_owned(),
                model: None,
            },
            ["say", text] => AgentEventKind::Text {
                text: text.to_owned(),
                delta: false,
            },
            ["failed", class, seconds] => AgentEventKind::Finished {
                outcome: Outcome::Failure,
                text: None,
                failure: Some(Failure::new(kind(class, seconds), line)),
            },
            _ => return Vec::new(),
        };
        vec![event.into()]
    }
}

fn kind(class: &str, seconds: &str) -> FailureKind {
    let seconds = seconds.parse().ok().map(Duration::from_secs);
    match class {
        "limited" => FailureKind::Limited {
            scope: None,
            resets_at: seconds.map(|seconds| SystemTime::now() + seconds),
        },
        "authentication" => FailureKind::Authentication,
        "network" => FailureKind::Network,
        other => panic!("no class {other:?}"),
    }
}

/// Each run appends its kind and its input to `sent`, and does what the next line of `$1` says.
fn agent(lab: &Lab, runs: &[&str]) -> Scripted {
    for (number, run) in runs.iter().enumerate() {
        std::fs::write(lab.path(&format!("run-{number}")), run).unwrap();
    }
    let folder = lab.path("");
    let folder = folder.display();
    script(&format!(
        "echo \"$NORMALIZED_EXECUTION_KIND: $(cat)\" >> sent
        n=$(($(wc -l < sent) - 1)); . {folder}/run-$n"
    ))
    .setup(|_, parameters| parameters.event_parser = Some(Box::new(FailureParser)))
}

fn sent(lab: &Lab) -> Vec<String> {
    lab.written("sent").lines().map(str::to_owned).collect()
}

fn at_once() -> RestartPolicy {
    RestartPolicy::new()
        .backoff(Duration::from_millis(1), Duration::from_millis(1))
        .message("go on")
}

#[tokio::test]
async fn a_crash_is_resumed_by_a_follow_up_and_the_prompt_is_sent_once() {
    let lab = Lab::new();
    let crash = "echo session: own; echo say half; kill -9 $$";
    let network = "echo session: own; echo failed network -; exit 1";
    let runs = [crash, network, "echo session: own; echo say done"];
    let service = lab.service(agent(&lab, &runs));
    let started = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&started);
    let run = service
        .run(lab.new_chat("the prompt"))
        .restart(at_once())
        .on_execution(move |execution| seen.lock().unwrap().push(execution.kind()));
    let result = within("the run", run).await.unwrap();
    assert!(result.is_success(), "{result:?}");
    assert_eq!(result.text, "done");
    assert_eq!(result.session_id.native_id(), "own");
    assert_eq!(
        sent(&lab),
        ["new: the prompt", "follow-up: go on", "follow-up: go on"]
    );
    assert_eq!(result.earlier_exits.len(), 2);
    assert_eq!(result.earlier_exits[0].signal, Some(9));
    let (new, follow_up) = (ExecutionKind::New, ExecutionKind::FollowUp);
    assert_eq!(*started.lock().unwrap(), [new, follow_up, follow_up]);
}

#[tokio::test]
async fn a_failure_that_a_repetition_does_not_help_is_returned() {
    for run in [
        // The configuration: before the session is known, and before the model has answered.
        "echo unknown option >&2; exit 2",
        "echo session: own; echo no such model >&2; exit 1",
        "echo session: own; echo say half; echo failed authentication -; exit 1",
        // A crash of an agent whose session is not known.
        "kill -9 $$",
        "echo session: own; echo say done",
    ] {
        let lab = Lab::new();
        let service = lab.service(agent(&lab, &[run]));
        let policy = LimitPolicy::new();
        let run = service.run(lab.new_chat("the prompt")).restart(at_once());
        let result = within("the run", run.wait_for_limits(policy))
            .await
            .unwrap();
        assert!(result.earlier_exits.is_empty());
        assert_eq!(sent(&lab), ["new: the prompt"]);
    }
}

#[tokio::test]
async fn a_run_that_continues_another_session_is_not_resumed() {
    let lab = Lab::new();
    let runs = [
        "echo session: own; echo say half; kill -9 $$",
        "echo session: another; echo say half; kill -9 $$",
    ];
    let service = lab.service(agent(&lab, &runs));
    let run = service.run(lab.new_chat("the prompt")).restart(at_once());
    let result = within("the run", run).await.unwrap();
    assert_eq!(sent(&lab).len(), 2);
    assert_eq!(result.session_id.native_id(), "own");
    assert!(!result.is_success());
}

#[tokio::test]
async fn a_limit_is_waited_for_and_the_session_resumed() {
    let lab = Lab::new();
    let runs = [
        "echo session: own; echo failed limited 1; exit 1",
        "echo session: own; echo say done",
    ];
    let service = lab.service(agent(&lab, &runs));
    let run = tokio::spawn({
        let policy = LimitPolicy::new().credential("team").message("go on");
        let run = service.run(lab.new_chat("the prompt"));
        async move { run.wait_for_limits(policy).await }
    });
    until("the wait", || !service.waiting().is_empty()).await;
    let waiting = service.waiting().remove(0);
    assert_eq!(waiting.session_id.native_id(), "own");
    assert!(matches!(
        &waiting.reason,
        WaitReason::Limit { credential, resets_at: Some(_) } if credential == "team"
    ));
    assert!(service.executions().is_empty());
    let result = within("the run", run).await.unwrap().unwrap();
    assert_eq!(result.text, "done");
    assert_eq!(sent(&lab), ["new: the prompt", "follow-up: go on"]);
    assert!(service.waiting().is_empty());
}

#[tokio::test]
async fn a_shutdown_ends_the_wait_for_a_limit_with_the_last_result() {
    let lab = Lab::new();
    let service = lab.service(agent(
        &lab,
        &["echo session: own; echo failed limited 9999; exit 1"],
    ));
    let run = tokio::spawn({
        let run = service.run(lab.new_chat("the prompt"));
        async move { run.wait_for_limits(LimitPolicy::new()).await }
    });
    until("the wait", || !service.waiting().is_empty()).await;
    service.shutdown(Duration::from_secs(30)).await;
    let result = within("the run", run).await.unwrap().unwrap();
    let failure = result.failure.unwrap();
    assert!(matches!(failure.kind, FailureKind::Limited { .. }));
}

#[tokio::test]
async fn budgets_hold_for_restarts() {
    let lab = Lab::new();
    let crash = "echo session: own; echo say half; kill -9 $$";
    let service = lab.service(agent(&lab, &[crash, crash, crash, crash]));
    let request = LaunchRequest::try_from(lab.new_chat("the prompt")).unwrap();
    let run = service.run(request.budget(Budget::for_session().turns(3)));
    let result = within("the run", run.restart(at_once())).await.unwrap();
    assert_eq!(sent(&lab).len(), 3);
    assert_eq!(result.earlier_exits.len(), 2);
    assert_eq!(result.exit.signal, Some(9));
}

#[tokio::test]
async fn a_live_turn_waits_for_a_limit_and_prompts_again() {
    let lab = Lab::new();
    // Refuses the first prompt.
    let agent = script(
        r#"while read -r word rest; do
            echo "$word $rest" >> read
            case $word in
                open) echo "opened native-1" ;;
                prompt)
                    if [ -e refused ]; then echo "say $rest"; echo done
                    else touch refused; echo "failed overloaded"; fi ;;
            esac
        done"#,
    )
    .live(|_, parameters| {
        parameters.protocol_driver = Some(Box::new(WordDriver {
            resume: None,
            can_steer: false,
        }));
        parameters.failure_classifier = Some(Box::new(|text: &str| {
            let kind = FailureKind::Overloaded;
            let is_known = text.contains("overloaded");
            is_known.then_some(FailureMatch {
                kind,
                retries: false,
            })
        }));
    });
    let service = lab.service(agent);
    let request = LiveRequest::new(lab.context());
    let session = within("the session", service.open_live(request))
        .await
        .unwrap();
    let short = Duration::from_millis(200);
    let policy = LimitPolicy::new().backoff(short, short).message("go on");
    let report = within("the turn", session.run_turn("the prompt", &policy)).await;
    let report = report.unwrap();
    assert_eq!(report.text, "go on");
    assert_eq!(
        lab.written("read").lines().collect::<Vec<_>>(),
        ["open ", "prompt the prompt", "prompt go on"]
    );
    within("the close", session.close()).await.unwrap();
}
