//! The page over real agents in real tmux panes.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use examples::board::sources::ClusterSource;
use examples::pane_agent::quoted;
use serde_json::{Value, json};
use tmux_bus::{ClusterConfig, ClusterManager, StopOnDrop};

use crate::board::Board;
use crate::client::Client;
use crate::page::{ANSWER, open, stop, write};

const AGENTS: [&str; 2] = ["coder", "tester"];

/// Two scripted agents in panes; their program is the board's.
async fn cluster(folder: &Path) -> StopOnDrop {
    assert!(
        examples::on_path("tmux"),
        "this test needs tmux: `./scripts/setup tmux` installs it"
    );
    let program = quoted(env!("CARGO_BIN_EXE_board"));
    let agents = AGENTS.iter().enumerate().map(|(index, name)| {
        let personality = folder.join(format!("{name}.txt"));
        std::fs::write(&personality, "You are an agent.").unwrap();
        let marker = format!("{} OK", name.to_uppercase());
        let option = quoted(&format!("--marker={marker}"));
        json!({
            "name": name, "role": "specialist", "pane_index": index, "marker": marker,
            "personality_prompt_path": personality,
            "command": format!("exec {program} scripted-agent {option}"),
        })
    });
    let agents: Vec<_> = agents.collect();
    let session = format!("board-{}", std::process::id());
    let config = json!({
        "cluster": {"name": "board-test", "session_name": session, "work_dir": folder},
        "agents": agents,
    });
    let file = folder.join("cluster.yaml");
    std::fs::write(&file, config.to_string()).unwrap();
    let cluster = ClusterManager::builder(ClusterConfig::load(file).unwrap())
        .runtime_dir(folder.join("run"))
        .log_file(folder.join("messages.jsonl"))
        .start()
        .await
        .unwrap();
    cluster.stop_on_drop()
}

/// An agent that asks twice before it answers.
const ASKING: &str = r#"
answer=
while true; do
    printf '\033[2J\033[H%btoy> ' "$answer"
    IFS= read -r line || exit
    for command in first second; do
        printf '\033[2J\033[HRun %s? Enter: yes, Esc: no' "$command"
        IFS= read -rsn1 key
        if [ -z "$key" ]; then echo "$command" >>allowed; else echo "$command" >>denied; fi
    done
    answer='asked twice\nTOY OK\n'
done
"#;

const ASKING_RULES: &str = "
[toy]
commands = ['toy']
input = { line = '^(?P<prefix>toy> )(?P<text>.*)$', next = '^     (?P<text>.*)$' }
[[toy.approval]]
id = 'run'
all = ['^Run .*[?] Enter: yes, Esc: no']
";

/// One agent that is this script.
async fn toy(folder: &Path, script: &str) -> StopOnDrop {
    let write_file = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    write_file("asking.sh", script);
    write_file("prompt.txt", "You ask.");
    let rules = write_file("agents.toml", ASKING_RULES);
    let config = json!({
        "cluster": {"name": "asking", "session_name": "asking", "work_dir": folder},
        "agents": [{
            "name": "asker", "role": "asks", "pane_index": 0, "marker": "TOY OK", "agent": "toy",
            "personality_prompt_path": folder.join("prompt.txt"),
            "command": "exec bash asking.sh",
        }],
    });
    let config = write_file("cluster.yaml", &config.to_string());
    let cluster = ClusterManager::builder(ClusterConfig::load(config).unwrap())
        .runtime_dir(folder.join("run"))
        .log_file(folder.join("messages.jsonl"))
        .agent_definitions(rules)
        .start()
        .await
        .unwrap();
    cluster.stop_on_drop()
}

/// Presses keys in the pane of the toy.
fn press(cluster: &ClusterManager, keys: &[&str]) {
    let pane = cluster.get_pane("asker").unwrap().to_string();
    let mut tmux = Command::new("tmux");
    tmux.arg("-S").arg(cluster.socket());
    tmux.args(["send-keys", "-t", &pane]).args(keys);
    assert!(tmux.status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_an_agent_refuses_waits_for_the_next_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = toy(folder.path(), ASKING).await;
    let board = Board::of(Arc::new(ClusterSource::new(cluster.clone()))).await;
    let tab = open(&board).await;
    tab.shows(".agent[data-agent=asker]", "idle").await;
    // A person has begun to type: nothing is put into the draft.
    press(&cluster, &["-l", "half a line"]);
    tab.click(".agent[data-agent=asker]").await;
    tab.click("#tab-output").await;
    tab.shows("#output pre", "half a line").await;
    tab.click("#tab-messages").await;
    write(&tab, "go").await;
    tab.shows("#failures .class", "not sent").await;
    tab.shows("#queue .sub", "go").await;
    // The person erases the line.
    press(&cluster, &["C-u"]);
    tab.shows("#needs .ask pre", "Run first?").await;
    tab.click("[data-answer=deny]").await;
    tab.shows("#needs .ask pre", "Run second?").await;
    tab.click("[data-answer=deny]").await;
    tab.shows(ANSWER, "asked twice").await;
    tab.until("document.querySelectorAll('#queue li').length === 0")
        .await;
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_are_shown_while_the_log_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = toy(folder.path(), ASKING).await;
    // Other users could write to it: it is refused.
    let log = cluster.logger().path();
    let mode = |mode| std::fs::set_permissions(log, Permissions::from_mode(mode)).unwrap();
    std::fs::write(log, "").unwrap();
    mode(0o666);
    let board = Board::of(Arc::new(ClusterSource::new(cluster.clone()))).await;
    let mut client = Client::open(&board).await;
    client.agent("asker").await;
    mode(0o600);
    client
        .ok(json!({"type": "send", "agent": "asker", "text": "go"}))
        .await;
    deny_both(&mut client).await;
    let state = Client::open(&board).await.state;
    let failures = state["failures"].as_array().unwrap();
    assert_eq!(failures.len(), 1, "{failures:?}");
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_an_error_stops_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = toy(folder.path(), ASKING).await;
    let board = Board::of(Arc::new(ClusterSource::new(cluster.clone()))).await;
    let mut client = Client::open(&board).await;
    client.agent("asker").await;
    // In the place of the file that a sender locks.
    let pane = cluster.get_pane("asker").unwrap().to_string();
    let lock = format!("pane-{}", pane.trim_start_matches('%'));
    std::fs::create_dir(cluster.socket().with_file_name(lock)).unwrap();
    client
        .ok(json!({"type": "send", "agent": "asker", "text": "go"}))
        .await;
    let failure = client.event_when(|event| event["type"] == "failure").await;
    assert_eq!(failure["failure"]["class"], "uncertain", "{failure}");
    cluster.stop().await.unwrap();
}

/// The processes that work in a folder.
fn processes_in(folder: &Path) -> Vec<String> {
    let folder = std::fs::canonicalize(folder).unwrap();
    let processes = Path::new("/proc").read_dir().unwrap().flatten();
    let there = processes.filter(|process| {
        let cwd = process.path().join("cwd").read_link();
        cwd.is_ok_and(|cwd| cwd == folder)
    });
    let lines = there.map(|process| std::fs::read(process.path().join("cmdline")));
    lines
        .flatten()
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_from_the_page_ends_all_processes_of_the_agent() {
    let folder = tempfile::tempdir().unwrap();
    // The agent ignores the end of its terminal, and its tool is in a session of its own.
    let script = format!(
        "trap '' HUP\nsetsid sh -c 'trap \"\" TERM; while :; do sleep 600; done' &\n{ASKING}"
    );
    let cluster = toy(folder.path(), &script).await;
    let board = Board::of(Arc::new(ClusterSource::new(cluster.clone()))).await;
    let tab = open(&board).await;
    tab.shows(".agent[data-agent=asker]", "idle").await;
    let is_ours = |line: &String| line.contains("asking.sh") || line.contains("sleep 600");
    let left = || processes_in(folder.path()).into_iter().filter(is_ours);
    assert!(left().count() >= 3, "{:?}", left().collect::<Vec<_>>());
    tab.click(".agent[data-agent=asker]").await;
    stop(&tab).await;
    tab.shows(".agent[data-agent=asker]", "exited").await;
    let end = Instant::now() + Duration::from_secs(60);
    while left().count() > 0 {
        assert!(Instant::now() < end, "{:?}", left().collect::<Vec<_>>());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_in_a_pane_is_denied_and_allowed_from_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = toy(folder.path(), ASKING).await;
    let board = Board::of(Arc::new(ClusterSource::new(cluster.clone()))).await;
    let tab = open(&board).await;
    tab.shows(".agent[data-agent=asker]", "idle").await;
    tab.click(".agent[data-agent=asker]").await;
    write(&tab, "go").await;
    tab.shows("#needs .ask pre", "Run first?").await;
    tab.shows(".agent[data-agent=asker]", "needs you").await;
    tab.click("[data-answer=deny]").await;
    tab.shows("#needs .ask pre", "Run second?").await;
    tab.click("[data-answer=allow]").await;
    tab.shows(ANSWER, "asked twice").await;
    tab.until("document.querySelectorAll('#needs .ask').length === 0")
        .await;
    for (file, word) in [("denied", "first\n"), ("allowed", "second\n")] {
        let found = std::fs::read_to_string(folder.path().join(file)).unwrap();
        assert_eq!(found, word);
    }
    cluster.stop().await.unwrap();
}

/// Denies the two requests of the toy, and waits for its answer.
async fn deny_both(client: &mut Client) {
    for _ in 0..2 {
        let is_open = |event: &Value| {
            event["type"] == "permission" && event["permission"]["settled"].is_null()
        };
        let id = client.event_when(is_open).await["permission"]["id"].take();
        client
            .ok(json!({"type": "answer", "permission": id, "decision": "deny"}))
            .await;
    }
    client
        .event_when(|event| event["message"]["from"] == "asker")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_started_again_gets_what_waits_and_asks_on_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = toy(folder.path(), ASKING).await;
    let source = ClusterSource::new(cluster.clone());
    let board = Board::of(Arc::new(source.clone())).await;
    let mut client = Client::open(&board).await;
    client.agent("asker").await;
    let go = json!({"type": "send", "agent": "asker", "text": "go"});
    client.ok(go.clone()).await;
    deny_both(&mut client).await;

    let mut tmux = Command::new("tmux");
    tmux.arg("-S").arg(cluster.socket());
    let server = tmux.args(["display-message", "-p", "#{pid}"]).output();
    let server = String::from_utf8(server.unwrap().stdout).unwrap();
    let server = rustix::process::Pid::from_raw(server.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
    client
        .event_when(|event| event["agent"]["state"] == "unknown")
        .await;
    client.ok(go).await;
    let again = toy(folder.path(), ASKING).await;
    source.started_again(again.clone());
    deny_both(&mut client).await;
    again.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_in_a_pane_answers_is_killed_and_comes_back_on_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster(folder.path()).await;
    let board = Board::of(Arc::new(ClusterSource::new(cluster.clone()))).await;
    let tab = open(&board).await;
    tab.shows(".agent[data-agent=coder]", "idle").await;
    tab.shows(".agent[data-agent=tester]", "idle").await;

    tab.click(".agent[data-agent=tester]").await;
    write(&tab, "count [[say three files]]").await;
    tab.shows(ANSWER, "three files").await;
    // A message between two agents, not from the page.
    let coder = cluster.agent("coder").unwrap();
    coder
        .send_to("tester", "between us [[say heard]]")
        .await
        .unwrap();
    tab.shows(".msg .body", "between us").await;
    tab.shows(ANSWER, "heard").await;
    tab.click("#tab-output").await;
    tab.shows("#output pre", "three files").await;
    // A message that an agent has left; no process delivers it here.
    let inbox = cluster.inbox();
    inbox.leave("coder", "tester", "read this later").unwrap();
    tab.shows("#queue b", "coder → tester").await;
    tab.shows("#queue .sub", "read this later").await;
    tab.click("#queue .take-back").await;
    tab.until("document.querySelectorAll('#queue li').length === 0")
        .await;
    assert_eq!(inbox.entries("tester").unwrap().len(), 0);

    let pane = cluster.get_pane("tester").unwrap().to_string();
    let tmux = |arguments: &[&str]| {
        let mut tmux = Command::new("tmux");
        tmux.arg("-S").arg(cluster.socket()).args(arguments);
        String::from_utf8(tmux.output().unwrap().stdout).unwrap()
    };
    let pid = tmux(&["display-message", "-p", "-t", &pane, "#{pane_pid}"]);
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    tab.shows(".agent[data-agent=tester]", "exited").await;
    tab.shows("#failures", "the program has ended").await;
    // A message that waits for a dead agent is delivered when it is back.
    tab.click("#tab-messages").await;
    write(&tab, "after the crash [[say I am back]]").await;
    tab.shows("#queue .sub", "after the crash").await;
    tab.click("[data-act=restart]").await;
    tab.shows(ANSWER, "I am back").await;
    tab.shows(".agent[data-agent=tester]", "idle").await;

    // Stopped and started from the page.
    stop(&tab).await;
    tab.shows(".agent[data-agent=tester]", "exited").await;
    tab.click("[data-act=restart]").await;
    tab.shows(".agent[data-agent=tester]", "idle").await;
    cluster.stop().await.unwrap();
}
