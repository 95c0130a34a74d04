//! Ports for several sessions.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use crate::sandbox::{Sandbox, stderr, stdout};

struct Ports {
    sandbox: Sandbox,
    /// The first of five ports in a row that no other test has and no program uses.
    first: u16,
}

impl Ports {
    fn new() -> Self {
        // The tests of this file run at the same time: each takes the next range. Other processes that
        // run them begin elsewhere. The ranges are below the ports that a kernel gives to outgoing
        // connections (32768 and more on Linux).
        static RANGES: AtomicU16 = AtomicU16::new(0);
        let start = u16::try_from(std::process::id() % 2_000 * 37 % 2_000).unwrap();
        let first = std::iter::repeat_with(|| {
            let range = (start + RANGES.fetch_add(1, Ordering::Relaxed)) % 2_000;
            20_000 + range * 5
        })
        .take(2_000)
        .find(|first| {
            (*first..first + 5).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok())
        })
        .expect("five free ports in a row between 20000 and 30000");
        Self {
            sandbox: Sandbox::new(),
            first,
        }
    }

    fn command(&self, session: &str, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.example("ports");
        command
            .args(["--state", "ports.json", "--session", session])
            .args(arguments);
        command
    }

    fn run(&self, session: &str, arguments: &[&str]) -> Output {
        self.sandbox.run(&mut self.command(session, arguments))
    }

    fn claim(&self, session: &str, more: &[&str]) -> Output {
        let (from, to) = (self.first.to_string(), (self.first + 2).to_string());
        let mut arguments = vec!["claim", "--from", &from, "--to", &to];
        arguments.extend(more);
        self.run(session, &arguments)
    }

    #[track_caller]
    fn gets(&self, session: &str, more: &[&str], offset: u16) {
        let output = self.claim(session, more);
        assert_eq!(stderr(&output), "");
        assert_eq!(stdout(&output), format!("{}\n", self.first + offset));
    }
}

#[test]
fn each_session_gets_a_port_that_no_other_program_has() {
    let ports = Ports::new();
    let _program = TcpListener::bind(("127.0.0.1", ports.first)).unwrap();
    ports.gets("a", &[], 1);
    ports.gets("b", &[], 2);
    let _own = TcpListener::bind(("127.0.0.1", ports.first + 1)).unwrap();
    ports.gets("a", &[], 1);
    let refused = ports.claim("c", &[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("all ports are claimed"),
        "{}",
        stderr(&refused)
    );
    assert!(ports.run("b", &["release"]).status.success());
    ports.gets("c", &[], 2);
}

#[test]
fn a_range_without_a_port_is_refused() {
    let ports = Ports::new();
    for (range, expected) in [
        (["--from", "0", "--to", "9"], "0 is not in 1..=65535"),
        (["--from", "1", "--to", "0"], "0 is not in 1..=65535"),
        (
            ["--from", "70000", "--to", "9"],
            "70000 is not in 1..=65535",
        ),
        (
            ["--from", "3005", "--to", "3001"],
            "there is no port from 3005 to 3001: --from is above --to",
        ),
    ] {
        let output = ports.run("a", &[&["claim"][..], &range].concat());
        assert_eq!(output.status.code(), Some(2), "{range:?}");
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn a_program_that_listens_on_the_other_loopback_address_has_its_port() {
    let ports = Ports::new();
    let _listener = match TcpListener::bind(("::1", ports.first)) {
        Ok(listener) => listener,
        Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => {
            println!("this machine has no IPv6");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    // A wait that no clock can hold is long, not an error.
    ports.gets("a", &["--wait", "18446744073709551615"], 1);
}

#[test]
fn a_session_has_several_ports_by_name() {
    let ports = Ports::new();
    ports.gets("a", &[], 0);
    ports.gets("a", &["--name", "web"], 1);
    ports.gets("b", &[], 2);
    let list = stdout(&ports.run("b", &["list"]));
    assert_eq!(list.lines().count(), 3, "{list}");
    assert!(list.contains("a#web"), "{list}");
}

#[test]
fn names_that_one_session_claims_at_the_same_time_get_different_ports() {
    // Several times: the processes must meet between a look and a claim.
    for _ in 0..5 {
        let ports = Ports::new();
        let (from, to) = (ports.first.to_string(), (ports.first + 4).to_string());
        let claims = ["a", "b", "c", "d", "e"].map(|name| {
            let arguments = ["--name", name, "claim", "--from", &from, "--to", &to];
            let mut command = ports.command("session", &arguments);
            command.stdout(Stdio::piped()).spawn().unwrap()
        });
        let mut given = claims.map(|claim| stdout(&claim.wait_with_output().unwrap()));
        given.sort();
        let expected = [0, 1, 2, 3, 4].map(|offset| format!("{}\n", ports.first + offset));
        assert_eq!(given, expected);
    }
}

#[test]
fn a_watcher_sees_claims_and_releases_and_a_waiter_gets_the_port() {
    let ports = Ports::new();
    let mut watcher = ports
        .command("watcher", &["--watch"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watcher.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    for (session, offset) in [("a", 0), ("b", 1), ("c", 2)] {
        ports.gets(session, &[], offset);
        assert_eq!(next(), format!("+ {} {session}", ports.first + offset));
    }
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ports.claim("d", &["--wait", "60"]));
        assert!(ports.run("b", &["release"]).status.success());
        let output = waiting.join().unwrap();
        assert_eq!(stdout(&output), format!("{}\n", ports.first + 1));
    });
    // The release and the claim may be one change for the watcher.
    let changes = [next(), next()];
    assert!(changes.contains(&"- b".to_owned()), "{changes:?}");
    watcher.kill().unwrap();
    watcher.wait().unwrap();
}
