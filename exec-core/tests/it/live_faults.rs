//! Live agents that behave badly.

use std::time::Duration;

use exec_core::{
    Decision, DropReason, Error, EventKind, LiveEvent, LiveRequest, LiveSession, LiveStatus,
    MemoryPolicy, PermissionAction, PermissionPolicy, PermissionRule, SettledBy, StoppedBy,
    TurnOutcome,
};

use crate::lab::{Lab, all_events, until, until_line, within};
use crate::live_agent::{AGENT, agent, answer, live_script, open, open_with};

fn kill(session: &LiveSession) {
    let pid = session.execution().process_id().to_string();
    let killed = std::process::Command::new("kill")
        .args(["-9", &pid])
        .status();
    assert!(killed.unwrap().success());
}

async fn ended(session: &LiveSession) {
    let is_ended = |status: &LiveStatus| *status == LiveStatus::Ended;
    within("the end", session.wait_for(is_ended)).await.unwrap();
}

#[cfg(target_os = "linux")]
async fn not_opened(script: &str, limit: Duration) -> (String, Vec<String>) {
    let lab = Lab::new();
    let service = lab.service(live_script(script));
    let request = LiveRequest::new(lab.context()).open_limit(limit);
    let error = within("the error", service.open_live(request))
        .await
        .unwrap_err();
    assert_eq!(lab.processes(), [0; 0], "left behind");
    assert!(service.executions().is_empty());
    let message = error.to_string();
    let debug = format!("{error:?}");
    let Error::NotOpened { exit, .. } = error else {
        panic!("{message}");
    };
    for line in &exit.stderr_tail {
        assert!(!debug.contains(line), "{debug}");
    }
    (message, exit.stderr_tail.clone())
}

const LONG: Duration = Duration::from_secs(60);

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_reason_of_a_refusal_is_kept_if_the_agent_is_slow_to_end() {
    let script = "read -r _; trap '' TERM; echo 'refuse no such session'; exec sleep 600";
    let (message, _) = not_opened(script, Duration::from_secs(3)).await;
    assert!(message.contains("no such session"), "{message}");
}

#[tokio::test]
async fn an_answer_to_an_agent_that_has_closed_its_input_is_an_error() {
    let lab = Lab::new();
    let script = "read -r _; echo opened; read -r _; echo 'ask p1 ls'; exec sleep 600 <&-";
    let service = lab.service(live_script(script));
    let session = open(&lab, &service).await;
    session.prompt("go").unwrap();
    let is_asked = |status: &LiveStatus| *status == LiveStatus::WaitingForPermission;
    let asked = session.wait_for(is_asked);
    within("the question", asked).await.unwrap();
    until("the end of the input", || session.prompt("more").is_err()).await;
    let error = session.answer("p1", Decision::Allow).unwrap_err();
    assert!(
        matches!(
            error,
            Error::SessionEnded { .. } | Error::AlreadySettled { .. }
        ),
        "{error}"
    );
    ended(&session).await;
    let events = all_events(session.execution()).await;
    let settled = events.iter().find_map(|event| match &event.kind {
        EventKind::Live(LiveEvent::PermissionSettled { decision, by, .. }) => {
            Some((*decision, *by))
        }
        _ => None,
    });
    assert_eq!(settled, Some((None, SettledBy::Cancel)));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_agent_that_ends_at_once_is_an_error_with_its_last_words() {
    let (message, tail) = not_opened("echo no such model >&2; exit 3", LONG).await;
    assert_eq!(tail, ["no such model"]);
    assert!(message.contains("no such model"), "{message}");
    let (message, _) = not_opened("exit 3", LONG).await;
    assert!(message.contains("exit code 3"), "{message}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_agent_that_refuses_the_session_is_an_error_with_its_class() {
    let agent = "read -r _; echo refuse no such session; exec sleep 60";
    let (message, _) = not_opened(agent, LONG).await;
    assert!(
        message.contains("session_gone: no such session"),
        "{message}"
    );
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_agent_that_is_silent_at_its_start_is_an_error_after_the_limit() {
    let limit = Duration::from_secs(3);
    let agent = "echo 'waiting for the network' >&2; setsid sleep 60 & exec sleep 60";
    let (message, _) = not_opened(agent, limit).await;
    assert!(message.contains("not ready within 3s"), "{message}");
    assert!(message.contains("waiting for the network"), "{message}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_dropped_opening_leaves_no_process() {
    let lab = Lab::new();
    let service = lab.service(live_script("echo up > up; exec sleep 60"));
    {
        let opening = service.open_live(LiveRequest::new(lab.context()));
        let started = until("the agent", || lab.written("up") == "up\n");
        tokio::select! {
            opened = opening => panic!("{opened:?}"),
            () = started => {}
        }
    }
    lab.until_processes(0).await;
    until("the registry", || service.executions().is_empty()).await;
}

#[tokio::test]
async fn lines_in_pieces_noise_and_duplicates_do_no_harm() {
    let lab = Lab::new();
    let agent = r#"
        read -r _
        echo; echo '{"not": the protocol}'; printf 'op'; sleep 0.05; printf 'ened nat'
        sleep 0.05; echo ive; echo opened twice; echo done; echo cancelled; echo 'steered yes'
        echo 'withdraw p9'; printf '\377\376 \000\n'; echo ready
        read -r _
        printf 'say he'; sleep 0.05; echo llo
        echo done; echo done; echo done; echo quiet
        read -r _
        echo 'ask p1'; echo 'ask p1'; echo 'ask p1'
        read -r a; echo "say $a"; echo done
        read -r _"#;
    let session = open(&lab, &lab.service(live_script(agent))).await;
    assert_eq!(session.session_id().native_id(), "native");
    // This protocol has no turn numbers: the noise must not meet the next turn.
    until_line(session.execution(), "ready").await;
    assert_eq!(answer(&session, "a").await, "hello");
    until_line(session.execution(), "quiet").await;
    let turn = session.prompt("b").unwrap();
    let waiting = |status: &LiveStatus| *status == LiveStatus::WaitingForPermission;
    within("the question", session.wait_for(waiting))
        .await
        .unwrap();
    assert_eq!(session.permissions().len(), 1);
    session.answer("p1", Decision::Allow).unwrap();
    let report = within("the turn", turn.ended()).await.unwrap();
    assert_eq!(report.text, "answer p1 allow");
    within("the close", session.close()).await.unwrap();
    let events = all_events(session.execution()).await;
    let ends = events
        .iter()
        .filter(|event| matches!(event.kind, EventKind::Live(LiveEvent::TurnEnded { .. })));
    assert_eq!(ends.count(), 2);
}

/// The end of the process in each state of the protocol.
#[tokio::test]
async fn the_end_of_the_process_ends_everything_that_waits() {
    let die_at = |word: &str| {
        let place = "    case $word in\n";
        let death = format!("{place}        {word}) kill -9 $$ ;;\n");
        let text = AGENT.replacen(place, &death, 1);
        let command = exec_core::CommandConfig::new("sh", ["-c", &text, "agent"]);
        live_script(&text).variant("steer", Some(command))
    };

    // When idle.
    let lab = Lab::new();
    let session = open(&lab, &lab.service(agent())).await;
    kill(&session);
    ended(&session).await;
    let refused = session.prompt("say a").unwrap_err();
    assert!(matches!(refused, Error::SessionEnded { .. }), "{refused}");
    let refused = session.set_mode("x").unwrap_err();
    assert!(matches!(refused, Error::SessionEnded { .. }), "{refused}");

    // Before and after the first word of an answer.
    for (script, text) in [(die_at("prompt"), ""), (live_script(AGENT), "half")] {
        let lab = Lab::new();
        let session = open(&lab, &lab.service(script)).await;
        let turn = session.prompt("die").unwrap();
        let report = within("the turn", turn.ended()).await.unwrap();
        assert_eq!(report.outcome, TurnOutcome::Uncertain);
        assert_eq!(report.text, text);
        let exit = within("the end", session.execution().wait()).await.unwrap();
        assert_eq!((exit.signal, exit.stopped_by), (Some(9), None));
    }

    // While it asks.
    let lab = Lab::new();
    let service = lab.service(agent());
    let session = open(&lab, &service).await;
    let turn = session.prompt("ask p1").unwrap();
    let waiting = |status: &LiveStatus| *status == LiveStatus::WaitingForPermission;
    within("the question", session.wait_for(waiting))
        .await
        .unwrap();
    kill(&session);
    let report = within("the turn", turn.ended()).await.unwrap();
    assert_eq!(report.outcome, TurnOutcome::Uncertain);
    assert!(session.permissions().is_empty());
    let late = session.answer("p1", Decision::Allow).unwrap_err();
    let by = Some(SettledBy::Cancel);
    assert!(
        matches!(&late, Error::AlreadySettled { by: b, .. } if *b == by),
        "{late}"
    );

    // While it is cancelled.
    let lab = Lab::new();
    let session = open(&lab, &lab.service(die_at("interrupt"))).await;
    let turn = session.prompt("work").unwrap();
    let report = within("the interrupt", session.interrupt(turn.id())).await;
    assert_eq!(report.unwrap().turn().outcome, TurnOutcome::Uncertain);

    // While it is steered.
    let lab = Lab::new();
    let service = lab.service(die_at("steer"));
    let context = lab.context().with_variant("steer");
    let session = open_with(&service, LiveRequest::new(context)).await;
    session.prompt("work").unwrap();
    let lost = within("the steer", session.steer("a")).await.unwrap_err();
    let reason = DropReason::Uncertain;
    assert!(
        matches!(&lost, Error::NotDelivered { reason: r, .. } if *r == reason),
        "{lost}"
    );
    within("the end", session.execution().wait()).await.unwrap();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn what_waits_survives_the_agent_and_what_may_have_run_is_not_sent_again() {
    let lab = Lab::new();
    let service = lab.service(agent());
    let session = open(&lab, &service).await;
    let lost = session.prompt("die of this").unwrap();
    let kept = session.prompt("say kept").unwrap();
    let taken = session.prompt("say taken").unwrap();
    let report = within("the turn", lost.ended()).await.unwrap();
    assert_eq!(report.outcome, TurnOutcome::Uncertain);
    assert_eq!(session.queued().len(), 2);
    within("the end", session.execution().wait()).await.unwrap();
    assert!(session.take_back(taken.message()).is_some());

    let resumed = within("the resume", session.resume()).await.unwrap();
    let report = within("the waiting turn", kept.ended()).await.unwrap();
    assert_eq!(report.text, "kept");
    let next = resumed.prompt("say next").unwrap();
    assert!(next.id() > kept.id(), "numbers go on");
    within("the next turn", next.ended()).await.unwrap();
    assert!(session.queued().is_empty());
    assert_eq!(resumed.session_id(), session.session_id());
    assert_ne!(resumed.execution().id(), session.execution().id());
    within("the close", resumed.close()).await.unwrap();
    assert_eq!(
        lab.written("read"),
        "open \nprompt die of this\nopen native-1\nprompt say kept\nprompt say next\n"
    );
    // Again, after a close.
    let again = within("the resume", resumed.resume()).await.unwrap();
    assert_eq!(answer(&again, "say again").await, "again");
    let busy = resumed.resume().await.unwrap_err();
    assert!(busy.is_session_busy(), "{busy}");
    within("the close", again.close()).await.unwrap();
    assert_eq!(lab.processes(), [0; 0]);
}

#[tokio::test]
async fn a_resume_that_fails_keeps_what_waits() {
    let lab = Lab::new();
    let agent = format!("if [ -e broken ]; then echo broken >&2; exit 1; fi\n{AGENT}");
    let service = lab.service(live_script(&agent));
    let session = open(&lab, &service).await;
    session.prompt("die").unwrap();
    let kept = session.prompt("say kept").unwrap();
    within("the end", session.execution().wait()).await.unwrap();
    std::fs::write(lab.workspace().join("broken"), "").unwrap();
    let error = within("the resume", session.resume()).await.unwrap_err();
    assert!(matches!(error, Error::NotOpened { .. }), "{error}");
    assert_eq!(session.queued().len(), 1);
    std::fs::remove_file(lab.workspace().join("broken")).unwrap();
    let resumed = within("the resume", session.resume()).await.unwrap();
    let report = within("the turn", kept.ended()).await.unwrap();
    assert_eq!(report.text, "kept");
    within("the close", resumed.close()).await.unwrap();
}

#[tokio::test]
async fn what_waits_is_dropped_with_the_last_handle() {
    let lab = Lab::new();
    let service = lab.service(agent());
    // The handle is dropped before the process ends.
    let session = open(&lab, &service).await;
    let execution = session.execution().clone();
    session.prompt("work").unwrap();
    let waiting = session.prompt("say a").unwrap();
    drop(session);
    within("the stop", execution.stop()).await.unwrap();
    let reason = |error| match error {
        Error::NotDelivered { reason, .. } => reason,
        other => panic!("{other}"),
    };
    let error = within("the turn", waiting.ended()).await.unwrap_err();
    assert_eq!(reason(error), DropReason::SessionEnded);
    let events = all_events(&execution).await;
    let dropped = |kind: &EventKind| {
        matches!(kind, EventKind::Live(LiveEvent::MessageDropped { message, .. })
            if *message == waiting.message())
    };
    assert!(events.iter().any(|event| dropped(&event.kind)));

    // The handle is dropped after it.
    let session = open(&lab, &service).await;
    let execution = session.execution().clone();
    session.prompt("work").unwrap();
    let waiting = session.prompt("say a").unwrap();
    within("the stop", execution.stop()).await.unwrap();
    assert_eq!(session.queued().len(), 1, "for a resume");
    drop(session);
    let error = within("the turn", waiting.ended()).await.unwrap_err();
    assert_eq!(reason(error), DropReason::SessionEnded);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_agent_that_does_not_read_cannot_make_memory_grow() {
    let lab = Lab::new();
    let agent = "echo opened; echo up > up; exec sleep 600";
    let policy = PermissionPolicy::default();
    let service = lab.service(live_script(agent));
    let request = LiveRequest::new(lab.context()).policy(policy);
    let session = open_with(&service, request).await;
    // It does not wait, so it needs no room in the queue of messages.
    session.prompt("x".repeat(4 << 20)).unwrap();
    let full = session.set_mode("plan").unwrap_err();
    assert!(matches!(full, Error::QueueFull { .. }), "{full}");
    let full = session.prompt("say a").unwrap_err();
    assert!(full.to_string().contains("does not read"), "{full}");
    let exit = within("the close", session.close()).await.unwrap();
    assert_eq!(exit.stopped_by, Some(StoppedBy::Disconnected));
    assert_eq!(lab.processes(), [0; 0]);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_agent_that_floods_and_does_not_read_is_stopped() {
    let lab = Lab::new();
    // Every question is answered, and no answer is read.
    let agent = "echo opened; i=0; while :; do i=$((i+1)); echo ask $i-$(printf '%0900d' 0); done";
    let deny = PermissionRule::new(PermissionAction::Deny);
    let policy = PermissionPolicy::default().rule(deny);
    let service = lab.service(live_script(agent));
    let request = LiveRequest::new(lab.context()).policy(policy);
    let session = open_with(&service, request).await;
    let exit = within("the stop", session.execution().wait())
        .await
        .unwrap();
    assert_eq!(exit.stopped_by, Some(StoppedBy::Disconnected));
    assert_eq!(lab.processes(), [0; 0]);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_agent_that_closes_a_pipe_and_lives_is_stopped() {
    for close in ["exec <&-", "exec >&-"] {
        let lab = Lab::new();
        let agent = format!("echo opened; {close}; exec sleep 600");
        let session = open(&lab, &lab.service(live_script(&agent))).await;
        match session.prompt("say a") {
            Ok(turn) => {
                let report = within("the turn", turn.ended()).await.unwrap();
                assert_eq!(report.outcome, TurnOutcome::Uncertain, "{close}");
            }
            // The end of the input was noticed before.
            Err(error) => assert!(matches!(error, Error::SessionEnded { .. }), "{error}"),
        }
        let exit = within("the stop", session.execution().wait())
            .await
            .unwrap();
        assert_eq!(exit.stopped_by, Some(StoppedBy::Disconnected), "{close}");
        assert_eq!(lab.processes(), [0; 0]);
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_agent_that_closes_its_input_while_idle_is_stopped() {
    let lab = Lab::new();
    let agent = "read -r _; echo opened; read -r _; echo done; exec <&-; exec sleep 600";
    let session = open(&lab, &lab.service(live_script(agent))).await;
    answer(&session, "a").await;
    let exit = within("the stop", session.execution().wait())
        .await
        .unwrap();
    assert_eq!(exit.stopped_by, Some(StoppedBy::Disconnected));
    assert_eq!(lab.processes(), [0; 0]);
}

/// A log of 64 KiB that blocks the agent until its events are read.
#[tokio::test]
async fn a_flood_is_bounded_by_the_memory_policy() {
    let flood = r#"
        read -r _; echo opened; read -r _
        i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo "say $i"; done; echo done; read -r _"#;
    for policy in [
        MemoryPolicy::BlockChild {
            max_bytes: 64 << 10,
        },
        MemoryPolicy::DropOldest {
            max_bytes: 64 << 10,
        },
    ] {
        let lab = Lab::new();
        let builder = lab.builder(live_script(flood)).memory_policy(policy);
        let session = open(&lab, &builder.open().unwrap()).await;
        let mut events = session.execution().events();
        let turn = session.prompt("go").unwrap();
        if matches!(policy, MemoryPolicy::BlockChild { .. }) {
            let waiting = tokio::time::timeout(Duration::from_millis(500), turn.ended()).await;
            assert!(waiting.is_err(), "the agent was not blocked");
        }
        let (mut seen, mut missed) = (0, 0);
        let read = async {
            while let Some(event) = events.next().await {
                match &event.kind {
                    EventKind::Output(_) => seen += 1,
                    EventKind::Gap { missed: lost } => missed += lost,
                    EventKind::Live(LiveEvent::TurnEnded { .. }) => break,
                    _ => {}
                }
            }
        };
        within("the flood", read).await;
        let report = within("the turn", turn.ended()).await.unwrap();
        assert_eq!(report.text, "20000", "{policy:?}");
        if matches!(policy, MemoryPolicy::BlockChild { .. }) {
            assert_eq!((seen, missed), (20_002, 0));
        }
        drop(events);
        within("the close", session.close()).await.unwrap();
    }
}

#[tokio::test]
async fn a_truncated_line_is_not_given_to_the_driver() {
    let lab = Lab::new();
    let agent = r#"
        read -r _; echo opened; read -r _
        printf 'say %0200d\n' 7; echo done; read -r _"#;
    let builder = lab.builder(live_script(agent)).max_line_bytes(100);
    let session = open(&lab, &builder.open().unwrap()).await;
    assert_eq!(answer(&session, "go").await, "");
    let exit = within("the close", session.close()).await.unwrap();
    assert_eq!(exit.truncated_lines, 1);
}
