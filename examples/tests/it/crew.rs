//! The crew, as a user runs it: what it prints, and what it leaves behind.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use timed_store::{Process, SessionId, TimedStorage};

use crate::outpost::Outpost;
use crate::program::{stderr, stdout};

const BOSS: &str = "grand_boss";
const MANAGER: &str = "middle_manager";
const CODING: &str = "coding_writing_specialist";
const RESEARCH: &str = "research_analysis_specialist";
const TESTING: &str = "testing_specialist";

struct Office {
    outpost: Outpost,
}

impl Office {
    fn new() -> Self {
        Self {
            outpost: Outpost::new(),
        }
    }

    fn dir(&self) -> PathBuf {
        self.outpost.home().join("office")
    }

    fn crew(&self, arguments: &[&str]) -> Command {
        let mut command = self.outpost.example("crew");
        command.arg("--dir").arg(self.dir()).args(arguments);
        command
    }

    /// The events of a crew that succeeds.
    #[track_caller]
    fn events(&self, arguments: &[&str]) -> Vec<Value> {
        let output = self
            .outpost
            .run(self.crew(&[&["--json"], arguments].concat()));
        assert!(
            output.status.success(),
            "{}{}",
            stdout(&output),
            stderr(&output)
        );
        let text = stdout(&output);
        let events = text.lines().map(|line| serde_json::from_str(line).unwrap());
        events.collect()
    }

    /// Starts a crew and reads its lines until one has `text`.
    fn start_until(&self, text: &str) -> (Child, BufReader<impl Read + use<>>) {
        let mut command = self.crew(&[]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(
                lines.read_line(&mut line).unwrap() > 0,
                "it never said `{text}`"
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
    let office = Office::new();
    let events = office.events(&["Greet everybody"]);
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

    // Killed after its tool had run, and before it could answer: once all the same.
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

    office.outpost.nothing_runs();
    office.outpost.holds(&["office"]);
}

#[test]
fn people_get_plain_lines_and_a_report() {
    let office = Office::new();
    let mut command = office.outpost.example("crew");
    command.args(["--storage", "sqlite"]);
    let output = office.outpost.run(command);
    let text = stdout(&output);
    assert!(output.status.success(), "{text}{}", stderr(&output));
    assert!(!text.contains('\x1b'), "{text}");
    for expected in [
        "watch: tmux -S ",
        "grand_boss → middle_manager",
        "coding_writing_specialist is killed at work",
        "coding_writing_specialist is back after ",
        "3 pieces of work, 0 done twice",
        "everything that was written is in ",
    ] {
        assert!(text.contains(expected), "`{expected}` is missing: {text}");
    }
    office.outpost.nothing_runs();
    // Without a folder it makes a private one, and says where.
    let (_, folder) = text
        .split_once("everything that was written is in ")
        .unwrap();
    let folder = PathBuf::from(folder.trim());
    assert!(folder.join("snapshots.db").exists(), "{}", folder.display());
    let shared = std::fs::metadata(folder.parent().unwrap()).unwrap();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&shared.permissions()) & 0o777,
        0o700
    );
    assert!(folder.starts_with(std::fs::canonicalize(office.outpost.tmp()).unwrap()));
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    for signal in ["INT", "TERM"] {
        let office = Office::new();
        // In the worst moment: one agent is dead, its coding agent is not.
        let (mut child, mut lines) = office.start_until("is killed at work");
        let kill = Command::new("kill")
            .args([&format!("-{signal}"), &child.id().to_string()])
            .status();
        assert!(kill.unwrap().success());
        lines.read_to_string(&mut String::new()).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130));
        office.outpost.nothing_runs();
        office.outpost.holds(&["office"]);
    }
}

#[test]
fn a_panic_leaves_nothing_behind() {
    let office = Office::new();
    let (mut child, lines) = office.start_until("agents: ");
    // Nobody reads on, as in `crew | head -3`: the next line that it prints is a panic.
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
    office.outpost.nothing_runs();
}

#[test]
fn a_name_that_is_taken_is_not_given_twice() {
    let office = Office::new();
    std::fs::create_dir(office.dir()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let take = |session: &str, name: &str| {
        let names = TimedStorage::<String>::builder_at(office.dir().join("names.json"))
            .session(SessionId::new(session).unwrap())
            .owner(Process::current())
            .open()
            .unwrap();
        let claim = runtime.block_on(names.claim(name.to_owned())).unwrap();
        assert!(claim.granted().is_some());
    };
    take("desk-1", "middle_manager");
    let events = office.events(&[]);
    assert_eq!(names(&events[0])[1], "middle_manager-2");

    take("desk-2", "middle_manager-2");
    take("desk-3", "middle_manager-3");
    let output = office.outpost.run(office.crew(&["--json"]));
    assert_eq!(output.status.code(), Some(1));
    let last: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(
        (&last["event"], &last["ok"]),
        (&"finished".into(), &false.into())
    );
    let told = "middle_manager did not start: all names for middle_manager are taken, one by desk-";
    assert!(stderr(&output).contains(told), "{}", stderr(&output));
    office.outpost.nothing_runs();
}

#[test]
fn a_kept_crew_stays_up_and_the_next_one_has_other_names() {
    let office = Office::new();
    let events = office.events(&["--keep"]);
    let finished = only(&events, "finished");
    assert_eq!(finished["kept"], true);
    let config = PathBuf::from(finished["dir"].as_str().unwrap()).join("config/cluster.yaml");

    let second = office.events(&[]);
    for name in names(&second[0]) {
        assert!(name.ends_with("-2"), "{name}");
    }
    // The first one is a cluster like any other.
    let cluster = |arguments: &[&str]| {
        let mut command = office.outpost.example("cluster");
        command.arg("--config").arg(&config).args(arguments);
        let output = office.outpost.run(command);
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let answer = cluster(&["ask", TESTING, "Once more"]);
    assert!(answer.contains("I remember 1 earlier"), "{answer}");
    assert_eq!(cluster(&["stop"]), "stopped\n");
    office.outpost.nothing_runs();
}

#[test]
fn the_agents_of_a_profile_take_the_place_of_the_scripted_one() {
    let office = Office::new();
    let crew = office.outpost.example("crew");
    let crew = crew.get_program().to_str().unwrap();
    let log = office.outpost.home().join("calls");
    let script = format!(
        "echo \"$@\" >> '{}'\nexec '{crew}' scripted-agent \"$@\"",
        log.display()
    );
    office.outpost.install("claude", &script);
    let events = office.events(&["--agents", "claude-code"]);
    let finished = only(&events, "finished");
    assert!(
        finished["session_id"]
            .as_str()
            .unwrap()
            .starts_with("CLAUDE_CODE:")
    );
    let calls = std::fs::read_to_string(log).unwrap();
    // The Middle Manager's second turn goes on in the session of its first.
    assert!(calls.contains("--resume="), "{calls}");
    office.outpost.nothing_runs();
}

#[test]
fn a_failure_is_told_and_wrong_input_changes_nothing() {
    let office = Office::new();
    for (arguments, code, expected) in [
        (
            ["--agents", "nobody"],
            1,
            "there is no profile `nobody`; known: ",
        ),
        (["--storage", "memory:"], 2, "neither `file` nor `sqlite`"),
    ] {
        let output = office.outpost.run(office.crew(&arguments));
        assert_eq!((output.status.code(), &*stdout(&output)), (Some(code), ""));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        office.outpost.holds(&[]);
    }
    let output = office.outpost.run(office.crew(&["--json", "[[crash]]"]));
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
    office.outpost.nothing_runs();
}
