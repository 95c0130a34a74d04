use std::time::Duration;

use exec_core::{EventKind, StoppedBy, Watchdog};

use crate::lab::{Lab, LineParser, all_events, script};

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_silent_agent_is_stopped_with_an_event() {
    let lab = Lab::new();
    let service = lab
        .builder(script("echo hello; exec sleep 60"))
        .stop_after_silence(Duration::from_millis(300))
        .open()
        .unwrap();
    let execution = lab.launch(&service).await;
    let events = all_events(&execution).await;
    assert!(
        events
            .iter()
            .any(|e| matches!(e.kind, EventKind::Watchdog(Watchdog::NoOutput)))
    );
    let report = execution.exit_report().unwrap();
    assert_eq!(
        report.stopped_by,
        Some(StoppedBy::Watchdog(Watchdog::NoOutput))
    );
    assert_eq!(lab.processes(), [0; 0]);
}

#[tokio::test]
async fn an_agent_that_outlives_its_final_event_is_stopped() {
    let lab = Lab::new();
    let profile = script("echo done; while :; do echo chatter; sleep 0.05; done")
        .setup(|_, parameters| parameters.event_parser = Some(Box::new(LineParser)));
    let service = lab
        .builder(profile)
        .stop_after_finish(Duration::from_millis(300))
        .open()
        .unwrap();
    let execution = lab.launch(&service).await;
    all_events(&execution).await;
    let report = execution.exit_report().unwrap();
    assert_eq!(
        report.stopped_by,
        Some(StoppedBy::Watchdog(Watchdog::StillAliveAfterFinish))
    );
}

#[tokio::test]
async fn watchdogs_are_off_by_default() {
    let lab = Lab::new();
    let profile = script("echo done; sleep 0.5; exit 6")
        .setup(|_, parameters| parameters.event_parser = Some(Box::new(LineParser)));
    let execution = lab.launch(&lab.service(profile)).await;
    all_events(&execution).await;
    let report = execution.exit_report().unwrap();
    assert_eq!((report.code, report.stopped_by), (Some(6), None));
}
