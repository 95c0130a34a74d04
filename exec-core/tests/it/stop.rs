use std::time::{Duration, Instant};

use exec_core::{
    Error, Execution, SessionId, StopAction, StopLadder, StopLevel, StopOutcome, StopReport,
};

use crate::lab::{
    Lab, alive, helper_lab, helper_passed, refuse_signals, run_helper, script, until_line, within,
};

async fn stop(execution: &Execution) -> StopReport {
    match within("the stop", execution.stop()).await.unwrap() {
        StopOutcome::Stopped(report) => report,
        StopOutcome::NotFound => panic!("not found"),
    }
}

/// A typical agent: a launcher, the agent, tools in sessions of their own.
const TREE: &str = "
    sh -c '
        setsid sh -c \"sleep 60 & sleep 61; :\" &
        setsid sh -c \"sleep 62; :\" &
        wait
    ' &
    wait";

#[tokio::test]
async fn tools_in_sessions_of_their_own_are_stopped() {
    let lab = Lab::new();
    let execution = lab.launch(&lab.service(script(TREE))).await;
    lab.until_processes(7).await;
    let report = stop(&execution).await;
    assert_eq!(lab.processes(), [0; 0], "left behind");
    assert_eq!((report.processes, report.level), (7, StopLevel::Terminated));
    assert_eq!(report.exit.signal, Some(15));
    assert_eq!(report.exit.stopped_by, Some(exec_core::StoppedBy::Caller));
}

#[tokio::test]
async fn a_tree_that_ignores_term_is_killed_after_the_grace() {
    let lab = Lab::new();
    let ladder = StopLadder::kill_at_once().then(StopAction::Terminate, Duration::from_millis(300));
    let agent = "trap '' TERM; setsid sh -c 'echo ready; sleep 60; :' & wait";
    let service = lab
        .builder(script(agent))
        .stop_ladder(ladder)
        .open()
        .unwrap();
    let execution = lab.launch(&service).await;
    until_line(&execution, "ready").await;
    lab.until_processes(3).await;
    let report = stop(&execution).await;
    assert_eq!(lab.processes(), [0; 0]);
    assert_eq!(
        (report.level, report.exit.signal),
        (StopLevel::Killed, Some(9))
    );
    assert!(
        report.took >= Duration::from_millis(300),
        "{:?}",
        report.took
    );
}

#[tokio::test]
async fn the_ladder_of_the_profile_is_used_step_by_step() {
    // If these tests run in the background of a shell, INT is ignored and children inherit that;
    // a shell cannot trap a signal that was ignored when it started.
    // SAFETY: this process has no handler that would be replaced.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    let lab = Lab::new();
    // Survives INT and ends on TERM with its own code.
    let agent = "trap 'echo int' INT; trap 'echo term; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let profile = script(agent).setup(|_, parameters| {
        parameters.stop_ladder = Some(
            StopLadder::kill_at_once()
                .then(StopAction::Interrupt, Duration::from_millis(200))
                .then(StopAction::Terminate, Duration::from_secs(50)),
        );
    });
    let execution = lab.launch(&lab.service(profile)).await;
    until_line(&execution, "ready").await;
    let report = stop(&execution).await;
    assert_eq!(
        (report.level, report.exit.code),
        (StopLevel::Terminated, Some(7))
    );
    assert_eq!(
        crate::lab::stdout_of(&execution).await,
        ["ready", "int", "term"]
    );
}

#[tokio::test]
async fn the_end_of_input_stops_an_agent_that_reads_to_the_end() {
    let lab = Lab::new();
    let profile = script("echo ready; cat > got; echo over").setup(|_, parameters| {
        parameters.keep_stdin_open = true;
        parameters.stop_ladder =
            Some(StopLadder::kill_at_once().then(StopAction::CloseStdin, Duration::from_secs(50)));
    });
    let execution = lab.launch_with(&lab.service(profile), "prompt").await;
    until_line(&execution, "ready").await;
    let report = stop(&execution).await;
    assert_eq!(
        (report.level, report.exit.code),
        (StopLevel::StdinClosed, Some(0))
    );
    assert_eq!(lab.written("got"), "prompt");
}

#[tokio::test]
async fn an_untagged_tool_is_found_through_its_parent() {
    let lab = Lab::new();
    let agent = "env -i setsid sh -c 'echo $$ > pid; sleep 60; :' & wait";
    let execution = lab.launch(&lab.service(script(agent))).await;
    let pid: u32 = lab.until_written("pid").await.parse().unwrap();
    assert!(alive(pid));
    stop(&execution).await;
    assert!(!alive(pid));
}

/// The tag of another execution: the agent is itself a host of agents.
const INNER: &str = "NORMALIZED_EXECUTION_ID=c0ffee00-0000-4000-8000-000000000000";

#[tokio::test]
async fn an_execution_inside_an_execution_is_stopped_with_it() {
    let lab = Lab::new();
    let agent = format!(
        "read role
        [ $role = other ] && exec sleep 60
        {INNER} setsid sh -c 'echo $$ > pid; sleep 60; :' & wait"
    );
    let service = lab.service(script(&agent));
    let other = lab.launch_with(&service, "other").await;
    let outer = lab.launch_with(&service, "outer").await;
    let pid: u32 = lab.until_written("pid").await.parse().unwrap();
    // A scan for the other execution sees the process and leaves it out.
    other.usage().await.unwrap();
    stop(&outer).await;
    assert!(!alive(pid));
    stop(&other).await;
    assert_eq!(lab.processes(), [0; 0]);
}

#[tokio::test]
async fn a_found_process_stays_found_after_the_death_of_its_parent() {
    let lab = Lab::new();
    let agent = format!(
        "{INNER} setsid sh -c 'trap \"\" INT TERM; echo $$ > pid; while :; do sleep 0.05; done' & wait"
    );
    let step = Duration::from_millis(200);
    let ladder = StopLadder::kill_at_once()
        .then(StopAction::Terminate, step)
        .then(StopAction::Interrupt, step)
        .then(StopAction::Terminate, step);
    let service = lab.builder(script(&agent)).stop_ladder(ladder).open();
    let execution = lab.launch(&service.unwrap()).await;
    let pid: u32 = lab.until_written("pid").await.parse().unwrap();
    let report = stop(&execution).await;
    assert!(!alive(pid));
    assert_eq!(report.level, StopLevel::Killed);
}

#[cfg(not(portable_processes))]
#[tokio::test]
async fn a_daemon_is_found_by_its_tag() {
    let lab = Lab::new();
    // Its parent has ended and it is in its own session: only the tag is left.
    let agent = "(setsid sh -c 'echo $$ > pid; sleep 60; :' &); echo started; exec sleep 60";
    let execution = lab.launch(&lab.service(script(agent))).await;
    let pid: u32 = lab.until_written("pid").await.parse().unwrap();
    until_line(&execution, "started").await;
    stop(&execution).await;
    assert!(!alive(pid));
    assert_eq!(lab.processes(), [0; 0]);
}

#[cfg(not(portable_processes))]
#[tokio::test]
async fn a_tree_that_grows_while_it_is_stopped_is_stopped() {
    let lab = Lab::new();
    let agent = "trap 'setsid sh -c \"sleep 60; :\" & setsid sleep 61 & exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let execution = lab.launch(&lab.service(script(agent))).await;
    until_line(&execution, "ready").await;
    stop(&execution).await;
    assert_eq!(lab.processes(), [0; 0]);
}

#[cfg(not(portable_processes))]
#[tokio::test]
async fn processes_that_outlive_the_agent_are_ended_and_counted() {
    let lab = Lab::new();
    let agent = "setsid sleep 60 & sleep 0.2 & echo bye; exit 4";
    let execution = lab.launch(&lab.service(script(agent))).await;
    let report = within("the end", execution.wait()).await.unwrap();
    assert_eq!(lab.processes(), [0; 0]);
    assert_eq!((report.code, report.stopped_by), (Some(4), None));
    assert!(report.leftover_processes >= 1, "{report:?}");
}

#[tokio::test]
async fn stopping_an_unknown_or_ended_session_is_no_error() {
    let lab = Lab::new();
    let service = lab.service(script("exit 0"));
    let unknown = SessionId::mint("SCRIPTED", "p").unwrap();
    assert!(matches!(
        service.stop_execution(&unknown).await,
        Ok(StopOutcome::NotFound)
    ));
    let execution = lab.launch(&service).await;
    within("the end", execution.wait()).await.unwrap();
    assert!(matches!(execution.stop().await, Ok(StopOutcome::NotFound)));
    let session_id = execution.session_id();
    assert!(matches!(
        service.stop_execution(&session_id).await,
        Ok(StopOutcome::NotFound)
    ));
}

#[tokio::test]
async fn two_stops_at_the_same_time_both_report_the_end() {
    let lab = Lab::new();
    let execution = lab.launch(&lab.service(script(TREE))).await;
    lab.until_processes(7).await;
    let (one, two) = tokio::join!(stop(&execution), stop(&execution));
    assert_eq!(lab.processes(), [0; 0]);
    assert_eq!(one.processes, two.processes);
}

#[tokio::test]
async fn a_stop_reports_its_processes_however_the_end_is_noticed() {
    let lab = Lab::new();
    let service = lab.service(script("exec sleep 60"));
    for _ in 0..50 {
        let report = stop(&lab.launch(&service).await).await;
        assert_eq!((report.processes, report.level), (1, StopLevel::Terminated));
    }
}

/// On other systems the agent inherits them; see `StopAction::Interrupt`.
#[cfg(all(target_os = "linux", not(portable_processes)))]
#[test]
fn an_agent_does_not_ignore_the_signals_of_a_stop_because_its_host_does() {
    run_helper(&Lab::new(), "stop::host_that_ignores_signals");
}

/// A shell without job control starts background programs in this way.
#[cfg(all(target_os = "linux", not(portable_processes)))]
#[tokio::test]
#[ignore = "a helper process of the test above"]
async fn host_that_ignores_signals() {
    let Some(lab) = helper_lab() else { return };
    for (action, name, number) in [
        (StopAction::Interrupt, "INT", libc::SIGINT),
        (StopAction::Terminate, "TERM", libc::SIGTERM),
    ] {
        // SAFETY: no handler is installed.
        unsafe { libc::signal(number, libc::SIG_IGN) };
        let agent = format!("trap 'exit 7' {name}; echo ready; while :; do sleep 0.05; done");
        let ladder = StopLadder::kill_at_once().then(action, Duration::from_secs(50));
        let builder = lab.builder(script(&agent)).stop_ladder(ladder);
        let execution = lab.launch(&builder.open().unwrap()).await;
        until_line(&execution, "ready").await;
        assert_eq!(stop(&execution).await.exit.code, Some(7), "{name}");
    }
    helper_passed(&lab);
}

#[tokio::test]
async fn a_stop_continues_after_its_future_was_dropped() {
    let lab = Lab::new();
    let execution = lab.launch(&lab.service(script("exec sleep 60"))).await;
    {
        let mut stopping = std::pin::pin!(execution.stop());
        let polled = std::future::poll_fn(|cx| {
            std::task::Poll::Ready(stopping.as_mut().poll(cx).is_pending())
        });
        assert!(polled.await);
    }
    let report = within("the end", execution.wait()).await.unwrap();
    assert_eq!(report.stopped_by, Some(exec_core::StoppedBy::Caller));
}

#[tokio::test]
async fn other_processes_are_left_alone() {
    let lab = Lab::new();
    let service = lab.service(script("echo ready; exec sleep 60"));
    let (one, other) = (lab.launch(&service).await, lab.launch(&service).await);
    until_line(&other, "ready").await;
    stop(&one).await;
    assert!(alive(other.process_id()));
    assert_eq!(
        service.active_executions().active_sessions(),
        [other.session_id()]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_executions_are_stopped_at_the_same_time() {
    let lab = Lab::new();
    let service = lab.service(script("setsid sh -c 'sleep 60; :' & wait"));
    for _ in 0..20 {
        lab.launch(&service).await;
    }
    lab.until_processes(60).await;
    let begin = Instant::now();
    let mut stops = tokio::task::JoinSet::new();
    for execution in service.executions() {
        stops.spawn(async move { stop(&execution).await.processes });
    }
    let counts = within("the stops", stops.join_all()).await;
    assert_eq!(counts, [3; 20], "after {:?}", begin.elapsed());
    assert_eq!(lab.processes(), [0; 0]);
    assert!(service.executions().is_empty());
}

#[cfg(not(portable_processes))]
#[tokio::test]
async fn a_live_agent_that_ends_with_its_input_and_leaves_a_tool_was_not_stopped() {
    let lab = Lab::new();
    let agent = format!("setsid sleep 1001 & {}", crate::live_agent::AGENT);
    let profile = script(&agent).live(|request, parameters| {
        crate::live_agent::live_parameters(request, parameters);
        parameters.stop_ladder = Some(
            StopLadder::kill_at_once()
                .then(StopAction::CloseStdin, Duration::from_secs(20))
                .then(StopAction::Terminate, Duration::from_secs(20)),
        );
    });
    let session = crate::live_agent::open(&lab, &lab.service(profile)).await;
    lab.until_processes(2).await;
    let exit = within("the close", session.close()).await.unwrap();
    assert!(exit.is_success(), "{exit:?}");
    assert_eq!(exit.leftover_processes, 1);
    assert_eq!(lab.processes(), [0; 0]);
}

#[tokio::test]
async fn a_wrapped_agent_is_stopped_with_its_wrapper() {
    let lab = Lab::new();
    let profile = script("setsid sh -c 'sleep 60; :' & echo ready; wait").setup(|_, parameters| {
        parameters.wrapper = Some(exec_core::Wrapper {
            binary: "setsid".into(),
            args: vec!["--wait".into(), "nice".into()],
        });
    });
    let execution = lab.launch(&lab.service(profile)).await;
    until_line(&execution, "ready").await;
    stop(&execution).await;
    assert_eq!(lab.processes(), [0; 0]);
}

#[test]
fn a_tree_that_cannot_be_ended_is_an_error_with_its_processes() {
    run_helper(&Lab::new(), "stop::host_without_the_permission_to_signal");
}

/// The kernel refuses its signals, as for processes of another user.
#[test]
#[ignore = "a helper process of the test above"]
fn host_without_the_permission_to_signal() {
    let Some(lab) = helper_lab() else { return };
    refuse_signals();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let agent = "read go < gate; exit 3";
        let made = std::process::Command::new("mkfifo")
            .arg(lab.workspace().join("gate"))
            .status();
        assert!(made.unwrap().success());
        let execution = lab.launch(&lab.service(script(agent))).await;
        let error = within("the stop", execution.stop()).await.unwrap_err();
        let Error::StillAlive { session, pids } = error else {
            panic!("{error}");
        };
        assert_eq!(
            (session, pids),
            (execution.session_id(), vec![execution.process_id()])
        );
        assert!(alive(execution.process_id()));
        assert!(execution.exit_report().is_none());

        // The execution is still supervised: its end is reported.
        std::fs::write(lab.workspace().join("gate"), "go\n").unwrap();
        let report = within("the end", execution.wait()).await.unwrap();
        assert_eq!(report.code, Some(3));
        helper_passed(&lab);
    });
}
