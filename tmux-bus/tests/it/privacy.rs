//! Data is never executed, and nothing is left where other users can read it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use tmux_bus::{
    ClusterConfig, ClusterManager, Error, Launch, Message, MessageLogger, MessageType, Refusal,
    SendOptions,
};

use crate::support::{LONG, TestDir, TestServer, builder, eventually, tmux};

/// A program that writes its working folder to a file.
fn print_work_dir(file: &Path) -> Launch {
    let file = file.display();
    Launch::new(format!(
        "pwd > '{file}.new'; mv '{file}.new' '{file}'; exec cat"
    ))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_name_of_a_working_folder_is_used_literally() {
    let server = TestServer::start().await;
    for (i, name) in [
        "#(touch injected)",
        "#{pane_id}",
        "##{pane_id}#",
        "#[x] ##[y]",
        "-c",
        "~",
        "$HOME; x",
        "%1 日本語 \"'",
    ]
    .iter()
    .enumerate()
    {
        let (dir, file) = (server.path(name), server.path(&format!("{i}.txt")));
        fs::create_dir(&dir).unwrap();
        server
            .open_pane(&print_work_dir(&file).work_dir(&dir))
            .await
            .unwrap();
        eventually("it has started", || file.exists());
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            format!("{}\n", dir.canonicalize().unwrap().display())
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_folder_and_invalid_variables_are_refused() {
    let server = TestServer::start().await;
    let cat = || Launch::new("exec cat");
    let error = server
        .open_pane(&cat().work_dir(server.path("nowhere")))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::Io { path, .. } if path.ends_with("nowhere")),
        "{error:?}"
    );
    for launch in [
        cat().env("", "x"),
        cat().env("A=B", "x"),
        cat().env("A", "secret\0x"),
        Launch::new("exec cat\0secret"),
    ] {
        let error = server.open_pane(&launch).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        assert!(!format!("{error:?} {error} {launch:?}").contains("secret"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_variables_reach_the_program_unchanged() {
    let server = TestServer::start().await;
    let file = server.path("value");
    let value = "#(touch injected) #{pane_id} $HOME \"q\" 'x' \\ ; ~\n日本語";
    let launch = Launch::new(format!(
        "printf %s \"$SECRET\" > '{0}.new'; mv '{0}.new' '{0}'; exec cat",
        file.display()
    ));
    server
        .open_pane(&launch.env("SECRET", value))
        .await
        .unwrap();
    eventually("it has started", || file.exists());
    assert_eq!(fs::read_to_string(&file).unwrap(), value);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_of_an_agent_is_not_executed() {
    let dir = TestDir::new();
    let path = dir.path().join("team.yaml");
    let name = "#(touch${IFS}injected)#{pane_id}";
    fs::write(dir.path().join("prompt.txt"), "A OK").unwrap();
    fs::write(
        &path,
        format!(
            "cluster: {{ name: team, session_name: team, work_dir: . }}\nagents:\n  - {{ name: '{name}', role: boss, \
             personality_prompt_path: prompt.txt, marker: A OK, pane_index: 0, timeout_s: 40, command: \"printf '> '; exec cat\" }}\n"
        ),
    )
    .unwrap();
    let config = ClusterConfig::load(&path).unwrap();
    let builder = ClusterManager::builder(config)
        .runtime_dir(dir.path().join("run"))
        .startup_question("a secret");
    assert!(!format!("{builder:?}").contains("secret"));
    drop(builder);
    let cluster = ClusterManager::builder(ClusterConfig::load(&path).unwrap())
        .runtime_dir(dir.path().join("run"))
        .start()
        .await
        .unwrap();
    let title = tmux(
        cluster.socket(),
        &["display-message", "-p", "#{pane_title}"],
    );
    // tmux 3.4 shows `$` in titles as `\$`.
    assert_eq!(title.trim().replace("\\$", "$"), name);
}

/// The terminal driver acts on an interrupt character; it does not know brackets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn special_characters_of_the_terminal_are_refused_also_inside_brackets() {
    let server = TestServer::start().await;
    let launch = Launch::new("stty -icanon -echo min 1; printf '\\033[?2004hready> '; exec cat");
    let pane = server.open_pane(&launch).await.unwrap();
    server.shows(pane, "ready>");
    let io = server.pane_io();
    for byte in [0x03, 0x1c, 0x1a, 0x11, 0x13] {
        let message = format!("a{}b", char::from(byte));
        let error = io.send_message(pane, &message).await.unwrap_err();
        assert!(
            matches!(error, Error::Refused { reason: Refusal::SpecialCharacter { byte: found }, .. } if found == byte),
            "{error:?}"
        );
    }
    // These are not special in this mode.
    drop(io.send_message(pane, "a\u{4}\u{15}\u{7f}b").await.unwrap());
    let anyway = SendOptions::default().allow_unbracketed();
    drop(io.send_message_with(pane, "\u{3}", &anyway).await);
    let id = pane.to_string();
    eventually("it is interrupted", || {
        server
            .tmux(&["display-message", "-p", "-t", &id, "#{pane_dead}"])
            .trim()
            == "1"
    });
}

#[test]
fn a_log_is_created_for_this_user_only() {
    let dir = TestDir::new();
    let path = dir.path().join("logs/messages.jsonl");
    let message = Message::new("a", "b", "a secret");
    let logger = MessageLogger::open(&path).unwrap();
    logger.log(&message, MessageType::Task).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    // The mode of an existing file is not changed.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    logger.log(&message, MessageType::Task).unwrap();
    assert_eq!(mode(&path), 0o640);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_files_of_a_session_are_private_and_removed_with_it() {
    let server = TestServer::start().await;
    let folder = server.socket().parent().unwrap().to_owned();
    let pane = server.open_pane(&Launch::new("exec cat")).await.unwrap();
    drop(server.pane_io().send_message(pane, "hello").await.unwrap());
    let mut found = 0;
    let mut look = vec![folder.clone()];
    while let Some(path) = look.pop() {
        let about = fs::symlink_metadata(&path).unwrap();
        if about.is_dir() {
            assert_eq!(about.permissions().mode() & 0o777, 0o700, "{path:?}");
            look.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else {
            found += 1;
            // tmux shows attached clients in the mode of its socket; the folder is closed.
            let shared = path == server.socket();
            assert!(
                shared || about.permissions().mode() & 0o077 == 0,
                "{path:?}"
            );
        }
    }
    assert!(
        found >= 3,
        "the socket, the lock of the folder and the lock of a pane"
    );
    server.stop(Duration::from_millis(200)).await.unwrap();
    assert!(!folder.exists());
    // Again, although nothing is left.
    server.stop(Duration::from_millis(200)).await.unwrap();
    assert!(!folder.exists());
    let error = server.pane_io().send_message(pane, "x").await.unwrap_err();
    assert!(
        matches!(error, Error::ServerGone { .. } | Error::Refused { .. }),
        "{error:?}"
    );
    assert!(!folder.exists(), "a sender does not create it again");
    let again = builder(server.dir()).start().await.unwrap();
    assert_eq!(again.socket(), server.socket());
    tokio::time::timeout(LONG, again.stop(Duration::from_millis(200)))
        .await
        .unwrap()
        .unwrap();
}
