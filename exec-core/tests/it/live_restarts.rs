//! Live sessions whose agent dies, with a restart policy.

use std::time::{Duration, SystemTime};

use exec_core::{
    Budget, DropReason, Error, ExecutionService, FailureKind, LiveRequest, LiveSession,
    RestartPolicy, TurnOutcome, WaitReason,
};

use crate::lab::{Lab, until, within};
use crate::live_agent::{AGENT, agent, answer, live_script, open_with};

fn at_once() -> RestartPolicy {
    RestartPolicy::new().backoff(Duration::from_millis(1), Duration::from_millis(1))
}

fn later() -> RestartPolicy {
    let hour = Duration::from_secs(3600);
    RestartPolicy::new().backoff(hour, hour)
}

async fn open(lab: &Lab, service: &ExecutionService, policy: RestartPolicy) -> LiveSession {
    let request = LiveRequest::new(lab.context()).restart(policy);
    open_with(service, request).await
}

async fn next(session: &LiveSession) -> LiveSession {
    within("the restart", session.restarted()).await.unwrap()
}

async fn not_restarted(session: &LiveSession) {
    let next = within("the end of the restarts", session.restarted()).await;
    assert!(next.is_none(), "{next:?}");
}

fn kill(session: &LiveSession) {
    let pid = i32::try_from(session.execution().process_id()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[tokio::test]
async fn a_session_whose_agent_dies_goes_on_with_what_waits() {
    let lab = Lab::new();
    let service = lab.service(agent());
    let first = open(&lab, &service, at_once()).await;
    let lost = first.prompt("die of this").unwrap();
    let kept = first.prompt("say kept").unwrap();
    let lost_too = first.prompt("die again").unwrap();
    let last = first.prompt("say last").unwrap();
    for turn in [&lost, &lost_too] {
        let report = within("the turn", turn.ended()).await.unwrap();
        assert_eq!(
            (report.outcome.clone(), &*report.text),
            (TurnOutcome::Uncertain, "half")
        );
    }
    for (turn, text) in [(kept, "kept"), (last, "last")] {
        let report = within("the waiting turn", turn.ended()).await.unwrap();
        assert_eq!(report.text, text);
    }
    // From the first handle to the third process.
    let third = next(&first).await;
    assert_eq!(third.session_id(), first.session_id());
    assert_ne!(third.execution().id(), first.execution().id());
    assert_eq!(answer(&third, "say next").await, "next");
    let found = service.live_session(&first.session_id()).unwrap();
    assert_eq!(found.execution().id(), third.execution().id());

    // When idle.
    kill(&third);
    let fourth = next(&third).await;
    assert_eq!(answer(&fourth, "say again").await, "again");
    within("the close", fourth.close()).await.unwrap();
    for session in [&first, &third, &fourth] {
        match session.execution().id() == fourth.execution().id() {
            true => not_restarted(session).await,
            false => assert_eq!(
                next(session).await.execution().id(),
                fourth.execution().id()
            ),
        }
    }
    assert_eq!(
        lab.written("read"),
        "open \nprompt die of this\n\
         open native-1\nprompt say kept\nprompt die again\n\
         open native-1\nprompt say last\nprompt say next\n\
         open native-1\nprompt say again\n"
    );
    #[cfg(target_os = "linux")]
    assert_eq!(lab.processes(), [0; 0]);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_close_of_the_first_handle_ends_the_process_that_has_followed() {
    let lab = Lab::new();
    let service = lab.service(agent());
    let first = open(&lab, &service, at_once()).await;
    first.prompt("die").unwrap();
    let kept = first.prompt("say kept").unwrap();
    within("the waiting turn", kept.ended()).await.unwrap();
    let second = next(&first).await;
    second.prompt("work").unwrap();
    let dropped = second.prompt("say dropped").unwrap();
    let exit = within("the close", first.close()).await.unwrap();
    assert_eq!(lab.processes(), [0; 0], "left behind");
    assert!(service.executions().is_empty());
    assert_eq!(exit, second.execution().exit_report().unwrap());
    not_restarted(&second).await;
    let error = within("the turn", dropped.ended()).await.unwrap_err();
    let reason = DropReason::SessionEnded;
    assert!(matches!(error, Error::NotDelivered { reason: r, .. } if r == reason));
}

#[tokio::test]
async fn what_waits_survives_without_a_handle() {
    let lab = Lab::new();
    let service = lab.service(agent());
    let session = open(&lab, &service, at_once()).await;
    session.prompt("die").unwrap();
    let kept = session.prompt("say kept").unwrap();
    let session_id = session.session_id();
    drop(session);
    let report = within("the waiting turn", kept.ended()).await.unwrap();
    assert_eq!(report.text, "kept");
    let session = service.live_session(&session_id).unwrap();
    within("the close", session.close()).await.unwrap();
}

#[tokio::test]
async fn an_end_that_was_asked_for_is_no_reason_to_restart() {
    let lab = Lab::new();
    let service = lab.service(agent());
    let session = open(&lab, &service, at_once()).await;
    within("the close", session.close()).await.unwrap();
    not_restarted(&session).await;

    let session = open(&lab, &service, at_once()).await;
    within("the stop", session.execution().stop())
        .await
        .unwrap();
    not_restarted(&session).await;

    // Without a policy.
    let session = open_with(&service, LiveRequest::new(lab.context())).await;
    kill(&session);
    not_restarted(&session).await;
    within("the end", session.execution().wait()).await.unwrap();
    let resumed = within("the resume", session.resume()).await.unwrap();
    assert_eq!(
        next(&session).await.execution().id(),
        resumed.execution().id()
    );
    within("the close", resumed.close()).await.unwrap();
    assert!(service.waiting().is_empty());
    #[cfg(target_os = "linux")]
    assert_eq!(lab.processes(), [0; 0]);
}

#[tokio::test]
async fn a_failure_that_a_repetition_does_not_help_is_not_repeated() {
    for (prompts, outcome) in [
        // The model has answered before, but cannot be asked any more.
        (&["say a", "locked"][..], None),
        // It has never answered: the configuration is wrong.
        (&["exit 3"][..], Some(TurnOutcome::Uncertain)),
        (&["exit 0"][..], Some(TurnOutcome::Uncertain)),
    ] {
        let lab = Lab::new();
        let service = lab.service(agent());
        let session = open(&lab, &service, at_once()).await;
        for prompt in prompts {
            let turn = session.prompt(*prompt).unwrap();
            let report = within("the turn", turn.ended()).await.unwrap();
            if let Some(outcome) = &outcome {
                assert_eq!(report.outcome, *outcome);
            }
        }
        not_restarted(&session).await;
        assert_eq!(
            lab.written("read").matches("open").count(),
            1,
            "{prompts:?}"
        );
    }
    // An agent that has answered, and ends by itself, is started again.
    let lab = Lab::new();
    let service = lab.service(agent());
    let session = open(&lab, &service, at_once()).await;
    assert_eq!(answer(&session, "say a").await, "a");
    session.prompt("exit 0").unwrap();
    let session = next(&session).await;
    assert_eq!(answer(&session, "say b").await, "b");
    within("the close", session.close()).await.unwrap();
}

#[tokio::test]
async fn too_many_restarts_are_given_up() {
    let lab = Lab::new();
    let service = lab.service(agent());
    let policy = at_once().give_up_after(2, Duration::from_secs(3600));
    let mut session = open(&lab, &service, policy).await;
    let turns: Vec<_> = (0..4)
        .map(|number| session.prompt(format!("die {number}")).unwrap())
        .collect();
    while let Some(next) = within("the restart", session.restarted()).await {
        session = next;
    }
    for turn in &turns[..3] {
        let report = within("the turn", turn.ended()).await.unwrap();
        assert_eq!(report.outcome, TurnOutcome::Uncertain);
    }
    // The rest waits for a caller.
    assert_eq!(session.queued().len(), 1);
    assert_eq!(session.queued()[0].text, "die 3");
    assert_eq!(lab.written("read").matches("open").count(), 3);
    drop(session);
    let error = within("the turn", turns[3].ended()).await.unwrap_err();
    let reason = DropReason::SessionEnded;
    assert!(matches!(error, Error::NotDelivered { reason: r, .. } if r == reason));
}

#[tokio::test]
async fn the_first_handle_keeps_what_waits_for_a_later_process() {
    let lab = Lab::new();
    let service = lab.service(agent());
    let policy = at_once().give_up_after(1, Duration::from_secs(3600));
    let first = open(&lab, &service, policy).await;
    first.prompt("die 1").unwrap();
    first.prompt("die 2").unwrap();
    let kept = first.prompt("say kept").unwrap();
    let second = next(&first).await;
    not_restarted(&second).await;
    drop(second);
    let second = next(&first).await;
    assert_eq!(second.queued().len(), 1);
    drop(second);
    // The first handle opens the third process, with the messages and the numbers of the second.
    let third = within("the resume", first.resume()).await.unwrap();
    let report = within("the turn", kept.ended()).await.unwrap();
    assert_eq!(report.text, "kept");
    let last = third.prompt("say last").unwrap();
    assert!(last.id() > report.turn, "{last:?}");
    within("the turn", last.ended()).await.unwrap();
    within("the close", first.close()).await.unwrap();
}

/// When the restart of the only session is due, as soon as it waits.
async fn restart_time(service: &ExecutionService) -> SystemTime {
    let at = || match service.waiting().first()?.reason {
        WaitReason::Restart { at } => Some(at),
        _ => None,
    };
    until("the wait for the restart", || at().is_some()).await;
    at().unwrap()
}

async fn passed(at: SystemTime) {
    let after = at + Duration::from_millis(200);
    until("the end of the delay", || SystemTime::now() > after).await;
}

fn soon() -> RestartPolicy {
    let delay = Duration::from_secs(2);
    let policy = RestartPolicy::new().backoff(delay, delay);
    policy.give_up_after(1, Duration::from_secs(3600))
}

#[tokio::test]
async fn a_restart_waits_for_the_end_of_a_follow_up() {
    let lab = Lab::new();
    let wait = "if [ -e hold ]; then until [ -e go ]; do sleep 0.01; done; exit; fi";
    let service = lab.service(live_script(&format!("{wait}\n{AGENT}")));
    let session = open(&lab, &service, soon()).await;
    session.prompt("die").unwrap();
    let kept = session.prompt("say kept").unwrap();
    let at = restart_time(&service).await;
    std::fs::write(lab.workspace().join("hold"), "").unwrap();
    let follow_up = lab.follow_up(&session.session_id(), "continue");
    let follow_up = within("the launch", service.launch(follow_up))
        .await
        .unwrap();
    passed(at).await;
    std::fs::remove_file(lab.workspace().join("hold")).unwrap();
    std::fs::write(lab.workspace().join("go"), "").unwrap();
    within("the follow-up", follow_up.wait()).await.unwrap();
    let report = within("the waiting turn", kept.ended()).await.unwrap();
    assert_eq!(report.text, "kept");
    within("the close", session.close()).await.unwrap();
}

#[tokio::test]
async fn a_restart_leaves_the_session_to_a_resume_that_is_opening_it() {
    let lab = Lab::new();
    let wait = "if [ -e hold ]; then echo up > up; until [ -e go ]; do sleep 0.01; done; fi";
    let service = lab.service(live_script(&format!("{wait}\n{AGENT}")));
    let session = open(&lab, &service, soon()).await;
    session.prompt("die").unwrap();
    let kept = session.prompt("say kept").unwrap();
    let at = restart_time(&service).await;
    std::fs::write(lab.workspace().join("hold"), "").unwrap();
    let (resuming, waiting) = (session.clone(), session.clone());
    let resuming = tokio::spawn(async move { resuming.resume().await });
    let waiting = tokio::spawn(async move { waiting.restarted().await });
    lab.until_written("up").await;
    passed(at).await;
    std::fs::write(lab.workspace().join("go"), "").unwrap();
    let resumed = within("the resume", resuming).await.unwrap().unwrap();
    let next = within("the restart", waiting).await.unwrap().unwrap();
    assert_eq!(next.execution().id(), resumed.execution().id());
    let report = within("the waiting turn", kept.ended()).await.unwrap();
    assert_eq!(report.text, "kept");
    within("the close", session.close()).await.unwrap();
}

#[tokio::test]
async fn a_restart_that_is_refused_is_tried_again() {
    let lab = Lab::new();
    let service = lab.service(agent());
    let delay = Duration::from_secs(1);
    let policy = RestartPolicy::new().backoff(delay, delay);
    let session = open(&lab, &service, policy).await;
    session.prompt("die").unwrap();
    let kept = session.prompt("say kept").unwrap();
    let first = restart_time(&service).await;
    let away = lab.path("away");
    std::fs::rename(lab.workspace(), &away).unwrap();
    let second = || match service.waiting().first()?.reason {
        WaitReason::Restart { at } => (at != first).then_some(at),
        _ => None,
    };
    until("the second attempt", || second().is_some()).await;
    std::fs::rename(&away, lab.workspace()).unwrap();
    let report = within("the waiting turn", kept.ended()).await.unwrap();
    assert_eq!(report.text, "kept");
    within("the close", session.close()).await.unwrap();
}

#[tokio::test]
async fn an_agent_that_cannot_be_opened_again_keeps_what_waits() {
    let lab = Lab::new();
    let text = format!("if [ -e broken ]; then echo no such model >&2; exit 1; fi\n{AGENT}");
    let service = lab.service(live_script(&text));
    let session = open(&lab, &service, at_once()).await;
    std::fs::write(lab.workspace().join("broken"), "").unwrap();
    session.prompt("die").unwrap();
    let kept = session.prompt("say kept").unwrap();
    not_restarted(&session).await;
    assert_eq!(session.queued().len(), 1);
    std::fs::remove_file(lab.workspace().join("broken")).unwrap();
    let resumed = within("the resume", session.resume()).await.unwrap();
    let report = within("the turn", kept.ended()).await.unwrap();
    assert_eq!(report.text, "kept");
    // A resumed session has the policy, too.
    kill(&resumed);
    within("the close", next(&resumed).await.close())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_restart_that_waits_is_listed_and_can_be_ended() {
    let lab = Lab::new();
    let service = lab.service(agent());
    let waiting = || {
        let waiting = service.waiting();
        waiting.into_iter().next()
    };
    // By the list.
    let session = open(&lab, &service, later()).await;
    session.prompt("die").unwrap();
    let kept = session.prompt("say kept").unwrap();
    until("the wait", || waiting().is_some()).await;
    let listed = waiting().unwrap();
    assert_eq!(listed.session_id, session.session_id());
    assert!(matches!(listed.reason, WaitReason::Restart { .. }));
    listed.cancel();
    not_restarted(&session).await;
    let resumed = within("the resume", session.resume()).await.unwrap();
    let report = within("the turn", kept.ended()).await.unwrap();
    assert_eq!(report.text, "kept");

    // By a resume that comes first.
    kill(&resumed);
    until("the wait", || waiting().is_some()).await;
    let again = within("the resume", resumed.resume()).await.unwrap();
    until("the end of the wait", || waiting().is_none()).await;
    assert_eq!(
        next(&resumed).await.execution().id(),
        again.execution().id()
    );
    assert_eq!(answer(&again, "say again").await, "again");

    // By a close.
    kill(&again);
    until("the wait", || waiting().is_some()).await;
    within("the close", again.close()).await.unwrap();
    not_restarted(&again).await;
    until("the end of the wait", || waiting().is_none()).await;

    // By a shutdown.
    let session = open(&lab, &service, later()).await;
    kill(&session);
    until("the wait", || waiting().is_some()).await;
    within("the shutdown", service.shutdown(Duration::from_secs(10))).await;
    not_restarted(&session).await;
    #[cfg(target_os = "linux")]
    assert_eq!(lab.processes(), [0; 0]);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_close_ends_a_restart_that_is_opening_the_session() {
    let lab = Lab::new();
    let text = format!("if [ -e slow ]; then echo up > up; exec sleep 600; fi\n{AGENT}");
    let service = lab.service(live_script(&text));
    let session = open(&lab, &service, at_once()).await;
    std::fs::write(lab.workspace().join("slow"), "").unwrap();
    kill(&session);
    lab.until_written("up").await;
    within("the close", session.close()).await.unwrap();
    assert_eq!(lab.processes(), [0; 0], "left behind");
    assert!(service.executions().is_empty());
    not_restarted(&session).await;

    // The session is free, and a caller can still resume it.
    std::fs::remove_file(lab.workspace().join("slow")).unwrap();
    let resumed = within("the resume", session.resume()).await.unwrap();
    assert_eq!(answer(&resumed, "say again").await, "again");
    within("the close", resumed.close()).await.unwrap();
}

#[tokio::test]
async fn an_agent_that_continues_another_session_gets_no_message() {
    let lab = Lab::new();
    let text = AGENT.replace("${rest:-native-1}", "native-$$");
    let service = lab.service(live_script(&text));
    let session = open(&lab, &service, at_once()).await;
    session.prompt("die").unwrap();
    session.prompt("say kept").unwrap();
    not_restarted(&session).await;
    // Nor by a resume.
    let error = within("the resume", session.resume()).await.unwrap_err();
    match error {
        Error::NotOpened { failure, .. } => assert_eq!(failure.kind, FailureKind::SessionGone),
        other => panic!("{other}"),
    }
    assert_eq!(session.queued().len(), 1);
    assert!(!lab.written("read").contains("kept"));
    #[cfg(target_os = "linux")]
    assert_eq!(lab.processes(), [0; 0]);
}

#[tokio::test]
async fn a_silent_agent_is_restarted() {
    let lab = Lab::new();
    let builder = lab
        .builder(agent())
        .stop_after_silence(Duration::from_secs(3));
    let session = open(&lab, &builder.open().unwrap(), at_once()).await;
    let silent = session.prompt("work").unwrap();
    let kept = session.prompt("say kept").unwrap();
    let report = within("the turn", silent.ended()).await.unwrap();
    assert_ne!(report.outcome, TurnOutcome::Completed);
    let report = within("the waiting turn", kept.ended()).await.unwrap();
    assert_eq!(report.text, "kept");
    within("the close", next(&session).await.close())
        .await
        .unwrap();
}

/// The message that waits is counted by the process that gets it, once.
#[tokio::test]
async fn a_queue_counts_as_turns_of_the_resumed_session() {
    let lab = Lab::new();
    let service = lab.service(agent());
    let request = LiveRequest::new(lab.context())
        .restart(at_once())
        .budget(Budget::new().turns(2))
        .budget(Budget::for_group("g").turns(4));
    let session = open_with(&service, request).await;
    session.prompt("die").unwrap();
    let kept = session.prompt("say kept").unwrap();
    let refused = session.prompt("say more").unwrap_err();
    assert!(
        matches!(refused, Error::BudgetExhausted { .. }),
        "{refused}"
    );
    within("the turn", kept.ended()).await.unwrap();
    let session = next(&session).await;
    assert_eq!(service.spent_by_group("g").unwrap().turns, 2);
    assert_eq!(answer(&session, "say b").await, "b");
    let refused = session.prompt("say c").unwrap_err();
    assert!(
        matches!(refused, Error::BudgetExhausted { .. }),
        "{refused}"
    );
    within("the close", session.close()).await.unwrap();
    assert_eq!(service.spent_by_group("g").unwrap().turns, 3);
}

/// Another execution has used the last turn of the group during the back-off.
#[tokio::test]
async fn a_message_whose_budget_is_used_up_is_dropped_with_the_reason() {
    let lab = Lab::new();
    let service = lab.service(agent());
    let request = || LiveRequest::new(lab.context()).budget(Budget::for_group("g").turns(3));
    let session = open_with(&service, request()).await;
    session.prompt("die").unwrap();
    let kept = session.prompt("say kept").unwrap();
    let dropped = session.prompt("say dropped").unwrap();
    within("the end", session.execution().wait()).await.unwrap();
    assert_eq!(service.spent_by_group("g").unwrap().turns, 1);
    let other = open_with(&service, request()).await;
    answer(&other, "say other").await;
    within("the close", other.close()).await.unwrap();

    let resumed = within("the resume", session.resume()).await.unwrap();
    let report = within("the turn", kept.ended()).await.unwrap();
    assert_eq!(report.text, "kept");
    let error = within("the turn", dropped.ended()).await.unwrap_err();
    let reason = DropReason::BudgetExhausted;
    assert!(matches!(error, Error::NotDelivered { reason: r, .. } if r == reason));
    within("the close", resumed.close()).await.unwrap();
    assert_eq!(service.spent_by_group("g").unwrap().turns, 3);
}
