//! The program `board`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn board(arguments: &[&str]) -> Child {
    // A shell ignores INT in background jobs, nohup ignores HUP, and children inherit that.
    Command::new("/usr/bin/env")
        .args(["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_board")])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn one_command_prints_the_address_with_its_token_and_a_signal_ends_it() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut child = board(&["--demo", "--json"]);
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let line: Value = serde_json::from_str(&line).unwrap();
        let address = line["address"].as_str().unwrap();
        let (site, token) = address.split_once("/#token=").unwrap();
        assert!(site.starts_with("http://127.0.0.1:"), "{address}");
        assert_eq!(token.len(), 64);
        kill_process(Pid::from_child(&child), signal).unwrap();
        let code = child.wait().unwrap().code();
        assert_eq!(code, Some(128 + signal.as_raw()), "{signal:?}");
    }
}

#[test]
fn what_cannot_be_followed_or_listened_on_is_refused_with_a_reason() {
    let cases: [(&[&str], &str); 4] = [
        (&[], "nothing to follow: give at least one of --demo"),
        (
            &["--demo", "--listen", "0.0.0.0:0"],
            "other machines reach it",
        ),
        (
            &["--crew", "/nonexistent"],
            "is not the folder of a crew: no crew.json",
        ),
        (&["--live", "no-such-agent"], "no-such-agent"),
    ];
    for (arguments, expected) in cases {
        let mut child = board(arguments);
        let mut told = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut told)
            .unwrap();
        assert_eq!(
            child.wait().unwrap().code(),
            Some(1),
            "{arguments:?}: {told}"
        );
        assert!(told.contains(expected), "{arguments:?}: {told}");
    }
}
