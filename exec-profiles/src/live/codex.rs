//! The protocol of `codex app-server`: JSON-RPC lines without the version field.
//!
//! - The thread id is the session id. A turn has an id of its own, which an interrupt and a steer name.
//! - Notifications of other threads, such as those of sub-agents, are not events of this session's turn.
//! - A command arrives as `/bin/bash -lc '…'`; rules see the text in the quotes.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use exec_core::{
    AgentEventKind, Decision, DriverCommand, DriverOutput, Failure, FailureKind, PermissionRequest,
    ProtocolDriver, ToolInput, TurnOutcome, Usage, UsageTotals,
};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::json_rpc::{Incoming, Requests, RpcError};

/// How many permission requests may be open. The service bounds them, too.
const MAX_OPEN: usize = 1024;

pub(crate) struct CodexDriver {
    workspace: PathBuf,
    /// The thread to continue.
    resume: Option<String>,
    requests: Requests<Sent>,
    thread: String,
    /// The running turn, once Codex has named it.
    turn: Option<String>,
    in_turn: bool,
    /// An interrupt came before Codex had named the turn.
    interrupt_due: bool,
    asked: BTreeSet<String>,
}

#[derive(Clone, Copy)]
enum Sent {
    Initialize,
    Thread,
    Turn,
    Steer,
    Interrupt,
}

impl CodexDriver {
    pub(crate) fn new(workspace: &Path, resume: Option<String>) -> Self {
        Self {
            workspace: workspace.to_owned(),
            resume,
            requests: Requests::without_version(),
            thread: String::new(),
            turn: None,
            in_turn: false,
            interrupt_due: false,
            asked: BTreeSet::new(),
        }
    }

    fn request(
        &mut self,
        sent: Sent,
        method: &str,
        params: serde_json::Value,
        out: &mut DriverOutput,
    ) {
        out.send(self.requests.request(sent, method, &params));
    }

    fn open_thread(&mut self, out: &mut DriverOutput) {
        out.send(self.requests.notification("initialized", &json!({})));
        let cwd = self.workspace.to_string_lossy().into_owned();
        let mut params = json!({
            "cwd": cwd,
            "approvalPolicy": "untrusted",
            "sandbox": "workspace-write",
        });
        let method = match &self.resume {
            Some(thread) => {
                params["threadId"] = json!(thread);
                "thread/resume"
            }
            None => "thread/start",
        };
        self.request(Sent::Thread, method, params, out);
    }

    fn response(&mut self, sent: Sent, result: Result<&str, RpcError>, out: &mut DriverOutput) {
        match (sent, result) {
            (Sent::Initialize, Ok(_)) => self.open_thread(out),
            (Sent::Initialize, Err(error)) => {
                out.open_failed(Failure::new(FailureKind::Agent, error.message));
            }
            (Sent::Thread, Ok(result)) => {
                let reply: ThreadReply = serde_json::from_str(result).unwrap_or_default();
                if reply.thread.id.is_empty() {
                    let message = "Codex has opened a thread without an id";
                    return out.open_failed(Failure::new(FailureKind::Agent, message));
                }
                self.thread = reply.thread.id;
                out.opened(Some(self.thread.clone()));
            }
            (Sent::Thread, Err(error)) => {
                let kind = match self.resume {
                    Some(_) => FailureKind::SessionGone,
                    None => FailureKind::Agent,
                };
                out.open_failed(Failure::new(kind, error.message));
            }
            (Sent::Turn, Ok(result)) => {
                let reply: TurnReply = serde_json::from_str(result).unwrap_or_default();
                self.turn_named(reply.turn.id, out);
            }
            (Sent::Turn, Err(error)) => {
                let failure = Failure::new(FailureKind::Agent, error.message);
                self.end_turn(TurnOutcome::Failed { failure }, None, out);
            }
            (Sent::Steer, result) => out.steered(result.is_ok()),
            // The turn has ended by itself.
            (Sent::Interrupt, _) => {}
        }
    }

    /// `turn/started` and the response to `turn/start` both name the turn, in any order.
    fn turn_named(&mut self, id: String, out: &mut DriverOutput) {
        if !self.in_turn || self.turn.is_some() || id.is_empty() {
            return;
        }
        self.turn = Some(id);
        if std::mem::take(&mut self.interrupt_due) {
            self.interrupt(out);
        }
    }

    fn interrupt(&mut self, out: &mut DriverOutput) {
        match &self.turn {
            Some(turn) => {
                let params = json!({ "threadId": self.thread, "turnId": turn });
                self.request(Sent::Interrupt, "turn/interrupt", params, out);
            }
            None => self.interrupt_due = true,
        }
    }

    fn end_turn(&mut self, outcome: TurnOutcome, text: Option<String>, out: &mut DriverOutput) {
        if std::mem::take(&mut self.in_turn) {
            self.turn = None;
            self.interrupt_due = false;
            out.turn_ended(outcome, text);
        }
    }

    fn notified(&mut self, method: &str, params: &str, out: &mut DriverOutput) {
        let Ok(params) = serde_json::from_str::<Notification<'_>>(params) else {
            return;
        };
        let thread = params.thread_id.as_deref();
        if thread.is_some_and(|thread| thread != self.thread) {
            return;
        }
        match method {
            "turn/started" => self.turn_named(params.turn.unwrap_or_default().id, out),
            "turn/completed" => self.completed(params.turn.unwrap_or_default(), out),
            "item/agentMessage/delta" => {
                let text = params.delta.unwrap_or_default().into_owned();
                out.event(AgentEventKind::Text { text, delta: true });
            }
            "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta" => {
                let text = params.delta.unwrap_or_default().into_owned();
                out.event(AgentEventKind::Thinking { text, delta: true });
            }
            "item/started" => {
                if let Some(item) = params.item.and_then(Item::parse) {
                    item.started(out);
                }
            }
            "item/completed" => {
                if let Some(item) = params.item.and_then(Item::parse) {
                    item.completed(out);
                }
            }
            "thread/tokenUsage/updated" => {
                if let Some(usage) = params.token_usage {
                    let totals = UsageTotals::of_session(usage.total.usage());
                    out.event(AgentEventKind::Usage(totals));
                }
            }
            "error" => {
                let message = params.error.unwrap_or_default().message;
                out.event(AgentEventKind::Error(Failure::new(
                    FailureKind::Agent,
                    message,
                )));
            }
            "serverRequest/resolved" => {
                if let Some(id) = params.request_id.map(RawValue::get)
                    && self.asked.remove(id)
                {
                    out.withdrawn(id);
                }
            }
            _ => {}
        }
    }

    fn completed(&mut self, turn: Turn, out: &mut DriverOutput) {
        if self
            .turn
            .as_deref()
            .is_some_and(|running| running != turn.id)
        {
            return;
        }
        let outcome = match turn.status.as_str() {
            "completed" => TurnOutcome::Completed,
            "interrupted" => TurnOutcome::Interrupted,
            status => {
                let message = match turn.error {
                    Some(error) => error.message,
                    None => format!("the turn ended with `{status}`"),
                };
                TurnOutcome::Failed {
                    failure: Failure::new(FailureKind::Agent, message),
                }
            }
        };
        self.end_turn(outcome, None, out);
    }

    fn asked(&mut self, id: &str, method: &str, params: &str, out: &mut DriverOutput) {
        let tool = match method {
            "item/commandExecution/requestApproval" => "shell",
            "item/fileChange/requestApproval" => "apply_patch",
            _ => return out.send(self.requests.method_not_found(id)),
        };
        let Ok(question) = serde_json::from_str::<Question>(params) else {
            return out.send(self.requests.method_not_found(id));
        };
        if self.asked.contains(id) {
            return;
        }
        if self.asked.len() >= MAX_OPEN {
            return out.send(self.requests.result(id, &json!({ "decision": "decline" })));
        }
        self.asked.insert(id.to_owned());
        let input = ToolInput::new(params).unwrap_or_default();
        let mut request = PermissionRequest::new(id, tool, input);
        request.command = question.command.map(|command| match script(&command) {
            Some(script) => script.to_owned(),
            None => command,
        });
        request.paths = question.grant_root.into_iter().collect();
        request.parent = (question.thread_id != self.thread).then_some(question.thread_id);
        out.asked(request);
    }

    fn settle(&mut self, id: &str, decision: &str, out: &mut DriverOutput) {
        if self.asked.remove(id) {
            out.send(self.requests.result(id, &json!({ "decision": decision })));
        }
    }
}

impl ProtocolDriver for CodexDriver {
    fn open(&mut self, out: &mut DriverOutput) {
        let info = json!({ "name": "exec-profiles", "title": "exec-profiles", "version": env!("CARGO_PKG_VERSION") });
        self.request(
            Sent::Initialize,
            "initialize",
            json!({ "clientInfo": info }),
            out,
        );
    }

    fn line(&mut self, line: &str, out: &mut DriverOutput) {
        match Incoming::parse(line) {
            Some(Incoming::Request { id, method, params }) => self.asked(id, &method, params, out),
            Some(Incoming::Notification { method, params }) => self.notified(&method, params, out),
            Some(Incoming::Response { id, result }) => {
                if let Some(sent) = self.requests.take(id) {
                    self.response(sent, result, out);
                }
            }
            None => {}
        }
    }

    fn command(&mut self, command: DriverCommand<'_>, out: &mut DriverOutput) {
        match command {
            DriverCommand::Prompt(text) => {
                self.in_turn = true;
                self.turn = None;
                self.interrupt_due = false;
                let input = json!([{ "type": "text", "text": text }]);
                let params = json!({ "threadId": self.thread, "input": input });
                self.request(Sent::Turn, "turn/start", params, out);
            }
            DriverCommand::Steer(text) => match self.turn.clone() {
                Some(turn) => {
                    let input = json!([{ "type": "text", "text": text }]);
                    let params = json!({
                        "threadId": self.thread,
                        "expectedTurnId": turn,
                        "input": input,
                    });
                    self.request(Sent::Steer, "turn/steer", params, out);
                }
                None => out.steered(false),
            },
            DriverCommand::Interrupt => self.interrupt(out),
            DriverCommand::Answer {
                permission,
                decision,
            } => {
                let decision = match decision {
                    Decision::Allow => "accept",
                    Decision::Deny => "decline",
                };
                self.settle(permission, decision, out);
            }
            DriverCommand::Withdraw { permission } => self.settle(permission, "cancel", out),
            _ => out.refused("Codex takes mode and model at the start of a session only"),
        }
    }

    fn can_steer(&self) -> bool {
        self.turn.is_some()
    }
}

/// The script of `/bin/bash -lc '…'`, if the quotes contain all of it literally.
fn script(command: &str) -> Option<&str> {
    let (_, quoted) = command
        .split_once(" -lc '")
        .or_else(|| command.split_once(" -c '"))?;
    let script = quoted.strip_suffix('\'')?;
    (!script.contains('\'')).then_some(script)
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ThreadReply {
    thread: Named,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TurnReply {
    turn: Named,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    id: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Turn {
    id: String,
    status: String,
    error: Option<TurnError>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TurnError {
    message: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Notification<'a> {
    #[serde(default, borrow)]
    thread_id: Option<Cow<'a, str>>,
    #[serde(default)]
    turn: Option<Turn>,
    #[serde(default, borrow)]
    delta: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    item: Option<&'a RawValue>,
    #[serde(default)]
    token_usage: Option<TokenUsage>,
    #[serde(default)]
    error: Option<TurnError>,
    #[serde(default, borrow)]
    request_id: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenUsage {
    total: Tokens,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Tokens {
    input_tokens: Option<u64>,
    cached_input_tokens: Option<u64>,
    cache_write_input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    reasoning_output_tokens: Option<u64>,
}

impl Tokens {
    fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        usage.input_tokens = self.input_tokens;
        usage.cache_read_tokens = self.cached_input_tokens;
        usage.cache_write_tokens = self.cache_write_input_tokens;
        usage.output_tokens = self.output_tokens;
        usage.reasoning_tokens = self.reasoning_output_tokens;
        usage
    }
}

/// An item of a turn, as far as events use it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Item<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    command: Option<String>,
    #[serde(default)]
    tool: Option<String>,
    #[serde(default, borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    aggregated_output: Option<String>,
}

impl<'a> Item<'a> {
    fn parse(raw: &'a RawValue) -> Option<Self> {
        serde_json::from_str(raw.get()).ok()
    }

    fn tool_name(&self) -> Option<String> {
        match self.kind.as_ref() {
            "commandExecution" => Some("shell".to_owned()),
            "fileChange" => Some("apply_patch".to_owned()),
            "mcpToolCall" => Some(self.tool.clone().unwrap_or_default()),
            "webSearch" => Some("web_search".to_owned()),
            _ => None,
        }
    }

    fn started(self, out: &mut DriverOutput) {
        let Some(name) = self.tool_name() else {
            return;
        };
        let input = match (self.command, self.arguments) {
            (Some(command), _) => ToolInput::new(&json!({ "command": command }).to_string()).ok(),
            (None, Some(arguments)) => ToolInput::new(arguments.get()).ok(),
            (None, None) => None,
        };
        out.event(AgentEventKind::ToolCall {
            id: self.id,
            name,
            input: input.unwrap_or_default(),
        });
    }

    fn completed(self, out: &mut DriverOutput) {
        if self.tool_name().is_none() {
            return;
        }
        let is_error = self
            .status
            .as_deref()
            .is_some_and(|status| status != "completed");
        out.event(AgentEventKind::ToolResult {
            id: self.id,
            output: self.aggregated_output.unwrap_or_default(),
            is_error,
        });
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Question {
    #[serde(default)]
    thread_id: String,
    #[serde(default)]
    command: Option<String>,
    #[serde(default)]
    grant_root: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_taken_out_of_its_shell_only_if_that_is_certain() {
        assert_eq!(script("/bin/bash -lc 'touch a; b'"), Some("touch a; b"));
        assert_eq!(script("bash -c 'x'"), Some("x"));
        assert_eq!(script("/bin/bash -lc 'a' 'b'"), None);
        assert_eq!(script(r"/bin/bash -lc 'it'\''s'"), None);
        assert_eq!(script("cargo test"), None);
    }
}
