//! The dialogue of the specification, and the cases around it.

use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::sandbox::{Sandbox, eventually, names, stderr, stdout};

/// Terminals that share one file of assignments.
struct Terminals {
    sandbox: Sandbox,
}

impl Terminals {
    fn new() -> Self {
        Self {
            sandbox: Sandbox::new(),
        }
    }

    fn command(&self, session: &str, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.example("operator_manager");
        command
            .args(["--state", "operators.json", "--session", session])
            .args(arguments);
        command
    }

    fn run(&self, session: &str, arguments: &[&str]) -> Output {
        self.sandbox.run(&mut self.command(session, arguments))
    }

    #[track_caller]
    fn prints(&self, session: &str, arguments: &[&str], expected: &str) {
        let output = self.run(session, arguments);
        assert_eq!((output.status.code(), &*stderr(&output)), (Some(0), ""));
        assert_eq!(stdout(&output), format!("{expected}\n"));
    }

    #[track_caller]
    fn json(&self, session: &str, arguments: &[&str]) -> Value {
        let mut command = self.command(session, arguments);
        self.sandbox.json(command.arg("--json"))
    }

    #[track_caller]
    fn refuses(&self, session: &str, arguments: &[&str], code: i32, expected: &[&str]) {
        let mut command = self.command(session, arguments);
        self.sandbox.refuses(&mut command, code, expected);
    }
}

#[test]
fn the_dialogue_of_the_specification() {
    let terminals = Terminals::new();
    terminals.prints("1", &["assign", "tsukuyomi"], "assigned tsukuyomi");
    terminals.prints(
        "2",
        &["available"],
        "available operators: angie, alma, akane, dia, kana",
    );
    terminals.refuses(
        "2",
        &["assign", "tsukuyomi"],
        1,
        &["error: tsukuyomi is in use by another session"],
    );
    let status = stdout(&terminals.run("2", &["status"]));
    assert!(
        status.contains("tsukuyomi  in use by another session, expires in "),
        "{status}"
    );
    assert!(status.contains("angie      free\n"), "{status}");
    terminals.prints(
        "1",
        &["available"],
        "available operators: tsukuyomi, angie, alma, akane, dia, kana",
    );
    assert!(stdout(&terminals.run("1", &["status"])).contains("tsukuyomi  mine, expires in "));
    terminals.prints("1", &["release"], "released tsukuyomi");
    terminals.prints("1", &["release"], "no operator was assigned");
    terminals.prints("2", &["assign", "tsukuyomi"], "assigned tsukuyomi");
}

#[test]
fn a_refused_assignment_keeps_the_old_operator() {
    let terminals = Terminals::new();
    terminals.prints("1", &["assign", "angie"], "assigned angie");
    terminals.prints("2", &["assign", "dia"], "assigned dia");
    terminals.refuses("1", &["assign", "dia"], 1, &["dia", "another session"]);
    terminals.prints("1", &["assign"], "assigned angie");
    terminals.prints("1", &["assign", "kana"], "assigned kana");
    terminals.prints(
        "2",
        &["available"],
        "available operators: tsukuyomi, angie, alma, akane, dia",
    );
}

#[test]
fn six_sessions_at_once_get_six_operators_and_the_seventh_none() {
    let terminals = Terminals::new();
    let running: Vec<_> = (0..6)
        .map(|session| {
            let mut command = terminals.command(&session.to_string(), &["assign"]);
            command.stdout(Stdio::piped()).spawn().unwrap()
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
    terminals.refuses(
        "seventh",
        &["assign"],
        1,
        &["all operators are in use by other sessions"],
    );
    terminals.prints("seventh", &["available"], "available operators: none");
}

#[test]
fn json_names_operator_state_and_time_left() {
    let terminals = Terminals::new();
    let mine = terminals.json("1", &["assign", "alma"]);
    assert_eq!(
        mine,
        json!({"operator": "alma", "state": "mine", "expires_in_ms": 14_400_000})
    );
    let status = terminals.json("2", &["status"]);
    assert_eq!(status.as_array().unwrap().len(), 6);
    assert_eq!(
        status[0],
        json!({"operator": "tsukuyomi", "state": "free", "expires_in_ms": null})
    );
    assert_eq!(status[2]["state"], "other");
    assert!(status[2]["expires_in_ms"].as_u64().unwrap() <= 14_400_000);
    assert_eq!(
        terminals
            .json("2", &["available"])
            .as_array()
            .unwrap()
            .len(),
        5
    );
    assert_eq!(terminals.json("1", &["refresh"])["state"], "mine");
    assert_eq!(
        terminals.json("1", &["release"]),
        json!({"operator": "alma", "state": "free", "expires_in_ms": null})
    );
    assert_eq!(terminals.json("1", &["release"]), Value::Null);
}

#[test]
fn the_timeout_is_configurable() {
    let terminals = Terminals::new();
    let config = terminals.sandbox.home().join("config.json");
    std::fs::write(&config, r#"{"operatorTimeout": 0}"#).unwrap();
    let arguments = ["--config", "config.json", "assign", "angie"];
    terminals.prints("1", &arguments, "assigned angie");
    eventually("an entry with a timeout of zero expires", || {
        !stdout(&terminals.run("1", &["status"])).contains("mine")
    });
    terminals.refuses("1", &["refresh"], 1, &["no operator is assigned"]);
    std::fs::write(&config, r#"{"operatorTimeout": "soon"}"#).unwrap();
    terminals.refuses(
        "1",
        &["--config", "config.json", "status"],
        1,
        &["config.json", "operatorTimeout", "soon"],
    );
    terminals.refuses(
        "1",
        &["--config", "/no/such/file", "status"],
        1,
        &["/no/such/file", "No such file"],
    );
}

#[test]
fn wrong_arguments_change_nothing() {
    let terminals = Terminals::new();
    terminals.refuses("1", &["assign", "nobody"], 2, &["nobody", "tsukuyomi"]);
    terminals.refuses("", &["assign"], 2, &["session"]);
    terminals.refuses("1", &["sing"], 2, &["sing"]);
    terminals.sandbox.holds(&[]);
}

#[test]
fn a_corrupt_file_is_reported_and_its_entries_are_salvaged() {
    let terminals = Terminals::new();
    terminals.prints("1", &["assign", "angie"], "assigned angie");
    let state = terminals.sandbox.home().join("operators.json");
    let mut text = std::fs::read_to_string(&state).unwrap();
    text.truncate(text.len() - 3);
    std::fs::write(state, text).unwrap();
    let output = terminals.run("2", &["assign", "angie"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("note: ") && stderr(&output).contains(".corrupt-"),
        "{}",
        stderr(&output)
    );
    assert!(stderr(&output).contains("angie is in use by another session"));
}

#[test]
fn the_default_session_is_the_terminals_and_the_default_file_is_as_specified() {
    let sandbox = Sandbox::new();
    let run = |iterm: &str, term: &str, arguments: &[&str]| {
        let mut command = sandbox.example("operator_manager");
        command
            .env("ITERM_SESSION_ID", iterm)
            .env("TERM_SESSION_ID", term);
        sandbox.ok(command.args(arguments))
    };
    assert_eq!(run("i", "t", &["assign", "kana"]), "assigned kana\n");
    assert_eq!(run("i", "other", &["assign"]), "assigned kana\n");
    assert_eq!(run("", "i", &["assign"]), "assigned kana\n");
    assert!(!run("", "t", &["available"]).contains("kana"));
    let files = names(&sandbox.tmp());
    let is_data =
        |name: &String| name.starts_with("coeiroink-operators-") && name.ends_with(".json");
    assert!(files.iter().any(is_data), "{files:?}");
}
