use std::time::Duration;

use exec_core::{ExecutionKind, HistoryState, StoppedBy};

use crate::lab::{Lab, script, until_line, within};

#[tokio::test]
async fn the_report_has_code_signal_and_stderr() {
    let lab = Lab::new();
    let service = lab.service(script(
        "for i in $(seq 30); do echo \"e$i\" >&2; done; exit 9",
    ));
    let report = within("the end", lab.launch(&service).await.wait())
        .await
        .unwrap();
    assert_eq!(
        (report.code, report.signal, report.stopped_by),
        (Some(9), None, None)
    );
    assert!(!report.is_success());
    let expected: Vec<_> = (11..=30).map(|i| format!("e{i}")).collect();
    assert_eq!(report.stderr_tail, expected);

    let service = lab.service(script("kill -SEGV $$"));
    let report = within("the end", lab.launch(&service).await.wait())
        .await
        .unwrap();
    assert_eq!(
        (report.code, report.signal, report.stopped_by),
        (None, Some(11), None)
    );
}

#[tokio::test]
async fn the_report_has_time_and_memory() {
    let lab = Lab::new();
    // CPU time in the agent itself, and 50 MB in a child that it waits for.
    let agent = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; head -c 50000000 /dev/zero | tail -c 49000000 > /dev/null";
    let execution = lab.launch(&lab.service(script(agent))).await;
    let report = within("the end", execution.wait()).await.unwrap();
    assert!(report.is_success());
    assert!(report.cpu_time > Duration::from_millis(10), "{report:?}");
    assert!(report.wall_time > report.cpu_time / 4, "{report:?}");
    assert!(report.peak_memory_bytes > 40_000_000, "{report:?}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn usage_covers_the_tree() {
    let lab = Lab::new();
    let agent = "setsid sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo ready; sleep 60; :' & wait";
    let execution = lab.launch(&lab.service(script(agent))).await;
    until_line(&execution, "ready").await;
    lab.until_processes(3).await;
    let usage = execution.usage().await.unwrap();
    assert_eq!(usage.processes, 3);
    assert!(usage.cpu_time > Duration::ZERO, "{usage:?}");
    assert!(usage.resident_bytes > 100_000, "{usage:?}");
    within("the stop", execution.stop()).await.unwrap();
    assert_eq!(execution.usage().await.unwrap().processes, 0);
}

#[tokio::test]
async fn the_history_has_start_session_and_end() {
    let lab = Lab::new();
    let agent = "echo \"session: ses_1\"; read what; case $what in fail) exit 2;; stay) exec sleep 60;; esac";
    let service = lab.service(script(agent).id_from_stdout());
    let ok = lab.launch_with(&service, "ok\n").await;
    within("the end", ok.wait()).await.unwrap();
    let failed = lab.launch_with(&service, "fail\n").await;
    within("the end", failed.wait()).await.unwrap();
    let session = ok.session_id();
    let stay = lab.follow_up(&session, "stay\n");
    let stay = service.launch(stay).await.unwrap();
    until_line(&stay, "session: ses_1").await;

    let entries = service.history().load().unwrap().entries;
    let kinds: Vec<_> = entries.iter().map(|entry| entry.kind).collect();
    assert_eq!(
        kinds,
        [
            ExecutionKind::New,
            ExecutionKind::New,
            ExecutionKind::FollowUp
        ]
    );
    assert!(
        entries.iter().all(|entry| entry.session_id == session),
        "{entries:?}"
    );
    assert!(
        entries
            .iter()
            .all(|entry| entry.workspace_path == lab.workspace())
    );
    assert_eq!(&entries[0].execution_id, ok.id());
    assert_eq!(
        entries[0].state,
        HistoryState::Ended(Box::new((*ok.wait().await.unwrap()).clone()))
    );
    assert_eq!(entries[2].state, HistoryState::Open);

    within("the stop", stay.stop()).await.unwrap();
    let contents = service.history().load().unwrap();
    let HistoryState::Ended(report) = &contents.entries[2].state else {
        panic!("{:?}", contents.entries[2]);
    };
    assert_eq!(report.stopped_by, Some(StoppedBy::Caller));
    let statistics = &contents.statistics()["scripted"];
    assert_eq!(
        (
            statistics.executions,
            statistics.succeeded,
            statistics.failed,
            statistics.stopped
        ),
        (3, 1, 1, 1)
    );
    assert!(statistics.wall_time >= report.wall_time);
}

#[tokio::test]
async fn an_unwritable_history_does_not_fail_the_execution() {
    let lab = Lab::new();
    let service = lab.service(script("echo hi"));
    std::fs::create_dir(lab.path("state/history.jsonl")).unwrap();
    let execution = lab.launch(&service).await;
    assert_eq!(crate::lab::stdout_of(&execution).await, ["hi"]);
    assert!(service.history().load().is_err(), "unreadable is not empty");
}

#[test]
fn an_execution_without_a_runtime_is_abandoned() {
    let lab = Lab::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let service = lab.service(script("exec sleep 60"));
    let execution = runtime.block_on(lab.launch(&service));
    drop(runtime);
    let other = tokio::runtime::Runtime::new().unwrap();
    other.block_on(async {
        let error = within("the answer", execution.wait()).await.unwrap_err();
        assert!(matches!(error, exec_core::Error::ShuttingDown), "{error}");
        let mut events = execution.events();
        while within("the events", events.next()).await.is_some() {}
        assert!(service.active_executions().active_sessions().is_empty());
    });
}
