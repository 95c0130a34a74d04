//! A scripted agent for live sessions. It speaks the three protocols, well or badly.
//!
//! It uses the standard library and serde_json only, so that other programs of the workspace can
//! include this file. The text of a prompt controls the turn:
//!
//! | text | effect |
//! |---|---|
//! | `[[ask CMD]]` | asks for the permission to run `sh -c CMD`, and runs it if that is given |
//! | `[[slow MS]]` | writes pieces of text until a cancel, or for that time |
//! | `[[count]]` | answers with the number of earlier prompts of the session |
//! | anything else | answers with `pong: ` and the text |
//!
//! Prompts are stored in the folder `home`, one file for each session, so that a session can be resumed.

use std::fs;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// The protocol of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    Claude,
    Codex,
    Acp,
}

/// How the agent misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Each line is written in two pieces.
    HalfLines,
    /// Each answer is preceded by one with an id that was never used.
    WrongIds,
    /// Each line is written twice.
    Duplicates,
    /// Each message is preceded by a request of an unknown method; its answer is waited for.
    UnknownRequests,
    /// Lines that are no messages.
    Noise,
    /// A prompt gets no answer.
    Silence,
    /// A prompt is followed by very many updates.
    Flood,
    /// Half a message, then the end, at this step.
    Death(Step),
}

/// The steps of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Initialize,
    Open,
    Prompt,
    Ask,
    Answer,
    End,
}

/// The number of updates of [`Fault::Flood`].
pub(crate) const FLOOD: usize = 20_000;

/// Plays the agent on standard input and output until the input ends.
pub(crate) fn run(wire: Wire, fault: Fault, home: PathBuf, args: &[String]) -> io::Result<()> {
    let (lines, input) = channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if lines.send(line).is_err() {
                break;
            }
        }
    });
    let option = |name: &str| args.iter().find_map(|arg| arg.strip_prefix(name));
    let session = option("--session-id=").or_else(|| option("--resume="));
    let mut agent = LiveAgent {
        wire,
        fault,
        home,
        input,
        session: session.unwrap_or("scripted-1").to_owned(),
        last_id: 0,
        answers_to_unknown: 0,
    };
    agent.serve()
}

struct LiveAgent {
    wire: Wire,
    fault: Fault,
    home: PathBuf,
    input: Receiver<String>,
    session: String,
    last_id: u64,
    /// How many unknown requests were answered with an error.
    answers_to_unknown: usize,
}

/// A message of the host.
enum FromHost {
    Initialize(Value),
    Open {
        id: Value,
        session: Option<String>,
        is_load: bool,
    },
    Prompt {
        id: Value,
        text: String,
    },
    Steer {
        id: Value,
        text: String,
    },
    Cancel,
    Answer {
        id: Value,
        is_allowed: bool,
    },
    /// The error for a request that it does not know.
    Refusal {
        id: Value,
    },
    Other {
        id: Value,
    },
}

impl LiveAgent {
    fn serve(&mut self) -> io::Result<()> {
        while let Some(message) = self.read(None)? {
            match message {
                FromHost::Initialize(id) => {
                    self.step(Step::Initialize);
                    self.initialized(&id)?;
                }
                FromHost::Open {
                    id,
                    session,
                    is_load,
                } => self.open(&id, session, is_load)?,
                FromHost::Prompt { id, text } => self.turn(&id, &text)?,
                FromHost::Steer { id, .. } => self.refuse(&id)?,
                FromHost::Other { id } => self.other(&id)?,
                FromHost::Cancel | FromHost::Answer { .. } | FromHost::Refusal { .. } => {}
            }
        }
        Ok(())
    }

    fn open(&mut self, id: &Value, session: Option<String>, is_load: bool) -> io::Result<()> {
        self.step(Step::Open);
        if let Some(session) = session {
            if !self.file(&session).exists() {
                return self.write(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32002, "message": "no such session"}}));
            }
            self.session = session;
        }
        let result = match self.wire {
            Wire::Codex => json!({"thread": {"id": self.session}}),
            _ => {
                json!({"sessionId": self.session, "modes": {"currentModeId": "default", "availableModes": []}})
            }
        };
        self.result(id, &result)?;
        if is_load {
            // As Gemini does it: behind the answer.
            for prompt in self.prompts() {
                self.text(&format!("replayed {prompt}"))?;
            }
        }
        Ok(())
    }

    fn turn(&mut self, id: &Value, text: &str) -> io::Result<()> {
        let earlier = self.prompts().len();
        let mut prompts = self.prompts();
        prompts.push(text.replace('\n', " "));
        fs::create_dir_all(&self.home)?;
        fs::write(self.file(&self.session), prompts.join("\n"))?;
        self.begin_turn(id)?;
        self.step(Step::Prompt);
        match self.fault {
            Fault::Silence => return Ok(()),
            Fault::Flood => {
                for _ in 0..FLOOD {
                    self.text("flood ")?;
                }
            }
            _ => {}
        }
        let answer = if let Some(command) = directive(text, "ask") {
            match self.ask(command)? {
                Some(true) => {
                    self.step(Step::Answer);
                    let output = Command::new("sh").args(["-c", command]).output()?;
                    format!("ran: {}", String::from_utf8_lossy(&output.stdout).trim())
                }
                Some(false) => "not allowed".to_owned(),
                None => return self.end_turn(id, "", true),
            }
        } else if let Some(time) = directive(text, "slow") {
            let time = Duration::from_millis(time.parse().unwrap_or(0));
            let began = Instant::now();
            let mut steered = None;
            while began.elapsed() < time && steered.is_none() {
                self.text("tick ")?;
                match self.read(Some(Duration::from_millis(5)))? {
                    Some(FromHost::Cancel) => return self.end_turn(id, "", true),
                    Some(FromHost::Steer { id, text }) => {
                        self.result(&id, &json!({"outcome": "injected"}))?;
                        steered = Some(text);
                    }
                    Some(_) | None => {}
                }
            }
            match steered {
                Some(text) => format!("pong: {text}"),
                None => "done".to_owned(),
            }
        } else if text.contains("[[count]]") {
            format!("{earlier} earlier, {} refusals", self.answers_to_unknown)
        } else {
            format!("pong: {text}")
        };
        self.text(&answer)?;
        self.step(Step::End);
        self.end_turn(id, &answer, false)
    }

    /// `None` if the turn is cancelled.
    fn ask(&mut self, command: &str) -> io::Result<Option<bool>> {
        self.step(Step::Ask);
        self.last_id += 1;
        let id = self.last_id;
        let asked = match self.wire {
            Wire::Claude => {
                json!({"type": "control_request", "request_id": id.to_string(), "request": {
                "subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": command}}})
            }
            Wire::Codex => {
                json!({"id": id, "method": "item/commandExecution/requestApproval", "params": {
                "threadId": self.session, "command": command}})
            }
            Wire::Acp => {
                json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": {
                "sessionId": self.session,
                "toolCall": {"toolCallId": "call", "kind": "execute", "rawInput": {"command": command}},
                "options": [{"optionId": "y", "name": "Yes", "kind": "allow_once"}, {"optionId": "n", "name": "No", "kind": "reject_once"}]}})
            }
        };
        self.write(&asked)?;
        let own = match self.wire {
            Wire::Claude => json!(id.to_string()),
            _ => json!(id),
        };
        while let Some(message) = self.read(None)? {
            match message {
                FromHost::Answer { id, is_allowed } if id == own => return Ok(Some(is_allowed)),
                FromHost::Cancel => return Ok(None),
                _ => {}
            }
        }
        Ok(None)
    }

    fn initialized(&mut self, id: &Value) -> io::Result<()> {
        match self.wire {
            Wire::Claude => self.result(id, &json!({})),
            Wire::Codex => self.result(id, &json!({"userAgent": "scripted"})),
            Wire::Acp => self.result(
                id,
                &json!({"protocolVersion": 1,
                "agentCapabilities": {"loadSession": true},
                "_meta": {"steering": {"supported": true}}}),
            ),
        }
    }

    fn begin_turn(&mut self, id: &Value) -> io::Result<()> {
        match self.wire {
            Wire::Claude => self
                .write(&json!({"type": "system", "subtype": "init", "session_id": self.session})),
            Wire::Codex => {
                self.result(id, &json!({"turn": {"id": self.turn_id()}}))?;
                let begun = json!({"threadId": self.session, "turn": {"id": self.turn_id()}});
                self.write(&json!({"method": "turn/started", "params": begun}))
            }
            Wire::Acp => Ok(()),
        }
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        let line = match self.wire {
            Wire::Claude => {
                json!({"type": "assistant", "message": {"role": "assistant", "content": [{"type": "text", "text": text}]}})
            }
            Wire::Codex => {
                json!({"method": "item/agentMessage/delta", "params": {"threadId": self.session, "delta": text}})
            }
            Wire::Acp => {
                json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": self.session,
                "update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}}})
            }
        };
        self.write(&line)
    }

    fn end_turn(&mut self, id: &Value, answer: &str, is_cancelled: bool) -> io::Result<()> {
        match (self.wire, is_cancelled) {
            (Wire::Claude, true) => self.write(&json!({"type": "result", "subtype": "error_during_execution", "is_error": true, "uuid": self.turn_id()})),
            (Wire::Claude, false) => self.write(&json!({"type": "result", "subtype": "success", "is_error": false, "result": answer, "uuid": self.turn_id()})),
            (Wire::Codex, _) => {
                let status = if is_cancelled { "interrupted" } else { "completed" };
                self.write(&json!({"method": "turn/completed", "params": {"threadId": self.session, "turn": {"id": self.turn_id(), "status": status}}}))
            }
            (Wire::Acp, _) => {
                let reason = if is_cancelled { "cancelled" } else { "end_turn" };
                self.result(id, &json!({"stopReason": reason}))
            }
        }
    }

    fn other(&mut self, id: &Value) -> io::Result<()> {
        match self.wire {
            _ if id.is_null() => Ok(()),
            Wire::Claude => self.result(id, &json!({})),
            _ => self.refuse(id),
        }
    }

    fn refuse(&mut self, id: &Value) -> io::Result<()> {
        self.write(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no such method"}}))
    }

    fn result(&mut self, id: &Value, result: &Value) -> io::Result<()> {
        let wire = self.wire;
        let line = |id: &Value| match wire {
            Wire::Claude => {
                json!({"type": "control_response", "response": {"subtype": "success", "request_id": id, "response": result}})
            }
            _ => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        };
        if self.fault == Fault::WrongIds {
            for wrong in [json!(4_000_000), json!("x"), json!(-1), json!(null)] {
                let line = line(&wrong);
                self.write(&line)?;
            }
        }
        let line = line(id);
        self.write(&line)
    }

    fn write(&mut self, message: &Value) -> io::Result<()> {
        if self.fault == Fault::UnknownRequests {
            self.last_id += 1;
            let id = format!("unknown-{}", self.last_id);
            let request = match self.wire {
                Wire::Claude => {
                    json!({"type": "control_request", "request_id": id, "request": {"subtype": "no_such"}})
                }
                _ => json!({"jsonrpc": "2.0", "id": id, "method": "no/such", "params": {}}),
            };
            self.write_line(&request.to_string())?;
            // Whatever else arrives now is not expected from a host that answers at once.
            match self.read(None)? {
                Some(FromHost::Refusal { id: answered }) if answered == json!(id) => {
                    self.answers_to_unknown += 1;
                }
                _ => {
                    return Err(io::Error::other(
                        "an unknown request was not refused at once",
                    ));
                }
            }
        }
        self.write_line(&message.to_string())
    }

    fn write_line(&mut self, line: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match self.fault {
            Fault::HalfLines => {
                let (first, second) = line.as_bytes().split_at(line.len() / 2);
                out.write_all(first)?;
                out.flush()?;
                std::thread::sleep(Duration::from_millis(1));
                out.write_all(second)?;
                out.write_all(b"\n")?;
            }
            Fault::Duplicates => writeln!(out, "{line}\n{line}")?,
            Fault::Noise => writeln!(
                out,
                "Loaded 3 extensions\n{{\"half\":\n[]\n\n\"text\"\n{line}\n{{}}"
            )?,
            _ => writeln!(out, "{line}")?,
        }
        out.flush()
    }

    /// Dies here, in the middle of a message, if the fault says so.
    fn step(&self, step: Step) {
        if self.fault == Fault::Death(step) {
            let mut out = io::stdout().lock();
            let _ = out.write_all(br#"{"jsonrpc":"2.0","id":1,"res"#);
            let _ = out.flush();
            std::process::exit(3);
        }
    }

    /// The next message; `None` at the end of the input, and if there is none in time.
    fn read(&mut self, wait: Option<Duration>) -> io::Result<Option<FromHost>> {
        let line = match wait {
            Some(wait) => match self.input.recv_timeout(wait) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => std::process::exit(0),
            },
            None => match self.input.recv() {
                Ok(line) => line,
                Err(_) => return Ok(None),
            },
        };
        let message: Value = serde_json::from_str(&line)?;
        Ok(Some(self.understand(&message)))
    }

    fn understand(&self, message: &Value) -> FromHost {
        let text = |value: &Value| value[0]["text"].as_str().unwrap_or_default().to_owned();
        let params = &message["params"];
        let id = message["id"].clone();
        if self.wire == Wire::Claude {
            let id = message["request_id"].clone();
            let response = &message["response"];
            return match (
                message["type"].as_str(),
                message["request"]["subtype"].as_str(),
            ) {
                (Some("user"), _) => {
                    let text = message["message"]["content"].as_str().unwrap_or_default();
                    FromHost::Prompt {
                        id,
                        text: text.to_owned(),
                    }
                }
                (_, Some("initialize")) => FromHost::Initialize(id),
                (_, Some("interrupt")) => FromHost::Cancel,
                (Some("control_response"), _) if response["subtype"] == "error" => {
                    FromHost::Refusal {
                        id: response["request_id"].clone(),
                    }
                }
                (Some("control_response"), _) => FromHost::Answer {
                    id: response["request_id"].clone(),
                    is_allowed: response["response"]["behavior"] == "allow",
                },
                _ => FromHost::Other { id },
            };
        }
        if message.get("error").is_some() {
            return FromHost::Refusal { id };
        }
        if let Some(result) = message.get("result") {
            let is_allowed = result["decision"] == "accept" || result["outcome"]["optionId"] == "y";
            return FromHost::Answer { id, is_allowed };
        }
        let session = |key: &str| params[key].as_str().map(str::to_owned);
        let (is_load, other) = (true, false);
        match message["method"].as_str().unwrap_or_default() {
            "initialize" => FromHost::Initialize(id),
            "session/new" | "thread/start" => FromHost::Open {
                id,
                session: None,
                is_load: other,
            },
            "session/load" => FromHost::Open {
                id,
                session: session("sessionId"),
                is_load,
            },
            "thread/resume" => FromHost::Open {
                id,
                session: session("threadId"),
                is_load: other,
            },
            "session/prompt" => FromHost::Prompt {
                id,
                text: text(&params["prompt"]),
            },
            "turn/start" => FromHost::Prompt {
                id,
                text: text(&params["input"]),
            },
            "_session/steering" => FromHost::Steer {
                id,
                text: text(&params["prompt"]),
            },
            "turn/steer" => FromHost::Steer {
                id,
                text: text(&params["input"]),
            },
            "session/cancel" | "turn/interrupt" => FromHost::Cancel,
            _ => FromHost::Other { id },
        }
    }

    /// Each turn stores one prompt.
    fn turn_id(&self) -> String {
        format!("turn-{}", self.prompts().len())
    }

    fn file(&self, session: &str) -> PathBuf {
        self.home.join(session.replace('/', "_"))
    }

    fn prompts(&self) -> Vec<String> {
        let text = fs::read_to_string(self.file(&self.session)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// The text of `[[name TEXT]]` in the prompt.
fn directive<'a>(prompt: &'a str, name: &str) -> Option<&'a str> {
    let begin = format!("[[{name} ");
    let (_, rest) = prompt.split_once(&begin)?;
    rest.split_once("]]").map(|(text, _)| text)
}
