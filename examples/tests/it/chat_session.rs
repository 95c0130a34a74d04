use std::process::Command;

use crate::sandbox::{SIGNALS, Sandbox, names};

fn chat(sandbox: &Sandbox, arguments: &[&str]) -> Command {
    let mut command = sandbox.example("chat_session");
    command.args(["--dir", "chat", "--session", "demo", "--limit", "600"]);
    command.args(arguments);
    command
}

#[test]
fn other_processes_continue_a_session_and_a_reset_moves_it_to_long_term_memory() {
    let sandbox = Sandbox::new();
    let json = |arguments: &[&str]| sandbox.json(chat(&sandbox, arguments).arg("--json"));
    // The prompt and four messages for each of twelve turns.
    let first = json(&[]);
    assert_eq!(first["full_history"], 1 + 12 * 4);
    let tokens = first["tokens"].as_u64().unwrap();
    assert!(tokens <= 600, "{tokens}");
    assert!(first["messages_in_view"].as_u64() < first["full_history"].as_u64());
    let summary = first["summary"].as_str().unwrap();
    assert!(summary.starts_with("前文の要約："), "{summary}");

    let second = json(&[]);
    assert_eq!(second["full_history"], 1 + 24 * 4);

    let reset = json(&["--reset"]);
    assert_eq!(reset["offloaded_messages"], 1 + 24 * 4);
    let folder = sandbox.home().join("chat");
    let memory = std::fs::read_to_string(folder.join("memory.jsonl")).unwrap();
    assert!(memory.contains("Question 1:") && memory.contains("Question 24:"));

    assert_eq!(json(&[])["full_history"], 1 + 12 * 4);
    assert_eq!(names(&folder), ["memory.jsonl", "snapshots"]);
    sandbox.holds(&["chat"]);
}

#[test]
fn the_view_is_shown_turn_by_turn() {
    let sandbox = Sandbox::new();
    let text = sandbox.ok(&mut chat(&sandbox, &[]));
    assert!(text.contains("messages trimmed, summarised"), "{text}");
    assert!(
        text.contains("a second process takes the next turns"),
        "{text}"
    );
}

#[test]
fn an_unknown_session_and_an_invalid_name_are_refused() {
    let sandbox = Sandbox::new();
    let mut unknown = chat(&sandbox, &["--reset"]);
    sandbox.refuses(&mut unknown, 1, &["error: ", "session demo does not exist"]);
    let mut invalid = sandbox.example("chat_session");
    invalid.args(["--dir", "chat", "--session", "../evil"]);
    sandbox.refuses(&mut invalid, 2, &["../evil"]);
}

#[test]
fn a_signal_ends_both_processes() {
    for signal in SIGNALS {
        let sandbox = Sandbox::new();
        let mut child = sandbox.start_frozen(|| chat(&sandbox, &["--json"]), "--turns");
        sandbox.ends_by(&mut child, signal);
        sandbox.nothing_runs();
    }
}
