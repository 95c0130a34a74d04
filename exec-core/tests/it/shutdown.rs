//! The end of a host: by its own decision, by a dropped guard, by a signal.

use std::process::Stdio;
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
use exec_core::{AgentEvent, EventParser, HistoryState};
use exec_core::{Error, StopAction, StopLadder, StoppedBy, termination_signal};

#[cfg(target_os = "linux")]
use crate::lab::refuse_signals;
use crate::lab::{
    DEADLINE, Lab, Scripted, helper, helper_lab, helper_passed, run_helper, script, until,
    until_line, within,
};

const LIMIT: Duration = Duration::from_secs(50);

/// An agent with a tool in its own session and a daemon without environment and parent.
#[cfg(target_os = "linux")]
fn agent(lab: &Lab) -> Scripted {
    let sleeper = lab.sleeper();
    let daemon = lab.daemon(61);
    script(&format!(
        "setsid {sleeper} 60 & {daemon} echo ready; exec {sleeper} 62"
    ))
}

/// An agent that ignores all signals but `KILL`.
fn stubborn(lab: &Lab) -> Scripted {
    script(&format!(
        "trap '' INT TERM; echo ready; exec {} 60",
        lab.sleeper()
    ))
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_stops_all_executions_and_refuses_launches() {
    let lab = Lab::new();
    let service = lab.service(agent(&lab));
    let mut executions = Vec::new();
    for _ in 0..10 {
        let execution = lab.launch(&service).await;
        until_line(&execution, "ready").await;
        executions.push(execution);
    }
    let report = within("the shutdown", service.shutdown(LIMIT)).await;
    assert_eq!(lab.commands(), [0; 0]);
    assert_eq!((report.executions, report.survivors), (10, vec![]));
    assert_eq!(report.processes, 30);
    for execution in executions {
        let report = execution.exit_report().unwrap();
        assert_eq!(report.stopped_by, Some(StoppedBy::Caller));
    }
    assert!(service.executions().is_empty());

    let refused = service.launch(lab.new_chat("go")).await.unwrap_err();
    assert!(matches!(refused, Error::ShuttingDown), "{refused}");
    assert!(service.active_executions().active_sessions().is_empty());
    let again = within("the shutdown", service.shutdown(LIMIT)).await;
    assert_eq!(again.executions, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launch_during_a_shutdown_is_stopped_or_refused() {
    let lab = Lab::new();
    let service = lab.service(script(&format!("exec {} 60", lab.sleeper())));
    let launching = {
        let (service, request) = (service.clone(), lab.new_chat("go"));
        tokio::spawn(async move {
            let mut started = 0;
            while service.launch(request.clone()).await.is_ok() {
                started += 1;
            }
            started
        })
    };
    crate::lab::until("some launches", || service.executions().len() >= 5).await;
    let report = within("the shutdown", service.shutdown(LIMIT)).await;
    let started: usize = within("the launches", launching).await.unwrap();
    assert_eq!(lab.commands(), [0; 0]);
    assert_eq!(report.executions, started);
}

#[tokio::test]
async fn a_shutdown_kills_after_its_limit() {
    let lab = Lab::new();
    let hour = Duration::from_secs(3600);
    let ladder = StopLadder::kill_at_once().then(StopAction::Terminate, hour);
    let service = lab.builder(stubborn(&lab)).stop_ladder(ladder).open();
    let service = service.unwrap();
    let execution = lab.launch(&service).await;
    until_line(&execution, "ready").await;
    let limit = Duration::from_millis(300);
    let report = within("the shutdown", service.shutdown(limit)).await;
    assert_eq!(lab.commands(), [0; 0]);
    assert_eq!((report.executions, report.processes), (1, 1));
    assert_eq!(execution.exit_report().unwrap().signal, Some(9));
}

#[cfg(target_os = "linux")]
#[test]
fn a_shutdown_names_the_processes_that_are_left() {
    run_helper(&Lab::new(), "shutdown::host_that_may_not_signal");
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "a helper process of the test above"]
fn host_that_may_not_signal() {
    let Some(lab) = helper_lab() else { return };
    refuse_signals();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let service = lab.service(script("exec sleep 60"));
        let execution = lab.launch(&service).await;
        let report = within("the shutdown", service.shutdown(LIMIT)).await;
        assert_eq!(
            (report.executions, report.survivors),
            (0, vec![execution.process_id()])
        );
        helper_passed(&lab);
    });
}

/// The only thread of the runtime is blocked while the guard is dropped.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_dropped_guard_ends_everything_before_it_returns() {
    let lab = Lab::new();
    let service = lab.service(agent(&lab));
    let guard = service.shutdown_on_drop(LIMIT);
    let execution = lab.launch(&service).await;
    until_line(&execution, "ready").await;
    drop(guard);
    assert_eq!(lab.commands(), [0; 0]);
    let report = within("the end", execution.wait()).await.unwrap();
    assert_eq!(report.stopped_by, Some(StoppedBy::Caller));
    let refused = service.launch(lab.new_chat("go")).await.unwrap_err();
    assert!(matches!(refused, Error::ShuttingDown), "{refused}");
}

#[tokio::test]
async fn a_dropped_guard_kills_after_its_limit() {
    let lab = Lab::new();
    let hour = Duration::from_secs(3600);
    let ladder = StopLadder::kill_at_once().then(StopAction::Terminate, hour);
    let service = lab.builder(stubborn(&lab)).stop_ladder(ladder).open();
    let service = service.unwrap();
    let guard = service.shutdown_on_drop(Duration::from_millis(300));
    until_line(&lab.launch(&service).await, "ready").await;
    drop(guard);
    assert_eq!(lab.commands(), [0; 0]);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn no_limit_is_too_long() {
    let lab = Lab::new();
    let ladder = StopLadder::kill_at_once().then(StopAction::Terminate, Duration::MAX);
    let service = lab.builder(agent(&lab)).stop_ladder(ladder.clone()).open();
    let service = service.unwrap();
    until_line(&lab.launch(&service).await, "ready").await;
    let report = within("the shutdown", service.shutdown(Duration::MAX)).await;
    assert_eq!((report.executions, report.processes), (1, 3));

    let service = lab.builder(agent(&lab)).stop_ladder(ladder).open();
    let service = service.unwrap();
    let guard = service.shutdown_on_drop(Duration::MAX);
    let execution = lab.launch(&service).await;
    until_line(&execution, "ready").await;
    drop(guard);
    assert_eq!(lab.commands(), [0; 0]);
    let report = within("the end", execution.wait()).await.unwrap();
    assert_eq!(report.signal, Some(libc::SIGTERM), "killed after a failure");

    let service = lab.builder(script("echo done"));
    let service = service
        .stop_after_silence(Duration::MAX)
        .stop_after_finish(Duration::MAX)
        .open();
    let service = service.unwrap();
    let run = service.run(lab.new_chat("go")).time_limit(Duration::MAX);
    let result = within("the run", run.into_future()).await.unwrap();
    assert!(result.is_success());
}

#[cfg(target_os = "linux")]
#[test]
fn a_guard_works_after_the_end_of_the_runtime() {
    let lab = Lab::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (service, guard) = runtime.block_on(async {
        let service = lab.service(agent(&lab));
        let guard = service.shutdown_on_drop(LIMIT);
        until_line(&lab.launch(&service).await, "ready").await;
        (service, guard)
    });
    // The executions are no longer supervised, and so no longer in the registry.
    let executions = service.executions();
    drop(runtime);
    assert_eq!(executions.len(), 1);
    drop(guard);
    assert_eq!(lab.commands(), [0; 0]);
}

/// The program of the README: it waits for its agent or for a signal.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "a helper process of other tests"]
fn host_with_signals() {
    let Some(lab) = helper_lab() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let number = runtime.block_on(async {
        let signal = termination_signal().unwrap();
        let service = lab.service(agent(&lab));
        let execution = lab.launch(&service).await;
        until_line(&execution, "ready").await;
        std::fs::write(lab.workspace().join("ready"), "yes\n").unwrap();
        let number = tokio::select! {
            _ = execution.wait() => 0,
            number = signal => number,
        };
        service.shutdown(LIMIT).await;
        number
    });
    std::process::exit(128 + number);
}

#[cfg(target_os = "linux")]
async fn signal_host(lab: &Lab, signals: &[i32], ignored: Option<i32>) -> Option<i32> {
    let mut command = helper(lab, "shutdown::host_with_signals");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let action = match ignored == Some(signal) {
            true => libc::SIG_IGN,
            false => libc::SIG_DFL,
        };
        use std::os::unix::process::CommandExt;
        // SAFETY: `signal` is safe between fork and exec.
        unsafe {
            command.pre_exec(move || {
                libc::signal(signal, action);
                Ok(())
            });
        }
    }
    let mut host = command.spawn().unwrap();
    lab.until_written("ready").await;
    until("the agent and its tools", || lab.commands().len() == 3).await;
    for signal in signals {
        // SAFETY: no memory is involved; the host is our unreaped child.
        unsafe { libc::kill(i32::try_from(host.id()).unwrap(), *signal) };
    }
    let begin = Instant::now();
    while host.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < DEADLINE, "the host does not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    host.wait().unwrap().code()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn int_term_and_hup_leave_no_process() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let lab = Lab::new();
        let code = signal_host(&lab, &[signal], None).await;
        assert_eq!(lab.commands(), [0; 0], "after signal {signal}");
        assert_eq!(code, Some(128 + signal));
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_ignored_signal_stays_ignored() {
    let lab = Lab::new();
    let signals = [libc::SIGHUP, libc::SIGTERM];
    let code = signal_host(&lab, &signals, Some(libc::SIGHUP)).await;
    assert_eq!(code, Some(128 + libc::SIGTERM));
    assert_eq!(lab.commands(), [0; 0]);
}

/// A parser that breaks its contract.
#[cfg(target_os = "linux")]
struct PanickingParser;

#[cfg(target_os = "linux")]
impl EventParser for PanickingParser {
    fn parse_line(&mut self, _line: &str) -> Vec<AgentEvent> {
        panic!("a line that the parser does not expect")
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_parser_that_panics_leaves_no_process() {
    let lab = Lab::new();
    let agent = "setsid sleep 600 & echo line; exec sleep 600";
    let agent = script(agent).setup(|_, parameters| {
        parameters.event_parser = Some(Box::new(PanickingParser));
    });
    let service = lab.builder(agent).max_running(1).open().unwrap();
    for _ in 0..2 {
        let execution = within("the launch", lab.launch(&service)).await;
        let ended = within("the end", execution.wait()).await;
        assert!(matches!(ended, Err(Error::ShuttingDown)), "{ended:?}");
        assert_eq!(lab.processes(), [0; 0]);
        assert!(service.executions().is_empty());
    }
    let entries = service.history().load().unwrap().entries;
    assert!(
        entries
            .iter()
            .all(|entry| entry.state == HistoryState::Reaped)
    );
    assert_eq!(entries.len(), 2);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_shutdown_has_its_limit_after_a_parser_that_panics() {
    let lab = Lab::new();
    let agent = "trap '' TERM; echo line; while :; do sleep 1; done";
    let agent = script(agent).setup(|_, parameters| {
        parameters.event_parser = Some(Box::new(PanickingParser));
    });
    let hour = Duration::from_secs(3600);
    let ladder = StopLadder::kill_at_once().then(StopAction::Terminate, hour);
    let service = lab.builder(agent).stop_ladder(ladder).open().unwrap();
    let execution = within("the launch", lab.launch(&service)).await;
    within("the shutdown", service.shutdown(Duration::ZERO)).await;
    let ended = within("the end", execution.wait()).await;
    assert!(matches!(ended, Err(Error::ShuttingDown)), "{ended:?}");
    assert_eq!(lab.processes(), [0; 0]);
}
