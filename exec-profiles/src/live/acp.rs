//! The Agent Client Protocol, version 1.
//!
//! Written from the protocol's documentation and from what Gemini, Opencode, Qwen Code and the npm
//! adapters of Claude and Codex do. Reading is lenient, because agents deviate: an unknown update is no
//! event, a field of another type is absent.
//!
//! - **Replay.** `session/load` repeats the conversation as updates, and Gemini answers the request
//!   before it does so. Updates outside of a turn are therefore no events of the agent's work.
//! - **Cancel.** `session/cancel` is a notification; the turn ends by the response to `session/prompt`.
//!   A permission request that is open then is answered with `cancelled`, as the protocol asks.
//! - **Steering** is an extension (`_session/steering`) of the adapters of Claude and Codex.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use exec_core::{
    AgentEvent, AgentEventKind, Decision, DriverCommand, DriverOutput, Failure, FailureKind,
    PermissionRequest, ProtocolDriver, ToolInput, TurnOutcome, Usage, UsageTotals,
};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::json_rpc::{Incoming, Requests, RpcError};

/// How many permission requests may be open. The service bounds them, too.
const MAX_OPEN: usize = 1024;

pub(crate) struct AcpDriver {
    workspace: PathBuf,
    /// The session to continue.
    resume: Option<String>,
    requests: Requests<Sent>,
    session: Option<String>,
    can_steer: bool,
    in_turn: bool,
    /// The open permission requests by their ids as JSON text.
    asked: BTreeMap<String, Vec<PermissionOption>>,
}

/// The meaning of a request of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Initialize,
    NewSession,
    OldSession,
    Prompt,
    Steer,
    Option,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PermissionOption {
    option_id: String,
    #[serde(default)]
    kind: String,
}

impl AcpDriver {
    pub(crate) fn new(workspace: &Path, resume: Option<String>) -> Self {
        Self {
            workspace: workspace.to_owned(),
            resume,
            requests: Requests::version_2(),
            session: None,
            can_steer: false,
            in_turn: false,
            asked: BTreeMap::new(),
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

    fn session(&self) -> &str {
        self.session.as_deref().unwrap_or_default()
    }

    fn initialized(&mut self, result: &str, out: &mut DriverOutput) {
        let reply: Initialized = serde_json::from_str(result).unwrap_or_default();
        self.can_steer = reply.meta.steering.supported;
        let capabilities = reply.agent_capabilities;
        let cwd = self.workspace.to_string_lossy().into_owned();
        let Some(id) = self.resume.clone() else {
            let params = json!({ "cwd": cwd, "mcpServers": [] });
            return self.request(Sent::NewSession, "session/new", params, out);
        };
        let params = json!({ "sessionId": id, "cwd": cwd, "mcpServers": [] });
        if capabilities.session_capabilities.resume.is_some() {
            self.request(Sent::OldSession, "session/resume", params, out);
        } else if capabilities.load_session {
            self.request(Sent::OldSession, "session/load", params, out);
        } else {
            let message = "the agent can neither resume nor load a session";
            out.open_failed(Failure::new(FailureKind::SessionGone, message));
        }
    }

    fn response(&mut self, sent: Sent, result: Result<&str, RpcError>, out: &mut DriverOutput) {
        match (sent, result) {
            (Sent::Initialize, Ok(result)) => self.initialized(result, out),
            (Sent::NewSession, Ok(result)) => {
                let reply: NewSession = serde_json::from_str(result).unwrap_or_default();
                if reply.session_id.is_empty() {
                    let message = "the agent has opened a session without an id";
                    return out.open_failed(Failure::new(FailureKind::Agent, message));
                }
                self.session = Some(reply.session_id.clone());
                out.opened(Some(reply.session_id));
            }
            (Sent::OldSession, Ok(_)) => {
                self.session = self.resume.clone();
                out.opened(self.session.clone());
            }
            (Sent::Initialize | Sent::NewSession, Err(error)) => out.open_failed(failure(&error)),
            (Sent::OldSession, Err(error)) => {
                let failure = failure(&error);
                let kind = match failure.kind {
                    FailureKind::Agent => FailureKind::SessionGone,
                    kind => kind,
                };
                out.open_failed(Failure::new(kind, failure.message));
            }
            (Sent::Prompt, result) => {
                self.in_turn = false;
                self.prompt_ended(result, out);
            }
            (Sent::Steer, Ok(result)) => {
                let reply: Steered = serde_json::from_str(result).unwrap_or_default();
                out.steered(reply.outcome == "injected");
            }
            (Sent::Steer, Err(_)) => out.steered(false),
            (Sent::Option, Ok(_)) => {}
            (Sent::Option, Err(error)) => out.refused(error.message),
        }
    }

    fn prompt_ended(&mut self, result: Result<&str, RpcError>, out: &mut DriverOutput) {
        let reply: PromptEnded = match result {
            Ok(result) => serde_json::from_str(result).unwrap_or_default(),
            Err(error) => {
                let failure = failure(&error);
                return out.turn_ended(TurnOutcome::Failed { failure }, None);
            }
        };
        if let Some(usage) = reply.usage() {
            out.event(AgentEventKind::Usage(UsageTotals::of_run(usage)));
        }
        let outcome = match reply.stop_reason.as_str() {
            "end_turn" => TurnOutcome::Completed,
            "cancelled" => TurnOutcome::Interrupted,
            reason => {
                let kind = match reason {
                    "max_tokens" => FailureKind::ContextFull,
                    _ => FailureKind::Agent,
                };
                let failure = Failure::new(kind, format!("the turn ended with `{reason}`"));
                TurnOutcome::Failed { failure }
            }
        };
        out.turn_ended(outcome, None);
    }

    fn asked(&mut self, id: &str, params: &str, out: &mut DriverOutput) {
        let Ok(question) = serde_json::from_str::<Question<'_>>(params) else {
            return out.send(self.requests.method_not_found(id));
        };
        if self.asked.contains_key(id) {
            return;
        }
        if self.asked.len() >= MAX_OPEN {
            return out.send(self.requests.result(id, &cancelled()));
        }
        self.asked.insert(id.to_owned(), question.options);
        let call = question.tool_call;
        let input = call
            .raw_input
            .and_then(|raw| ToolInput::new(raw.get()).ok());
        let fields: InputFields = match &input {
            Some(input) => input.parse().unwrap_or_default(),
            None => InputFields::default(),
        };
        let mut request = PermissionRequest::new(id, call.tool_name(), input.unwrap_or_default());
        let is_command = call.kind.as_deref() == Some("execute");
        let title = is_command.then(|| call.title.clone()).flatten();
        request.command = fields.command.map(CommandField::into_line).or(title);
        request.paths = call
            .locations
            .into_iter()
            .filter_map(|location| location.path)
            .collect();
        request
            .paths
            .extend(fields.file_path.or(fields.path).or(fields.absolute_path));
        out.asked(request);
    }

    fn updated(&mut self, params: &str, out: &mut DriverOutput) {
        if !self.in_turn {
            return;
        }
        let Ok(params) = serde_json::from_str::<Updated<'_>>(params) else {
            return;
        };
        let update = params.update;
        let parent = update.meta.claude_code.parent_tool_use_id;
        let event = |kind: AgentEventKind| match &parent {
            Some(parent) => AgentEvent::of_sub_agent(parent.as_str(), kind),
            None => AgentEvent::from(kind),
        };
        match update.session_update.as_ref() {
            "agent_message_chunk" => {
                if let Some(text) = update.content.and_then(text_of) {
                    out.event(event(AgentEventKind::Text { text, delta: true }));
                }
            }
            "agent_thought_chunk" => {
                if let Some(text) = update.content.and_then(text_of) {
                    out.event(event(AgentEventKind::Thinking { text, delta: true }));
                }
            }
            "tool_call" => out.event(event(AgentEventKind::ToolCall {
                id: update.tool_call_id,
                name: update.kind.or(update.title).unwrap_or_default(),
                input: raw_input(update.raw_input),
            })),
            "tool_call_update" => {
                let is_error = update.status.as_deref() == Some("failed");
                if is_error || update.status.as_deref() == Some("completed") {
                    out.event(event(AgentEventKind::ToolResult {
                        id: update.tool_call_id,
                        output: update.content.map(texts_of).unwrap_or_default(),
                        is_error,
                    }));
                }
            }
            "usage_update" => {
                if let Some(cost) = update.cost.and_then(|cost| cost.amount) {
                    let mut usage = Usage::default();
                    usage.cost_usd = Some(cost);
                    out.event(AgentEventKind::Usage(UsageTotals::of_session(usage)));
                }
            }
            _ => {}
        }
    }

    fn settle(&mut self, id: &str, result: serde_json::Value, out: &mut DriverOutput) {
        if self.asked.remove(id).is_some() {
            out.send(self.requests.result(id, &result));
        }
    }
}

impl ProtocolDriver for AcpDriver {
    fn open(&mut self, out: &mut DriverOutput) {
        let params = json!({
            "protocolVersion": 1,
            "clientCapabilities": {
                "fs": { "readTextFile": false, "writeTextFile": false },
                "terminal": false,
            },
            "clientInfo": { "name": "exec-profiles", "version": env!("CARGO_PKG_VERSION") },
        });
        self.request(Sent::Initialize, "initialize", params, out);
    }

    fn line(&mut self, line: &str, out: &mut DriverOutput) {
        match Incoming::parse(line) {
            Some(Incoming::Request { id, method, params }) => match method.as_ref() {
                "session/request_permission" => self.asked(id, params, out),
                _ => out.send(self.requests.method_not_found(id)),
            },
            Some(Incoming::Notification { method, params }) => {
                if method == "session/update" {
                    self.updated(params, out);
                }
            }
            Some(Incoming::Response { id, result }) => {
                if let Some(sent) = self.requests.take(id) {
                    self.response(sent, result, out);
                }
            }
            None => {}
        }
    }

    fn command(&mut self, command: DriverCommand<'_>, out: &mut DriverOutput) {
        let session = self.session().to_owned();
        match command {
            DriverCommand::Prompt(text) => {
                self.in_turn = true;
                let params = json!({ "sessionId": session, "prompt": text_block(text) });
                self.request(Sent::Prompt, "session/prompt", params, out);
            }
            DriverCommand::Steer(text) => {
                let params = json!({
                    "sessionId": session,
                    "prompt": text_block(text),
                    "_meta": { "steering": { "idleBehavior": "promptRequired" } },
                });
                self.request(Sent::Steer, "_session/steering", params, out);
            }
            DriverCommand::Interrupt => {
                let params = json!({ "sessionId": session });
                out.send(self.requests.notification("session/cancel", &params));
            }
            DriverCommand::Answer {
                permission,
                decision,
            } => {
                let options = self
                    .asked
                    .get(permission)
                    .map(Vec::as_slice)
                    .unwrap_or_default();
                let result = match option_for(options, decision) {
                    Some(id) => json!({ "outcome": { "outcome": "selected", "optionId": id } }),
                    None => cancelled(),
                };
                self.settle(permission, result, out);
            }
            DriverCommand::Withdraw { permission } => self.settle(permission, cancelled(), out),
            DriverCommand::SetMode(mode) => {
                let params = json!({ "sessionId": session, "modeId": mode });
                self.request(Sent::Option, "session/set_mode", params, out);
            }
            DriverCommand::SetModel(model) => {
                let params = json!({ "sessionId": session, "modelId": model });
                self.request(Sent::Option, "session/set_model", params, out);
            }
            _ => out.refused("the protocol does not know this command"),
        }
    }

    fn can_steer(&self) -> bool {
        self.can_steer
    }
}

fn text_block(text: &str) -> serde_json::Value {
    json!([{ "type": "text", "text": text }])
}

fn cancelled() -> serde_json::Value {
    json!({ "outcome": { "outcome": "cancelled" } })
}

/// The option for one call, never one for all later calls: the policy decides each call.
fn option_for(options: &[PermissionOption], decision: Decision) -> Option<&str> {
    let kind = match decision {
        Decision::Allow => "allow_once",
        Decision::Deny => "reject_once",
    };
    let option = options.iter().find(|option| option.kind == kind);
    option.map(|option| option.option_id.as_str())
}

fn failure(error: &RpcError) -> Failure {
    // -32000 is the protocol's "authentication required". Some agents use the HTTP status as the code.
    let kind = match error.code {
        -32000 => Some(FailureKind::Authentication),
        code => u64::try_from(code)
            .ok()
            .and_then(FailureKind::of_http_status),
    };
    Failure::new(kind.unwrap_or(FailureKind::Agent), error.message.clone())
}

fn raw_input(raw: Option<&RawValue>) -> ToolInput {
    raw.and_then(|raw| ToolInput::new(raw.get()).ok())
        .unwrap_or_default()
}

fn text_of(content: &RawValue) -> Option<String> {
    let block: ContentBlock<'_> = serde_json::from_str(content.get()).ok()?;
    block
        .text
        .map(Cow::into_owned)
        .filter(|text| !text.is_empty())
}

fn texts_of(content: &RawValue) -> String {
    let items: Vec<ToolContent<'_>> = serde_json::from_str(content.get()).unwrap_or_default();
    let texts = items.into_iter().filter_map(|item| item.content?.text);
    texts.collect::<Vec<_>>().join("\n")
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Initialized {
    agent_capabilities: AgentCapabilities,
    #[serde(rename = "_meta")]
    meta: InitializedMeta,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AgentCapabilities {
    load_session: bool,
    session_capabilities: SessionCapabilities,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SessionCapabilities {
    resume: Option<serde::de::IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct InitializedMeta {
    steering: Steering,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Steering {
    supported: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NewSession {
    session_id: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Steered {
    outcome: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PromptEnded {
    stop_reason: String,
    usage: Option<PromptUsage>,
    #[serde(rename = "_meta")]
    meta: Option<PromptMeta>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PromptUsage {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cached_read_tokens: Option<u64>,
    cached_write_tokens: Option<u64>,
    thought_tokens: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PromptMeta {
    quota: Option<Quota>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Quota {
    token_count: Option<TokenCount>,
}

/// As Gemini writes it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenCount {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

impl PromptEnded {
    fn usage(&self) -> Option<Usage> {
        let mut usage = Usage::default();
        if let Some(counted) = &self.usage {
            usage.input_tokens = counted.input_tokens;
            usage.output_tokens = counted.output_tokens;
            usage.cache_read_tokens = counted.cached_read_tokens;
            usage.cache_write_tokens = counted.cached_write_tokens;
            usage.reasoning_tokens = counted.thought_tokens;
            return Some(usage);
        }
        let counted = self.meta.as_ref()?.quota.as_ref()?.token_count.as_ref()?;
        usage.input_tokens = counted.input_tokens;
        usage.output_tokens = counted.output_tokens;
        (usage != Usage::default()).then_some(usage)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Question<'a> {
    #[serde(borrow)]
    tool_call: AskedCall<'a>,
    #[serde(default)]
    options: Vec<PermissionOption>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AskedCall<'a> {
    #[serde(default)]
    title: Option<String>,
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default, borrow)]
    raw_input: Option<&'a RawValue>,
    #[serde(default)]
    locations: Vec<Location>,
    #[serde(default, rename = "_meta")]
    meta: CallMeta,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CallMeta {
    tool_name: Option<String>,
}

#[derive(Deserialize)]
struct Location {
    #[serde(default)]
    path: Option<PathBuf>,
}

impl AskedCall<'_> {
    fn tool_name(&self) -> String {
        let names = [&self.meta.tool_name, &self.name, &self.kind, &self.title];
        names
            .into_iter()
            .flatten()
            .next()
            .cloned()
            .unwrap_or_default()
    }
}

/// The fields of a tool's arguments that rules look at.
#[derive(Default, Deserialize)]
#[serde(default)]
struct InputFields {
    command: Option<CommandField>,
    file_path: Option<PathBuf>,
    path: Option<PathBuf>,
    absolute_path: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum CommandField {
    Line(String),
    Words(Vec<String>),
    Other(serde::de::IgnoredAny),
}

impl CommandField {
    /// Words are joined so that no word can become two: what needs quotes makes the line one that no
    /// rule allows.
    fn into_line(self) -> String {
        match self {
            Self::Line(line) => line,
            Self::Words(words) => {
                let quoted = words
                    .iter()
                    .map(|word| match word.contains([' ', '\t', '\'', '"']) {
                        true => format!("'{}'", word.replace('\'', "'\\''")),
                        false => word.clone(),
                    });
                quoted.collect::<Vec<_>>().join(" ")
            }
            Self::Other(_) => String::new(),
        }
    }
}

#[derive(Deserialize)]
struct Updated<'a> {
    #[serde(borrow)]
    update: Update<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Update<'a> {
    #[serde(borrow)]
    session_update: Cow<'a, str>,
    #[serde(default, borrow)]
    content: Option<&'a RawValue>,
    #[serde(default)]
    tool_call_id: Option<String>,
    #[serde(default)]
    title: Option<String>,
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default, borrow)]
    raw_input: Option<&'a RawValue>,
    #[serde(default)]
    cost: Option<Cost>,
    #[serde(default, rename = "_meta")]
    meta: UpdateMeta,
}

#[derive(Deserialize)]
struct Cost {
    #[serde(default)]
    amount: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct UpdateMeta {
    #[serde(rename = "claudeCode")]
    claude_code: ClaudeMeta,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ClaudeMeta {
    parent_tool_use_id: Option<String>,
}

#[derive(Deserialize)]
struct ContentBlock<'a> {
    #[serde(default, borrow)]
    text: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct ToolContent<'a> {
    #[serde(default, borrow)]
    content: Option<ContentBlock<'a>>,
}
