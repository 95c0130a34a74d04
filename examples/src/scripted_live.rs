//! The scripted agent in a live session: one process for many turns, with the control protocol of
//! Claude Code. The directives in a prompt are those of [`scripted_agent`](crate::scripted_agent).
//!
//! It asks before it uses its tool. An interrupt ends the tool and the turn.

use std::io::{self, BufRead};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use crate::scripted_agent::{Conversation, cost_usd, tool_command, tool_of, tool_output};

/// Runs the agent if the arguments ask for a live session.
pub(crate) fn run_if_asked(args: &[String]) -> Option<io::Result<()>> {
    let is_live = args.iter().any(|arg| arg == "--input-format=stream-json");
    is_live.then(|| Agent::open(args)?.serve())
}

/// What reaches the agent.
enum Input {
    Line(Value),
    ToolEnded { output: String, failed: bool },
    End,
}

struct Agent {
    conversation: Conversation,
    input: Receiver<Input>,
    /// For the thread that waits for a tool.
    sender: Sender<Input>,
    /// Prompts that came during a turn.
    waiting: Vec<String>,
    requests: u64,
    /// Of this process so far.
    cost_usd: f64,
}

/// Why a turn does not go on.
enum Cut {
    Interrupted,
    /// The host has closed standard input.
    Ended,
    Failed(io::Error),
}

impl From<io::Error> for Cut {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl Agent {
    fn open(args: &[String]) -> io::Result<Self> {
        let conversation = Conversation::from_args(args)?;
        let (sender, input) = mpsc::channel();
        let lines = sender.clone();
        thread::spawn(move || {
            for line in io::stdin().lock().lines().map_while(Result::ok) {
                let Ok(line) = serde_json::from_str(&line) else {
                    continue;
                };
                if lines.send(Input::Line(line)).is_err() {
                    return;
                }
            }
            let _ = lines.send(Input::End);
        });
        Ok(Self {
            conversation,
            input,
            sender,
            waiting: Vec::new(),
            requests: 0,
            cost_usd: 0.0,
        })
    }

    fn serve(mut self) -> io::Result<()> {
        loop {
            let prompt = match self.waiting.is_empty() {
                false => self.waiting.remove(0),
                true => match self.input.recv() {
                    Ok(Input::Line(line)) => match self.take(&line)? {
                        Some(prompt) => prompt,
                        None => continue,
                    },
                    Ok(Input::ToolEnded { .. }) => continue,
                    Ok(Input::End) | Err(_) => return Ok(()),
                },
            };
            match self.turn(&prompt) {
                Ok(()) => {}
                Err(Cut::Interrupted) => self.conversation.emit(json!({
                    "type": "result", "subtype": "error_during_execution", "is_error": true,
                }))?,
                Err(Cut::Ended) => return Ok(()),
                Err(Cut::Failed(error)) => return Err(error),
            }
        }
    }

    /// Answers a request of the host; the text of a prompt is returned.
    fn take(&self, line: &Value) -> io::Result<Option<String>> {
        match line["type"].as_str() {
            Some("user") => Ok(line["message"]["content"].as_str().map(str::to_owned)),
            Some("control_request") => {
                let response = match line["request"]["subtype"].as_str() {
                    Some("initialize" | "interrupt" | "set_model" | "set_permission_mode") => {
                        json!({"subtype": "success", "request_id": line["request_id"]})
                    }
                    _ => json!({
                        "subtype": "error", "request_id": line["request_id"],
                        "error": "unknown request",
                    }),
                };
                let line = json!({"type": "control_response", "response": response});
                self.conversation.emit(line)?;
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    fn turn(&mut self, prompt: &str) -> Result<(), Cut> {
        let began = Instant::now();
        let plan = self.conversation.begin(prompt)?;
        self.conversation.emit(json!({
            "type": "system", "subtype": "init", "cwd": std::env::current_dir()?,
            "model": "scripted", "tools": ["Bash"], "permissionMode": "default",
        }))?;
        self.pause(plan.thinking("slow"))?;
        self.conversation.say("Let me look at the workspace.")?;
        if plan.prompt.contains("[[limit]]") {
            self.conversation.emit(json!({
                "type": "result", "subtype": "success", "is_error": true, "api_error_status": 429,
                "result": "You've hit your limit.",
            }))?;
            return Ok(());
        }
        let output = match &plan.used_tool {
            Some(output) => output.clone(),
            None => self.use_tool(tool_of(&plan.prompt))?,
        };
        if plan.prompt.contains("[[crash]]") {
            std::process::abort();
        }
        self.pause(plan.thinking("ponder"))?;
        let (talk, answer) = (&self.conversation, plan.answer(&output));
        talk.say(&answer)?;
        let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let usage = talk.usage(&answer);
        self.cost_usd += cost_usd(&usage);
        talk.emit(json!({
            "type": "result", "subtype": "success", "is_error": false, "result": answer,
            "duration_ms": took, "num_turns": 1, "total_cost_usd": self.cost_usd,
            "usage": usage, "permission_denials": [],
        }))?;
        Ok(())
    }

    fn use_tool(&mut self, command: &str) -> Result<String, Cut> {
        let call = self.conversation.call_tool(command)?;
        if !self.may_use(&call, command)? {
            let refused = "The user does not allow this call.";
            self.conversation.tool_ended(&call, refused, true)?;
            return Ok(refused.to_owned());
        }
        let tool = tool_command(command).spawn()?;
        let group = Pid::from_child(&tool);
        let sender = self.sender.clone();
        thread::spawn(move || {
            let (output, failed) = match tool.wait_with_output() {
                Ok(done) => tool_output(done),
                Err(error) => (error.to_string(), true),
            };
            sender.send(Input::ToolEnded { output, failed })
        });
        loop {
            match self.next(None) {
                Ok(Some(Input::ToolEnded { output, failed })) => {
                    self.conversation.tool_used(&output)?;
                    self.conversation.tool_ended(&call, &output, failed)?;
                    return Ok(output);
                }
                Ok(_) => {}
                Err(cut) => {
                    let _ = kill_process_group(group, Signal::KILL);
                    return Err(cut);
                }
            }
        }
    }

    /// Asks the host.
    fn may_use(&mut self, call: &str, command: &str) -> Result<bool, Cut> {
        self.requests += 1;
        let id = format!("agent-{}", self.requests);
        self.conversation.emit(json!({
            "type": "control_request", "request_id": id,
            "request": {
                "subtype": "can_use_tool", "tool_name": "Bash",
                "input": {"command": command}, "tool_use_id": call,
            },
        }))?;
        loop {
            if let Some(Input::Line(line)) = self.next(None)?
                && line["type"] == "control_response"
                && line["response"]["request_id"] == id.as_str()
            {
                return Ok(line["response"]["response"]["behavior"] == "allow");
            }
        }
    }

    fn pause(&mut self, time: Duration) -> Result<(), Cut> {
        let end = Instant::now() + time;
        while self.next(Some(end))?.is_some() {}
        Ok(())
    }

    /// The next input during a turn; `None` at the time given.
    fn next(&mut self, end: Option<Instant>) -> Result<Option<Input>, Cut> {
        let input = match end {
            None => self.input.recv().map_err(|_| Cut::Ended)?,
            Some(end) => {
                let left = end.saturating_duration_since(Instant::now());
                match self.input.recv_timeout(left) {
                    Ok(input) => input,
                    Err(RecvTimeoutError::Timeout) => return Ok(None),
                    Err(RecvTimeoutError::Disconnected) => return Err(Cut::Ended),
                }
            }
        };
        match &input {
            Input::End => return Err(Cut::Ended),
            Input::Line(line) => {
                if let Some(prompt) = self.take(line)? {
                    self.waiting.push(prompt);
                } else if line["request"]["subtype"] == "interrupt" {
                    return Err(Cut::Interrupted);
                }
            }
            Input::ToolEnded { .. } => {}
        }
        Ok(Some(input))
    }
}
