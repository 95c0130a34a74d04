use std::process::{Command, Stdio};

use serde_json::Value;

use crate::sandbox::{SIGNALS, Sandbox, eventually, names, with_default_signals};

/// The command with an empty workspace.
fn run_agent(sandbox: &Sandbox, arguments: &[&str]) -> Command {
    let _ = std::fs::create_dir(sandbox.home().join("workspace"));
    let mut command = sandbox.example("run_agent");
    command.args(["--workspace", "workspace"]).args(arguments);
    command
}

fn text_of(events: &[Value]) -> String {
    let texts = events.iter().filter(|event| event["event"] == "text");
    texts
        .map(|event| event["text"].as_str().unwrap())
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn a_follow_up_knows_the_earlier_prompt() {
    let sandbox = Sandbox::new();
    let run = |arguments: &[&str]| {
        let mut command = run_agent(&sandbox, &["--json"]);
        sandbox.json_lines(command.args(arguments))
    };
    let first = run(&["Remember the blue door"]);
    let last = first.last().unwrap();
    assert_eq!(last["event"], "finished");
    assert_eq!(last["exit"]["code"], 0);
    let session = last["session_id"].as_str().unwrap();
    let names: Vec<_> = first.iter().map(|event| event["event"].as_str()).collect();
    for expected in ["started", "session", "tool_call", "tool_result", "usage"] {
        assert!(names.contains(&Some(expected)), "{expected} in {names:?}");
    }

    let second = run(&["--follow-up", session, "What did I say?"]);
    assert!(text_of(&second).contains("the first was: Remember the blue door"));
    assert_eq!(second.last().unwrap()["session_id"], session);
}

#[test]
fn all_files_are_in_the_state_folder() {
    let sandbox = Sandbox::new();
    sandbox.ok(&mut run_agent(
        &sandbox,
        &["--state", "state", "Look around"],
    ));
    assert_eq!(
        names(&sandbox.home().join("workspace")),
        Vec::<String>::new()
    );
    assert!(!names(&sandbox.home().join("state")).is_empty());
}

#[test]
fn wrong_input_is_refused_and_starts_nothing() {
    let sandbox = Sandbox::new();
    let mut missing = sandbox.example("run_agent");
    missing.args(["--workspace", "missing", "hello"]);
    sandbox.refuses(&mut missing, 1, &["Workspace path does not exist: "]);
    sandbox.holds(&[]);
    for (arguments, expected) in [
        (
            &["--profile", "nobody"][..],
            "Profile config not found for nobody",
        ),
        (
            &["--profile", "claude"],
            "hint: did you mean claude-code? known profiles: claude-code, codex, ",
        ),
        (&["--profile", "claude-code", "--variant", "plam"], "plan"),
    ] {
        let mut command = run_agent(&sandbox, arguments);
        sandbox.refuses(command.arg("hello"), 1, &[expected]);
    }
}

#[test]
fn a_signal_stops_the_agent_and_its_tool() {
    for signal in SIGNALS {
        let sandbox = Sandbox::new();
        let command = run_agent(&sandbox, &["Wait. [[tool exec tail -f /dev/null]]"]);
        let mut child = with_default_signals(&command)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        eventually("the tool runs", || {
            let mut processes = sandbox.processes().into_iter();
            processes.any(|process| process.contains(": tail -f /dev/null"))
        });
        sandbox.ends_by(&mut child, signal);
        // At once: the program ends after the last process of the agent.
        assert_eq!(sandbox.processes(), Vec::<String>::new());
    }
}

#[test]
fn the_list_shows_which_agents_can_run() {
    let sandbox = Sandbox::new();
    sandbox.install("claude", "echo 2.1.325 '(Claude Code)'");
    sandbox.install("gemini", "exit 3");
    sandbox.install("npx", "exit 0");
    sandbox.install("node", "echo v20.20.2");
    let answer = |needs: &str| format!(r#"{{"version":"1.2.3","engines.node":"{needs}"}}"#);
    let (old, new) = (answer(">=18"), answer(">=22"));
    let npm = format!("case $2 in @openai*) echo '{old}';; *) echo '{new}';; esac");
    sandbox.install("npm", &npm);
    let mut command = run_agent(&sandbox, &["--list"]);
    let list = sandbox.ok(command.env("PATH", sandbox.bin()));
    let line = |label: &str| {
        let mut lines = list.lines().filter(|line| line.starts_with(label));
        lines
            .next()
            .unwrap_or_else(|| panic!("{label} in {list}"))
            .to_owned()
    };
    for (label, expected) in [
        (
            "claude-code",
            "can run: claude 2.1.325 (Claude Code); variants: plan",
        ),
        (
            "gemini",
            "cannot run: gemini --version failed with exit status: 3",
        ),
        (
            "codex",
            "can run: npx @openai/codex@latest 1.2.3 (Node v20.20.2, needs >=18)",
        ),
        (
            "opencode",
            "cannot run: npx opencode-ai@latest 1.2.3 needs Node >=22, and this is v20.20.2",
        ),
        ("cursor", "cannot run: cursor-agent is not on PATH"),
    ] {
        assert!(line(label).contains(expected), "{expected} in {list}");
    }
    assert!(line("scripted").contains("can run"), "{list}");
    assert_eq!(
        names(&sandbox.home().join("workspace")),
        Vec::<String>::new()
    );
}

#[test]
fn an_agent_on_path_is_used() {
    let sandbox = Sandbox::new();
    let result = r#"{"type":"result","subtype":"success","is_error":false,"result":"stand-in"}"#;
    let script = format!("cat >/dev/null\nprintf '%s\\n' '{result}'");
    sandbox.install("claude", &script);
    let arguments = ["--profile", "claude-code", "--json", "Hello"];
    let events = sandbox.json_lines(&mut run_agent(&sandbox, &arguments));
    let outcome = events.iter().find(|event| event["event"] == "outcome");
    assert_eq!(outcome.unwrap()["text"], "stand-in");
}
