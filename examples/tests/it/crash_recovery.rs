use serde_json::{Value, json};

use crate::program::{example, stderr, stdout};

#[track_caller]
fn check(storage: &str) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("agent");
    let run = |json: bool| {
        let mut command = example("crash_recovery");
        command.args(["--storage", storage, "--dir"]).arg(&dir);
        if json {
            command.arg("--json");
        }
        command.output().unwrap()
    };
    let output = run(true);
    assert!(output.status.success(), "{}", stderr(&output));
    let result: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let tasks = ["fetch the report", "check the numbers", "write the summary"];
    let once = tasks.map(|task| json!({"task": task, "tool_runs": 1}));
    assert_eq!(result["tasks"], json!(once));
    assert_eq!(
        result["replies"],
        json!(tasks.map(|task| format!("done: {task}")))
    );
    assert_eq!(result["crashes"], 2);
    assert_eq!(folder.path().read_dir().unwrap().count(), 1);

    // The folder of an earlier run is not mistaken for a fresh one.
    let again = run(false);
    assert_eq!(again.status.code(), Some(1));
    assert!(
        stderr(&again).contains("holds an earlier run"),
        "{}",
        stderr(&again)
    );
}

#[test]
fn an_agent_in_files_survives_two_kills() {
    check("file");
}

#[test]
fn an_agent_in_sqlite_survives_two_kills() {
    check("sqlite");
}

#[test]
fn an_agent_in_redis_survives_two_kills() {
    check("redis");
}
