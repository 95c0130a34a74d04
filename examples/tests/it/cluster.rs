//! The orchestrator: each command is a separate process, as from another terminal.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::sandbox::{SIGNALS, Sandbox, eventually, stderr};

const AGENTS: [&str; 5] = [
    "grand_boss",
    "middle_manager",
    "coding_writing_specialist",
    "research_analysis_specialist",
    "testing_specialist",
];

/// The bundled configuration in a sandbox. Dropping it stops the cluster.
struct Cluster {
    sandbox: Sandbox,
}

impl Cluster {
    fn new() -> Self {
        let sandbox = Sandbox::with_tmux();
        let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
        let config = sandbox.home().join("config");
        std::fs::create_dir_all(config.join("personalities")).unwrap();
        for file in ["cc-cluster.yaml".to_owned()].into_iter().chain(prompts()) {
            std::fs::copy(bundled.join(&file), config.join(&file)).unwrap();
        }
        Self { sandbox }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.example("cluster");
        command.args(["--config", "config/cc-cluster.yaml"]);
        command.args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.sandbox.run(&mut self.command(arguments))
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        self.sandbox.ok(&mut self.command(arguments))
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        self.sandbox.json(self.command(arguments).arg("--json"))
    }

    #[track_caller]
    fn refuses(&self, arguments: &[&str], expected: &[&str]) {
        let mut command = self.command(arguments);
        self.sandbox.refuses(&mut command, 1, expected);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.run(&["stop"]);
    }
}

fn prompts() -> impl Iterator<Item = String> {
    AGENTS
        .iter()
        .map(|name| format!("personalities/{name}.txt"))
}

#[test]
fn a_cluster_works_from_any_terminal_and_leaves_nothing() {
    let cluster = Cluster::new();
    let started = cluster.run(&["start"]);
    assert!(started.status.success(), "{}", stderr(&started));
    let notice = "claude is not on PATH: using the bundled scripted agent";
    assert!(stderr(&started).contains(notice), "{}", stderr(&started));
    cluster.refuses(&["start"], &["is already running"]);
    // Nothing has changed.
    assert!(cluster.ok(&["update"]).contains("idle"));

    let status = cluster.ok(&["status"]);
    for name in AGENTS {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line.contains("idle"), "{status}");
    }
    assert!(status.contains("watch: tmux -S "), "{status}");

    let question = "Who are you?\nSay it in two lines.";
    let answer = cluster.ok(&["ask", "grand_boss", question]);
    // The folders `config` and `logs`.
    let expected = "Done: Who are you?\nThe tool printed: 2\nGRAND BOSS OK\n";
    assert_eq!(answer, expected);

    let said = "[[tool touch heard]] Break this down";
    let sent = cluster.ok(&["send", "grand_boss", "middle_manager", said]);
    assert_eq!(sent, "sent to middle_manager\n");
    eventually("the agent has acted on the message", || {
        cluster.sandbox.home().join("heard").exists()
    });

    let logs = cluster.ok(&["logs"]);
    assert!(
        logs.contains("user → grand_boss (task): Who are you?"),
        "{logs}"
    );
    assert!(
        logs.contains("grand_boss → user (result): Done: Who are you?"),
        "{logs}"
    );
    let passed_on = format!("grand_boss → middle_manager (info): {said}");
    assert!(logs.contains(&passed_on), "{logs}");
    assert!(cluster.sandbox.home().join("logs/messages.jsonl").exists());

    cluster.refuses(&["ask", "nobody", "hi"], &["nobody", "testing_specialist"]);
    cluster.refuses(&["send", "nobody", "grand_boss", "hi"], &["nobody"]);
    assert_eq!(cluster.ok(&["stop"]), "stopped\n");
    cluster.sandbox.nothing_runs();
    cluster.sandbox.holds(&["config", "heard", "logs"]);

    assert_eq!(cluster.ok(&["stop"]), "not running\n");
    cluster.refuses(&["ask", "grand_boss", "hi"], &["is not running", "start"]);
    cluster.refuses(&["status"], &["is not running"]);
    cluster.refuses(&["update"], &["is not running", "start"]);
}

#[test]
fn each_result_is_one_json_object() {
    let cluster = Cluster::new();
    let started = cluster.json(&["--agents", "scripted", "start"]);
    assert_eq!(started["session"], "orchestrator-cc");
    assert_eq!(started["agents"].as_array().unwrap().len(), 5);
    let status = cluster.json(&["status"]);
    assert_eq!(status["agents"][2]["name"], AGENTS[2]);
    assert_eq!(status["agents"][2]["role"], "specialist_coding_writing");
    assert_eq!(status["agents"][2]["alive"], true);

    let question = "[[say Fine.]] How are you?";
    let answer = cluster.json(&["ask", "testing_specialist", question]);
    assert_eq!(answer["answer"], "Fine.\nTESTING OK");
    let logs = cluster.json(&["logs"]);
    let entries = logs["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[0]["from"], "user");
    assert_eq!(entries[0]["content"], question);
    assert_eq!(entries[1]["reply_to"], entries[0]["id"]);

    // The death of an agent during a request is an error for the caller, and is in the log.
    let died = cluster.run(&["ask", AGENTS[2], "[[crash]]"]);
    assert_eq!(died.status.code(), Some(1));
    assert!(stderr(&died).contains("signal 6"), "{}", stderr(&died));
    eventually("the status shows the end", || {
        let status = cluster.json(&["status"]);
        assert_eq!(status["agents"][3]["alive"], true);
        status["agents"][2]["alive"] == false
    });
    let logs = cluster.json(&["logs"]);
    assert_eq!(logs["entries"][3]["type"], "error");

    assert_eq!(cluster.json(&["stop"])["stopped"], true);
    cluster.sandbox.nothing_runs();
}

#[test]
fn claude_is_used_if_it_is_on_path() {
    let cluster = Cluster::new();
    // The stand-in gets its marker from the personality, and shows the input line, as Claude Code does.
    let program = cluster.sandbox.example("cluster");
    let program = program.get_program().to_str().unwrap();
    cluster.sandbox.install(
        "claude",
        &format!(
            "test \"$1\" = --append-system-prompt || exit 9\n\
             marker=$(printf '%s' \"$2\" | sed -n 's/.*contain \"\\(.*\\)\".*/\\1/p')\n\
             exec '{program}' scripted-agent \"--marker=$marker\" '--prompt=❯\u{a0}'"
        ),
    );
    let started = cluster.run(&["start"]);
    assert!(started.status.success(), "{}", stderr(&started));
    assert!(
        !stderr(&started).contains("claude is not"),
        "{}",
        stderr(&started)
    );
    let answer = cluster.ok(&["ask", "coding_writing_specialist", "[[say Hello.]]"]);
    assert_eq!(answer, "Hello.\nCODING OK\n");
    cluster.ok(&["stop"]);
    cluster.sandbox.nothing_runs();
}

#[test]
fn wrong_input_changes_nothing() {
    let cluster = Cluster::new();
    cluster.refuses(&["--agents", "nobody", "start"], &["nobody", "claude-code"]);
    let config = cluster.sandbox.home().join("config/cc-cluster.yaml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("CODING OK", "TESTING OK")).unwrap();
    cluster.refuses(
        &["start"],
        &["cc-cluster.yaml", "line", "TESTING OK", "not unique"],
    );
    cluster.sandbox.nothing_runs();
    cluster.sandbox.holds(&["config"]);
}

#[test]
fn the_bundled_configuration_is_that_of_the_specification() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/cc-cluster.yaml");
    let config = tmux_bus::ClusterConfig::load(path).unwrap();
    let agents = config.agents.iter().map(|a| (&*a.name, &*a.marker));
    let expected = [
        (AGENTS[0], "GRAND BOSS OK"),
        (AGENTS[1], "MIDDLE MANAGER OK"),
        (AGENTS[2], "CODING OK"),
        (AGENTS[3], "RESEARCH OK"),
        (AGENTS[4], "TESTING OK"),
    ];
    assert!(agents.eq(expected));
    // The specification has this typing error in `work_dir`. No other warning means: each prompt
    // file contains its marker.
    assert_eq!(config.warnings, ["work_dir: `.>` is read as `.`"]);
}

#[test]
fn a_start_that_is_interrupted_leaves_no_agents() {
    for signal in SIGNALS {
        let cluster = Cluster::new();
        // The start waits for agents that never show a prompt.
        cluster.sandbox.install("claude", "exec sleep 1000");
        let start = || cluster.command(&["start"]);
        let mut child = cluster.sandbox.start_frozen(start, "sleep 1000");
        cluster.sandbox.ends_by(&mut child, signal);
        cluster.sandbox.nothing_runs();
    }
}
