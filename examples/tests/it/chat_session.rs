use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::program::{example, stderr, stdout};

fn chat(dir: &Path) -> Command {
    let mut command = example("chat_session");
    command.arg("--dir").arg(dir);
    command.args(["--session", "demo", "--limit", "600"]);
    command
}

fn json(command: &mut Command) -> Value {
    let output = command.arg("--json").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

#[test]
fn a_session_goes_on_in_other_processes_and_ends_in_long_term_memory() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("chat");
    // The prompt and four messages for each of twelve turns.
    let first = json(&mut chat(&dir));
    assert_eq!(first["full_history"], 1 + 12 * 4);
    let tokens = first["tokens"].as_u64().unwrap();
    assert!(tokens <= 600, "{tokens}");
    assert!(first["messages_in_view"].as_u64() < first["full_history"].as_u64());
    let summary = first["summary"].as_str().unwrap();
    assert!(summary.starts_with("前文の要約："), "{summary}");

    let second = json(&mut chat(&dir));
    assert_eq!(second["full_history"], 1 + 24 * 4);

    let reset = json(chat(&dir).arg("--reset"));
    assert_eq!(reset["offloaded_messages"], 1 + 24 * 4);
    let memory = std::fs::read_to_string(dir.join("memory.jsonl")).unwrap();
    assert!(memory.contains("Question 1:") && memory.contains("Question 24:"));

    assert_eq!(json(&mut chat(&dir))["full_history"], 1 + 12 * 4);
    let mut names: Vec<_> = dir
        .read_dir()
        .unwrap()
        .flatten()
        .map(|e| e.file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["memory.jsonl", "snapshots"]);
    assert_eq!(folder.path().read_dir().unwrap().count(), 1);
}

#[test]
fn the_window_is_shown_turn_by_turn() {
    let folder = tempfile::tempdir().unwrap();
    let output = chat(folder.path()).output().unwrap();
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(text.contains("left the window, summarised"), "{text}");
    assert!(text.contains("taken by another process"), "{text}");
}

#[test]
fn a_reset_of_nothing_and_a_bad_name_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let output = chat(folder.path()).arg("--reset").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("no session demo"),
        "{}",
        stderr(&output)
    );
    let output = example("chat_session")
        .arg("--dir")
        .arg(folder.path())
        .args(["--session", "../evil"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}
