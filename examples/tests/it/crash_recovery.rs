use std::os::unix::fs::MetadataExt;

use serde_json::json;

use crate::sandbox::{SIGNALS, Sandbox};

#[track_caller]
fn check(storage: &str) {
    let sandbox = Sandbox::new();
    let command = || {
        let mut command = sandbox.example("crash_recovery");
        command.args(["--storage", storage, "--dir", "agent"]);
        command
    };
    let result = sandbox.json(command().arg("--json"));
    let tasks = ["fetch the report", "check the numbers", "write the summary"];
    let once = tasks.map(|task| json!({"task": task, "tool_runs": 1}));
    assert_eq!(result["tasks"], json!(once));
    assert_eq!(
        result["replies"],
        json!(tasks.map(|task| format!("done: {task}")))
    );
    assert_eq!(result["crashes"], 2);
    sandbox.nothing_runs();
    sandbox.holds(&["agent"]);
    let log = sandbox.home().join("agent/work.log");
    assert_eq!(log.metadata().unwrap().mode() & 0o777, 0o600);

    // A second run does not continue the first one by mistake.
    sandbox.refuses(&mut command(), 1, &["files of an earlier run"]);
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

#[test]
fn a_signal_ends_the_worker_and_removes_the_folder() {
    for signal in SIGNALS {
        let sandbox = Sandbox::new();
        let command = || {
            let mut command = sandbox.example("crash_recovery");
            command.args(["--storage", "redis"]);
            command
        };
        let mut child = sandbox.start_frozen(command, "--worker");
        sandbox.ends_by(&mut child, signal);
        sandbox.nothing_runs();
        sandbox.holds(&[]);
    }
}
