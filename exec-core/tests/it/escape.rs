//! Programs that try to leave the tree of their execution, by accident or on purpose.
#![cfg_attr(
    portable_processes,
    allow(dead_code, unused_imports, reason = "tests of marks are compiled out")
)]

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::time::Duration;

use exec_core::{Error, Execution, StopAction, StopLadder, StopOutcome, StopReport};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::lab::{
    Lab, alive, helper, helper_lab, helper_passed, script, until, until_line, within,
};

/// The user `nobody`.
const NOBODY: u32 = 65_534;

async fn stop(execution: &Execution) -> StopReport {
    match within("the stop", execution.stop()).await.unwrap() {
        StopOutcome::Stopped(report) => report,
        StopOutcome::NotFound => panic!("not found"),
    }
}

/// A tool that has cleared its environment, is in its own session and has lost its parent.
fn daemon(command: &str) -> String {
    format!("(env -i /usr/bin/setsid {command} &)")
}

/// Stops an agent whose shell has cleared its environment and keeps starting tools in sessions of
/// their own, and returns the processes that are left.
async fn stop_while_forking(lab: &Lab) -> Vec<u32> {
    let sleeper = lab.sleeper();
    let agent = format!(
        "env -i /bin/sh -c 'while :; do /usr/bin/setsid {sleeper} 60 & /bin/sleep 0.005; done' &
        exec {sleeper} 60"
    );
    let execution = lab.launch(&lab.service(script(&agent))).await;
    until("some tools", || lab.commands().len() >= 6).await;
    stop(&execution).await;
    lab.commands()
}

#[tokio::test]
async fn a_shell_without_environment_that_forks_during_the_stop_leaves_nothing() {
    for round in 0..10 {
        let lab = Lab::new();
        assert_eq!(stop_while_forking(&lab).await, [0; 0], "round {round}");
    }
}

#[tokio::test]
#[ignore = "takes half a minute: cargo test -p exec-core -- --ignored one_hundred_stops"]
async fn one_hundred_stops_of_a_forking_shell_leave_nothing() {
    let mut left = 0;
    for _ in 0..100 {
        left += stop_while_forking(&Lab::new()).await.len();
    }
    assert_eq!(left, 0);
}

#[cfg(not(portable_processes))]
#[tokio::test]
async fn a_daemon_without_environment_session_and_parent_is_stopped() {
    let lab = Lab::new();
    let daemon = daemon(&format!("{} 60", lab.sleeper()));
    let agent = format!("{daemon}; echo ready; exec {} 61", lab.sleeper());
    let service = lab.service(script(&agent));
    let execution = lab.launch(&service).await;
    until_line(&execution, "ready").await;
    until("the daemon", || lab.commands().len() == 2).await;
    let report = stop(&execution).await;
    assert_eq!(lab.commands(), [0; 0]);
    assert_eq!(report.processes, 2);
}

#[cfg(not(portable_processes))]
#[tokio::test]
async fn a_daemon_that_outlives_its_agent_is_ended_and_counted() {
    let lab = Lab::new();
    let agent = format!("{}; exit 0", daemon(&format!("{} 60", lab.sleeper())));
    let execution = lab.launch(&lab.service(script(&agent))).await;
    let report = within("the end", execution.wait()).await.unwrap();
    assert_eq!(lab.commands(), [0; 0]);
    assert_eq!((report.code, report.leftover_processes), (Some(0), 1));
}

/// The kernel shows no memory, environment and command line of such a process.
#[cfg(all(target_os = "linux", not(portable_processes)))]
#[tokio::test]
async fn a_daemon_whose_main_thread_has_ended_is_stopped() {
    let python = std::process::Command::new("python3")
        .arg("--version")
        .output();
    python.expect("python3 is needed: install the package python3");
    let lab = Lab::new();
    let program = "import ctypes, os, threading, time\n\
        threading.Thread(target=time.sleep, args=(60,)).start()\n\
        print(os.getpid(), file=open('pid', 'w'), flush=True)\n\
        ctypes.CDLL(None).pthread_exit(None)\n";
    std::fs::write(lab.workspace().join("threads.py"), program).unwrap();
    let daemon = daemon("$python threads.py");
    let agent = format!(
        "python=$(command -v python3); {daemon}; exec {} 61",
        lab.sleeper()
    );
    let execution = lab.launch(&lab.service(script(&agent))).await;
    let pid = lab.until_written("pid").await;
    let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    until("the end of the main thread", || stat().contains(") Z ")).await;
    let report = stop(&execution).await;
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    assert!(threads.map_or(0, Iterator::count) <= 1, "{}", stat());
    assert_eq!(report.processes, 2);
}

/// The inner executor gets `KILL`, so that it cannot clean up itself. Its daemon has the tag and
/// the mark of the inner execution only.
#[cfg(not(portable_processes))]
#[tokio::test]
async fn the_daemon_of_an_executor_inside_an_execution_is_stopped_with_it() {
    let lab = Lab::new();
    let inner = helper(&lab, "escape::inner_executor");
    let program = inner.get_program().to_str().unwrap();
    let args: Vec<_> = inner.get_args().map(|arg| arg.to_str().unwrap()).collect();
    let agent = format!("exec {program} {}", args.join(" "));
    let mut profile = script(&agent);
    for (name, value) in inner.get_envs() {
        let value = value.unwrap().to_str().unwrap();
        profile = profile.variable(name.to_str().unwrap(), value);
    }
    let service = lab
        .builder(profile)
        .stop_ladder(StopLadder::kill_at_once())
        .host_name("outer host")
        .open()
        .unwrap();
    let execution = lab.launch(&service).await;
    let daemon: u32 = lab.until_written("daemon").await.parse().unwrap();
    until("the inner agent", || lab.commands().len() == 2).await;
    assert!(alive(daemon));
    stop(&execution).await;
    assert_eq!(lab.commands(), [0; 0]);
    assert_eq!(lab.processes(), [0; 0]);
}

#[cfg(not(portable_processes))]
#[test]
#[ignore = "a helper process of the test above"]
fn inner_executor() {
    let Some(lab) = helper_lab() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let sleeper = lab.sleeper();
        let daemon = daemon(&format!("/bin/sh -c 'echo $$ > daemon; exec {sleeper} 60'"));
        let agent = format!("{daemon}; exec {sleeper} 61");
        lab.launch(&lab.service(script(&agent))).await;
        std::future::pending::<()>().await;
    });
}

/// Runs a helper test as the user `nobody`; the folder of the lab then belongs to that user.
fn run_as_nobody(lab: &Lab, test: &str) {
    for folder in [lab.path(""), lab.workspace()] {
        chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let mut helper = helper(lab, test);
    let helper = helper.uid(NOBODY).gid(NOBODY).output().unwrap();
    let printed = String::from_utf8_lossy(&helper.stderr);
    assert!(helper.status.success(), "{printed}");
    assert!(lab.path("passed").exists(), "{test} did not run: {printed}");
}

/// A copy of a program with the set-user-id bit of root.
fn set_user_id_copy(lab: &Lab, program: &str) -> PathBuf {
    let copy = lab.path(program);
    std::fs::copy(format!("/usr/bin/{program}"), &copy)
        .unwrap_or_else(|error| panic!("{program} is needed (coreutils, util-linux): {error}"));
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o4755)).unwrap();
    copy
}

#[expect(clippy::print_stderr, reason = "tells the person who runs the tests")]
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("not run: only root can make set-user-id programs and change the user");
    }
    root
}

#[cfg(not(portable_processes))]
#[test]
fn a_set_user_id_program_is_stopped_and_one_that_switches_the_user_is_reported() {
    if !is_root() {
        return;
    }
    let lab = Lab::new();
    set_user_id_copy(&lab, "sleep");
    set_user_id_copy(&lab, "setpriv");
    run_as_nobody(&lab, "escape::host_of_set_user_id_programs");
}

#[cfg(not(portable_processes))]
#[test]
fn the_set_user_id_programs_of_a_killed_host_are_ended() {
    if !is_root() {
        return;
    }
    let lab = Lab::new();
    set_user_id_copy(&lab, "sleep");
    run_as_nobody(&lab, "escape::host_after_a_killed_one");
}

#[cfg(not(portable_processes))]
#[test]
#[ignore = "a helper process of the test above"]
fn host_after_a_killed_one() {
    let Some(lab) = helper_lab() else { return };
    let mut killed = helper(&lab, "escape::host_that_is_killed").spawn().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        until("the program", || lab.commands().len() == 1).await;
        killed.kill().unwrap();
        killed.wait().unwrap();
        let service = lab.service(script("exit 0"));
        let report = within("the end", service.reap_orphans()).await.unwrap();
        assert_eq!(lab.commands(), [0; 0]);
        assert_eq!(report.executions[0].processes, 1);
        helper_passed(&lab);
    });
}

#[cfg(not(portable_processes))]
#[test]
#[ignore = "a helper process of the test above"]
fn host_that_is_killed() {
    let Some(lab) = helper_lab() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let agent = format!("exec {} 60", lab.path("sleep").display());
        lab.launch(&lab.service(script(&agent))).await;
        std::future::pending::<()>().await;
    });
}

#[cfg(not(portable_processes))]
#[test]
#[ignore = "a helper process of the test above"]
fn host_of_set_user_id_programs() {
    let Some(lab) = helper_lab() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let sleep = lab.path("sleep").to_str().unwrap().to_owned();
        // The effective user is root and the real user is ours: its environment is hidden, but it
        // can be signalled.
        let agent = format!("{}; exec {sleep} 61", daemon(&format!("{sleep} 60")));
        let execution = lab.launch(&lab.service(script(&agent))).await;
        until("the programs", || lab.commands().len() == 2).await;
        stop(&execution).await;
        assert_eq!(lab.commands(), [0; 0]);

        // As sudo does: the real user is root, too. Only the mark shows that it is ours.
        let setpriv = lab.path("setpriv");
        let switched = format!(
            "{} --reuid=0 --regid=0 --clear-groups {sleep} 62",
            setpriv.display()
        );
        let agent = format!("{}; exec {sleep} 61", daemon(&switched));
        let execution = lab.launch(&lab.service(script(&agent))).await;
        until("the programs", || {
            let commands = lab.commands();
            commands.len() == 2 && commands.iter().any(|pid| real_user(*pid) == Some(0))
        })
        .await;
        let error = within("the stop", execution.stop()).await.unwrap_err();
        let Error::StillAlive { pids, session } = error else {
            panic!("{error}");
        };
        assert_eq!((pids, session), (lab.commands(), execution.session_id()));
        assert_eq!(lab.commands().len(), 1);

        // The agent has ended; a later stop still names what is left.
        assert!(execution.exit_report().is_some());
        let again = within("the stop", execution.stop()).await.unwrap_err();
        assert!(
            matches!(&again, Error::StillAlive { pids, .. } if *pids == lab.commands()),
            "{again}"
        );
        helper_passed(&lab);
    });
}

fn real_user(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(not(portable_processes))]
#[test]
fn a_low_hard_limit_moves_the_mark_to_another_limit() {
    if !is_root() {
        return;
    }
    run_as_nobody(&Lab::new(), "escape::host_with_a_low_hard_limit");
}

#[cfg(not(portable_processes))]
#[test]
#[ignore = "a helper process of the test above"]
fn host_with_a_low_hard_limit() {
    let Some(lab) = helper_lab() else { return };
    let low = Rlimit {
        current: Some(100_000),
        maximum: Some(200_000),
    };
    setrlimit(Resource::Rttime, low).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let sleeper = lab.sleeper();
        let agent = format!("{}; exec {sleeper} 61", daemon(&format!("{sleeper} 60")));
        let service = lab.service(script(&agent));
        let execution = lab.launch(&service).await;
        until("the daemon", || lab.commands().len() == 2).await;
        let limits = format!("/proc/{}/limits", execution.process_id());
        let limits = std::fs::read_to_string(limits).unwrap();
        let line = |name| limits.lines().find(|line: &&str| line.starts_with(name));
        let rttime = line("Max realtime timeout").unwrap();
        assert!(
            rttime.contains(" 100000 ") && rttime.contains(" 200000 "),
            "an existing limit was changed: {rttime}"
        );
        stop(&execution).await;
        assert_eq!(lab.commands(), [0; 0]);

        // Without any limit that can have the mark, tag, group and parents are left.
        setrlimit(Resource::Locks, low).unwrap();
        assert_eq!(getrlimit(Resource::Locks), low);
        let agent = format!(
            "setsid {sleeper} 60 & env -i {sleeper} 61 & env -i setsid {sleeper} 62 & wait"
        );
        let execution = lab.launch(&lab.service(script(&agent))).await;
        until("the tools", || lab.commands().len() == 4).await;
        stop(&execution).await;
        assert_eq!(lab.commands(), [0; 0]);
        helper_passed(&lab);
    });
}

/// A program that removes the mark while it is stopped is still found by its parents.
#[tokio::test]
async fn a_program_that_changes_the_limit_is_found_by_its_parent() {
    let lab = Lab::new();
    let sleeper = lab.sleeper();
    let agent = format!(
        "env -i /usr/bin/setsid /usr/bin/prlimit --rttime=unlimited {sleeper} 60 &
        exec {sleeper} 61"
    );
    let ladder = StopLadder::kill_at_once().then(StopAction::Terminate, Duration::from_secs(50));
    let service = lab.builder(script(&agent)).stop_ladder(ladder).open();
    let execution = lab.launch(&service.unwrap()).await;
    until("the tool", || lab.commands().len() == 2).await;
    stop(&execution).await;
    assert_eq!(lab.commands(), [0; 0]);
}

#[tokio::test]
async fn a_tool_with_the_tag_of_another_execution_does_not_end_that_one() {
    let lab = Lab::new();
    let sleeper = lab.sleeper();
    let agent = format!(
        "read tag
        [ $tag = none ] && exec {sleeper} 60
        NORMALIZED_EXECUTION_ID=$tag setsid {sleeper} 61 & exec {sleeper} 62"
    );
    let service = lab.service(script(&agent));
    let other = lab.launch_with(&service, "none").await;
    let copying = lab.launch_with(&service, other.id().as_str()).await;
    until("all programs", || lab.commands().len() == 3).await;
    stop(&copying).await;
    assert_eq!(lab.commands(), [other.process_id()]);
    stop(&other).await;
    assert_eq!(lab.commands(), [0; 0]);
}

/// As the tools of a program of the same specification, which sets an id of its own and no mark.
#[cfg(not(portable_processes))]
#[tokio::test]
async fn a_daemon_with_another_tag_is_stopped() {
    let lab = Lab::new();
    let sleeper = lab.sleeper();
    let agent = format!(
        "(NORMALIZED_EXECUTION_ID=another setsid {sleeper} 60 &)
        (NORMALIZED_EXECUTION_ID= setsid {sleeper} 61 &)
        exec {sleeper} 62"
    );
    let execution = lab.launch(&lab.service(script(&agent))).await;
    until("all programs", || lab.commands().len() == 3).await;
    stop(&execution).await;
    assert_eq!(lab.commands(), [0; 0]);
}
