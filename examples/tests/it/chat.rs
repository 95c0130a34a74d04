//! The conversation with a live agent, by JSON and as in a terminal.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::sandbox::{SIGNALS, Sandbox, eventually, with_default_signals};

const LIMIT: Duration = Duration::from_secs(100);

/// A prompt whose tool runs until it is ended.
const ENDLESS: &str = "Wait. [[tool exec tail -f /dev/null]]";

fn chat(sandbox: &Sandbox, arguments: &[&str]) -> Command {
    let _ = std::fs::create_dir(sandbox.home().join("workspace"));
    let mut command = sandbox.example("chat");
    command.args(["--workspace", "workspace"]).args(arguments);
    command
}

/// A running conversation.
struct Talk {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Talk {
    fn start(command: &Command) -> Self {
        let mut command = with_default_signals(command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self {
            input: child.stdin.take(),
            child,
            lines,
        }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    fn send(&mut self, command: Value) {
        self.say(&command.to_string());
    }

    /// Reads on until a line contains the text.
    #[track_caller]
    fn until_line(&self, text: &str) -> String {
        let mut seen = String::new();
        loop {
            match self.lines.recv_timeout(LIMIT) {
                Ok(line) if line.contains(text) => return line,
                Ok(line) => seen += &(line + "\n"),
                Err(error) => panic!("{error}: no `{text}` in:\n{seen}"),
            }
        }
    }

    /// Reads on until an object of this type, or a reply with this id.
    #[track_caller]
    fn until(&self, name: &str) -> Value {
        let line = self.until_line(&format!(r#""type":"{name}""#));
        serde_json::from_str(&line).unwrap()
    }

    #[track_caller]
    fn reply(&self, id: u64) -> Value {
        loop {
            let reply = self.until("reply");
            if reply["id"] == id {
                return reply;
            }
        }
    }

    fn end_of_input(&mut self) {
        self.input = None;
    }

    #[track_caller]
    fn exit_code(&mut self) -> Option<i32> {
        eventually("the program ends", || {
            self.child.try_wait().unwrap().is_some()
        });
        self.child.wait().unwrap().code()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

fn kill_agents(sandbox: &Sandbox) {
    for process in sandbox.processes() {
        let (pid, line) = process.split_once(": ").unwrap();
        if line.contains("scripted-agent") {
            let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
            kill_process(pid, Signal::KILL).unwrap();
        }
    }
}

#[test]
fn questions_are_answered_once_and_the_agent_remembers() {
    let sandbox = Sandbox::new();
    let mut talk = Talk::start(&chat(&sandbox, &["--json"]));
    talk.until("opened");
    talk.send(json!({"id": 1, "command": "prompt", "text": "One [[tool echo tool-ran]]"}));
    let asked = talk.until("permission_asked");
    assert_eq!(
        (&asked["tool"], &asked["command"]),
        (&json!("Bash"), &json!("echo tool-ran"))
    );
    let state = json!({"id": 2, "command": "state"});
    talk.send(state);
    assert_eq!(talk.reply(2)["status"], "waiting_for_permission");
    for id in [3, 4] {
        let permission = &asked["id"];
        talk.send(json!({
            "id": id, "command": "answer", "permission": permission, "decision": "allow",
        }));
    }
    assert_eq!(talk.reply(3).get("error"), None);
    let second = talk.reply(4);
    assert!(
        second["error"].as_str().unwrap().contains("a caller"),
        "{second}"
    );
    assert_eq!(talk.until("turn_ended")["outcome"], "completed");

    talk.send(json!({"id": 5, "command": "prompt", "text": "Two"}));
    let asked = talk.until("permission_asked");
    talk.send(json!({
        "id": 6, "command": "answer", "permission": asked["id"], "decision": "deny",
    }));
    let answer = talk.until_line("the first was: One");
    assert!(answer.contains("does not allow this call"), "{answer}");
    talk.end_of_input();
    assert_eq!(talk.exit_code(), Some(0));
    sandbox.nothing_runs();
}

#[test]
fn messages_wait_for_their_turn_and_can_be_taken_back() {
    let sandbox = Sandbox::new();
    let mut talk = Talk::start(&chat(&sandbox, &["--json", "--allow", "tail *"]));
    talk.until("opened");
    talk.send(json!({"id": 1, "command": "prompt", "text": "Wait. [[tool tail -f /dev/null]]"}));
    let settled = talk.until("permission_settled");
    assert_eq!(
        (&settled["decision"], &settled["by"]),
        (&json!("allow"), &json!("policy"))
    );
    for (id, text) in [
        (2, "second [[say 2]]"),
        (3, "third"),
        (4, "fourth [[say 4]]"),
    ] {
        talk.send(json!({"id": id, "command": "prompt", "text": text}));
        assert_eq!(talk.reply(id)["turn"], id);
    }
    talk.send(json!({"id": 5, "command": "take_back", "message": 3}));
    assert_eq!(talk.reply(5)["text"], "third");
    talk.send(json!({"id": 6, "command": "queue"}));
    let queue = talk.reply(6);
    let numbers: Vec<_> = queue["queue"].as_array().unwrap().iter().collect();
    let numbers: Vec<_> = numbers.iter().map(|it| &it["message"]).collect();
    assert_eq!(numbers, [2, 4]);
    talk.send(json!({"id": 7, "command": "interrupt", "turn": 1}));
    assert_eq!(talk.reply(7)["outcome"], "interrupted");
    // The questions of the last turns are denied at the end of the input.
    talk.end_of_input();
    let ends: Vec<_> = [2, 4].map(|_| talk.until("turn_ended")).into();
    let turns: Vec<_> = ends.iter().map(|end| &end["turn"]).collect();
    assert_eq!(turns, [2, 4]);
    assert_eq!(talk.exit_code(), Some(0));
    sandbox.nothing_runs();
}

#[test]
fn ctrl_c_interrupts_the_turn_and_keeps_the_session() {
    let sandbox = Sandbox::new();
    let mut talk = Talk::start(&chat(&sandbox, &[]));
    talk.until_line("is ready");
    talk.say(ENDLESS);
    talk.until_line("[y/n]");
    talk.say("y");
    let runs = |sandbox: &Sandbox| {
        let mut processes = sandbox.processes().into_iter();
        processes.any(|process| process.contains(": tail -f /dev/null"))
    };
    eventually("the tool runs", || runs(&sandbox));
    talk.signal(Signal::INT);
    talk.until_line("interrupted");
    eventually("the tool has ended", || !runs(&sandbox));

    talk.say("What did I say?");
    talk.until_line("[y/n]");
    talk.say("n");
    talk.until_line("the first was: Wait.");
    talk.until_line("done");
    // Without a turn it ends the program.
    talk.signal(Signal::INT);
    assert_eq!(talk.exit_code(), Some(130));
    sandbox.nothing_runs();
}

#[test]
fn a_signal_leaves_no_process() {
    for signal in SIGNALS {
        let sandbox = Sandbox::new();
        let mut talk = Talk::start(&chat(&sandbox, &[]));
        talk.until_line("is ready");
        talk.say(ENDLESS);
        talk.until_line("[y/n]");
        // The first INT interrupts the turn, which waits for an answer.
        talk.signal(signal);
        if signal == Signal::INT {
            talk.until_line("interrupted");
            talk.signal(signal);
        }
        assert_eq!(talk.exit_code(), Some(128 + signal.as_raw()));
        assert_eq!(sandbox.processes(), Vec::<String>::new());
    }
}

#[test]
fn a_killed_agent_is_resumed_and_gets_no_prompt_twice() {
    let sandbox = Sandbox::new();
    let mut talk = Talk::start(&chat(&sandbox, &[]));
    talk.until_line("is ready");
    talk.say("First [[tool exec tail -f /dev/null]]");
    talk.until_line("[y/n]");
    talk.say("Second [[say second-answer]]");
    talk.until_line("message 2 waits");
    kill_agents(&sandbox);
    talk.until_line("the agent has ended in its turn");
    talk.until_line("/resume");
    talk.say("/resume");
    // The message that waited is delivered, the one that may have run is not.
    talk.until_line("[y/n]");
    talk.say("n");
    talk.until_line("second-answer");
    talk.say("What was first?");
    talk.until_line("[y/n]");
    talk.say("n");
    talk.until_line("Earlier messages: 2; the first was: First");
    talk.say("/quit");
    assert_eq!(talk.exit_code(), Some(0));
    sandbox.nothing_runs();
}

#[test]
fn a_signal_ends_the_program_after_the_end_of_the_agent() {
    for signal in SIGNALS {
        let sandbox = Sandbox::new();
        let mut talk = Talk::start(&chat(&sandbox, &[]));
        talk.until_line("is ready");
        kill_agents(&sandbox);
        talk.until_line("/resume");
        talk.signal(signal);
        assert_eq!(talk.exit_code(), Some(128 + signal.as_raw()));
        sandbox.nothing_runs();
    }
}

#[test]
fn a_prompt_is_answered_although_the_input_ends_at_once() {
    let sandbox = Sandbox::new();
    let prompt = json!({"id": 1, "command": "prompt", "text": "Count [[say 3]]"}).to_string();
    for _ in 0..5 {
        let mut command = chat(&sandbox, &["--json"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        writeln!(input, "{prompt}").unwrap();
        drop(input);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let events = String::from_utf8(output.stdout).unwrap();
        let ended = events.lines().find(|line| line.contains("turn_ended"));
        let ended = ended.unwrap_or_else(|| panic!("the prompt is lost:\n{events}"));
        assert!(ended.contains("completed"), "{ended}");
    }
    sandbox.nothing_runs();
}

#[test]
fn the_end_of_the_input_ends_a_conversation_at_a_usage_limit() {
    let sandbox = Sandbox::new();
    let mut talk = Talk::start(&chat(&sandbox, &["--json"]));
    talk.until("opened");
    talk.send(json!({"id": 1, "command": "prompt", "text": "Count [[limit]]"}));
    assert_eq!(talk.until("turn_ended")["outcome"], "failed");
    talk.send(json!({"id": 2, "command": "state"}));
    assert_eq!(talk.reply(2)["status"], "limited");
    talk.end_of_input();
    assert_eq!(talk.exit_code(), Some(0));
    sandbox.nothing_runs();
}

#[test]
fn an_agent_without_a_live_protocol_is_refused() {
    let sandbox = Sandbox::new();
    let file = sandbox.home().join("profiles.toml");
    std::fs::write(&file, "[plain]\ncommand = \"cat\"\n").unwrap();
    let mut command = chat(
        &sandbox,
        &["--profiles", "profiles.toml", "--agent", "plain"],
    );
    sandbox.refuses(&mut command, 1, &["plain"]);
    sandbox.nothing_runs();
}
