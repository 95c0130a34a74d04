//! The end of live sessions, and interrupts.

use std::time::Duration;

use exec_core::{
    EventKind, LiveEvent, LiveSession, LiveStatus, SettledBy, StopLadder, StopLevel, StopOutcome,
    StopReport, StoppedBy, Turn, TurnOutcome,
};

use crate::lab::{Lab, alive, all_events, until, within};
use crate::live_agent::{AGENT, agent, answer, live_script, open};

async fn stop(session: &LiveSession) -> StopReport {
    match within("the stop", session.execution().stop())
        .await
        .unwrap()
    {
        StopOutcome::Stopped(report) => report,
        StopOutcome::NotFound => panic!("not found"),
    }
}

async fn outcome(turn: &Turn) -> TurnOutcome {
    let report = within("the turn", turn.ended()).await.unwrap();
    report.outcome.clone()
}

async fn working(session: &LiveSession, text: &str) -> Turn {
    let turn = session.prompt(text).unwrap();
    let mut events = session.execution().events();
    let is_output = |kind: &EventKind| matches!(kind, EventKind::Output(_));
    let mut started = false;
    while !started {
        let event = within("output", events.next()).await.unwrap();
        let after_start = event.sequence > session.state().proof;
        started = after_start && is_output(&event.kind);
    }
    turn
}

#[tokio::test]
async fn a_stop_begins_with_cancel_and_end_of_input() {
    let lab = Lab::new();
    let script = format!("{AGENT}\necho eof > eof");
    let session = open(&lab, &lab.service(live_script(&script))).await;
    let turn = working(&session, "work").await;
    let waiting = session.prompt("say b").unwrap();
    let report = stop(&session).await;
    assert_eq!(report.level, StopLevel::StdinClosed);
    assert_eq!(report.exit.code, Some(0));
    assert_eq!(report.exit.stopped_by, Some(StoppedBy::Caller));
    assert_eq!(outcome(&turn).await, TurnOutcome::Interrupted);
    assert_eq!(lab.written("read"), "open \nprompt work\ninterrupt \n");
    assert_eq!(lab.written("eof"), "eof\n");
    assert_eq!(session.queued()[0].id, waiting.message());
    assert!(session.take_back(waiting.message()).is_some());
    let events = all_events(session.execution()).await;
    let last = &events.last().unwrap().kind;
    assert!(matches!(last, EventKind::Exited(_)), "{last:?}");
    assert_eq!(lab.processes(), [0; 0]);
}

#[tokio::test]
async fn the_ladder_of_the_service_follows_the_end_of_input() {
    let lab = Lab::new();
    let profile = live_script("echo opened; trap '' INT TERM; while :; do sleep 0.05; done");
    let profile = profile.live(|_, parameters| {
        parameters.protocol_driver = Some(Box::new(crate::live_agent::WordDriver {
            resume: None,
            can_steer: false,
        }));
    });
    // Without steps, the end of input is still tried before `KILL`; here with its full grace.
    let builder = lab.builder(profile).stop_ladder(StopLadder::kill_at_once());
    let session = open(&lab, &builder.open().unwrap()).await;
    let report = stop(&session).await;
    assert_eq!(report.level, StopLevel::Killed);
    assert!(report.took >= Duration::from_secs(1), "{:?}", report.took);
    assert_eq!(lab.processes(), [0; 0]);
}

#[tokio::test]
async fn a_stop_with_a_running_tool_leaves_no_process() {
    let lab = Lab::new();
    let session = open(&lab, &lab.service(agent())).await;
    session.prompt("tool").unwrap();
    let tool: u32 = lab.until_written("tool").await.parse().unwrap();
    assert!(alive(tool));
    stop(&session).await;
    assert!(!alive(tool));
    assert_eq!(lab.processes(), [0; 0]);
}

#[tokio::test]
async fn a_close_cancels_settles_and_drops() {
    let lab = Lab::new();
    let session = open(&lab, &lab.service(agent())).await;
    let turn = session.prompt("ask p1").unwrap();
    let waiting = session.prompt("say b").unwrap();
    let asks = |status: &LiveStatus| *status == LiveStatus::WaitingForPermission;
    within("the question", session.wait_for(asks))
        .await
        .unwrap();
    let exit = within("the close", session.close()).await.unwrap();
    assert_eq!(exit.leftover_processes, 0);
    assert!(exit.is_success(), "{exit:?}");
    assert_eq!(outcome(&turn).await, TurnOutcome::Interrupted);
    assert!(within("b", waiting.ended()).await.is_err());
    assert!(session.queued().is_empty());
    let events = all_events(session.execution()).await;
    let settled = events.iter().any(|event| {
        matches!(&event.kind, EventKind::Live(LiveEvent::PermissionSettled { by, .. })
            if *by == SettledBy::Cancel)
    });
    assert!(settled);
    assert!(matches!(events.last().unwrap().kind, EventKind::Exited(_)));
    let again = within("the second close", session.close()).await.unwrap();
    assert_eq!(again.code, Some(0));
}

#[tokio::test]
async fn a_close_of_an_agent_that_does_not_end_is_a_stop() {
    let lab = Lab::new();
    let script = "echo opened; exec sleep 600";
    let session = open(&lab, &lab.service(live_script(script))).await;
    let exit = within("the close", session.close()).await.unwrap();
    assert_eq!(exit.stopped_by, Some(StoppedBy::Caller));
    assert_eq!(lab.processes(), [0; 0]);
}

#[tokio::test]
async fn an_interrupt_reports_tools_that_outlive_it_and_ends_them_on_request() {
    let lab = Lab::new();
    let script = format!("setsid sleep 1001 & {AGENT}");
    let session = open(&lab, &lab.service(live_script(&script))).await;
    lab.until_processes(2).await;
    // The start of a process is known by the clock tick, a hundredth of a second.
    let helper_tick = start_ticks(&lab).into_iter().max().unwrap();
    until("another tick", || ticks_now() > helper_tick + 1).await;
    let turn = session.prompt("tool").unwrap();
    let tool: u32 = lab.until_written("tool").await.parse().unwrap();
    let report = within("the interrupt", session.interrupt(turn.id()))
        .await
        .unwrap();
    assert_eq!(report.turn().outcome, TurnOutcome::Interrupted);
    assert_eq!(report.process_ids(), [tool], "not the helper of the start");
    assert!(alive(tool), "ended only on request");
    within("the end", session.end_processes(&report))
        .await
        .unwrap();
    assert!(!alive(tool));
    within("again", session.end_processes(&report))
        .await
        .unwrap();
    assert_eq!(answer(&session, "say b").await, "b", "the session is kept");
    assert_eq!(lab.processes().len(), 2);
    within("the close", session.close()).await.unwrap();
    assert_eq!(lab.processes(), [0; 0]);
}

/// When the processes of the lab were started, in clock ticks since boot.
fn start_ticks(lab: &Lab) -> Vec<u64> {
    let start = |pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.split(' ').nth(19).unwrap().parse().unwrap()
    };
    lab.processes().into_iter().map(start).collect()
}

fn ticks_now() -> u64 {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
    (seconds * rustix::param::clock_ticks_per_second() as f64) as u64
}

#[tokio::test]
async fn a_tool_that_ignores_term_is_killed_with_what_it_started() {
    let lab = Lab::new();
    let script = AGENT.replace(
        "setsid sh -c 'echo $$ > tool; exec sleep 1000'",
        "setsid sh -c 'trap \"\" TERM; setsid sleep 1001 & echo $$ > tool; while :; do sleep 0.1; done'",
    );
    let session = open(&lab, &lab.service(live_script(&script))).await;
    let turn = session.prompt("tool").unwrap();
    let tool: u32 = lab.until_written("tool").await.parse().unwrap();
    let report = within("the interrupt", session.interrupt(turn.id()))
        .await
        .unwrap();
    assert!(report.process_ids().contains(&tool), "{report:?}");
    within("the end", session.end_processes(&report))
        .await
        .unwrap();
    assert_eq!(lab.processes(), [session.execution().process_id()]);
    within("the close", session.close()).await.unwrap();
}

#[tokio::test]
async fn an_interrupt_of_another_turn_does_nothing() {
    let lab = Lab::new();
    let session = open(&lab, &lab.service(agent())).await;
    let first = session.prompt("say a").unwrap();
    outcome(&first).await;
    let running = working(&session, "work").await;
    let waiting = session.prompt("say c").unwrap();
    for turn in [&first, &waiting] {
        let error = session.interrupt(turn.id()).await.unwrap_err();
        assert!(
            matches!(error, exec_core::Error::TurnNotRunning { .. }),
            "{error}"
        );
    }
    let (one, two) = tokio::join!(
        session.interrupt(running.id()),
        session.interrupt(running.id())
    );
    one.unwrap();
    two.unwrap();
    assert_eq!(within("c", waiting.ended()).await.unwrap().text, "c");
    within("the close", session.close()).await.unwrap();
    let cancels = lab.written("read").matches("interrupt").count();
    assert_eq!(cancels, 1, "one cancel for one turn");
}

#[tokio::test]
async fn a_shutdown_ends_live_sessions() {
    let lab = Lab::new();
    let service = lab.service(agent());
    let mut turns = Vec::new();
    for _ in 0..3 {
        let session = open(&lab, &service).await;
        turns.push(session.prompt("tool").unwrap());
    }
    lab.until_processes(6).await;
    let report = within("the shutdown", service.shutdown(Duration::from_secs(20))).await;
    assert_eq!(report.executions, 3);
    assert_eq!(lab.processes(), [0; 0]);
    for turn in &turns {
        assert_ne!(outcome(turn).await, TurnOutcome::Completed);
    }
    let refused = service
        .open_live(exec_core::LiveRequest::new(lab.context()))
        .await;
    assert!(matches!(refused, Err(exec_core::Error::ShuttingDown)));
}

#[tokio::test]
async fn a_dropped_guard_ends_live_sessions() {
    let lab = Lab::new();
    let service = lab.service(agent());
    let guard = service.shutdown_on_drop(Duration::from_secs(20));
    let session = open(&lab, &service).await;
    let turn = session.prompt("tool").unwrap();
    lab.until_processes(2).await;
    drop(guard);
    assert_eq!(lab.processes(), [0; 0]);
    assert_eq!(outcome(&turn).await, TurnOutcome::Uncertain);
    until("the end", || session.state().status == LiveStatus::Ended).await;
}

#[tokio::test]
async fn processes_that_outlive_a_live_agent_are_ended() {
    let lab = Lab::new();
    let session = open(&lab, &lab.service(agent())).await;
    let turn = session.prompt("tool").unwrap();
    lab.until_written("tool").await;
    let pid = session.execution().process_id().to_string();
    let kill = std::process::Command::new("kill")
        .args(["-9", &pid])
        .status();
    assert!(kill.unwrap().success());
    assert_eq!(outcome(&turn).await, TurnOutcome::Uncertain);
    let exit = within("the end", session.execution().wait()).await.unwrap();
    assert_eq!(exit.leftover_processes, 1);
    assert_eq!(lab.processes(), [0; 0]);
}
