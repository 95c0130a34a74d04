use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::program::{example, stderr, stdout};

fn run_agent(workspace: &Path) -> Command {
    let mut command = example("run_agent");
    command.arg("--workspace").arg(workspace);
    // No agent that happens to be installed here may run.
    command.env("PATH", "/usr/bin:/bin");
    command
}

fn json_lines(command: &mut Command) -> Vec<Value> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let lines = stdout(&output);
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect()
}

fn text_of(events: &[Value]) -> String {
    let texts = events.iter().filter(|event| event["event"] == "text");
    texts
        .map(|event| event["text"].as_str().unwrap())
        .collect::<Vec<_>>()
        .join("\n")
}

/// Whether any process has `tag` in its command line.
fn is_running(tag: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap();
    processes.flatten().any(|process| {
        std::fs::read(process.path().join("cmdline")).is_ok_and(|line| {
            line.windows(tag.len())
                .any(|window| window == tag.as_bytes())
        })
    })
}

#[track_caller]
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_follow_up_remembers_what_was_said() {
    let workspace = tempfile::tempdir().unwrap();
    let first = json_lines(run_agent(workspace.path()).args(["--json", "Remember the blue door"]));
    let last = first.last().unwrap();
    assert_eq!(last["event"], "finished");
    assert_eq!(last["exit"]["code"], 0);
    let session = last["session_id"].as_str().unwrap();
    let names: Vec<_> = first.iter().map(|event| event["event"].as_str()).collect();
    for expected in ["started", "session", "tool_call", "tool_result", "usage"] {
        assert!(names.contains(&Some(expected)), "{expected} in {names:?}");
    }

    let second = json_lines(run_agent(workspace.path()).args([
        "--json",
        "--follow-up",
        session,
        "What did I say?",
    ]));
    assert!(text_of(&second).contains("the first was: Remember the blue door"));
    assert_eq!(second.last().unwrap()["session_id"], session);
}

#[test]
fn what_is_written_stays_in_the_state_folder() {
    let (workspace, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let output = run_agent(workspace.path())
        .arg("--state")
        .arg(state.path())
        .arg("Look around")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(workspace.path().read_dir().unwrap().count(), 0);
    assert!(state.path().read_dir().unwrap().count() > 0);
}

#[test]
fn bad_input_is_refused_and_starts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    for (mut command, expected) in [
        (run_agent(&missing), "Workspace path does not exist: "),
        (
            {
                let mut command = run_agent(folder.path());
                command.args(["--profile", "nobody"]);
                command
            },
            "Profile config not found for nobody",
        ),
        (
            {
                let mut command = run_agent(folder.path());
                command.args(["--profile", "claude-code", "--variant", "plam"]);
                command
            },
            "plan",
        ),
    ] {
        let output = command.arg("hello").output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
    assert!(!missing.exists());
}

#[test]
fn ctrl_c_stops_the_agent_and_its_tool() {
    let workspace = tempfile::tempdir().unwrap();
    // Unlike anything else that runs here, and in the tool's own session.
    let tag = format!("tail -f /dev/null {}", workspace.path().display());
    let child = run_agent(workspace.path())
        .arg(format!("Wait. [[tool exec {tag}]]"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut child = Killed(child);
    let tail = format!("/dev/null\0{}", workspace.path().display());
    eventually("the tool runs", || is_running(&tail));
    let pid = rustix::process::Pid::from_child(&child.0);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = child.0.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert!(!is_running(&tail), "the tool is left behind");
}

#[test]
fn the_list_says_what_can_run_here() {
    let (workspace, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::os::unix::fs::symlink("/bin/true", programs.path().join("claude")).unwrap();
    let output = example("run_agent")
        .arg("--list")
        .arg("--workspace")
        .arg(workspace.path())
        .env("PATH", programs.path())
        .output()
        .unwrap();
    let list = stdout(&output);
    let line = |label: &str| {
        let mut lines = list.lines().filter(|line| line.starts_with(label));
        lines
            .next()
            .unwrap_or_else(|| panic!("{label} in {list}"))
            .to_owned()
    };
    assert!(line("claude-code").contains("can run: claude"), "{list}");
    assert!(line("codex").contains("cannot run"), "{list}");
    assert!(line("scripted").contains("can run"), "{list}");
    assert_eq!(workspace.path().read_dir().unwrap().count(), 0);
}

#[test]
fn a_stand_in_on_path_is_what_runs() {
    let (workspace, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let claude = programs.path().join("claude");
    let script = "#!/bin/sh\ncat >/dev/null\nprintf '%s\\n' '{\"type\":\"result\",\
                  \"subtype\":\"success\",\"is_error\":false,\"result\":\"stand-in\"}'\n";
    std::fs::write(&claude, script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&claude, mode).unwrap();
    let path = format!("{}:/usr/bin:/bin", programs.path().display());
    let events = json_lines(
        run_agent(workspace.path())
            .args(["--profile", "claude-code", "--json", "Hello"])
            .env("PATH", path),
    );
    let outcome = events.iter().find(|event| event["event"] == "outcome");
    assert_eq!(outcome.unwrap()["text"], "stand-in");
}
