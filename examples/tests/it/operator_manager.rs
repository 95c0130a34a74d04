//! The dialogue of the specification, and what lies around it.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::program::{example, stderr, stdout};

struct Desk {
    folder: TempDir,
}

impl Desk {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("operators.json")
    }

    fn command(&self, session: &str, arguments: &[&str]) -> Command {
        let mut command = example("operator_manager");
        command
            .arg("--state")
            .arg(self.state())
            .args(["--session", session])
            .args(arguments);
        command
    }

    fn run(&self, session: &str, arguments: &[&str]) -> Output {
        self.command(session, arguments).output().unwrap()
    }

    #[track_caller]
    fn says(&self, session: &str, arguments: &[&str], expected: &str) {
        let output = self.run(session, arguments);
        assert_eq!(
            (output.status.code(), stderr(&output).as_str()),
            (Some(0), "")
        );
        assert_eq!(stdout(&output), format!("{expected}\n"));
    }

    #[track_caller]
    fn json(&self, session: &str, arguments: &[&str]) -> Value {
        let output = self.run(session, &[arguments, &["--json"]].concat());
        assert_eq!(
            (output.status.code(), stderr(&output).as_str()),
            (Some(0), "")
        );
        serde_json::from_slice(&output.stdout).unwrap()
    }

    #[track_caller]
    fn refuses(&self, session: &str, arguments: &[&str], code: i32, expected: &[&str]) {
        let output = self.run(session, arguments);
        assert_eq!(
            (output.status.code(), stdout(&output).as_str()),
            (Some(code), "")
        );
        for text in expected {
            assert!(
                stderr(&output).contains(text),
                "`{text}` is missing: {}",
                stderr(&output)
            );
        }
    }
}

#[test]
fn the_dialogue_of_the_specification() {
    let desk = Desk::new();
    desk.says("1", &["assign", "tsukuyomi"], "assigned tsukuyomi");
    desk.says(
        "2",
        &["available"],
        "available operators: angie, alma, akane, dia, kana",
    );
    desk.refuses(
        "2",
        &["assign", "tsukuyomi"],
        1,
        &["error: tsukuyomi is in use by another session"],
    );
    let status = stdout(&desk.run("2", &["status"]));
    assert!(
        status.contains("tsukuyomi  in use by another session, expires in "),
        "{status}"
    );
    assert!(status.contains("angie      free\n"), "{status}");
    desk.says(
        "1",
        &["available"],
        "available operators: tsukuyomi, angie, alma, akane, dia, kana",
    );
    assert!(stdout(&desk.run("1", &["status"])).contains("tsukuyomi  mine, expires in "));
    desk.says("1", &["release"], "released tsukuyomi");
    desk.says("1", &["release"], "no operator was assigned");
    desk.says("2", &["assign", "tsukuyomi"], "assigned tsukuyomi");
}

#[test]
fn a_refused_assignment_keeps_the_old_operator() {
    let desk = Desk::new();
    desk.says("1", &["assign", "angie"], "assigned angie");
    desk.says("2", &["assign", "dia"], "assigned dia");
    desk.refuses("1", &["assign", "dia"], 1, &["dia", "another session"]);
    desk.says("1", &["assign"], "assigned angie");
    desk.says("1", &["assign", "kana"], "assigned kana");
    desk.says(
        "2",
        &["available"],
        "available operators: tsukuyomi, angie, alma, akane, dia",
    );
}

#[test]
fn six_sessions_at_once_get_six_operators_and_the_seventh_none() {
    let desk = Desk::new();
    let running: Vec<_> = (0..6)
        .map(|session| {
            let mut command = desk.command(&session.to_string(), &["assign"]);
            command
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut assigned: Vec<String> = running
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success());
            stdout(&output)
        })
        .collect();
    assigned.sort();
    assigned.dedup();
    assert_eq!(assigned.len(), 6, "{assigned:?}");
    desk.refuses(
        "seventh",
        &["assign"],
        1,
        &["all operators are in use by other sessions"],
    );
    desk.says("seventh", &["available"], "available operators: none");
}

#[test]
fn json_names_operator_state_and_time_left() {
    let desk = Desk::new();
    let mine = desk.json("1", &["assign", "alma"]);
    assert_eq!(
        mine,
        json!({"operator": "alma", "state": "mine", "expires_in_ms": 14_400_000})
    );
    let status = desk.json("2", &["status"]);
    assert_eq!(status.as_array().unwrap().len(), 6);
    assert_eq!(
        status[0],
        json!({"operator": "tsukuyomi", "state": "free", "expires_in_ms": null})
    );
    assert_eq!(status[2]["state"], "other");
    assert!(status[2]["expires_in_ms"].as_u64().unwrap() <= 14_400_000);
    assert_eq!(desk.json("2", &["available"]).as_array().unwrap().len(), 5);
    assert_eq!(desk.json("1", &["refresh"])["state"], "mine");
    assert_eq!(
        desk.json("1", &["release"]),
        json!({"operator": "alma", "state": "free", "expires_in_ms": null})
    );
    assert_eq!(desk.json("1", &["release"]), Value::Null);
}

#[test]
fn the_timeout_is_configured() {
    let desk = Desk::new();
    let config = desk.folder.path().join("config.json");
    let config_path = config.to_str().unwrap();
    std::fs::write(&config, r#"{"operatorTimeout": 0}"#).unwrap();
    desk.says(
        "1",
        &["--config", config_path, "assign", "angie"],
        "assigned angie",
    );
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while stdout(&desk.run("1", &["status"])).contains("mine") {
        assert!(
            std::time::Instant::now() < deadline,
            "an entry with a timeout of zero does not end"
        );
    }
    desk.refuses("1", &["refresh"], 1, &["no operator is assigned"]);
    std::fs::write(&config, r#"{"operatorTimeout": "soon"}"#).unwrap();
    desk.refuses(
        "1",
        &["--config", config_path, "status"],
        1,
        &["config.json", "operatorTimeout", "soon"],
    );
    desk.refuses(
        "1",
        &["--config", "/no/such/file", "status"],
        1,
        &["/no/such/file", "No such file"],
    );
}

#[test]
fn wrong_arguments_change_nothing() {
    let desk = Desk::new();
    desk.refuses("1", &["assign", "nobody"], 2, &["nobody", "tsukuyomi"]);
    desk.refuses("", &["assign"], 2, &["session"]);
    desk.refuses("1", &["sing"], 2, &["sing"]);
    assert!(!desk.state().exists());
}

#[test]
fn a_corrupt_state_is_reported_and_work_goes_on() {
    let desk = Desk::new();
    desk.says("1", &["assign", "angie"], "assigned angie");
    let mut text = std::fs::read_to_string(desk.state()).unwrap();
    text.truncate(text.len() - 3);
    std::fs::write(desk.state(), text).unwrap();
    let output = desk.run("2", &["assign", "angie"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("note: ") && stderr(&output).contains(".corrupt-"),
        "{}",
        stderr(&output)
    );
    assert!(stderr(&output).contains("angie is in use by another session"));
}

#[test]
fn the_session_is_the_terminals_and_the_state_is_in_the_specified_place() {
    let folder = tempfile::tempdir().unwrap();
    let run = |iterm: &str, term: &str, arguments: &[&str]| {
        let mut command = example("operator_manager");
        command
            .env("TMPDIR", folder.path())
            .env("ITERM_SESSION_ID", iterm)
            .env("TERM_SESSION_ID", term);
        stdout(&command.args(arguments).output().unwrap())
    };
    assert_eq!(run("i", "t", &["assign", "kana"]), "assigned kana\n");
    assert_eq!(run("i", "other", &["assign"]), "assigned kana\n");
    assert_eq!(run("", "i", &["assign"]), "assigned kana\n");
    assert!(!run("", "t", &["available"]).contains("kana"));
    let files: Vec<_> = folder
        .path()
        .read_dir()
        .unwrap()
        .map(|file| file.unwrap().file_name())
        .collect();
    let is_data = |name: &str| name.starts_with("coeiroink-operators-") && name.ends_with(".json");
    assert!(
        files.iter().any(|name| is_data(name.to_str().unwrap())),
        "{files:?}"
    );
}
