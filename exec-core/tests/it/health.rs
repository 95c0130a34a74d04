//! How an execution is doing.

use std::time::{Duration, SystemTime};

use exec_core::{HealthState, LiveStatus};

use crate::lab::{Lab, LineParser, script, until_line, within};
use crate::live_agent;

#[tokio::test]
async fn health_follows_the_life_of_an_execution() {
    let lab = Lab::new();
    let profile = script(
        "read -r go
        sleep 600 &
        echo say hello
        until [ -e finish ]; do sleep 0.01; done
        echo done
        sleep 600",
    )
    .setup(|_, parameters| {
        parameters.event_parser = Some(Box::new(LineParser));
        parameters.stdin_payload = Some("go\n".to_owned());
    });
    let before = SystemTime::now() - Duration::from_secs(1);
    let service = lab.service(profile);
    let execution = lab.launch(&service).await;
    until_line(&execution, "say hello").await;
    let health = execution.health().await.unwrap();
    assert!(health.alive);
    assert_eq!(health.state, HealthState::Working);
    assert!(health.usage.processes >= 2 && health.usage.resident_bytes > 0);
    assert!(before < health.last_event && health.last_event <= SystemTime::now());

    std::fs::write(lab.workspace().join("finish"), "").unwrap();
    until_line(&execution, "done").await;
    let health = execution.health().await.unwrap();
    assert_eq!(health.state, HealthState::Finished);
    assert!(health.silence < Duration::from_secs(60));

    within("the stop", execution.stop()).await.unwrap();
    let health = execution.health().await.unwrap();
    assert_eq!((health.alive, health.state), (false, HealthState::Ended));
    assert_eq!(health.usage.processes, 0);
}

#[tokio::test]
async fn an_agent_that_has_written_nothing_is_starting() {
    let lab = Lab::new();
    let service = lab.service(script("exec sleep 600"));
    let execution = lab.launch(&service).await;
    let first = execution.health().await.unwrap();
    assert_eq!(first.state, HealthState::Starting);
    let second = execution.health().await.unwrap();
    assert!(second.silence > first.silence);
    within("the stop", execution.stop()).await.unwrap();
}

#[tokio::test]
async fn a_stop_that_is_under_way_shows() {
    let lab = Lab::new();
    let service = lab.service(script(
        "trap '' TERM; echo ready; while :; do sleep 0.1; done",
    ));
    let execution = lab.launch(&service).await;
    until_line(&execution, "ready").await;
    let stop = tokio::spawn({
        let execution = execution.clone();
        async move { execution.stop().await }
    });
    while execution.health().await.unwrap().state == HealthState::Working {}
    assert_eq!(
        execution.health().await.unwrap().state,
        HealthState::Stopping
    );
    within("the shutdown", service.shutdown(Duration::ZERO)).await;
    stop.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_live_session_shows_its_own_state() {
    let lab = Lab::new();
    let service = lab.service(live_agent::agent());
    let session = live_agent::open(&lab, &service).await;
    let health = session.execution().health().await.unwrap();
    assert_eq!(health.state, HealthState::Live(LiveStatus::Idle));
    let turn = session.prompt("work").unwrap();
    let health = session.execution().health().await.unwrap();
    let working = LiveStatus::Working { turn: turn.id() };
    assert_eq!(health.state, HealthState::Live(working));
    within("the stop", session.execution().stop())
        .await
        .unwrap();
}
