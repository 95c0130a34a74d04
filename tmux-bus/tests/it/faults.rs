//! tmux itself: missing, failing, hanging, too old, or used by others.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tmux_bus::{Error, PaneId, Refusal, Server};

use crate::pane_program::{Program, launch};
use crate::support::{TestDir, TestServer, builder, builder_in, eventually, tmux};
use crate::worker::Worker;

/// Processes that are killed while they attach.
const ROUNDS: usize = 100;

fn script(dir: &TestDir, text: &str) -> PathBuf {
    let path = dir.path().join("tmux");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[tokio::test]
async fn missing_failing_and_old_tmux_are_different_errors() {
    let dir = TestDir::new();
    let start = |program: PathBuf| builder(&dir).program(program).start();

    let error = start(dir.path().join("no-tmux")).await.unwrap_err();
    assert!(matches!(error, Error::TmuxMissing { .. }), "{error:?}");
    assert!(error.to_string().contains("install tmux 3.2"), "{error}");

    let error = start(script(&dir, "echo broken >&2; exit 3"))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::TmuxFailed { message, .. } if message == "broken"),
        "{error:?}"
    );

    let error = start(script(&dir, "echo tmux 1.6")).await.unwrap_err();
    assert!(matches!(error, Error::TmuxTooOld { .. }), "{error:?}");
    assert!(error.to_string().contains("tmux 3.2 or newer"), "{error}");
}

/// A part of the test below.
pub fn attach_again_and_again(folder: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        loop {
            // The test itself notices a server that has crashed.
            let _ = builder_in(Path::new(folder)).attach().await;
        }
    });
}

/// tmux up to 3.6 crashes if a client ends while it attaches, or if another one ends meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_are_killed_while_they_attach_do_not_crash_tmux() {
    let server = TestServer::start().await;
    let pid = || server.tmux(&["display-message", "-p", "#{pid}"]);
    let before = pid();
    let part = format!("attach-again {}", server.dir().path().display());
    let mut workers = [(); 4].map(|()| Worker::start(&part));
    for round in 0..ROUNDS {
        // Any moment of an attach, which takes some milliseconds.
        let moment = uuid::Uuid::new_v4().as_u128() % 40;
        tokio::time::sleep(Duration::from_millis(moment as u64)).await;
        workers[round % 4] = Worker::start(&part);
    }
    drop(workers);
    assert_eq!(pid(), before);
}

#[tokio::test]
async fn session_names_that_tmux_would_change_or_misread_are_refused() {
    for name in [
        "my team",
        "a.b",
        "a@b",
        "a/b",
        "a:b",
        "",
        "-a",
        "=a",
        "a\nb",
        "$1",
        "a*",
        &"x".repeat(65),
    ] {
        let error = Server::builder(name).start().await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{name}: {error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_name_begins_with_ours_is_never_touched() {
    let server = TestServer::start().await;
    // Another session on the same server.
    server.tmux(&["new-session", "-d", "-s", "test-longer", "exec sleep 1000"]);
    server.stop(Duration::from_millis(200)).await.unwrap();
    assert_eq!(
        server
            .tmux(&["list-sessions", "-F", "#{session_name}"])
            .trim(),
        "test-longer"
    );
    let error = builder(server.dir()).attach().await.unwrap_err();
    assert!(matches!(error, Error::NotRunning { .. }), "{error:?}");
    server.stop(Duration::from_millis(200)).await.unwrap();
    assert_eq!(
        server
            .tmux(&["list-sessions", "-F", "#{session_name}"])
            .trim(),
        "test-longer"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_start_and_an_attach_without_a_start_are_refused() {
    let dir = TestDir::new();
    let error = builder(&dir).attach().await.unwrap_err();
    assert!(matches!(error, Error::NotRunning { .. }), "{error:?}");
    assert!(
        !dir.path().join("run").exists(),
        "an attach creates nothing"
    );
    let server = TestServer::from(builder(&dir).start().await.unwrap(), dir);
    let error = builder(server.dir()).start().await.unwrap_err();
    assert!(matches!(error, Error::AlreadyRunning { .. }), "{error:?}");
    // The same name with another key is another server.
    let other = builder(server.dir())
        .key("/other/config.yaml")
        .start()
        .await
        .unwrap();
    assert_ne!(other.socket(), server.socket());
    other.stop(Duration::from_millis(200)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_socket_is_private_and_the_user_configuration_is_not_read() {
    let server = TestServer::start().await;
    let folder = server.socket().parent().unwrap();
    assert_eq!(
        fs::metadata(folder).unwrap().permissions().mode() & 0o777,
        0o700
    );
    assert!(server.socket().starts_with(server.dir().path()));
    assert_eq!(
        tmux(
            server.socket(),
            &["display-message", "-p", "#{config_files}"]
        )
        .trim(),
        "/dev/null"
    );
    assert!(
        std::env::var("TMUX").is_err()
            || !std::env::var("TMUX")
                .unwrap()
                .contains(server.socket().to_str().unwrap())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_captured_line_that_looks_like_the_end_of_a_block_does_no_harm() {
    let server = TestServer::start().await;
    let pane = server.open_pane(&launch(Program::Screen)).await.unwrap();
    server.shows(pane, "shortcuts");
    // The screen of a full-screen program is captured for each answer.
    for i in 0..20 {
        let message = format!(
            "say %end 1794795115 {i} 1\\n%error 1 2 1\\n%exit\\n%output %0 x\\nT\\e[0mEST OK {i}"
        );
        let answer = server.ask(pane, &message).await.unwrap();
        assert!(
            answer.ends_with(&format!("%exit\n%output %0 x\nTEST OK {i}")),
            "{answer}"
        );
    }
}

/// Some commands crash or hang tmux 3.3a.
#[test]
fn commands_that_crash_tmux_are_not_used() {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            files += 1;
            let text = fs::read_to_string(&path).unwrap();
            for command in [
                "refresh-client",
                "display-popup",
                "pause-after",
                "wait-for",
                "send-keys",
            ] {
                assert!(!text.contains(command), "{command} in {}", path.display());
            }
        }
    }
    assert!(files > 40, "{files} files were searched");
}

/// At most 512 commands are under way; see the unit tests of the queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_beyond_the_bound_wait_for_a_busy_server() {
    let server = TestServer::start().await;
    let pid = server.tmux(&["display-message", "-p", "#{pid}"]);
    let signal = |name: &str| {
        let killed = Command::new("kill").args([name, pid.trim()]).status();
        assert!(killed.unwrap().success());
    };
    signal("-STOP");
    // A pane that does not exist makes the client list the panes.
    let senders: Vec<_> = (0..1_500)
        .map(|number| {
            let io = server.pane_io();
            let pane = PaneId::new(format!("%{}", 1_000 + number)).unwrap();
            tokio::spawn(async move { io.send_message(pane, "x").await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(senders.iter().all(|sender| !sender.is_finished()));
    signal("-CONT");
    for sender in senders {
        let error = sender.await.unwrap().unwrap_err();
        assert!(
            matches!(
                error,
                Error::Refused {
                    reason: Refusal::NoSuchPane,
                    ..
                }
            ),
            "{error:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panes_keep_their_ids_when_others_are_closed() {
    let server = TestServer::start().await;
    let mut panes = Vec::new();
    for _ in 0..6 {
        panes.push(server.open_pane(&launch(Program::Lines)).await.unwrap());
    }
    for &pane in &panes {
        server.shows(pane, ">");
    }
    server.tmux(&["kill-pane", "-t", &panes[1].to_string()]);
    eventually("it is gone", || {
        !server
            .tmux(&["list-panes", "-F", "#{pane_id}"])
            .lines()
            .any(|id| id == panes[1].to_string())
    });
    for (i, &pane) in panes.iter().enumerate().filter(|(i, _)| *i != 1) {
        let answer = server
            .ask(pane, &format!("say I am {i}\\nT\\e[0mEST OK"))
            .await
            .unwrap();
        assert_eq!(answer, format!("I am {i}\nTEST OK"));
    }
    assert!(server.pane_io().send_message(panes[1], "x").await.is_err());
}
