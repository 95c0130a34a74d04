//! The crew as a user runs it: its output, and the files and processes that are left.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use examples::redis_server::{RedisServer, SyncLog};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::sandbox::{SIGNALS, Sandbox, eventually, stderr, stdout, with_default_signals};

const BOSS: &str = "grand_boss";
const MANAGER: &str = "middle_manager";
const CODING: &str = "coding_writing_specialist";

/// A crew in the folder `crew`.
struct CrewRun {
    sandbox: Sandbox,
}

/// A crew that runs, and its events.
struct Events {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl CrewRun {
    fn new() -> Self {
        let sandbox = Sandbox::with_tmux();
        Self { sandbox }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.example("crew");
        command.args(["--dir", "crew"]).args(arguments);
        command
    }

    /// The events of a crew that succeeds.
    #[track_caller]
    fn events(&self, arguments: &[&str]) -> Vec<Value> {
        let mut command = self.command(arguments);
        self.sandbox.json_lines(command.arg("--json"))
    }

    fn start(&self, arguments: &[&str]) -> Events {
        let mut command = with_default_signals(&self.command(arguments));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Events { child, lines }
    }

    /// What the scripted agents have done: each piece once.
    #[track_caller]
    fn did_everything_once(&self) {
        let log = self.sandbox.home().join("crew/workspace/work.log");
        let log = std::fs::read_to_string(log).unwrap();
        let mut work: Vec<&str> = log.lines().collect();
        work.sort_unstable();
        assert_eq!(work, ["code", "research", "test"]);
    }

    #[track_caller]
    fn left_nothing(&self) {
        self.sandbox.nothing_runs();
        self.sandbox.holds(&["crew"]);
    }
}

impl Events {
    /// Reads lines until one has `text`.
    #[track_caller]
    fn until(&mut self, text: &str) -> String {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            let read = self.lines.read_line(&mut line).unwrap();
            if read == 0 {
                let mut told = String::new();
                let _ = self.child.stderr.take().unwrap().read_to_string(&mut told);
                panic!("the output ended without `{text}`: {told}");
            }
        }
        line
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The end of a program that succeeds.
    #[track_caller]
    fn finish(mut self) -> String {
        let (mut rest, mut told) = (String::new(), String::new());
        self.lines.read_to_string(&mut rest).unwrap();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut told)
            .unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}{told}");
        rest
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
fn position(events: &[Value], name: &str, task: &str) -> usize {
    let is_it = |event: &Value| event["event"] == name && event["task"] == task;
    let found = events.iter().position(is_it);
    found.unwrap_or_else(|| panic!("no `{name}` of {task}: {events:#?}"))
}

/// Waits until the scripted agents have used the tools of these tasks, and know it: an agent that is killed between
/// the tool and its record uses the tool again, as a real one does.
fn have_worked(run: &CrewRun, tasks: &[&str]) {
    let state = run.sandbox.home().join("crew/state");
    let folders = [state.join("scripted-agent"), state];
    let conversations = || {
        let entries = folders.iter().filter_map(|folder| folder.read_dir().ok());
        let files = entries
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()));
        files.filter_map(|file| std::fs::read_to_string(file).ok())
    };
    for task in tasks {
        let script = format!("[[script {task}]]");
        eventually("the tool has run", || {
            let has_run = |text: &String| {
                let turn = text.rfind(&script);
                turn.is_some_and(|turn| text[turn..].contains(r#"{"tool":"#))
            };
            conversations().any(|text| has_run(&text))
        });
    }
}

fn config(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("config")
        .join(name)
}

#[test]
fn agents_in_panes_talk_and_a_killed_one_does_nothing_twice() {
    let run = CrewRun::new();
    let events = run.events(&["--kill", CODING, "Greet everybody"]);
    assert_eq!(events[0]["event"], "started");
    assert_eq!(only(&events, "killed")["role"], CODING);
    assert_eq!(only(&events, "recovered")["role"], CODING);
    let finished = only(&events, "finished");
    assert_eq!(
        (finished, &finished["ok"]),
        (events.last().unwrap(), &true.into())
    );

    // Down the hierarchy, and up again.
    let order = [
        position(&events, "answered", "aim"),
        position(&events, "answered", "plan"),
        position(&events, "asked", "research"),
        position(&events, "answered", "code"),
        position(&events, "asked", "test"),
        position(&events, "answered", "test"),
        position(&events, "asked", "summary"),
        position(&events, "answered", "report"),
    ];
    assert!(order.is_sorted(), "{order:?} {events:#?}");
    let tested = &events[position(&events, "answered", "test")]["answer"];
    assert!(
        tested
            .as_str()
            .unwrap()
            .contains("greet.sh says: Hello from the crew"),
        "{tested}"
    );

    // The agents have asked each other with the command, each in its own name.
    for (from, to, kind) in [
        (BOSS, MANAGER, "task"),
        (MANAGER, BOSS, "result"),
        (MANAGER, CODING, "task"),
        (CODING, MANAGER, "result"),
    ] {
        let is_it =
            |event: &&Value| event["from"] == from && event["to"] == to && event["type"] == kind;
        assert_eq!(
            events.iter().filter(is_it).count(),
            1,
            "{from} {to} {kind}: {events:#?}"
        );
    }
    let aim = &events[position(&events, "answered", "aim")]["answer"];
    assert!(
        aim.as_str()
            .unwrap()
            .contains("Done: Can your team do this today?"),
        "{aim}"
    );
    run.did_everything_once();
    run.left_nothing();
}

#[test]
fn a_killed_headless_agent_continues_its_session() {
    let run = CrewRun::new();
    let events = run.events(&["--headless", "--kill", CODING]);
    assert_eq!(only(&events, "recovered")["role"], CODING);
    assert!(
        !events.iter().any(|event| event["event"] == "panes"),
        "{events:#?}"
    );
    run.did_everything_once();
    run.left_nothing();
}

#[test]
fn a_killed_program_is_continued_by_the_next_one() {
    for place in [&["--kill", "none"][..], &["--kill", "none", "--headless"]] {
        let run = CrewRun::new();
        let mut first = run.start(place);
        first.until("works on code");
        have_worked(&run, &["code", "research"]);
        first.kill();
        // The description is in the folder.
        let events = run.events(&[]);
        assert_eq!(only(&events, "finished")["ok"], true);
        // What was done before is not asked again.
        assert!(
            !events.iter().any(|event| event["task"] == "plan"),
            "{events:#?}"
        );
        run.did_everything_once();
        run.left_nothing();
        // A crew that is done says so again.
        let again = run.events(&[]);
        assert_eq!(
            only(&again, "finished")["answer"],
            only(&events, "finished")["answer"]
        );
        run.left_nothing();
    }
}

#[test]
fn a_program_that_is_killed_at_any_moment_does_no_work_twice() {
    let kills = std::env::var("CREW_KILLS").map_or(8, |count| count.parse().unwrap());
    let run = CrewRun::new();
    // The same moments in each run, spread over the start and the first tasks.
    let mut moment = 7_u64;
    for _ in 0..kills {
        moment = moment * 48_271 % 2_147_483_647;
        let crew = run.start(&["--kill", "none"]);
        std::thread::sleep(Duration::from_millis(20 + moment % 1_500));
        crew.kill();
    }
    let events = run.events(&[]);
    assert_eq!(only(&events, "finished")["ok"], true);
    run.did_everything_once();
    run.left_nothing();
}

#[test]
fn a_role_is_held_by_one_process_and_the_next_one_takes_over() {
    let run = CrewRun::new();
    let mut first = run.start(&["--kill", "none"]);
    first.until("works on code");
    have_worked(&run, &["code"]);
    let mut second = run.start(&["--kill", "none"]);
    second.until(&format!("{CODING} is held by "));
    first.kill();
    second.until("report");
    second.finish();
    run.did_everything_once();
    run.left_nothing();
}

/// The manager waits with the answers so far; what it continues has all of them.
const WAITING: &str = r#"
[crew]
goal = "none"
[[role]]
name = "manager"
personality = "You manage."
lives = "headless"
[[role]]
name = "coder"
personality = "You code."
lives = "headless"
[[task]]
id = "plan"
role = "manager"
text = "Plan. [[tool while ! test -e go; do sleep 0.1; done]]"
[[task]]
id = "code"
role = "coder"
text = "Code."
after = ["plan"]
[[task]]
id = "summary"
role = "manager"
text = "Sum up. [[slow 30]]"
after = ["code"]
"#;

#[test]
fn a_program_that_has_waited_for_a_role_knows_all_answers() {
    let run = CrewRun::new();
    let file = run.sandbox.tmp().join("waiting.toml");
    std::fs::write(&file, WAITING).unwrap();
    let arguments = ["--file", file.to_str().unwrap()];
    let mut first = run.start(&arguments);
    first.until("works on plan");
    let mut second = run.start(&arguments);
    second.until("manager is held by ");
    std::fs::write(run.sandbox.home().join("crew/workspace/go"), "").unwrap();
    first.until("works on summary");
    first.kill();
    // It continues the turn: it does not think for another half minute.
    second.until("has done summary");
    second.finish();
    let folder = run.sandbox.home().join("crew/state/scripted-agent");
    let mut prompts = 0;
    for file in folder.read_dir().unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        for prompt in text.lines().filter(|line| line.contains("Sum up.")) {
            assert!(prompt.contains("The answer to code:"), "{prompt}");
            prompts += 1;
        }
    }
    assert_eq!(prompts, 2);
    std::fs::remove_file(file).unwrap();
    run.left_nothing();
}

#[test]
fn programs_that_begin_in_one_new_folder_are_one_crew() {
    let run = CrewRun::new();
    let programs = [(); 3].map(|()| run.start(&["--kill", "none", "--headless", "--json"]));
    let mut crews = programs.map(|mut program| {
        let started: Value = serde_json::from_str(&program.until("started")).unwrap();
        program.finish();
        started["crew"].clone()
    });
    crews.sort_by_key(ToString::to_string);
    assert_eq!(crews[0], crews[2]);
    run.did_everything_once();
    run.left_nothing();
}

#[test]
fn an_interrupt_of_a_continued_crew_leaves_nothing_behind() {
    let run = CrewRun::new();
    let mut first = run.start(&["--kill", "none", "[[slow 600]]"]);
    first.until("works on aim");
    first.kill();
    let mut second = run.start(&[]);
    // It sends nothing: it waits for the answer to what the first program has asked.
    second.until("works on aim");
    kill_process(Pid::from_child(&second.child), Signal::INT).unwrap();
    second.lines.read_to_string(&mut String::new()).unwrap();
    assert_eq!(second.child.wait().unwrap().code(), Some(130));
    run.left_nothing();
}

#[test]
fn the_process_of_an_agent_in_a_pane_is_the_agent() {
    let run = CrewRun::new();
    let mut crew = run.start(&["--kill", "none", "--json", "[[slow 600]]"]);
    let asked: Value = serde_json::from_str(&crew.until(r#""event":"asked""#)).unwrap();
    let line = format!("/proc/{}/cmdline", asked["process_id"]);
    let line = std::fs::read_to_string(line).unwrap();
    assert_eq!(line.split('\0').nth(1), Some("scripted-agent"), "{line}");
    kill_process(Pid::from_child(&crew.child), Signal::INT).unwrap();
    crew.lines.read_to_string(&mut String::new()).unwrap();
    crew.child.wait().unwrap();
    run.left_nothing();
}

#[test]
fn a_killed_tmux_server_is_started_again() {
    let run = CrewRun::new();
    let mut crew = run.start(&["--kill", "none"]);
    let watch = crew.until("watch: tmux -S ");
    let socket = watch.split_whitespace().nth_back(1).unwrap().to_owned();
    crew.until("works on code");
    have_worked(&run, &["code", "research"]);
    let mut tmux = Command::new("tmux");
    let output = tmux
        .args(["-S", &socket, "display-message", "-p", "#{pid}"])
        .output()
        .unwrap();
    let pid = String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    crew.until("continues code");
    crew.finish();
    run.did_everything_once();
    run.left_nothing();
}

#[test]
fn programs_with_one_redis_share_the_tasks_and_a_killed_one_is_replaced() {
    let run = CrewRun::new();
    let data = tempfile::tempdir().unwrap();
    let server = RedisServer::start(data.path(), SyncLog::EverySecond).unwrap();
    let url = server.url();
    let start = |folder: &str| {
        let mut command = run.sandbox.example("crew");
        command.args([
            "--dir",
            folder,
            "--redis",
            &url,
            "--headless",
            "--kill",
            "none",
        ]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Events { child, lines }
    };
    let mut first = start("one");
    first.until("works on code");
    let mut second = start("two");
    second.until(&format!("{CODING} is held by "));
    first.kill();
    second.until("works on test");
    let end = second.finish();
    // What the first program had done is not done again.
    assert!(end.contains("7 tasks in "), "{end}");
    let work = run.sandbox.home().join("two/workspace/work.log");
    let work = std::fs::read_to_string(work).unwrap();
    assert_eq!(
        work.lines().filter(|line| *line == "code").count(),
        1,
        "{work}"
    );
    // The killed program has left its agents; the next one in its folder ends them.
    start("one").finish();
    run.sandbox.nothing_runs();
}

#[test]
fn another_goal_on_the_same_redis_is_another_crew() {
    let run = CrewRun::new();
    let data = tempfile::tempdir().unwrap();
    let server = RedisServer::start(data.path(), SyncLog::EverySecond).unwrap();
    let file = config("three.toml");
    for goal in ["A haiku", "A poem"] {
        let mut command = run.sandbox.example("crew");
        command.args(["--json", "--headless", "--redis", &server.url()]);
        command.args(["--file", file.to_str().unwrap(), "--dir", goal, goal]);
        let events = run.sandbox.json_lines(&mut command);
        let draft = &events[position(&events, "answered", "draft")]["answer"];
        assert!(draft.as_str().unwrap().contains(goal), "{draft}");
    }
    run.sandbox.nothing_runs();
}

#[test]
fn three_roles_of_a_short_file_work_in_panes_and_headless() {
    let file = config("three.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.lines().count() <= 20);
    let run = CrewRun::new();
    let events = run.events(&["--file", file.to_str().unwrap(), "A limerick"]);
    let asked = |task| &events[position(&events, "asked", task)];
    assert_eq!(
        (&asked("draft")["role"], &asked("draft")["lives"]),
        (&"poet".into(), &"pane".into())
    );
    assert_eq!(
        (&asked("review")["role"], &asked("review")["lives"]),
        (&"critic".into(), &"headless".into())
    );
    assert_eq!(only(&events, "finished")["ok"], true);
    let draft = events[position(&events, "answered", "draft")]["answer"]
        .as_str()
        .unwrap();
    assert!(draft.starts_with("Done: Write it: A limerick"), "{draft}");
    run.left_nothing();
}

#[test]
fn the_default_output_is_text_and_the_files_are_private() {
    let run = CrewRun::new();
    let text = run.sandbox.ok(&mut run.sandbox.example("crew"));
    assert!(!text.contains('\x1b'), "{text}");
    for expected in [
        "starting 5 agents in panes",
        "watch: tmux -S ",
        "grand_boss (scripted) works on aim: Say what the result must be",
        "grand_boss → middle_manager: Can your team do this today?",
        "coding_writing_specialist is killed at work",
        "coding_writing_specialist is back after ",
        "7 tasks in ",
        "3 pieces of work, 0 done twice",
        "all files are in ",
    ] {
        assert!(text.contains(expected), "`{expected}` is missing: {text}");
    }
    run.sandbox.nothing_runs();
    let (_, folder) = text.split_once("all files are in ").unwrap();
    let folder = PathBuf::from(folder.trim());
    assert!(folder.join("snapshots.db").exists(), "{}", folder.display());
    assert!(folder.starts_with(std::fs::canonicalize(run.sandbox.tmp()).unwrap()));
    let mut unseen = vec![folder.parent().unwrap().to_owned()];
    while let Some(path) = unseen.pop() {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        match path.is_dir() {
            // The agents work there, with the user's umask; its own folder is private.
            true if path.ends_with("workspace") => assert_eq!(mode, 0o700),
            true => {
                assert_eq!(mode, 0o700, "{}", path.display());
                let entries = path.read_dir().unwrap();
                unseen.extend(entries.map(|entry| entry.unwrap().path()));
            }
            false => assert_eq!(mode, 0o600, "{}", path.display()),
        }
    }
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    for (signal, place) in SIGNALS.into_iter().zip([&[][..], &["--headless"], &[]]) {
        let run = CrewRun::new();
        // The worst moment: an agent is dead, and others are being started.
        let mut crew = run.start(&[place, &["--kill", BOSS]].concat());
        crew.until("works on aim");
        kill_process(Pid::from_child(&crew.child), signal).unwrap();
        crew.lines.read_to_string(&mut String::new()).unwrap();
        assert_eq!(
            crew.child.wait().unwrap().code(),
            Some(128 + signal.as_raw())
        );
        run.left_nothing();
        // It continues.
        assert_eq!(only(&run.events(&[]), "finished")["ok"], true);
        run.did_everything_once();
    }
}

#[test]
fn a_panic_leaves_nothing_behind() {
    let run = CrewRun::new();
    let mut crew = run.start(&[]);
    crew.until("watch: ");
    // The reader closes the pipe, as in `crew | head -3`: the next printed line is a panic.
    drop(crew.lines);
    let mut said = String::new();
    crew.child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(!crew.child.wait().unwrap().success());
    assert!(said.contains("panicked"), "{said}");
    run.left_nothing();
}

#[test]
fn kept_panes_answer_other_programs() {
    let run = CrewRun::new();
    let events = run.events(&["--keep", "--kill", "none"]);
    assert_eq!(only(&events, "finished")["kept"], true);
    let config = run.sandbox.home().join("crew/config/cluster.yaml");
    let cluster = |arguments: &[&str]| {
        let mut command = run.sandbox.example("cluster");
        command.arg("--config").arg(&config).args(arguments);
        run.sandbox.ok(&mut command)
    };
    let answer = cluster(&["ask", CODING, "Once more"]);
    assert!(answer.contains("Earlier messages: 2"), "{answer}");
    assert_eq!(cluster(&["stop"]), "stopped\n");
    run.sandbox.nothing_runs();
}

#[test]
fn the_agents_are_selectable_and_resumed_by_their_own_means() {
    let run = CrewRun::new();
    let crew = run.sandbox.example("crew");
    let crew = crew.get_program().to_str().unwrap();
    let log = run.sandbox.home().join("calls");
    let script = format!(
        "echo \"$@\" >> '{}'\nexec '{crew}' scripted-agent \"$@\"",
        log.display()
    );
    run.sandbox.install("claude", &script);
    let agents = [
        "--headless",
        "--agents",
        "scripted,claude-code",
        "--kill",
        MANAGER,
    ];
    let events = run.events(&agents);
    let asked = &events[position(&events, "asked", "plan")];
    assert_eq!(
        (&asked["role"], &asked["agent"]),
        (&MANAGER.into(), &"claude-code".into())
    );
    let asked = &events[position(&events, "asked", "aim")];
    assert_eq!(
        (&asked["role"], &asked["agent"]),
        (&BOSS.into(), &"scripted".into())
    );
    assert_eq!(only(&events, "finished")["ok"], true);
    let calls = std::fs::read_to_string(log).unwrap();
    assert!(calls.contains("--input-format=stream-json"), "{calls}");
    run.sandbox.nothing_runs();
}

#[test]
fn the_page_is_served_while_the_crew_works() {
    let run = CrewRun::new();
    let mut crew = run.start(&["--page", "--headless"]);
    let line = crew.until("page: ");
    let (_, address) = line.trim().split_once("page: http://").unwrap();
    let (host, token) = address.split_once("/#token=").unwrap();
    assert!(token.len() >= 32, "{token}");
    crew.until("works on plan");
    let mut page = TcpStream::connect(host).unwrap();
    write!(
        page,
        "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut html = String::new();
    page.read_to_string(&mut html).unwrap();
    assert!(
        html.starts_with("HTTP/1.1 200") && html.contains("board.js"),
        "{html}"
    );
    crew.finish();
    run.left_nothing();
}

#[test]
fn a_budget_ends_the_crew() {
    let run = CrewRun::new();
    let file = run.sandbox.tmp().join("small.toml");
    let text = std::fs::read_to_string(config("three.toml")).unwrap();
    for (budget, arguments, expected) in [
        ("tokens = 1", &["--headless"][..], "tokens"),
        (
            "wall_time_s = 1",
            &[],
            "the budget of 1 s for the whole crew is used up",
        ),
    ] {
        std::fs::write(&file, text.replace("wall_time_s = 600", budget)).unwrap();
        let mut command = run.command(&["--file", file.to_str().unwrap()]);
        let output = run.sandbox.run(command.args(arguments));
        assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        run.sandbox.nothing_runs();
        std::fs::remove_dir_all(run.sandbox.home().join("crew")).unwrap();
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_failure_is_reported_and_wrong_input_changes_nothing() {
    let run = CrewRun::new();
    let file = run.sandbox.tmp().join("wrong.toml");
    std::fs::write(&file, "[crew]\ngoal = \"x\"\ncolour = 1\n").unwrap();
    let file_name = file.to_str().unwrap().to_owned();
    for (arguments, code, expected) in [
        (
            &["--agents", "nobody"][..],
            1,
            "unknown agent `nobody`; known: scripted, claude-code",
        ),
        (&["--storage", "memory:"], 2, "unknown storage `memory`"),
        (
            &["--file", &file_name],
            1,
            "wrong.toml, line 3: unknown field `colour`",
        ),
        (&["--file", "missing.toml"], 1, "cannot read missing.toml"),
        (&["--kill", "nobody"], 1, "there is no role `nobody`"),
    ] {
        let mut command = run.command(arguments);
        run.sandbox.refuses(&mut command, code, &[expected]);
        assert!(!run.sandbox.home().join("crew").exists(), "{arguments:?}");
    }
    std::fs::remove_file(file).unwrap();
    run.sandbox.holds(&[]);
    let folder = run.sandbox.home().join("crew");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
    run.sandbox
        .refuses(&mut run.command(&[]), 1, &["not a private folder"]);
    std::fs::remove_dir(&folder).unwrap();

    let crash = run.command(&["--headless", "--json", "[[crash]]"]);
    let output = run.sandbox.run(&mut { crash });
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    let last: Value = serde_json::from_str(stdout(&output).lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["event"], &last["ok"]),
        (&"finished".into(), &false.into())
    );
    assert!(
        last["error"]
            .as_str()
            .unwrap()
            .contains("has no answer to aim"),
        "{last}"
    );
    run.sandbox.nothing_runs();
    // The folder belongs to that crew.
    let mut other = run.command(&["Something else"]);
    run.sandbox.refuses(&mut other, 1, &["it has another crew"]);
}
