//! The crew as a user runs it: its output, and the files and processes that are left.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, kill_process};
use serde_json::Value;
use timed_store::{OwnerProcess, SessionId, TimedStorage};

use crate::sandbox::{SIGNALS, Sandbox, stderr, stdout, with_default_signals};

const BOSS: &str = "grand_boss";
const MANAGER: &str = "middle_manager";
const CODING: &str = "coding_writing_specialist";
const RESEARCH: &str = "research_analysis_specialist";
const TESTING: &str = "testing_specialist";

/// Crews that share one folder.
struct Crews {
    sandbox: Sandbox,
}

impl Crews {
    fn new() -> Self {
        let sandbox = Sandbox::with_tmux();
        Self { sandbox }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.example("crew");
        command.args(["--dir", "crews"]).args(arguments);
        command
    }

    /// The events of a crew that succeeds.
    #[track_caller]
    fn events(&self, arguments: &[&str]) -> Vec<Value> {
        let mut command = self.command(arguments);
        self.sandbox.json_lines(command.arg("--json"))
    }

    /// Starts a crew and reads its lines until one has `text`.
    fn start_until(&self, text: &str) -> (Child, BufReader<impl Read + use<>>) {
        let mut command = with_default_signals(&self.command(&[]));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(
                lines.read_line(&mut line).unwrap() > 0,
                "the output ended without `{text}`"
            );
        }
        (child, lines)
    }
}

#[track_caller]
fn only<'a>(events: &'a [Value], name: &str) -> &'a Value {
    let mut found = events.iter().filter(|event| event["event"] == name);
    let first = found
        .next()
        .unwrap_or_else(|| panic!("no `{name}`: {events:#?}"));
    assert!(found.next().is_none(), "`{name}` twice: {events:#?}");
    first
}

#[track_caller]
fn position(events: &[Value], from: &str, to: &str, kind: &str) -> usize {
    let is_it = |event: &Value| event["from"] == from && event["to"] == to && event["type"] == kind;
    let found = events.iter().position(is_it);
    found.unwrap_or_else(|| panic!("no {kind} from {from} to {to}: {events:#?}"))
}

fn names(event: &Value) -> Vec<&str> {
    let names = event["names"].as_array().unwrap();
    names.iter().map(|name| name.as_str().unwrap()).collect()
}

#[test]
fn a_killed_specialist_comes_back_and_does_nothing_twice() {
    let crews = Crews::new();
    let events = crews.events(&["Greet everybody"]);
    assert_eq!(events[0]["event"], "started");
    assert_eq!(
        names(&events[0]),
        [BOSS, MANAGER, CODING, RESEARCH, TESTING]
    );

    assert_eq!(only(&events, "killed")["agent"], CODING);
    assert_eq!(only(&events, "recovered")["agent"], CODING);
    let finished = only(&events, "finished");
    assert_eq!(finished, events.last().unwrap());
    assert_eq!(finished["ok"], true);
    assert!(
        finished["session_id"]
            .as_str()
            .unwrap()
            .starts_with("SCRIPTED:")
    );
    assert_eq!(finished["exit"]["code"], 0);

    // Down the hierarchy, the specialists in parallel, and up again.
    let order = [
        position(&events, "user", BOSS, "task"),
        position(&events, BOSS, MANAGER, "task"),
        position(&events, MANAGER, CODING, "task")
            .max(position(&events, MANAGER, RESEARCH, "task")),
        position(&events, RESEARCH, MANAGER, "result")
            .min(position(&events, CODING, MANAGER, "result")),
        position(&events, MANAGER, TESTING, "task"),
        position(&events, TESTING, MANAGER, "result"),
        position(&events, MANAGER, BOSS, "result"),
        position(&events, BOSS, "user", "result"),
    ];
    assert!(order.is_sorted(), "{order:?} {events:#?}");
    let tested = &events[position(&events, TESTING, MANAGER, "result")];
    let tested = tested["content"].as_str().unwrap();
    assert!(
        tested.contains("greet.sh says: Hello from the crew"),
        "{tested}"
    );

    // The specialist was killed after its tool had run and before it answered: the tool did not
    // run again.
    let mut work: Vec<&str> = finished["work"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line.as_str().unwrap())
        .collect();
    work.sort_unstable();
    let roles = work.iter().map(|line| line.split(' ').next().unwrap());
    assert!(roles.eq([CODING, RESEARCH, TESTING]), "{work:?}");
    let coding = &finished["agents"][2];
    assert_eq!(
        (&coding["agent"], &coding["runs"]),
        (&CODING.into(), &2.into())
    );

    crews.sandbox.nothing_runs();
    crews.sandbox.holds(&["crews"]);
}

#[test]
fn the_default_output_is_text_with_a_report() {
    let crews = Crews::new();
    let mut command = crews.sandbox.example("crew");
    let text = crews.sandbox.ok(command.args(["--storage", "sqlite"]));
    assert!(!text.contains('\x1b'), "{text}");
    for expected in [
        "watch: tmux -S ",
        "grand_boss → middle_manager",
        "coding_writing_specialist is killed at work",
        "coding_writing_specialist is back after ",
        "3 pieces of work, 0 done twice",
        "all files are in ",
    ] {
        assert!(text.contains(expected), "`{expected}` is missing: {text}");
    }
    crews.sandbox.nothing_runs();
    // The default folder is private.
    let (_, folder) = text.split_once("all files are in ").unwrap();
    let folder = PathBuf::from(folder.trim());
    assert!(folder.join("snapshots.db").exists(), "{}", folder.display());
    let shared = std::fs::metadata(folder.parent().unwrap()).unwrap();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&shared.permissions()) & 0o777,
        0o700
    );
    assert!(folder.starts_with(std::fs::canonicalize(crews.sandbox.tmp()).unwrap()));
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    for signal in SIGNALS {
        let crews = Crews::new();
        // The worst moment: a member is dead, and its coding agent is still running.
        let (mut child, mut lines) = crews.start_until("is killed at work");
        kill_process(Pid::from_child(&child), signal).unwrap();
        lines.read_to_string(&mut String::new()).unwrap();
        let code = child.wait().unwrap().code();
        assert_eq!(code, Some(128 + signal.as_raw()));
        crews.sandbox.nothing_runs();
        crews.sandbox.holds(&["crews"]);
    }
}

#[test]
fn a_panic_leaves_nothing_behind() {
    let crews = Crews::new();
    let (mut child, lines) = crews.start_until("agents: ");
    // The reader closes the pipe, as in `crew | head -3`: the next printed line is a panic.
    drop(lines);
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(said.contains("panicked"), "{said}");
    crews.sandbox.nothing_runs();
}

#[test]
fn a_name_in_use_is_not_given_twice() {
    let crews = Crews::new();
    let folder = crews.sandbox.home().join("crews");
    std::fs::create_dir(&folder).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let take = |session: &str, name: &str| {
        let names = TimedStorage::<String>::builder(folder.join("names.json"))
            .session(SessionId::new(session).unwrap())
            .owner(OwnerProcess::current())
            .open()
            .unwrap();
        let claim = runtime.block_on(names.claim(name.to_owned())).unwrap();
        assert!(claim.granted().is_some());
    };
    take("desk-1", "middle_manager");
    let events = crews.events(&[]);
    assert_eq!(names(&events[0])[1], "middle_manager-2");

    take("desk-2", "middle_manager-2");
    take("desk-3", "middle_manager-3");
    let output = crews.sandbox.run(&mut crews.command(&["--json"]));
    assert_eq!(output.status.code(), Some(1));
    let last: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(
        (&last["event"], &last["ok"]),
        (&"finished".into(), &false.into())
    );
    let told = "middle_manager did not start: all names for middle_manager are taken, one by desk-";
    assert!(stderr(&output).contains(told), "{}", stderr(&output));
    crews.sandbox.nothing_runs();
}

#[test]
fn a_kept_crew_keeps_running_and_the_next_one_gets_other_names() {
    let crews = Crews::new();
    let events = crews.events(&["--keep"]);
    let finished = only(&events, "finished");
    assert_eq!(finished["kept"], true);
    let config = PathBuf::from(finished["dir"].as_str().unwrap()).join("config/cluster.yaml");

    let second = crews.events(&[]);
    for name in names(&second[0]) {
        assert!(name.ends_with("-2"), "{name}");
    }
    // The example `cluster` works with the crew that was kept.
    let cluster = |arguments: &[&str]| {
        let mut command = crews.sandbox.example("cluster");
        command.arg("--config").arg(&config).args(arguments);
        crews.sandbox.ok(&mut command)
    };
    let answer = cluster(&["ask", TESTING, "Once more"]);
    assert!(answer.contains("Earlier messages: 1"), "{answer}");
    assert_eq!(cluster(&["stop"]), "stopped\n");
    crews.sandbox.nothing_runs();
}

#[test]
fn the_profile_of_the_coding_agents_is_selectable() {
    let crews = Crews::new();
    let crew = crews.sandbox.example("crew");
    let crew = crew.get_program().to_str().unwrap();
    let log = crews.sandbox.home().join("calls");
    let script = format!(
        "echo \"$@\" >> '{}'\nexec '{crew}' scripted-agent \"$@\"",
        log.display()
    );
    crews.sandbox.install("claude", &script);
    let events = crews.events(&["--agents", "claude-code"]);
    let finished = only(&events, "finished");
    assert!(
        finished["session_id"]
            .as_str()
            .unwrap()
            .starts_with("CLAUDE_CODE:")
    );
    let calls = std::fs::read_to_string(log).unwrap();
    // The second turn of the Middle Manager continues the session of its first.
    assert!(calls.contains("--resume="), "{calls}");
    crews.sandbox.nothing_runs();
}

#[test]
fn a_failure_is_reported_and_wrong_input_changes_nothing() {
    let crews = Crews::new();
    for (arguments, code, expected) in [
        (
            ["--agents", "nobody"],
            1,
            "unknown profile `nobody`; known: ",
        ),
        (["--storage", "memory:"], 2, "expected `file`, `sqlite`"),
    ] {
        let mut command = crews.command(&arguments);
        crews.sandbox.refuses(&mut command, code, &[expected]);
        crews.sandbox.holds(&[]);
    }
    let output = crews
        .sandbox
        .run(&mut crews.command(&["--json", "[[crash]]"]));
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    let last: Value = serde_json::from_str(stdout(&output).lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["event"], &last["ok"]),
        (&"finished".into(), &false.into())
    );
    assert!(
        last["answer"]
            .as_str()
            .unwrap()
            .contains("middle_manager: the coding agent"),
        "{last}"
    );
    crews.sandbox.nothing_runs();
}
