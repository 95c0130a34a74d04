//! Messages arrive byte for byte, once, and never mixed.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tmux_bus::{Error, PaneId, Refusal, SendOptions, Server};

use crate::pane_program::{MARKER, Program, launch_recording, recorded};
use crate::support::{LONG, TestServer, builder, eventually, literal};
use crate::worker::Worker;

async fn open(server: &TestServer, program: Program, file: &Path) -> PaneId {
    let pane = server
        .open_pane(&launch_recording(program, file))
        .await
        .unwrap();
    server.shows(pane, ">");
    pane
}

#[track_caller]
fn refused(error: &Error, reason: Refusal) {
    assert!(
        matches!(error, Error::Refused { reason: found, .. } if *found == reason),
        "{error:?}"
    );
    assert!(error.is_not_sent());
}

/// Sends a message and waits until the program has received it.
async fn arrives(server: &TestServer, pane: PaneId, file: &Path, message: &str) {
    let before = recorded(file).len();
    drop(server.pane_io().send_message(pane, message).await.unwrap());
    eventually(
        &format!("{:?} arrives", message.chars().take(80).collect::<String>()),
        || recorded(file).len() > before,
    );
    let got = recorded(file).pop().unwrap();
    assert!(
        got == message.as_bytes(),
        "sent {} bytes, got {}: {:?}",
        message.len(),
        got.len(),
        String::from_utf8_lossy(&got[..got.len().min(80)])
    );
}

/// Text of a given length with all characters that are special to shells and tmux.
fn mixed(length: usize) -> String {
    let piece = "日本語 🎌 \"quoted\" 'single' $HOME `x` \\n ~ #{pane_id} %1 ; {a} \t\n";
    let mut text = piece.repeat(length / piece.len() + 1);
    while !text.is_char_boundary(length) || text.len() > length {
        text.pop();
    }
    text + "."
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_text_arrives_byte_for_byte() {
    let server = TestServer::start().await;
    let file = server.path("record");
    let pane = open(&server, Program::Raw, &file).await;
    for message in [
        "silent plain",
        "silent trailing;",
        "silent \\;",
        ";",
        "-leading",
        "--",
        "Enter",
        "C-c",
        "silent \"double\" 'single' `back`",
        "silent $HOME ${PATH} $(id) ~ ~root",
        "silent #{pane_id} #(id) %1 %%",
        "silent two\nlines\n\nand more\n",
        "silent tab\there",
        "silent \x1b[31mred\x1b[0m \x1b]0;t\x07 \x03 \x04 \x15",
        "silent 日本語 🎌 👨‍👩‍👧 e\u{301}",
        "silent \r carriage",
        " silent leading and trailing ",
    ] {
        arrives(&server, pane, &file, message).await;
    }
    for length in [4_000, 4_097, 16_342, 70_000] {
        arrives(&server, pane, &file, &format!("silent {}", mixed(length))).await;
    }
    arrives(&server, pane, &file, &mixed((1 << 20) - 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_that_no_terminal_can_take_is_refused() {
    let server = TestServer::start().await;
    let file = server.path("record");
    let pane = open(&server, Program::Raw, &file).await;
    let io = server.pane_io();
    for (message, reason) in [
        ("", Refusal::Empty),
        ("a\0b", Refusal::Nul),
        ("a\x1b[201~rm -rf", Refusal::PasteEnd),
        (&"x".repeat((1 << 20) + 1), Refusal::TooLong),
    ] {
        refused(&io.send_message(pane, message).await.unwrap_err(), reason);
    }
    refused(
        &io.send_message("%999".parse().unwrap(), "x")
            .await
            .unwrap_err(),
        Refusal::NoSuchPane,
    );
    arrives(&server, pane, &file, "the first to arrive").await;
    assert_eq!(recorded(&file).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_bracketed_paste_newlines_are_refused_unless_allowed() {
    let server = TestServer::start().await;
    let io = server.pane_io();
    for program in [Program::Lines, Program::RawPlain] {
        let file = server.path(&format!("{program:?}"));
        let pane = open(&server, program, &file).await;
        for message in ["two\nlines", "an interrupt \x03", "escape \x1b[A"] {
            refused(
                &io.send_message(pane, message).await.unwrap_err(),
                Refusal::Unbracketed,
            );
        }
        arrives(&server, pane, &file, "one line").await;
        let allowed = SendOptions::default().allow_unbracketed();
        drop(
            io.send_message_with(pane, "silent a\nsilent b", &allowed)
                .await
                .unwrap(),
        );
        // Each newline submits in canonical mode; this raw program takes it for pasted text.
        let expected = if matches!(program, Program::Lines) {
            3
        } else {
            2
        };
        eventually("they arrive", || recorded(&file).len() == expected);
    }
}

/// tmux 3.3 does not tell the mode: the process that has started the program stores it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bracketed_paste_mode_that_is_stored_late_is_waited_for() {
    let server = TestServer::start().await;
    let file = server.path("record");
    let pane = open(&server, Program::Raw, &file).await;
    let target = pane.to_string();
    let stored = [
        "show-options",
        "-pqv",
        "-t",
        &target,
        "@tmux_bus_bracketing",
    ];
    eventually("the mode is stored", || server.tmux(&stored).trim() == "1");
    let store = |mode| {
        server.tmux(&[
            "set-option",
            "-p",
            "-t",
            &target,
            "@tmux_bus_bracketing",
            mode,
        ]);
    };
    store("0");
    let other = builder(server.dir()).attach().await.unwrap();
    let io = other.pane_io();
    let (sent, ()) = tokio::join!(io.send_message(pane, "two\nlines"), async { store("1") });
    drop(sent.unwrap());
    eventually("it arrives", || recorded(&file).len() == 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_too_long_for_a_canonical_terminal_is_refused() {
    let server = TestServer::start().await;
    let file = server.path("record");
    let pane = open(&server, Program::Lines, &file).await;
    let limit = if cfg!(target_os = "linux") {
        4095
    } else {
        1023
    };
    let error = server
        .pane_io()
        .send_message(pane, &"x".repeat(limit + 1))
        .await
        .unwrap_err();
    refused(
        &error,
        Refusal::LineTooLong {
            length: limit + 1,
            limit,
        },
    );
    arrives(&server, pane, &file, &"x".repeat(limit)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pane_in_copy_mode_takes_messages() {
    let server = TestServer::start().await;
    for program in [Program::Lines, Program::Raw] {
        let file = server.path(&format!("{program:?}"));
        let pane = open(&server, program, &file).await;
        server.tmux(&["copy-mode", "-t", &pane.to_string()]);
        arrives(&server, pane, &file, "out of it").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pane_with_input_off_is_refused() {
    let server = TestServer::start().await;
    let file = server.path("record");
    let pane = open(&server, Program::Lines, &file).await;
    server.tmux(&["select-pane", "-d", "-t", &pane.to_string()]);
    refused(
        &server.pane_io().send_message(pane, "x").await.unwrap_err(),
        Refusal::InputOff,
    );
    server.tmux(&["select-pane", "-e", "-t", &pane.to_string()]);
    arrives(&server, pane, &file, "on again").await;
    assert_eq!(recorded(&file).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_pane_is_refused_and_the_server_lives() {
    let server = TestServer::start().await;
    let file = server.path("record");
    let pane = open(&server, Program::Lines, &file).await;
    drop(server.pane_io().send_message(pane, "exit 4").await.unwrap());
    eventually("it ends", || {
        server
            .tmux(&[
                "display-message",
                "-p",
                "-t",
                &pane.to_string(),
                "#{pane_dead}",
            ])
            .trim()
            == "1"
    });
    for _ in 0..5 {
        refused(
            &server.pane_io().send_message(pane, "x").await.unwrap_err(),
            Refusal::Dead,
        );
    }
    // A new client does not know the pane yet; tmux 3.3 crashes on a paste into a dead pane.
    let other = builder(server.dir()).attach().await.unwrap();
    refused(
        &other.pane_io().send_message(pane, "x").await.unwrap_err(),
        Refusal::Dead,
    );
    assert!(server.tmux(&["list-panes"]).contains("dead"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_submit_is_never_swallowed_by_the_paste() {
    let rounds: usize = std::env::var("TMUX_BUS_ROUNDS").map_or(20, |n| n.parse().unwrap());
    let server = TestServer::start().await;
    for program in [Program::Raw, Program::RawPlain, Program::Screen] {
        let file = server.path(&format!("{program:?}"));
        let pane = open(&server, program, &file).await;
        for round in 0..rounds {
            // The message must fit on the screen of that program.
            let length = if matches!(program, Program::Screen) {
                round
            } else {
                round * 17
            };
            let message = format!("message {round} {}", "x".repeat(length));
            server.ask_with(pane, &message, &literal()).await.unwrap();
            assert_eq!(
                recorded(&file).pop().unwrap(),
                message.as_bytes(),
                "{program:?}"
            );
        }
        assert_eq!(recorded(&file).len(), rounds);
    }
}

/// Starts a process that attaches to the server and sends `count` messages `NAME NUMBER yyyy…`. It
/// reads the answers unless the name begins with `silent`.
pub fn start_sender(server: &TestServer, pane: PaneId, name: &str, count: usize) -> Worker {
    let folder = server.path("run");
    Worker::start(&format!("send {} {pane} {name} {count}", folder.display()))
}

/// A part of [`Worker`].
pub fn send_messages(folder: &str, pane: &str, name: &str, count: &str) {
    let pane = PaneId::new(pane).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let server = Server::builder("test").runtime_dir(folder);
        let io = server.attach().await.unwrap().pane_io();
        for number in 0..count.parse().unwrap() {
            let message = format!("{} {}", name.replace('_', " "), filled(number));
            let sent = io.send_message(pane, &message).await.unwrap();
            if !name.starts_with("silent") {
                let answer = io.get_response_with(sent, MARKER, &literal()).await;
                answer.unwrap();
            }
        }
    });
}

fn filled(number: usize) -> String {
    format!("{number} {}", "y".repeat(3_000))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn senders_of_one_process_and_of_several_never_mix() {
    let server = TestServer::start().await;
    let file = server.path("record");
    let pane = open(&server, Program::Raw, &file).await;
    let mut others: Vec<_> = (0..2)
        .map(|i| start_sender(&server, pane, &format!("process{i}"), 8))
        .collect();
    let mut tasks = Vec::new();
    for task in 0..4 {
        let io = server.pane_io();
        tasks.push(tokio::spawn(async move {
            for i in 0..4 {
                let message = format!("task{task} {}", filled(i));
                let sent = io.send_message(pane, &message).await.unwrap();
                let answer = io
                    .get_response_with(sent, MARKER, &literal())
                    .await
                    .unwrap();
                assert_eq!(answer, format!("got {} bytes\nTEST OK", message.len()));
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    for other in &mut others {
        assert!(other.wait().success());
    }
    let got = recorded(&file);
    assert_eq!(got.len(), 4 * 4 + 2 * 8);
    for (sender, count) in [
        ("task0", 4),
        ("task1", 4),
        ("task2", 4),
        ("task3", 4),
        ("process0", 8),
        ("process1", 8),
    ] {
        let own: Vec<_> = got
            .iter()
            .filter(|m| m.starts_with(sender.as_bytes()))
            .collect();
        assert_eq!(own.len(), count, "{sender}");
        for (i, message) in own.iter().enumerate() {
            assert_eq!(
                **message,
                format!("{sender} {}", filled(i)).into_bytes(),
                "in order and whole"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_sender_waits_until_the_answer_is_read() {
    let server = TestServer::start().await;
    let file = server.path("record");
    let pane = open(&server, Program::Lines, &file).await;
    let io = server.pane_io();
    let first = io.send_message(pane, "slow 300").await.unwrap();
    let second = tokio::spawn({
        let io = io.clone();
        async move {
            let sent = io.send_message(pane, "hello").await.unwrap();
            io.get_response(sent, MARKER, LONG).await.unwrap()
        }
    });
    let answer = io.get_response(first, MARKER, LONG).await.unwrap();
    assert_eq!(answer, "slow\nTEST OK");
    assert_eq!(second.await.unwrap(), "got 5 bytes\nTEST OK");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_given_up_in_the_queue_is_not_sent() {
    let server = TestServer::start().await;
    let file = server.path("record");
    let pane = open(&server, Program::Lines, &file).await;
    let io = server.pane_io();
    let first = io.send_message(pane, "silent one").await.unwrap();
    let given_up =
        tokio::time::timeout(Duration::from_millis(50), io.send_message(pane, "two")).await;
    assert!(given_up.is_err());
    drop(first);
    arrives(&server, pane, &file, "three").await;
    assert_eq!(recorded(&file).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_during_the_submit_leaves_the_outcome_unknown() {
    let server = TestServer::start().await;
    let file = server.path("record");
    let pane = open(&server, Program::Lines, &file).await;
    // The first message makes the pane known; the next one needs a single command.
    arrives(&server, pane, &file, "one").await;
    let pid = server
        .tmux(&["display-message", "-p", "#{pid}"])
        .trim()
        .to_owned();
    let signal = |name: &str| {
        assert!(
            Command::new("kill")
                .args([name, &pid])
                .status()
                .unwrap()
                .success()
        );
    };
    signal("-STOP");
    let io = server.pane_io();
    let sending = tokio::spawn(async move { io.send_message(pane, "two").await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!sending.is_finished());
    signal("-KILL");
    let error = sending.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::SubmitUnknown { .. }), "{error:?}");
    assert!(!error.is_not_sent());
}
