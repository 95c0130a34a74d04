//! The program `board`.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use agent_snapshot::{AgentId, AgentState, open_storage};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use timed_store::{SessionId, TimedStorage};
use tmux_bus::{ClusterConfig, ClusterManager, StopOnDrop};

use crate::client::Client;

/// Starts the program; `runtime_dir` is where it looks for clusters.
fn board(runtime_dir: &Path, arguments: &[&str]) -> Child {
    // A shell ignores INT in background jobs, nohup ignores HUP, and children inherit that.
    Command::new("/usr/bin/env")
        .args(["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_board")])
        .args(arguments)
        .env("XDG_RUNTIME_DIR", runtime_dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A board that runs. Dropping it ends the program.
struct RunningBoard {
    child: Child,
    address: String,
}

impl Drop for RunningBoard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl RunningBoard {
    fn start(runtime_dir: &Path, arguments: &[&str]) -> Self {
        let mut child = board(runtime_dir, arguments);
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        if line.is_empty() {
            let mut told = String::new();
            let mut stderr = child.stderr.take().unwrap();
            stderr.read_to_string(&mut told).unwrap();
            panic!("the board ended: {told}");
        }
        let line: Value = serde_json::from_str(&line).unwrap();
        let address = line["address"].as_str().unwrap().to_owned();
        Self { child, address }
    }

    /// Waits until the board has an object, of any kind.
    async fn shows(&self, wanted: impl Fn(&Value) -> bool) {
        let (site, token) = self.address.split_once("/#token=").unwrap();
        let socket = site.strip_prefix("http://").unwrap().parse().unwrap();
        let mut client = Client::open_at(socket, token, json!({})).await;
        if !has(&client.state, &wanted) {
            client.event_when(|event| has(event, &wanted)).await;
        }
    }
}

fn has(value: &Value, wanted: &impl Fn(&Value) -> bool) -> bool {
    let inside = match value {
        Value::Array(list) => list.iter().any(|value| has(value, wanted)),
        Value::Object(map) => map.values().any(|value| has(value, wanted)),
        _ => false,
    };
    inside || wanted(value)
}

/// Makes the folder of a crew with one role, which a worker holds, and starts its cluster.
async fn crew(folder: &Path, runtime_dir: &Path) -> StopOnDrop {
    assert!(
        examples::on_path("tmux"),
        "this test needs tmux: `./scripts/setup tmux` installs it"
    );
    fs::create_dir(folder).unwrap();
    fs::create_dir(runtime_dir).unwrap();
    let crew = json!({"id": "crew-1", "file": {"storage": "file"}, "redis": null});
    fs::write(folder.join("crew.json"), crew.to_string()).unwrap();
    fs::create_dir(folder.join("config")).unwrap();
    fs::create_dir(folder.join("workspace")).unwrap();
    fs::write(folder.join("coder.txt"), "CODER OK").unwrap();
    let config = json!({
        "cluster": {"name": "crew-1", "session_name": "crew-1", "work_dir": "workspace"},
        "agents": [{
            "name": "coder", "role": "coder", "marker": "CODER OK", "pane_index": 0, "timeout_s": 40,
            "personality_prompt_path": "coder.txt",
            "command": "while printf '> '; read -r x; do echo CODER OK; done",
        }],
    });
    let path = folder.join("config/cluster.yaml");
    fs::write(&path, config.to_string()).unwrap();
    let cluster = ClusterManager::builder(ClusterConfig::load(path).unwrap())
        .runtime_dir(runtime_dir.join("tmux-bus"))
        .start()
        .await
        .unwrap()
        .stop_on_drop();
    let user = cluster.outsider("user");
    user.send_to("coder", "Are you there?").await.unwrap();
    let roles = TimedStorage::<String>::builder(folder.join("roles.json"));
    let roles = roles.session(SessionId::new("coder@host-1").unwrap());
    let held = roles.open().unwrap().claim("coder".to_owned()).await;
    held.unwrap().granted().unwrap();
    let states = format!("file:{}", folder.join("snapshots").display());
    let states = open_storage(&states).await.unwrap();
    let id = AgentId::new("crew-1.coder").unwrap();
    let (mut state, _) = AgentState::hydrate(states, id).await.unwrap();
    state.begin_tick().unwrap().commit().await.unwrap();
    cluster
}

#[tokio::test(flavor = "multi_thread")]
async fn the_folder_of_a_crew_shows_its_panes_messages_roles_and_states() {
    let folder = tempfile::tempdir().unwrap();
    let (crew_folder, runtime_dir) = (folder.path().join("crew"), folder.path().join("run"));
    let cluster = crew(&crew_folder, &runtime_dir).await;
    let arguments = ["--crew", crew_folder.to_str().unwrap(), "--json"];
    let board = RunningBoard::start(&runtime_dir, &arguments);
    board
        .shows(|agent| agent["id"] == "coder" && agent["state"] == "idle")
        .await;
    board
        .shows(|message| message["text"] == "Are you there?")
        .await;
    board
        .shows(|claim| claim["session"] == "coder@host-1")
        .await;
    board
        .shows(|snapshot| snapshot["agent"] == "coder" && snapshot["tick"] == 1)
        .await;
    drop(board);

    // Without its panes the rest can still be seen.
    cluster.stop().await.unwrap();
    let board = RunningBoard::start(&runtime_dir, &arguments);
    board
        .shows(|claim| claim["session"] == "coder@host-1")
        .await;
}

/// Its log is where the process that started it has put it, not in the folder in which the agents work.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_works_in_another_folder_is_shown_with_its_messages() {
    let folder = tempfile::tempdir().unwrap();
    let runtime_dir = folder.path().join("run");
    let cluster = crew(&folder.path().join("crew"), &runtime_dir).await;
    let config = cluster.config().path.clone();
    let arguments = ["--cluster", config.to_str().unwrap(), "--json"];
    let board = RunningBoard::start(&runtime_dir, &arguments);
    board
        .shows(|message| message["text"] == "Are you there?")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_stores_of_one_name_are_both_shown() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for session in ["one", "two"] {
        let file = folder.path().join(session).join("roles.json");
        fs::create_dir(file.parent().unwrap()).unwrap();
        let store = TimedStorage::<String>::builder(&file);
        let store = store.session(SessionId::new(session).unwrap());
        let held = store.open().unwrap().claim("coder".to_owned()).await;
        held.unwrap().granted().unwrap();
        files.push((session, file.into_os_string().into_string().unwrap()));
    }
    let arguments = ["--claims", &*files[0].1, "--claims", &*files[1].1, "--json"];
    let board = RunningBoard::start(folder.path(), &arguments);
    for (session, file) in &files {
        let is_shown = |claim: &Value| claim["session"] == *session && claim["store"] == **file;
        board.shows(is_shown).await;
    }
}

#[test]
fn one_command_prints_the_address_with_its_token_and_a_signal_ends_it() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut board = RunningBoard::start(&std::env::temp_dir(), &["--demo", "--json"]);
        let (site, token) = board.address.split_once("/#token=").unwrap();
        assert!(site.starts_with("http://127.0.0.1:"), "{}", board.address);
        assert_eq!(token.len(), 64);
        kill_process(Pid::from_child(&board.child), signal).unwrap();
        let code = board.child.wait().unwrap().code();
        assert_eq!(code, Some(128 + signal.as_raw()), "{signal:?}");
    }
}

#[test]
fn what_cannot_be_followed_or_listened_on_is_refused_with_a_reason() {
    let cases: [(&[&str], &str); 5] = [
        (&[], "nothing to follow: give at least one of --demo"),
        (
            &["--demo", "--listen", "0.0.0.0:0"],
            "other machines reach it",
        ),
        (
            &["--crew", "/nonexistent"],
            "is not the folder of a crew: no crew.json",
        ),
        (&["--live", "no-such-agent"], "no-such-agent"),
        (
            &["--live", "scripted", "--live", "codex=scripted"],
            "two live sessions have the name `scripted`",
        ),
    ];
    for (arguments, expected) in cases {
        let mut child = board(&std::env::temp_dir(), arguments);
        let mut told = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut told)
            .unwrap();
        assert_eq!(
            child.wait().unwrap().code(),
            Some(1),
            "{arguments:?}: {told}"
        );
        assert!(told.contains(expected), "{arguments:?}: {told}");
    }
}
