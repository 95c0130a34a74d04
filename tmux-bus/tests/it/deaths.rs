//! What ends is noticed, and ending never hangs.

use std::time::{Duration, Instant};

use tmux_bus::{Error, Exit, PaneId, ResponseOptions};

use crate::{
    programs::{self, MARKER, Program, launch},
    support::{LONG, TestServer, builder, eventually},
};

async fn open(server: &TestServer, program: Program) -> PaneId {
    let pane = server.open_pane(&launch(program)).await.unwrap();
    server.shows(pane, ">");
    pane
}

/// Asks what is only half answered, and returns the error that comes when `end` was done.
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
        .expect("the end is noticed")
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
    // The whole group of the pane's process, so that nobody is left to report it.
    let pane = open(&server, Program::Lines).await;
    let error = interrupted(&server, pane, "say h\\e[0malf", "half", || {
        let pid = server.tmux(&["display-message", "-p", "-t", &id(pane), "#{pane_pid}"]);
        assert!(
            std::process::Command::new("kill")
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
            std::process::Command::new("kill")
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
        .expect("it does not hang")
        .unwrap();
    assert!(!alive(pid), "the pane's process is gone");
    assert!(
        !std::process::Command::new("tmux")
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
async fn dropping_the_client_while_a_pane_floods_leaves_the_server_well() {
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
async fn a_host_that_is_killed_while_a_pane_floods_leaves_the_server_well() {
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
        let mut host =
            programs::start_sender(server.dir(), second, &format!("silent host{i}"), 1_000_000);
        server.shows(second, &format!("host{i} 3"));
        host.kill().unwrap();
        host.wait().unwrap();
        // The turn that it held is free again, and its half message, if any, is not ours.
        assert!(server.tmux(&["list-sessions"]).contains("test"));
    }
    let sent = tokio::time::timeout(LONG, server.pane_io().send_message(second, "hello"))
        .await
        .expect("the turn is free")
        .unwrap();
    server
        .pane_io()
        .get_response(sent, MARKER, LONG)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_in_sessions_of_their_own_are_ended_too() {
    // Whether their parent still lives, has ended, or the client of this process is gone.
    for case in ["alive", "ended", "client"] {
        let server = TestServer::start().await;
        let pane = open(&server, Program::Lines).await;
        let file = server.path("pid");
        let command = format!(
            "run setsid sh -c 'echo $$ > {}; exec sleep 1000' </dev/null >/dev/null 2>&1 &",
            file.display()
        );
        server.ask(pane, &command).await.unwrap();
        eventually("it runs", || {
            std::fs::read_to_string(&file).is_ok_and(|pid| pid.ends_with('\n'))
        });
        let pid: i32 = std::fs::read_to_string(&file)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        assert!(alive(pid));
        match case {
            "ended" => {
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

fn alive(pid: i32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !state.is_empty() && !state.rsplit(')').next().unwrap().trim().starts_with('Z')
}

/// The time itself is for the benches; here only that it is an event and not the next poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_is_noticed_long_before_the_wrapper_leaves() {
    let server = TestServer::start().await;
    let pane = open(&server, Program::Lines).await;
    let io = server.pane_io();
    let start = Instant::now();
    let sent = io.send_message(pane, "exit 0").await.unwrap();
    io.get_response(sent, MARKER, LONG).await.unwrap_err();
    assert!(start.elapsed() < LONG);
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
