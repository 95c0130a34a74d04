use std::sync::Arc;
use std::time::Duration;

use exec_core::{
    Decision, DropReason, Error, Event, EventKind, Execution, ExecutionKind, Failure, FailureKind,
    FailureMatch, LiveEvent, LiveRequest, LiveSession, LiveStatus, MessageId, OutputStream,
    PermissionAction, PermissionPolicy, PermissionRule, SettledBy, Steered, StoppedBy, Turn,
    TurnOutcome, Watchdog,
};

use crate::lab::{Lab, all_events, lines, script, until, until_line, within};
use crate::live_agent::{WordDriver, agent, answer, live_script, open, open_with};

/// The live events of an ended execution.
async fn live_events(execution: &Execution) -> Vec<LiveEvent> {
    let events = all_events(execution).await;
    let live = events.iter().filter_map(|event| match &event.kind {
        EventKind::Live(event) => Some(event.clone()),
        _ => None,
    });
    live.collect()
}

/// Waits for a permission request.
async fn asked(session: &LiveSession) -> String {
    let waiting = |status: &LiveStatus| *status == LiveStatus::WaitingForPermission;
    within("a question", session.wait_for(waiting))
        .await
        .unwrap();
    session.permissions()[0].id.clone()
}

async fn outcome(turn: &Turn) -> TurnOutcome {
    let report = within("the turn", turn.ended()).await.unwrap();
    report.outcome.clone()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn one_process_answers_many_prompts() {
    let lab = Lab::new();
    let session = open(&lab, &lab.service(agent())).await;
    assert_eq!(session.state().status, LiveStatus::Idle);
    assert_eq!(session.session_id().native_id(), "native-1");
    for text in ["one", "two", "three"] {
        assert_eq!(answer(&session, &format!("say {text}")).await, text);
    }
    let exit = within("the close", session.close()).await.unwrap();
    assert!(exit.is_success(), "{exit:?}");
    assert_eq!(session.state().status, LiveStatus::Ended);
    assert_eq!(lab.processes(), [0; 0]);
}

#[tokio::test]
async fn a_wait_looks_at_each_state_once_and_may_use_the_session() {
    let lab = Lab::new();
    let session = open(&lab, &lab.service(agent())).await;
    let mut looks = 0;
    let first = |status: &LiveStatus| {
        looks += 1;
        session.state().status == *status && looks == 1
    };
    let state = within("the state", session.wait_for(first)).await.unwrap();
    assert_eq!(state.status, LiveStatus::Idle);
    within("the close", session.close()).await.unwrap();
}

#[tokio::test]
async fn prompts_wait_in_order_and_are_delivered_once() {
    let lab = Lab::new();
    let session = open(&lab, &lab.service(agent())).await;
    let turns: Vec<Turn> = ["work", "say b", "say c"]
        .map(|text| session.prompt(text).unwrap())
        .into();
    let waiting: Vec<_> = session.queued().iter().map(|m| m.text.clone()).collect();
    assert_eq!(waiting, ["say b", "say c"]);
    within("the interrupt", session.interrupt(turns[0].id()))
        .await
        .unwrap();
    assert_eq!(outcome(&turns[2]).await, TurnOutcome::Completed);
    assert_eq!(within("b", turns[1].ended()).await.unwrap().text, "b");
    within("the close", session.close()).await.unwrap();
    assert_eq!(
        lab.written("read"),
        "open \nprompt work\ninterrupt \nprompt say b\nprompt say c\n"
    );
    let events = live_events(session.execution()).await;
    let delivered: Vec<MessageId> = events
        .iter()
        .filter_map(|event| match event {
            LiveEvent::MessageDelivered { message, .. } => Some(*message),
            _ => None,
        })
        .collect();
    let expected: Vec<MessageId> = turns.iter().map(Turn::message).collect();
    assert_eq!(delivered, expected);
}

#[tokio::test]
async fn a_message_that_waits_can_be_taken_back() {
    let lab = Lab::new();
    let session = open(&lab, &lab.service(agent())).await;
    let running = session.prompt("work").unwrap();
    let waiting = session.prompt("say b").unwrap();
    assert!(
        session.take_back(running.message()).is_none(),
        "it was delivered"
    );
    let taken = session.take_back(waiting.message()).unwrap();
    assert_eq!(taken.text, "say b");
    assert!(session.take_back(waiting.message()).is_none(), "once");
    let error = within("b", waiting.ended()).await.unwrap_err();
    let reason = DropReason::TakenBack;
    assert!(
        matches!(&error, Error::NotDelivered { reason: r, .. } if *r == reason),
        "{error}"
    );
    within("the close", session.close()).await.unwrap();
    assert!(!lab.written("read").contains("say b"));
}

#[tokio::test]
async fn the_queue_is_bounded() {
    let lab = Lab::new();
    let request = LiveRequest::new(lab.context())
        .queue_messages(2)
        .queue_bytes(20);
    let session = open_with(&lab.service(agent()), request).await;
    session.prompt("work").unwrap();
    session.prompt("say b").unwrap();
    let long = session.prompt("say too long for the queue").unwrap_err();
    assert!(matches!(long, Error::QueueFull { .. }), "{long}");
    session.prompt("say c").unwrap();
    let full = session.prompt("say d").unwrap_err();
    assert!(matches!(full, Error::QueueFull { .. }), "{full}");
    let blank = session.prompt(" \n").unwrap_err();
    assert!(matches!(blank, Error::EmptyPrompt { .. }), "{blank}");
    within("the close", session.close()).await.unwrap();
}

/// The names of the events in the order of the log.
fn names(events: &[Arc<Event>]) -> Vec<String> {
    let name = |event: &Arc<Event>| match &event.kind {
        EventKind::Live(event) => {
            let json = serde_json::to_value(event).unwrap();
            Some(json["type"].as_str().unwrap().to_owned())
        }
        EventKind::Output(output) if output.stream == OutputStream::Stdout => {
            Some(format!("> {}", output.line.text()))
        }
        EventKind::Started { .. } => Some("started".to_owned()),
        EventKind::SessionResolved { .. } => Some("session_resolved".to_owned()),
        EventKind::Exited(_) => Some("exited".to_owned()),
        _ => None,
    };
    events.iter().filter_map(name).collect()
}

#[tokio::test]
async fn the_log_has_every_step_in_order_and_replays_it() {
    let lab = Lab::new();
    let session = open(&lab, &lab.service(agent())).await;
    let first = session.prompt("ask p1").unwrap();
    session.prompt("say b").unwrap();
    let id = asked(&session).await;
    session.answer(&id, Decision::Allow).unwrap();
    assert_eq!(outcome(&first).await, TurnOutcome::Completed);
    session
        .wait_for(|status| *status == LiveStatus::Idle)
        .await
        .unwrap();
    within("the close", session.close()).await.unwrap();
    let events = all_events(session.execution()).await;
    assert_eq!(
        names(&events),
        [
            "started",
            "> opened native-1",
            "session_resolved",
            "opened",
            "message_delivered",
            "turn_started",
            "message_queued",
            "> ask p1",
            "permission_asked",
            "permission_settled",
            "> say p1 allow",
            "> done",
            "turn_ended",
            "message_delivered",
            "turn_started",
            "> say b",
            "> done",
            "turn_ended",
            "ended",
            "exited",
        ]
    );
    let numbers: Vec<u64> = events.iter().map(|event| event.sequence).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    assert_eq!(
        names(&all_events(session.execution()).await),
        names(&events)
    );
}

#[tokio::test]
async fn every_state_has_the_event_that_proves_it() {
    let lab = Lab::new();
    let session = open(&lab, &lab.service(agent())).await;
    let mut states = vec![session.state()];
    let turn = session.prompt("ask p1").unwrap();
    states.push(session.state());
    asked(&session).await;
    states.push(session.state());
    session.answer("p1", Decision::Deny).unwrap();
    states.push(session.state());
    outcome(&turn).await;
    states.push(session.state());
    outcome(&session.prompt("limit").unwrap()).await;
    states.push(session.state());
    let turn = session.prompt("work").unwrap();
    states.push(session.state());
    within("the close", session.close()).await.unwrap();
    states.push(session.state());
    assert_eq!(
        states[1].status,
        LiveStatus::Working {
            turn: 1.into_turn()
        }
    );
    assert_eq!(states[2].status, LiveStatus::WaitingForPermission);
    assert_eq!(states[5].status, LiveStatus::Limited { resets_at: None });
    assert_eq!(states[6].status, LiveStatus::Working { turn: turn.id() });
    let events = all_events(session.execution()).await;
    let proofs: Vec<String> = states
        .iter()
        .flat_map(|state| {
            let proof = events.iter().find(|event| event.sequence == state.proof);
            names(&[Arc::clone(proof.unwrap())])
        })
        .collect();
    // The fourth state is `working` or already `idle`.
    assert!(["permission_settled", "turn_ended"].contains(&proofs[3].as_str()));
    let mut others = proofs.clone();
    others.remove(3);
    assert_eq!(
        others,
        [
            "opened",
            "turn_started",
            "permission_asked",
            "turn_ended",
            "> limited",
            "turn_started",
            "ended",
        ]
    );
}

trait IntoTurn {
    fn into_turn(self) -> exec_core::TurnId;
}

impl IntoTurn for u64 {
    fn into_turn(self) -> exec_core::TurnId {
        serde_json::from_value(self.into()).unwrap()
    }
}

#[tokio::test]
async fn a_limit_that_only_the_text_of_a_failure_tells_is_a_state() {
    let lab = Lab::new();
    let profile = script("read -r _; echo opened; read -r _; echo failed over quota; read -r _")
        .live(|_, parameters| {
            parameters.protocol_driver = Some(Box::new(WordDriver {
                resume: None,
                can_steer: false,
            }));
            parameters.failure_classifier = Some(Box::new(|text: &str| {
                text.contains("quota").then_some(FailureMatch {
                    kind: FailureKind::Limited {
                        scope: None,
                        resets_at: None,
                    },
                    retries: false,
                })
            }));
        });
    let session = open(&lab, &lab.service(profile)).await;
    let failed = outcome(&session.prompt("go").unwrap()).await;
    let TurnOutcome::Failed { failure } = failed else {
        panic!("{failed:?}");
    };
    assert_eq!(failure.kind.name(), "limited");
    let status = session.state().status;
    assert_eq!(status, LiveStatus::Limited { resets_at: None });
    within("the close", session.close()).await.unwrap();
}

#[tokio::test]
async fn the_first_answer_wins_and_later_ones_are_told_so() {
    let lab = Lab::new();
    let session = open(&lab, &lab.service(agent())).await;
    let turn = session.prompt("ask p1 rm -rf /").unwrap();
    let id = asked(&session).await;
    assert_eq!(
        session.permissions()[0].command.as_deref(),
        Some("rm -rf /")
    );
    session.answer(&id, Decision::Deny).unwrap();
    let late = session.answer(&id, Decision::Allow).unwrap_err();
    let by = |error: &Error| match error {
        Error::AlreadySettled { by, .. } => *by,
        _ => panic!("{error}"),
    };
    assert_eq!(by(&late), Some(SettledBy::Caller), "{late}");
    let unknown = session.answer("p2", Decision::Allow).unwrap_err();
    assert_eq!(by(&unknown), None, "{unknown}");
    let report = within("the turn", turn.ended()).await.unwrap();
    assert_eq!(report.text, "p1 deny");
    within("the close", session.close()).await.unwrap();
}

#[tokio::test]
async fn every_decision_is_in_the_history_with_its_origin() {
    let lab = Lab::new();
    let service = lab.service(agent());
    let policy = PermissionPolicy::default()
        .rule(PermissionRule::new(PermissionAction::Allow).command("git status"))
        .rule(PermissionRule::new(PermissionAction::Deny).command("rm *"))
        .deadline(Duration::from_secs(3));
    let session = open_with(&service, LiveRequest::new(lab.context()).policy(policy)).await;
    assert_eq!(answer(&session, "ask a git status").await, "a allow");
    assert_eq!(answer(&session, "ask b git status && rm x").await, "b deny");
    assert_eq!(answer(&session, "ask c curl x").await, "c deny", "deadline");
    let late = session.answer("c", Decision::Allow).unwrap_err();
    assert!(late.to_string().contains("its deadline"), "{late}");
    let turn = session.prompt("ask d ls").unwrap();
    asked(&session).await;
    session.answer("d", Decision::Allow).unwrap();
    outcome(&turn).await;
    let turn = session.prompt("ask e ls").unwrap();
    asked(&session).await;
    within("the interrupt", session.interrupt(turn.id()))
        .await
        .unwrap();
    within("the close", session.close()).await.unwrap();
    let entry = service.history().load().unwrap().entries.remove(0);
    let decided: Vec<_> = entry
        .permissions
        .iter()
        .map(|p| (p.permission.as_str(), p.decision, p.by))
        .collect();
    assert_eq!(
        decided,
        [
            ("a", Some(Decision::Allow), SettledBy::Policy),
            ("b", Some(Decision::Deny), SettledBy::Policy),
            ("c", Some(Decision::Deny), SettledBy::Deadline),
            ("d", Some(Decision::Allow), SettledBy::Caller),
            ("e", None, SettledBy::Cancel),
        ]
    );
    assert!(lab.written("read").contains("void e"), "the agent was told");
}

#[tokio::test]
async fn the_policy_of_the_session_replaces_that_of_the_profile() {
    let lab = Lab::new();
    let profile = live_script(crate::live_agent::AGENT).live(|_, parameters| {
        parameters.protocol_driver = Some(Box::new(WordDriver {
            resume: None,
            can_steer: false,
        }));
        parameters.permission_policy = Some(PermissionPolicy::allow_all());
    });
    let service = lab.service(profile);
    let session = open(&lab, &service).await;
    assert_eq!(answer(&session, "ask a ls").await, "a allow");
    within("the close", session.close()).await.unwrap();
    let deny = PermissionRule::new(PermissionAction::Deny);
    let strict = PermissionPolicy::default().rule(deny);
    let session = open_with(&service, LiveRequest::new(lab.context()).policy(strict)).await;
    assert_eq!(answer(&session, "ask a ls").await, "a deny");
    within("the close", session.close()).await.unwrap();
}

#[tokio::test]
async fn a_steered_text_is_injected_or_becomes_the_next_prompt() {
    let lab = Lab::new();
    let service = lab.service(agent().variant("steer", None));
    // The variant only tells the driver that the agent can be steered.
    let plain = open(&lab, &service).await;
    let running = plain.prompt("work").unwrap();
    let blank = within("the steer", plain.steer(" \n")).await.unwrap_err();
    assert!(matches!(blank, Error::EmptyPrompt { .. }), "{blank}");
    let queued = within("the steer", plain.steer("say now")).await.unwrap();
    let Steered::Queued(next) = queued else {
        panic!("{queued:?}");
    };
    within("the interrupt", plain.interrupt(running.id()))
        .await
        .unwrap();
    assert_eq!(within("next", next.ended()).await.unwrap().text, "now");
    within("the close", plain.close()).await.unwrap();
}

#[tokio::test]
async fn an_agent_that_can_be_steered_is_steered() {
    let lab = Lab::new();
    let command = exec_core::CommandConfig::new("sh", ["-c", crate::live_agent::AGENT, "agent"]);
    let service = lab.service(agent().variant("steer", Some(command)));
    let context = lab.context().with_variant("steer");
    let session = open_with(&service, LiveRequest::new(context)).await;
    let running = session.prompt("work").unwrap();
    let steered = within("the steer", session.steer("yes")).await.unwrap();
    assert!(
        matches!(&steered, Steered::Injected(turn) if *turn == running.id()),
        "{steered:?}"
    );
    let steered = within("the steer", session.steer("no say late"))
        .await
        .unwrap();
    assert!(matches!(&steered, Steered::Queued(_)), "{steered:?}");
    assert_eq!(session.queued().len(), 1);
    within("the close", session.close()).await.unwrap();
    // It has no environment of the lab.
    assert!(!lab.written("read").contains("prompt no"));
}

/// The agent refuses the text when its turn is cancelled.
#[tokio::test]
async fn a_close_drops_a_text_that_the_agent_refuses() {
    let lab = Lab::new();
    let text = r#"
        read -r _; echo opened; read -r _; echo 'say working'; read -r _; echo 'say steered'
        read -r _; echo 'steered no'; echo cancelled; read -r _"#;
    let command = exec_core::CommandConfig::new("sh", ["-c", text, "agent"]);
    let service = lab.service(live_script(text).variant("steer", Some(command)));
    let context = lab.context().with_variant("steer");
    let session = open_with(&service, LiveRequest::new(context)).await;
    session.prompt("work").unwrap();
    let steering = session.clone();
    let steered = tokio::spawn(async move { steering.steer("more").await });
    until_line(session.execution(), "say steered").await;
    within("the close", session.close()).await.unwrap();
    let dropped = within("the steer", steered).await.unwrap().unwrap_err();
    let reason = DropReason::SessionEnded;
    assert!(
        matches!(&dropped, Error::NotDelivered { reason: r, .. } if *r == reason),
        "{dropped}"
    );
    assert!(session.queued().is_empty());
}

#[tokio::test]
async fn a_mode_that_the_agent_refuses_later_is_an_event() {
    let lab = Lab::new();
    let session = open(&lab, &lab.service(agent())).await;
    session.set_mode("plan").unwrap();
    session.set_mode("bad").unwrap();
    let refused = session.set_model("x").unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    assert_eq!(answer(&session, "say a").await, "a");
    within("the close", session.close()).await.unwrap();
    let events = live_events(session.execution()).await;
    let reason = "no such mode".to_owned();
    assert!(events.contains(&LiveEvent::CommandRefused { reason }));
    assert!(lab.written("read").contains("mode plan\nmode bad\n"));
}

#[tokio::test]
async fn a_profile_without_a_protocol_has_no_live_sessions() {
    let lab = Lab::new();
    let service = lab.service(script("cat"));
    let refused = service.open_live(LiveRequest::new(lab.context())).await;
    let error = refused.unwrap_err();
    assert!(matches!(error, Error::NoLiveProtocol { .. }), "{error}");
    assert!(service.active_executions().active_sessions().is_empty());
}

#[tokio::test]
async fn a_follow_up_goes_into_the_live_process_of_its_session() {
    let lab = Lab::new();
    let profile = agent().variant("other", None);
    let service = lab.service(profile);
    let session = open(&lab, &service).await;
    let id = session.session_id();
    let result = service
        .send_follow_up(lab.follow_up(&id, "say from outside"))
        .await
        .unwrap();
    assert_eq!(result.kind, ExecutionKind::FollowUp);
    assert_eq!(
        result.process_id,
        Some(session.execution().process_id()),
        "no new process"
    );
    let idle = |status: &LiveStatus| *status == LiveStatus::Idle;
    within("idle", session.wait_for(idle)).await.unwrap();
    assert!(lab.written("read").contains("prompt say from outside\n"));
    let mut other = lab.follow_up(&id, "say x");
    other.context = other.context.with_variant("other");
    let error = service.send_follow_up(other).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::LiveElsewhere {
                what: "variant",
                ..
            }
        ),
        "{error}"
    );
    let mut other = lab.follow_up(&id, "say x");
    other.context.workspace_path = lab.path("");
    let error = service.send_follow_up(other).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::LiveElsewhere {
                what: "workspace",
                ..
            }
        ),
        "{error}"
    );
    let launched = service.launch(lab.follow_up(&id, "say x")).await;
    assert!(launched.unwrap_err().is_session_busy());
    let again = LiveRequest::resume(lab.context(), id.clone());
    let opened = service.open_live(again).await;
    assert!(opened.unwrap_err().is_session_busy());
    let found = service.live_session(&id).unwrap();
    assert_eq!(found.execution().id(), session.execution().id());
    within("the close", session.close()).await.unwrap();
    assert!(service.live_session(&id).is_none());
    assert!(!lab.written("read").contains("prompt say x"));
    // After the end of the live process, a follow-up is a process of its own.
    let alone = service.launch(lab.follow_up(&id, "open later\n")).await;
    let lines = lines(&all_events(&alone.unwrap()).await, OutputStream::Stdout);
    assert_eq!(lines, ["opened later"]);
}

#[tokio::test]
async fn the_report_of_a_turn_has_its_usage() {
    let lab = Lab::new();
    let session = open(&lab, &lab.service(agent())).await;
    let turn = session.prompt("usage 7").unwrap();
    let report = within("the turn", turn.ended()).await.unwrap();
    let usage = report.usage.unwrap();
    assert_eq!(usage.run.output_tokens, Some(7));
    assert_eq!(usage.session.output_tokens, Some(7), "completed");
    let exit = within("the close", session.close()).await.unwrap();
    assert_eq!(exit.usage.run.output_tokens, Some(7));
}

#[tokio::test]
async fn the_log_files_have_both_directions() {
    let lab = Lab::new();
    let service = lab
        .builder(agent())
        .log_dir(lab.path("logs"))
        .open()
        .unwrap();
    let session = open(&lab, &service).await;
    answer(&session, "say a").await;
    within("the close", session.close()).await.unwrap();
    let input = session.input_log_path().unwrap();
    assert_eq!(
        std::fs::read_to_string(input).unwrap(),
        "open\nprompt say a\n"
    );
    let output = session.execution().log_path(OutputStream::Stdout).unwrap();
    assert_eq!(
        std::fs::read_to_string(output).unwrap(),
        "opened native-1\nsay a\ndone\n"
    );
    let launched = lab.launch_with(&service, "open x\n").await;
    all_events(&launched).await;
    assert_eq!(crate::lab::files_in(&lab.path("logs")).len(), 5);
}

#[tokio::test]
async fn silence_counts_only_while_a_turn_runs() {
    let lab = Lab::new();
    // Far above what an answer takes on a busy machine.
    let limit = Duration::from_secs(2);
    let builder = lab.builder(agent()).stop_after_silence(limit);
    let service = builder.stop_after_finish(limit).open().unwrap();
    let session = open(&lab, &service).await;
    answer(&session, "say a").await;
    // Idle for longer than the limit, then waiting for an answer for as long.
    let longer = limit + Duration::from_millis(500);
    tokio::time::sleep(longer).await;
    let turn = session.prompt("ask p1").unwrap();
    asked(&session).await;
    tokio::time::sleep(longer).await;
    session.answer("p1", Decision::Allow).unwrap();
    assert_eq!(outcome(&turn).await, TurnOutcome::Completed);
    let stuck = session.prompt("work").unwrap();
    assert_ne!(outcome(&stuck).await, TurnOutcome::Completed);
    let exit = within("the end", session.execution().wait()).await.unwrap();
    let silent = StoppedBy::Watchdog(Watchdog::NoOutput);
    assert_eq!(exit.stopped_by, Some(silent));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_session_without_handles_delivers_what_waits() {
    let lab = Lab::new();
    let service = lab.service(agent());
    let session = open(&lab, &service).await;
    let id = session.session_id();
    session.prompt("say a").unwrap();
    let last = session.prompt("say b").unwrap();
    drop(session);
    assert_eq!(within("b", last.ended()).await.unwrap().text, "b");
    service.stop_execution(&id).await.unwrap();
    assert_eq!(lab.processes(), [0; 0]);
}

#[tokio::test]
async fn a_failure_of_the_agent_is_the_outcome_of_its_turn() {
    let lab = Lab::new();
    let session = open(&lab, &lab.service(agent())).await;
    let failed = outcome(&session.prompt("raw failed no such model").unwrap()).await;
    let failure = Failure::new(FailureKind::Agent, "no such model");
    assert_eq!(failed, TurnOutcome::Failed { failure });
    assert_eq!(answer(&session, "say on").await, "on");
    within("the close", session.close()).await.unwrap();
}

#[tokio::test]
async fn a_message_is_in_the_log_before_the_agent_can_read_it() {
    let lab = Lab::new();
    let session = open(&lab, &lab.service(agent())).await;
    let mut events = session.execution().events();
    session.prompt("work").unwrap();
    let mut delivered = false;
    while !delivered {
        let event = within("the event", events.next()).await.unwrap();
        delivered = matches!(
            event.kind,
            EventKind::Live(LiveEvent::MessageDelivered { .. })
        );
        let read = lab.written("read").contains("prompt work");
        assert!(delivered || !read, "read before it was logged");
    }
    until("the prompt", || lab.written("read").contains("prompt work")).await;
    within("the close", session.close()).await.unwrap();
}
