//! The scripted agent in a live session: one process for many turns, in the form of Claude Code's
//! stream of JSON with control requests.
//!
//! Of the directives of [`scripted_agent`] it knows `tool`, `slow`, `say` and `crash`, and:
//!
//! | directive | effect |
//! |---|---|
//! | `[[ask CMD]]` | asks for the permission to run `CMD`, and runs it if it is allowed |
//! | `[[hold]]` | works until it is interrupted |

use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::scripted_agent::{directive, open_conversation, run_tool, session_of};

/// The argument of a live session.
const LIVE: &str = "--input-format=stream-json";
/// Lines that wait: one that works reads little.
const LINES: usize = 64;

/// Runs the agent if the arguments ask for a live session.
pub(crate) fn run_if_asked(arguments: &[String]) -> Option<io::Result<()>> {
    arguments.iter().any(|argument| argument == LIVE).then(|| {
        let (session, resume) = session_of(arguments.iter().cloned())?;
        LiveAgent::open(session, resume)?.run()
    })
}

struct LiveAgent {
    session: String,
    file: PathBuf,
    /// Prompts of the conversation, earlier processes included.
    prompts: usize,
    lines: Receiver<Value>,
    cost_usd: f64,
}

/// A turn was cancelled, or standard input has ended.
enum Cut {
    Interrupted,
    Ended,
}

impl LiveAgent {
    fn open(session: String, resume: bool) -> io::Result<Self> {
        let (file, lines) = open_conversation(&session, resume)?;
        let prompts = lines.iter().filter(|line| line.is_string()).count();
        let (sender, lines) = sync_channel(LINES);
        std::thread::spawn(move || {
            for line in io::stdin().lock().lines() {
                let Ok(line) = line else { return };
                let Ok(line) = serde_json::from_str(&line) else {
                    continue;
                };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            session,
            file,
            prompts,
            lines,
            cost_usd: 0.0,
        })
    }

    fn run(mut self) -> io::Result<()> {
        while let Ok(line) = self.lines.recv() {
            match line["type"].as_str() {
                Some("control_request") => self.respond(&line, json!({}))?,
                Some("user") => {
                    let prompt = line["message"]["content"].as_str().unwrap_or_default();
                    if !self.turn(prompt)? {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// `false` if standard input has ended.
    fn turn(&mut self, prompt: &str) -> io::Result<bool> {
        self.remember(&json!(prompt))?;
        self.prompts += 1;
        self.emit(json!({
            "type": "system", "subtype": "init", "cwd": std::env::current_dir()?,
            "model": "scripted", "tools": ["Bash"], "permissionMode": "default",
        }))?;
        match self.work(prompt)? {
            Ok(answer) => {
                self.say(&answer)?;
                let (input, output) = (prompt.len() / 3 + 1_200, answer.len() / 3 + 60);
                // As Claude Code reports them: the tokens of the turn, the cost of the process.
                self.cost_usd += (input + 5 * output) as f64 * 3e-6;
                self.emit(json!({
                    "type": "result", "subtype": "success", "is_error": false, "result": answer,
                    "num_turns": 1, "total_cost_usd": self.cost_usd,
                    "usage": {"input_tokens": input, "output_tokens": output},
                    "permission_denials": [],
                }))?;
                Ok(true)
            }
            Err(Cut::Interrupted) => {
                self.emit(json!({
                    "type": "result", "subtype": "error_during_execution", "is_error": true,
                    "num_turns": 1, "usage": {"input_tokens": 0, "output_tokens": 0},
                }))?;
                Ok(true)
            }
            Err(Cut::Ended) => Ok(false),
        }
    }

    fn work(&mut self, prompt: &str) -> io::Result<Result<String, Cut>> {
        if prompt.contains("[[hold]]") {
            self.say("I work until I am interrupted.")?;
            return Ok(self.wait(None)?.map(|()| String::new()));
        }
        let seconds = directive(prompt, "slow").and_then(|text| text.parse().ok());
        let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        if let Err(cut) = self.wait(Some(time.unwrap_or(Duration::from_millis(120))))? {
            return Ok(Err(cut));
        }
        let asked = directive(prompt, "ask");
        let mut answer = format!("Done: {}", prompt.lines().next().unwrap_or_default().trim());
        if let Some(command) = asked {
            let allowed = match self.ask(command)? {
                Ok(allowed) => allowed,
                Err(cut) => return Ok(Err(cut)),
            };
            let word = if allowed { "allowed" } else { "denied" };
            answer = format!("{word}: {command}");
            if allowed {
                self.use_tool(command)?;
            }
        }
        if let Some(command) = directive(prompt, "tool") {
            answer = format!("The tool printed: {}", self.use_tool(command)?.trim());
        }
        if prompt.contains("[[crash]]") {
            std::process::abort();
        }
        if let Some(text) = directive(prompt, "say") {
            text.clone_into(&mut answer);
        }
        Ok(Ok(answer))
    }

    /// Waits, for ever or for a time, and answers control requests meanwhile.
    fn wait(&mut self, time: Option<Duration>) -> io::Result<Result<(), Cut>> {
        loop {
            let line = match time {
                // A line restarts the time: close enough for a stand-in.
                Some(time) => self.lines.recv_timeout(time),
                None => self
                    .lines
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
            };
            let line = match line {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => return Ok(Ok(())),
                Err(RecvTimeoutError::Disconnected) => return Ok(Err(Cut::Ended)),
            };
            if self.is_interrupt(&line)? {
                return Ok(Err(Cut::Interrupted));
            }
        }
    }

    fn ask(&mut self, command: &str) -> io::Result<Result<bool, Cut>> {
        let id = Uuid::new_v4().to_string();
        let input = json!({"command": command});
        let request = json!({"subtype": "can_use_tool", "tool_name": "Bash", "input": input});
        print_line(&json!({"type": "control_request", "request_id": id, "request": request}))?;
        loop {
            let Ok(line) = self.lines.recv() else {
                return Ok(Err(Cut::Ended));
            };
            let response = &line["response"];
            if line["type"] == "control_response" && response["request_id"] == json!(id) {
                return Ok(Ok(response["response"]["behavior"] == "allow"));
            }
            if self.is_interrupt(&line)? {
                return Ok(Err(Cut::Interrupted));
            }
        }
    }

    /// Answers a control request; `true` if it cancels the turn.
    fn is_interrupt(&self, line: &Value) -> io::Result<bool> {
        if line["type"] != "control_request" {
            return Ok(false);
        }
        self.respond(line, json!({}))?;
        Ok(line["request"]["subtype"] == "interrupt")
    }

    fn respond(&self, request: &Value, response: Value) -> io::Result<()> {
        let id = &request["request_id"];
        let response = json!({"subtype": "success", "request_id": id, "response": response});
        print_line(&json!({"type": "control_response", "response": response}))
    }

    fn use_tool(&self, command: &str) -> io::Result<String> {
        let call = format!("toolu_{}", Uuid::new_v4().simple());
        self.message(
            "assistant",
            json!({
                "type": "tool_use", "id": call, "name": "Bash", "input": {"command": command},
            }),
        )?;
        let (output, failed) = run_tool(command)?;
        self.message(
            "user",
            json!({
                "type": "tool_result", "tool_use_id": call, "content": output, "is_error": failed,
            }),
        )?;
        Ok(output)
    }

    fn say(&self, text: &str) -> io::Result<()> {
        self.message("assistant", json!({"type": "text", "text": text}))
    }

    fn message(&self, role: &str, content: Value) -> io::Result<()> {
        let id = format!("msg_{}", Uuid::new_v4().simple());
        let message = json!({"id": id, "role": role, "model": "scripted", "content": [content]});
        self.emit(json!({"type": role, "parent_tool_use_id": null, "message": message}))
    }

    fn emit(&self, mut event: Value) -> io::Result<()> {
        event["session_id"] = json!(self.session);
        event["uuid"] = json!(Uuid::new_v4().to_string());
        print_line(&event)
    }

    fn remember(&self, line: &Value) -> io::Result<()> {
        crate::scripted_agent::append(&self.file, line)
    }
}

fn print_line(line: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
