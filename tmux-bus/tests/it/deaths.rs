//! Exits are noticed, and stopping never hangs.

use std::fs;
use std::process::Command;
use std::time::Duration;

use tmux_bus::{Error, Exit, Launch, PaneId, ResponseOptions};

use crate::pane_program::{MARKER, Program, launch};
use crate::sends::start_sender;
use crate::support::{LONG, TestServer, builder, eventually};

async fn open(server: &TestServer, program: Program) -> PaneId {
    let pane = server.open_pane(&launch(program)).await.unwrap();
    server.shows(pane, ">");
    pane
}

/// Asks for half an answer and returns the error that follows `end`.
async fn interrupted(
    server: &TestServer,
    pane: PaneId,
    message: &str,
    shown: &str,
    end: impl FnOnce(),
) -> Error {
    let io = server.pane_io();
    let sent = io.send_message(pane, message).await.unwrap();
    let waiting = tokio::spawn(async move {
        io.get_response_with(sent, MARKER, &ResponseOptions::default().timeout(LONG))
            .await
    });
    server.shows(pane, shown);
    end();
    let error = tokio::time::timeout(LONG / 2, waiting)
        .await
        .expect("the exit is noticed")
        .unwrap()
        .unwrap_err();
    assert_eq!(error.partial(), Some("half"), "{error:?}");
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_ends_is_reported_with_its_status_and_the_partial_answer() {
    let server = TestServer::start().await;
    let pane = open(&server, Program::Lines).await;
    let io = server.pane_io();
    let sent = io.send_message(pane, "exit 7").await.unwrap();
    let error = io.get_response(sent, MARKER, LONG).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::PaneDied {
                exit: Exit::Status(7),
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_program_a_killed_pane_and_a_killed_session_are_noticed() {
    let server = TestServer::start().await;
    let id = |pane: PaneId| pane.to_string();
    // The wrapper too, so that no process is left to report the exit.
    let pane = open(&server, Program::Lines).await;
    let error = interrupted(&server, pane, "say h\\e[0malf", "half", || {
        let pid = server.tmux(&["display-message", "-p", "-t", &id(pane), "#{pane_pid}"]);
        assert!(
            Command::new("kill")
                .args(["-KILL", "--", pid.trim()])
                .status()
                .unwrap()
                .success()
        );
    })
    .await;
    assert!(
        matches!(
            error,
            Error::PaneDied {
                exit: Exit::Signal(9) | Exit::Unknown,
                ..
            }
        ),
        "{error:?}"
    );

    let pane = open(&server, Program::Lines).await;
    let error = interrupted(&server, pane, "say h\\e[0malf", "half", || {
        server.tmux(&["kill-pane", "-t", &id(pane)]);
    })
    .await;
    assert!(matches!(error, Error::PaneDied { .. }), "{error:?}");

    let pane = open(&server, Program::Lines).await;
    let error = interrupted(&server, pane, "say h\\e[0malf", "half", || {
        server.tmux(&["kill-session", "-t", "=test"]);
    })
    .await;
    assert!(
        matches!(error, Error::ServerGone { .. } | Error::PaneDied { .. }),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_is_noticed() {
    let server = TestServer::start().await;
    let pane = open(&server, Program::Lines).await;
    let error = interrupted(&server, pane, "say h\\e[0malf", "half", || {
        let pid = server.tmux(&["display-message", "-p", "#{pid}"]);
        assert!(
            Command::new("kill")
                .args(["-KILL", pid.trim()])
                .status()
                .unwrap()
                .success()
        );
    })
    .await;
    assert!(matches!(error, Error::ServerGone { .. }), "{error:?}");
    let error = server.pane_io().send_message(pane, "x").await.unwrap_err();
    assert!(
        matches!(error, Error::ServerGone { .. } | Error::Refused { .. }),
        "{error:?}"
    );
}

/// A tool in a session of its own gets no SIGHUP from the terminal.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_after_a_crash_of_tmux_ends_the_processes_of_the_panes() {
    let server = TestServer::start().await;
    let file = server.path("pid");
    let tool = format!(
        "setsid sh -c 'echo $$ >\"$0.part\"; mv \"$0.part\" \"$0\"; exec sleep 1000' '{}' & exec cat",
        file.display()
    );
    server.open_pane(&Launch::new(tool)).await.unwrap();
    eventually("the tool runs", || file.exists());
    let tool = fs::read_to_string(file).unwrap();
    let tmux = server.tmux(&["display-message", "-p", "#{pid}"]);
    let killed = Command::new("kill").args(["-KILL", tmux.trim()]).status();
    assert!(killed.unwrap().success());
    assert!(crate::support::is_running(tool.trim()));
    server.stop(Duration::from_secs(1)).await.unwrap();
    assert!(!crate::support::is_running(tool.trim()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_grace_is_no_error() {
    let server = TestServer::start().await;
    server.open_pane(&Launch::new("exec cat")).await.unwrap();
    server.stop(Duration::MAX).await.unwrap();
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_while_a_pane_floods_does_not_hang_and_leaves_no_process() {
    let server = TestServer::start().await;
    let pane = open(&server, Program::Lines).await;
    drop(
        server
            .pane_io()
            .send_message(pane, "forever")
            .await
            .unwrap(),
    );
    server.shows(pane, "0123456789");
    let pid: i32 = server
        .tmux(&[
            "display-message",
            "-p",
            "-t",
            &pane.to_string(),
            "#{pane_pid}",
        ])
        .trim()
        .parse()
        .unwrap();
    tokio::time::timeout(LONG, server.stop(Duration::from_secs(1)))
        .await
        .expect("the stop does not hang")
        .unwrap();
    assert!(!alive(pid), "the process of the pane is gone");
    assert!(
        !Command::new("tmux")
            .arg("-S")
            .arg(server.socket())
            .arg("has-session")
            .output()
            .unwrap()
            .status
            .success()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_client_while_a_pane_floods_does_not_hang_the_server() {
    let server = TestServer::start().await;
    let pane = open(&server, Program::Lines).await;
    drop(
        server
            .pane_io()
            .send_message(pane, "forever")
            .await
            .unwrap(),
    );
    server.shows(pane, "0123456789");
    for _ in 0..3 {
        let other = builder(server.dir()).attach().await.unwrap();
        assert_eq!(other.session(), "test");
        drop(other);
        assert!(server.tmux(&["list-sessions"]).contains("test"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_client_process_while_a_pane_floods_does_not_hang_the_server() {
    let server = TestServer::start().await;
    let pane = open(&server, Program::Lines).await;
    let second = open(&server, Program::Lines).await;
    drop(
        server
            .pane_io()
            .send_message(pane, "forever")
            .await
            .unwrap(),
    );
    for i in 0..3 {
        let mut host = start_sender(&server, second, &format!("silent_host{i}"), 1_000_000);
        server.shows(second, &format!("host{i} 3"));
        host.kill();
        assert!(server.tmux(&["list-sessions"]).contains("test"));
    }
    let sent = tokio::time::timeout(LONG, server.pane_io().send_message(second, "hello"))
        .await
        .expect("the lock of the pane is free")
        .unwrap();
    server
        .pane_io()
        .get_response(sent, MARKER, LONG)
        .await
        .unwrap();
}

/// Whether the process and its descendants have a mark: a limit that is not the default.
#[cfg(target_os = "linux")]
fn is_marked(pid: &str) -> bool {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
    let limit = limits
        .lines()
        .find(|line| line.starts_with("Max realtime timeout"));
    let has_mark = limit.is_some_and(|line| line.split_whitespace().nth(3) != Some("unlimited"));
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    has_mark && children.is_ok_and(|pids| pids.split_whitespace().all(is_marked))
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_in_sessions_of_their_own_are_ended_too() {
    // Their parent is alive or has ended, the client of this process is gone, or the environment
    // is cleared and the parent has ended.
    for case in ["alive", "ended", "client", "cleared"] {
        let server = TestServer::start().await;
        let pane = open(&server, Program::Lines).await;
        let file = server.path("pid");
        let (cleared, path) = match case {
            "cleared" => ("env -i", "PATH=/usr/bin:/bin"),
            _ => ("env", ""),
        };
        let command = format!(
            "run {cleared} {path} setsid sh -c 'echo $$ > {}; exec sleep 1000' </dev/null >/dev/null 2>&1 &",
            file.display()
        );
        if case == "cleared" {
            // The processes of a pane get their mark right after their start, not at their start.
            let id = pane.to_string();
            let wrapper = server.tmux(&["display-message", "-p", "-t", &id, "#{pane_pid}"]);
            eventually("all processes are marked", || is_marked(wrapper.trim()));
        }
        server.ask(pane, &command).await.unwrap();
        eventually("it runs", || {
            fs::read_to_string(&file).is_ok_and(|pid| pid.ends_with('\n'))
        });
        let pid: i32 = fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        assert!(alive(pid));
        match case {
            "ended" | "cleared" => {
                drop(server.pane_io().send_message(pane, "exit 0").await.unwrap());
                let id = pane.to_string();
                let dead = ["display-message", "-p", "-t", &id, "#{pane_dead}"];
                eventually("it ends", || server.tmux(&dead).trim() == "1");
            }
            "client" => {
                server.tmux(&["detach-client", "-s", "=test"]);
            }
            _ => {}
        }
        server.stop(Duration::from_secs(2)).await.unwrap();
        assert!(!alive(pid), "{case}");
    }
}

/// In Python, because a shell has no threads.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_main_thread_has_ended_is_ended_too() {
    let python = Command::new("python3").arg("--version").output();
    let has_python = python.is_ok_and(|output| output.status.success());
    if !has_python {
        return;
    }
    let server = TestServer::start().await;
    let file = server.path("pid");
    let script = server.path("threads.py");
    // The main thread ends; the other one continues and ignores SIGTERM.
    let code = format!(
        "import ctypes, os, signal, threading, time\n\
         signal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
         threading.Thread(target=time.sleep, args=(1000,)).start()\n\
         open('{0}.new', 'w').write(str(os.getpid()))\n\
         os.rename('{0}.new', '{0}')\n\
         ctypes.CDLL(None).pthread_exit(None)\n",
        file.display()
    );
    fs::write(&script, code).unwrap();
    let launch = Launch::new(format!("exec python3 '{}'", script.display()));
    server.open_pane(&launch).await.unwrap();
    eventually("it runs", || file.exists());
    let pid: i32 = fs::read_to_string(&file).unwrap().parse().unwrap();
    let stat = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    eventually("the main thread is a zombie", || stat().contains(") Z "));
    assert!(alive(pid), "its other thread runs: {}", stat());
    server.stop(Duration::from_millis(200)).await.unwrap();
    assert!(!alive(pid), "{}", stat());
}

/// Whether any thread of the process runs.
#[cfg(target_os = "linux")]
fn alive(pid: i32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    tasks.into_iter().flatten().any(|task| {
        let path = task.unwrap().path().join("stat");
        let stat = fs::read_to_string(path).unwrap_or_default();
        let state = stat.rsplit(')').next().unwrap().trim();
        !state.is_empty() && !state.starts_with(['Z', 'X'])
    })
}

/// The time is measured by the benches; this test shows that the exit is noticed by an event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exit_is_noticed_before_the_pane_is_closed() {
    let server = TestServer::start().await;
    let pane = open(&server, Program::Lines).await;
    let io = server.pane_io();
    let sent = io.send_message(pane, "exit 0").await.unwrap();
    let error = io.get_response(sent, MARKER, LONG).await.unwrap_err();
    assert!(matches!(error, Error::PaneDied { .. }), "{error:?}");
    assert_eq!(
        server
            .tmux(&[
                "display-message",
                "-p",
                "-t",
                &pane.to_string(),
                "#{pane_id}"
            ])
            .trim(),
        pane.to_string()
    );
}
