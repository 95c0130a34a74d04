//! The control protocol of Claude Code: `-p --input-format stream-json --output-format stream-json
//! --permission-prompt-tool stdio`.
//!
//! - Events come from the parser of the one-shot mode, one parser for each turn, because each turn has
//!   a start (`system/init`) and a finish (`result`) of its own.
//! - A `result` whose `origin` is a `task-notification` belongs to a turn that Claude started itself,
//!   when a sub-agent in the background had finished. It does not end the turn of a prompt.
//! - After an interrupt the `result` line is an error without a `result`. One that crossed the interrupt
//!   is a success.
//! - An interrupt withdraws open permission requests by itself (`control_cancel_request`).
//! - A text for the running turn cannot be injected: Claude would queue it, and the queue is ours.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use exec_core::{
    AgentEventKind, Decision, DriverCommand, DriverOutput, EventParser, Failure, FailureKind,
    Outcome, PermissionRequest, ProtocolDriver, ToolInput, TurnOutcome,
};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::EventFormat;

/// How many permission requests may be open. The service bounds them, too.
const MAX_OPEN: usize = 1024;

pub(crate) struct ClaudeDriver {
    /// The id that Claude gets as an argument.
    session: String,
    parser: Box<dyn EventParser>,
    phase: Phase,
    interrupted: bool,
    last_request: u64,
    /// The request of the last mode or model.
    option: Option<String>,
    /// The arguments of the open permission requests: an answer repeats them.
    asked: BTreeMap<String, ToolInput>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Opening,
    Idle,
    InTurn,
}

const INITIALIZE: &str = "initialize";

impl ClaudeDriver {
    pub(crate) fn new(session: impl Into<String>) -> Self {
        Self {
            session: session.into(),
            parser: EventFormat::Claude.parser(),
            phase: Phase::Opening,
            interrupted: false,
            last_request: 0,
            option: None,
            asked: BTreeMap::new(),
        }
    }

    fn control(&mut self, request: serde_json::Value, out: &mut DriverOutput) -> String {
        self.last_request += 1;
        let id = format!("host-{}", self.last_request);
        let line = json!({ "type": "control_request", "request_id": id, "request": request });
        out.send(line.to_string());
        id
    }

    fn respond(&self, id: &str, response: serde_json::Value, out: &mut DriverOutput) {
        let response = json!({ "subtype": "success", "request_id": id, "response": response });
        let line = json!({ "type": "control_response", "response": response });
        out.send(line.to_string());
    }

    fn requested(&mut self, line: &str, out: &mut DriverOutput) {
        let Ok(message) = serde_json::from_str::<ControlRequest<'_>>(line) else {
            return;
        };
        let id = message.request_id;
        let request = message.request;
        if request.subtype != "can_use_tool" {
            let error = format!("unknown request `{}`", request.subtype);
            let response = json!({ "subtype": "error", "request_id": id, "error": error });
            let line = json!({ "type": "control_response", "response": response });
            return out.send(line.to_string());
        }
        if self.asked.contains_key(&id) {
            return;
        }
        if self.asked.len() >= MAX_OPEN {
            return self.respond(&id, denied("too many open requests"), out);
        }
        let input = request.input.and_then(|raw| ToolInput::new(raw.get()).ok());
        let input = input.unwrap_or_default();
        let fields: InputFields = input.parse().unwrap_or_default();
        self.asked.insert(id.clone(), input.clone());
        let mut asked = PermissionRequest::new(id, request.tool_name.unwrap_or_default(), input);
        asked.command = fields.command;
        let paths = [fields.file_path, fields.notebook_path, fields.path];
        asked.paths = paths.into_iter().flatten().collect();
        asked.parent = request.parent_tool_use_id.or(request.agent_id);
        out.asked(asked);
    }

    fn responded(&mut self, line: &str, out: &mut DriverOutput) {
        let Ok(message) = serde_json::from_str::<ControlResponse>(line) else {
            return;
        };
        let response = message.response;
        let failed = response.subtype == "error";
        let reason = response
            .error
            .unwrap_or_else(|| "it gave no reason".to_owned());
        if self.phase == Phase::Opening && response.request_id == INITIALIZE {
            if failed {
                return out.open_failed(Failure::new(FailureKind::Agent, reason));
            }
            self.phase = Phase::Idle;
            out.opened(Some(self.session.clone()));
        } else if self.option.as_deref() == Some(&response.request_id) {
            self.option = None;
            if failed {
                out.refused(reason);
            }
        }
    }

    /// Reads events, and the end of the turn.
    fn worked(&mut self, line: &str, is_own_turn: bool, out: &mut DriverOutput) {
        for event in self.parser.parse_line(line) {
            let AgentEventKind::Finished {
                outcome,
                text,
                failure,
            } = event.kind
            else {
                out.event(event);
                continue;
            };
            if !is_own_turn || self.phase != Phase::InTurn {
                continue;
            }
            self.phase = Phase::Idle;
            let is_success = outcome == Outcome::Success;
            let outcome = match (is_success, std::mem::take(&mut self.interrupted)) {
                (true, _) => TurnOutcome::Completed,
                (false, true) => TurnOutcome::Interrupted,
                (false, false) => TurnOutcome::Failed {
                    failure: failure.unwrap_or_else(|| {
                        Failure::new(FailureKind::Agent, text.clone().unwrap_or_default())
                    }),
                },
            };
            out.turn_ended(outcome, text.filter(|_| is_success));
        }
    }
}

impl ProtocolDriver for ClaudeDriver {
    fn open(&mut self, out: &mut DriverOutput) {
        let request = json!({ "subtype": "initialize" });
        let line =
            json!({ "type": "control_request", "request_id": INITIALIZE, "request": request });
        out.send(line.to_string());
    }

    fn line(&mut self, line: &str, out: &mut DriverOutput) {
        let Ok(head) = serde_json::from_str::<Head<'_>>(line) else {
            return;
        };
        match head.kind.as_ref() {
            "control_request" => self.requested(line, out),
            "control_response" => self.responded(line, out),
            "control_cancel_request" => {
                if let Some(id) = head.request_id
                    && self.asked.remove(id.as_ref()).is_some()
                {
                    out.withdrawn(id);
                }
            }
            _ => {
                let origin = head.origin.map(|origin| origin.kind);
                let is_own_turn = origin.as_deref() != Some("task-notification");
                self.worked(line, is_own_turn, out);
            }
        }
    }

    fn command(&mut self, command: DriverCommand<'_>, out: &mut DriverOutput) {
        match command {
            DriverCommand::Prompt(text) => {
                self.phase = Phase::InTurn;
                self.interrupted = false;
                self.parser = EventFormat::Claude.parser();
                let message = json!({ "role": "user", "content": text });
                out.send(json!({ "type": "user", "message": message }).to_string());
            }
            DriverCommand::Interrupt => {
                self.interrupted = true;
                self.control(json!({ "subtype": "interrupt" }), out);
            }
            DriverCommand::Answer {
                permission,
                decision,
            } => {
                let Some(input) = self.asked.remove(permission) else {
                    return;
                };
                let response = match decision {
                    Decision::Allow => {
                        let input = input.parse().unwrap_or(serde_json::Value::Null);
                        json!({ "behavior": "allow", "updatedInput": input })
                    }
                    Decision::Deny => denied("the user does not allow this call"),
                };
                self.respond(permission, response, out);
            }
            // Claude withdraws its requests by itself.
            DriverCommand::Withdraw { permission } => drop(self.asked.remove(permission)),
            DriverCommand::SetMode(mode) => {
                let request = json!({ "subtype": "set_permission_mode", "mode": mode });
                self.option = Some(self.control(request, out));
            }
            DriverCommand::SetModel(model) => {
                let request = json!({ "subtype": "set_model", "model": model });
                self.option = Some(self.control(request, out));
            }
            _ => out.refused("Claude Code does not know this command"),
        }
    }
}

fn denied(message: &str) -> serde_json::Value {
    json!({ "behavior": "deny", "message": message })
}

/// The fields that tell messages apart.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(default, borrow)]
    request_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    origin: Option<Origin<'a>>,
}

#[derive(Deserialize)]
struct Origin<'a> {
    #[serde(default, borrow)]
    kind: Cow<'a, str>,
}

#[derive(Deserialize)]
struct ControlRequest<'a> {
    request_id: String,
    #[serde(borrow)]
    request: ControlBody<'a>,
}

#[derive(Deserialize)]
struct ControlBody<'a> {
    subtype: String,
    #[serde(default)]
    tool_name: Option<String>,
    #[serde(default, borrow)]
    input: Option<&'a RawValue>,
    #[serde(default)]
    parent_tool_use_id: Option<String>,
    #[serde(default)]
    agent_id: Option<String>,
}

#[derive(Deserialize)]
struct ControlResponse {
    response: ResponseBody,
}

#[derive(Deserialize)]
struct ResponseBody {
    subtype: String,
    #[serde(default)]
    request_id: String,
    #[serde(default)]
    error: Option<String>,
}

/// The fields of a tool's arguments that rules look at.
#[derive(Default, Deserialize)]
#[serde(default)]
struct InputFields {
    command: Option<String>,
    file_path: Option<PathBuf>,
    notebook_path: Option<PathBuf>,
    path: Option<PathBuf>,
}
