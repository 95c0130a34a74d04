//! Live sessions: the next turn in a running process, the cost per event, the memory per session.

use std::io::{BufRead, BufWriter, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use benches::{Bench, Goal, resident_kib};
use exec_core::{
    CommandConfig, EventKind, EventStream, ExecutionContext, ExecutionService, LiveEvent,
    LiveRequest, LiveSession, MemoryPolicy, NewChatRequest, TurnOutcome,
};
use exec_profiles::{ProfileRegistry, builtin};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::runtime::Runtime;

use super::host::raise_file_limit;

/// How many events the agent prints in a turn.
const EVENTS: &str = "EXEC_BENCH_LIVE_EVENTS";
/// How many sessions the host opens.
const SESSIONS: &str = "EXEC_BENCH_LIVE_SESSIONS";

const SESSION: &str = "11111111-2222-4333-8444-555555555555";
/// Recorded from Claude Code, both directions.
const RECORDED: &str = include_str!("../../exec-profiles/tests/data/live/claude.jsonl");

pub fn is_agent_or_host() -> bool {
    std::env::var_os(EVENTS).is_some() || std::env::var_os(SESSIONS).is_some()
}

pub fn play() {
    match (number(SESSIONS), number(EVENTS)) {
        (Some(sessions), _) => play_host(sessions),
        (None, events) => play_agent(events.expect("a number of events")),
    }
}

fn number(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.parse().ok()
}

/// An agent that answers each prompt with that many messages, as Claude Code prints them.
fn play_agent(events: usize) {
    let lines = RECORDED.lines().map(serde_json::from_str);
    let lines = lines.map(|line: Result<Value, _>| line.expect("a recorded line"));
    let lines = lines.filter(|line| line["dir"] == "out");
    let lines: Vec<String> = lines
        .filter_map(|line| line["line"].as_str().map(str::to_owned))
        .collect();
    let of_type = |name: &str| {
        let name = format!(r#""type":"{name}""#);
        let found = lines.iter().find(|line| line.contains(&name));
        found.expect("a recorded line of this type").as_str()
    };
    let init = lines
        .iter()
        .find(|line| line.contains(r#""subtype":"init""#));
    let (init, message) = (init.expect("the first line"), of_type("assistant"));
    let result = json!({
        "type": "result", "subtype": "success", "is_error": false, "result": "done",
        "session_id": SESSION,
    });
    let is_one_shot = !std::env::args().any(|arg| arg == "--input-format=stream-json");
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut turn = || {
        writeln!(out, "{init}")?;
        for _ in 0..events {
            writeln!(out, "{message}")?;
        }
        writeln!(out, "{result}")?;
        out.flush()
    };
    if is_one_shot {
        return turn().expect("written");
    }
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let line: Value = serde_json::from_str(&line).expect("JSON");
        if line["type"] == "user" {
            turn().expect("written");
        } else {
            let response = json!({"subtype": "success", "request_id": line["request_id"]});
            println!(
                "{}",
                json!({"type": "control_response", "response": response})
            );
        }
    }
}

/// A service with this agent as Claude Code.
struct LiveHost {
    service: ExecutionService,
    folder: TempDir,
}

impl LiveHost {
    fn new(events: usize) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let program = this_program();
        let mut profile = builtin::claude_code();
        profile.command = CommandConfig::new(program, ["-p"]);
        profile
            .command
            .env
            .insert(EVENTS.to_owned(), events.to_string());
        profile.native_binary = None;
        let registry = ProfileRegistry::new();
        registry.register(profile).expect("a profile");
        let service = ExecutionService::builder(registry)
            // Holds a whole turn: the subscriber shares the cores with the agent.
            .memory_policy(MemoryPolicy::DropOldest {
                max_bytes: 16 << 20,
            })
            .state_dir(folder.path().join("state"))
            .open()
            .expect("a service");
        Self { service, folder }
    }

    fn context(&self) -> ExecutionContext {
        ExecutionContext::for_workspace("claude-code", self.folder.path()).expect("a context")
    }

    async fn open(&self) -> Subscribed {
        let request = LiveRequest::new(self.context());
        let session = self.service.open_live(request).await.expect("a session");
        let events = session.execution().events();
        Subscribed { session, events }
    }

    async fn one_process(&self) -> Duration {
        let start = Instant::now();
        let request = NewChatRequest {
            context: self.context(),
            prompt: "go".to_owned(),
        };
        let result = self.service.run(request).await.expect("a run");
        std::hint::black_box(&result);
        start.elapsed()
    }
}

fn this_program() -> String {
    let program = std::env::current_exe().expect("this program");
    program.to_string_lossy().into_owned()
}

/// A session with a subscriber that reads every event.
struct Subscribed {
    session: LiveSession,
    events: EventStream,
}

impl Subscribed {
    async fn turn(&mut self, expected: usize) -> Duration {
        let start = Instant::now();
        let turn = self.session.prompt("go").expect("a prompt");
        let mut texts = 0;
        while let Some(event) = self.events.next().await {
            texts += event.agent_events().iter().filter(|it| is_text(it)).count();
            match &event.kind {
                EventKind::Live(LiveEvent::TurnEnded { .. }) => break,
                EventKind::Gap { missed } => panic!("{missed} events were lost"),
                _ => {}
            }
        }
        let report = turn.ended().await.expect("an end");
        let took = start.elapsed();
        assert_eq!(report.outcome, TurnOutcome::Completed);
        assert_eq!(texts, expected);
        took
    }

    async fn close(self) {
        self.session.close().await.expect("an end");
    }
}

fn is_text(event: &exec_core::AgentEvent) -> bool {
    matches!(event.kind, exec_core::AgentEventKind::Text { .. })
}

/// The same protocol, written and read by hand.
struct Raw {
    _child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Raw {
    async fn open(events: usize) -> Self {
        let mut child = tokio::process::Command::new(this_program())
            .arg("--input-format=stream-json")
            .env(EVENTS, events.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("a child");
        let input = child.stdin.take().expect("its input");
        let output = child.stdout.take().expect("its output");
        Self {
            _child: child,
            input,
            lines: BufReader::with_capacity(64 << 10, output).lines(),
        }
    }

    async fn turn(&mut self) -> Duration {
        let start = Instant::now();
        let message = json!({"type": "user", "message": {"role": "user", "content": "go"}});
        let line = format!("{message}\n");
        self.input
            .write_all(line.as_bytes())
            .await
            .expect("written");
        loop {
            let line = self.lines.next_line().await.expect("read");
            let line: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
            if line["type"] == "result" {
                return start.elapsed();
            }
        }
    }
}

pub fn compare(bench: &mut Bench, runtime: &Runtime) {
    let events = if bench.is_smoke() { 10 } else { 1_000 };
    let host = LiveHost::new(events);
    let mut session = runtime.block_on(host.open());
    let mut raw = runtime.block_on(Raw::open(events));
    bench
        .compare(&format!("a live turn of {events} messages, one subscriber"))
        .floor_timed("tokio::process, lines() and serde_json::Value", || {
            runtime.block_on(raw.turn())
        })
        .differs("no events with a meaning, no bound, no replay, no permissions, no log of usage")
        .ours_timed("prompt", || runtime.block_on(session.turn(events)))
        .goal(Goal::at_most_floor(1.2).limited_by(
            "each message is also kept for replay, which allocates, and handed from the task that \
             reads to the subscriber",
        ))
        .headline()
        .run();
    runtime.block_on(session.close());

    let host = LiveHost::new(1);
    let mut session = runtime.block_on(host.open());
    bench
        .compare("the next turn of a scripted agent that answers at once")
        .ours_timed("live", || runtime.block_on(session.turn(1)))
        .peer_timed("one process for each turn", || {
            runtime.block_on(host.one_process())
        })
        .differs("starts the agent; a real agent takes seconds for that")
        .run();
    runtime.block_on(session.close());
    many(bench, runtime);
    memory(bench);
}

fn many(bench: &mut Bench, runtime: &Runtime) {
    let sessions = if bench.is_smoke() { 5 } else { 200 };
    bench.progress(&format!("{sessions} live sessions at once"));
    let host = Arc::new(LiveHost::new(10));
    let (opened, turns) = runtime.block_on(async {
        let start = Instant::now();
        let mut opening = tokio::task::JoinSet::new();
        for _ in 0..sessions {
            let host = Arc::clone(&host);
            opening.spawn(async move { host.open().await });
        }
        let opened = opening.join_all().await;
        let took = start.elapsed();
        let start = Instant::now();
        let mut turns = tokio::task::JoinSet::new();
        for mut session in opened {
            turns.spawn(async move {
                for _ in 0..10 {
                    session.turn(10).await;
                }
            });
        }
        turns.join_all().await;
        let turns = start.elapsed();
        host.service.shutdown(Duration::from_secs(60)).await;
        (took, turns)
    });
    let name = |what: &str| format!("{sessions} live sessions at once, {what}");
    bench.figure(&name("all open"), opened.as_secs_f64(), "s", None);
    bench.figure(&name("ten turns each"), turns.as_secs_f64(), "s", None);
}

/// Opens the sessions, one turn each, and prints the resident memory before and after.
fn play_host(sessions: usize) {
    raise_file_limit();
    let runtime = Runtime::new().expect("a runtime");
    // The agents are this program, too.
    // SAFETY: no other thread of this program reads or writes the environment yet.
    unsafe { std::env::remove_var(SESSIONS) };
    runtime.block_on(async {
        let host = LiveHost::new(1);
        let mut first = host.open().await;
        first.turn(1).await;
        let before = resident_kib(std::process::id());
        let mut opened = Vec::new();
        for _ in 0..sessions {
            let mut session = host.open().await;
            session.turn(1).await;
            opened.push(session);
        }
        println!("{before} {}", resident_kib(std::process::id()));
        host.service.shutdown(Duration::from_secs(60)).await;
    });
}

fn memory(bench: &mut Bench) {
    let sessions = if bench.is_smoke() { 3 } else { 200 };
    bench.progress(&format!("a host with {sessions} live sessions"));
    let output = Command::new(this_program())
        .env(SESSIONS, sessions.to_string())
        .stderr(Stdio::inherit())
        .output()
        .expect("a host");
    assert!(output.status.success(), "the host failed");
    let text = String::from_utf8_lossy(&output.stdout);
    let kib = text.split_whitespace().filter_map(|word| word.parse().ok());
    let kib: Vec<f64> = kib.collect();
    let [before, after] = kib[..] else {
        panic!("not two numbers: {text}");
    };
    bench.figure(
        "resident memory for each live session, idle after one turn",
        (after - before) / sessions as f64,
        "KiB",
        Some(Goal::at_most(64.0)),
    );
}
