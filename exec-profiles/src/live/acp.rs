//! The Agent Client Protocol, version 1.
//!
//! Written from the protocol's documentation and from what Gemini, Opencode, Qwen Code and the npm
//! adapters of Claude and Codex do. Reading is lenient, because agents deviate: an unknown update is no
//! event, a field of another type is absent.
//!
//! - **Replay.** `session/load` repeats the conversation as updates. Updates outside of a turn are
//!   therefore no events of the agent's work. Gemini answers the request before it has sent them all,
//!   so a prompt that follows at once would meet the rest of the replay: see [`Sent::Barrier`].
//! - **Cancel.** `session/cancel` is a notification; the turn ends by the response to `session/prompt`.
//!   A permission request that is open then is answered with `cancelled`, as the protocol asks.
//! - **Text.** Pieces with one `messageId` are one message. Pieces without an id, from an agent that
//!   gives ids, are notices of an adapter and not the text of the turn.
//! - **Tool calls.** Most agents announce a call before they know its arguments. The event waits for
//!   them: until the next update of the call, or the question for its permission.
//! - **Steering** is an extension (`_session/steering`) of the adapters of Claude and Codex.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

use exec_core::{
    AgentEvent, AgentEventKind, Decision, DriverCommand, DriverOutput, Failure, FailureKind,
    PermissionRequest, ProtocolDriver, ToolInput, TurnOutcome, Usage, UsageTotals,
};
use serde_json::json;

use super::acp_messages::{
    Initialized, OpenedSession, PermissionOption, PromptEnded, Question, Update, Updated, usage,
};
use super::json_rpc::{Incoming, MAX_ID, Requests, RpcError, SeenRequests};
use crate::events::Json;

/// How many permission requests may be open. The service bounds them, too.
const MAX_OPEN: usize = 256;
/// How many announced tool calls wait for their arguments.
const MAX_ANNOUNCED: usize = 64;
/// The longest message that is repeated as the text of a turn. The service keeps the pieces, too.
const MAX_MESSAGE: usize = 1 << 20;
/// How often the end of a replay is looked for.
const MAX_BARRIERS: usize = 64;

pub(crate) struct AcpDriver {
    workspace: PathBuf,
    /// The session to continue.
    resume: Option<String>,
    /// Whether the title of a call that runs a command is that command, to the letter.
    title_is_command: bool,
    requests: Requests<Sent>,
    session: Option<String>,
    settings: Settings,
    can_steer: bool,
    /// How many texts were steered.
    steers: u64,
    in_turn: bool,
    replay: Replay,
    /// The open permission requests by their ids as JSON text.
    asked: BTreeMap<String, Vec<PermissionOption>>,
    seen: SeenRequests,
    announced: VecDeque<AnnouncedCall>,
    message: LastMessage,
    usage: UsageCount,
    /// The adapter of Codex reports a failed turn as a notice and completes it.
    failed: bool,
}

/// The meaning of a request of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Initialize,
    NewSession,
    LoadSession,
    ResumeSession,
    /// A request of an unknown method, behind `session/load`. Its answer comes behind the messages
    /// that the agent had sent before it. If there was none of the replay among them, the replay is
    /// over; otherwise another one follows.
    Barrier,
    Prompt,
    /// With its number: a late answer does not concern the next one.
    Steer(u64),
    Option,
}

/// How mode and model are selected: by requests of their own, or as a configuration option.
#[derive(Default)]
struct Settings {
    has_modes: bool,
    has_models: bool,
    mode_option: Option<String>,
    model_option: Option<String>,
}

#[derive(Default)]
struct Replay {
    barriers: usize,
    /// Whether an update came since the last barrier.
    goes_on: bool,
}

/// A call without arguments yet.
struct AnnouncedCall {
    id: String,
    name: String,
    input: ToolInput,
    parent: Option<String>,
}

#[derive(Default)]
struct LastMessage {
    id: Option<String>,
    text: String,
    is_too_long: bool,
}

/// Tokens per turn become the total of the process.
#[derive(Default)]
struct UsageCount {
    before: Usage,
    turn: Usage,
    cost: Option<f64>,
}

impl AcpDriver {
    pub(crate) fn new(workspace: &Path, resume: Option<String>) -> Self {
        Self {
            workspace: workspace.to_owned(),
            resume,
            title_is_command: false,
            requests: Requests::version_2(),
            session: None,
            settings: Settings::default(),
            can_steer: false,
            steers: 0,
            in_turn: false,
            replay: Replay::default(),
            asked: BTreeMap::new(),
            seen: SeenRequests::default(),
            announced: VecDeque::new(),
            message: LastMessage::default(),
            usage: UsageCount::default(),
            failed: false,
        }
    }

    /// For an agent whose titles of commands are the commands, to the letter.
    pub(crate) fn with_exact_titles(mut self) -> Self {
        self.title_is_command = true;
        self
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
        let reply: Initialized<'_> = serde_json::from_str(result).unwrap_or_default();
        self.can_steer = reply.can_steer();
        let cwd = self.workspace.to_string_lossy().into_owned();
        let Some(id) = self.resume.clone() else {
            let params = json!({ "cwd": cwd, "mcpServers": [] });
            return self.request(Sent::NewSession, "session/new", params, out);
        };
        let params = json!({ "sessionId": id, "cwd": cwd, "mcpServers": [] });
        if reply.can_resume() {
            self.request(Sent::ResumeSession, "session/resume", params, out);
        } else if reply.can_load() {
            self.request(Sent::LoadSession, "session/load", params, out);
        } else {
            let message = "the agent can neither resume nor load a session";
            out.open_failed(Failure::new(FailureKind::SessionGone, message));
        }
    }

    fn response(&mut self, sent: Sent, result: Result<&str, RpcError>, out: &mut DriverOutput) {
        match (sent, result) {
            (Sent::Initialize, Ok(result)) => self.initialized(result, out),
            (Sent::NewSession, Ok(result)) => {
                let reply: OpenedSession<'_> = serde_json::from_str(result).unwrap_or_default();
                self.settings = Settings::of(&reply);
                self.session = reply.id();
                match &self.session {
                    Some(id) => out.opened(Some(id.clone())),
                    None => {
                        let message = "the agent has opened a session without an id";
                        out.open_failed(Failure::new(FailureKind::Agent, message));
                    }
                }
            }
            (Sent::ResumeSession | Sent::LoadSession, Ok(result)) => {
                let reply: OpenedSession<'_> = serde_json::from_str(result).unwrap_or_default();
                self.settings = Settings::of(&reply);
                self.session.clone_from(&self.resume);
                match sent {
                    Sent::LoadSession => self.send_barrier(out),
                    _ => out.opened(self.session.clone()),
                }
            }
            (Sent::Barrier, _) => {
                if self.replay.goes_on && self.replay.barriers < MAX_BARRIERS {
                    self.send_barrier(out);
                } else {
                    out.opened(self.session.clone());
                }
            }
            (Sent::Initialize | Sent::NewSession, Err(error)) => out.open_failed(failure(&error)),
            (Sent::ResumeSession | Sent::LoadSession, Err(error)) => {
                let failure = failure(&error);
                let kind = match failure.kind {
                    FailureKind::Agent => FailureKind::SessionGone,
                    kind => kind,
                };
                out.open_failed(Failure::new(kind, failure.message));
            }
            (Sent::Prompt, result) => self.prompt_ended(result, out),
            (Sent::Steer(number), _) if number != self.steers => {}
            (Sent::Steer(_), Ok(result)) => {
                let outcome = Json::document(result).map(|reply| reply.at("outcome").word());
                out.steered(outcome == Some("injected"));
            }
            (Sent::Steer(_), Err(_)) => out.steered(false),
            (Sent::Option, Ok(_)) => {}
            (Sent::Option, Err(error)) => out.refused(error.text()),
        }
    }

    fn send_barrier(&mut self, out: &mut DriverOutput) {
        self.replay.barriers += 1;
        self.replay.goes_on = false;
        self.request(Sent::Barrier, "_barrier", json!({}), out);
    }

    fn prompt_ended(&mut self, result: Result<&str, RpcError>, out: &mut DriverOutput) {
        self.in_turn = false;
        while let Some(call) = self.announced.pop_front() {
            call.report(out);
        }
        let message = std::mem::take(&mut self.message);
        let has_failed = std::mem::take(&mut self.failed);
        let result =
            result.map(|reply| serde_json::from_str::<PromptEnded<'_>>(reply).unwrap_or_default());
        let reported = result.as_ref().ok().and_then(|reply| reply.usage());
        if let Some(totals) = self.usage.end_turn(reported) {
            out.event(AgentEventKind::Usage(totals));
        }
        let reply = match result {
            Ok(reply) => reply,
            Err(error) => {
                let failure = failure(&error);
                return out.turn_ended(TurnOutcome::Failed { failure }, None);
            }
        };
        let outcome = match reply.stop_reason.word() {
            "end_turn" if has_failed => {
                let failure = Failure::new(FailureKind::Agent, message.text.clone());
                TurnOutcome::Failed { failure }
            }
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
        out.turn_ended(outcome, message.into_text());
    }

    fn asked(&mut self, id: &str, params: &str, out: &mut DriverOutput) {
        let question = serde_json::from_str::<Question<'_>>(params);
        let (Ok(question), true) = (question, id.len() <= MAX_ID) else {
            return out.send(self.requests.invalid_params(id));
        };
        if self.asked.contains_key(id) {
            return;
        }
        if self.asked.len() >= MAX_OPEN {
            return out.send(self.requests.result(id, &cancelled()));
        }
        self.asked.insert(id.to_owned(), question.options());
        let call: Update<'_> = question.tool_call.object();
        let input = call.input();
        if let Some(call_id) = call.tool_call_id.text() {
            self.take_announced(&call_id, input.as_ref(), out);
        }
        let (command, paths) = call.facts();
        let mut request =
            PermissionRequest::new(id, call.tool_name_for_rules(), input.unwrap_or_default());
        let title = call.title.text().filter(|_| call.kind.word() == "execute");
        request.command = command.or_else(|| {
            // A title may be shortened, so it must not match a rule that allows. Parentheses make it
            // a command that is not simple; rules that forbid look inside them.
            title.map(|title| match self.title_is_command {
                true => title,
                false => format!("({title})"),
            })
        });
        request.paths = paths;
        request.parent = call.parent().or_else(|| self.other(question.session_id));
        out.asked(request);
    }

    /// The session, if it is not this one: that of a sub-agent.
    fn other(&self, session: Json<'_>) -> Option<String> {
        let session = session.text();
        session.filter(|session| session != self.session())
    }

    fn updated(&mut self, params: &str, out: &mut DriverOutput) {
        if !self.in_turn {
            self.replay.goes_on = true;
            return;
        }
        let Ok(params) = serde_json::from_str::<Updated<'_>>(params) else {
            return;
        };
        let update: Update<'_> = params.update.object();
        let parent = update.parent().or_else(|| self.other(params.session_id));
        if !update.meta.is_null() {
            self.failed |= update.meta.at("codex.threadStatus.type").word() == "systemError";
            let counted = update.meta.at("usage");
            if counted.is_object() {
                self.usage.add(usage(counted));
            }
        }
        match update.session_update.word() {
            "agent_message_chunk" => {
                let Some(text) = update.text() else {
                    return;
                };
                if parent.is_none() {
                    self.message.push(update.message_id.text(), &text);
                }
                out.event(of(parent, AgentEventKind::Text { text, delta: true }));
            }
            "agent_thought_chunk" => {
                if let Some(text) = update.text() {
                    out.event(of(parent, AgentEventKind::Thinking { text, delta: true }));
                }
            }
            "tool_call" => self.announce(&update, parent, out),
            "tool_call_update" => self.call_updated(&update, parent, out),
            "usage_update" => {
                if let Some(cost) = update.cost.at("amount").float() {
                    self.usage.cost = Some(cost);
                    out.event(AgentEventKind::Usage(self.usage.totals()));
                }
            }
            _ => {}
        }
    }

    fn announce(&mut self, update: &Update<'_>, parent: Option<String>, out: &mut DriverOutput) {
        let call = AnnouncedCall {
            id: update.tool_call_id.text().unwrap_or_default(),
            name: update.tool_name(),
            input: update.input().unwrap_or_default(),
            parent,
        };
        if update.status.word() != "pending" || call.id.len() > MAX_ID {
            return call.report(out);
        }
        if self.announced.len() == MAX_ANNOUNCED
            && let Some(oldest) = self.announced.pop_front()
        {
            oldest.report(out);
        }
        self.announced.push_back(call);
    }

    fn call_updated(
        &mut self,
        update: &Update<'_>,
        parent: Option<String>,
        out: &mut DriverOutput,
    ) {
        let status = update.status.word();
        let has_ended = matches!(status, "completed" | "failed");
        let id = update.tool_call_id.text();
        let input = update.input();
        if let Some(id) = &id
            && (input.is_some() || has_ended)
        {
            self.take_announced(id, input.as_ref(), out);
        }
        if has_ended {
            let result = AgentEventKind::ToolResult {
                id,
                output: update.output(),
                is_error: status == "failed",
            };
            out.event(of(parent, result));
        }
    }

    /// Reports the call that waits for its arguments.
    fn take_announced(&mut self, id: &str, input: Option<&ToolInput>, out: &mut DriverOutput) {
        let Some(at) = self.announced.iter().position(|call| call.id == id) else {
            return;
        };
        if let Some(mut call) = self.announced.remove(at) {
            if let Some(input) = input {
                call.input = input.clone();
            }
            call.report(out);
        }
    }

    fn settle(&mut self, id: &str, result: serde_json::Value, out: &mut DriverOutput) {
        if self.asked.remove(id).is_some() {
            out.send(self.requests.result(id, &result));
        }
    }

    fn set(
        &mut self,
        has_request: bool,
        request: (&str, &str),
        option: Option<String>,
        value: &str,
        out: &mut DriverOutput,
    ) {
        let session = self.session().to_owned();
        match option.filter(|_| !has_request) {
            Some(option) => {
                let params = json!({ "sessionId": session, "configId": option, "value": value });
                self.request(Sent::Option, "session/set_config_option", params, out);
            }
            None => {
                let (method, key) = request;
                let params = json!({ "sessionId": session, key: value });
                self.request(Sent::Option, method, params, out);
            }
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
                "session/request_permission" if self.seen.is_repeated(line) => {}
                "session/request_permission" => self.asked(id, params, out),
                _ => out.send(self.requests.method_not_found(id)),
            },
            Some(Incoming::Notification { method, params }) if method == "session/update" => {
                self.updated(params, out);
            }
            Some(Incoming::Response { id, result }) => {
                if let Some(sent) = self.requests.take(id) {
                    self.response(sent, result, out);
                }
            }
            Some(Incoming::Notification { .. }) | None => {}
        }
    }

    fn command(&mut self, command: DriverCommand<'_>, out: &mut DriverOutput) {
        let session = self.session().to_owned();
        match command {
            DriverCommand::Prompt(text) => {
                self.in_turn = true;
                let params = json!({ "sessionId": session, "prompt": text_block(text) });
                let line = (self.requests).prompt(Sent::Prompt, "session/prompt", &params);
                out.send(line);
            }
            DriverCommand::Steer(text) => {
                let params = json!({
                    "sessionId": session,
                    "prompt": text_block(text),
                    "_meta": { "steering": { "idleBehavior": "promptRequired" } },
                });
                self.steers += 1;
                self.request(Sent::Steer(self.steers), "_session/steering", params, out);
            }
            DriverCommand::Interrupt => {
                let params = json!({ "sessionId": session });
                out.send(self.requests.notification("session/cancel", &params));
            }
            DriverCommand::Answer {
                permission,
                decision,
            } => {
                let options = self.asked.get(permission);
                let options = options.map(Vec::as_slice).unwrap_or_default();
                let result = match option_for(options, decision) {
                    Some(id) => json!({ "outcome": { "outcome": "selected", "optionId": id } }),
                    None => {
                        if decision == Decision::Allow {
                            out.refused("the agent offers no way to allow one call");
                        }
                        cancelled()
                    }
                };
                self.settle(permission, result, out);
            }
            DriverCommand::Withdraw { permission } => self.settle(permission, cancelled(), out),
            DriverCommand::SetMode(mode) => {
                let option = self.settings.mode_option.clone();
                let request = ("session/set_mode", "modeId");
                self.set(self.settings.has_modes, request, option, mode, out);
            }
            DriverCommand::SetModel(model) => {
                let option = self.settings.model_option.clone();
                let request = ("session/set_model", "modelId");
                self.set(self.settings.has_models, request, option, model, out);
            }
            _ => out.refused("the protocol does not know this command"),
        }
    }

    fn can_steer(&self) -> bool {
        self.can_steer
    }
}

impl Settings {
    fn of(reply: &OpenedSession<'_>) -> Self {
        Self {
            has_modes: reply.has_modes(),
            has_models: reply.has_models(),
            mode_option: reply.option("mode"),
            model_option: reply.option("model"),
        }
    }
}

impl AnnouncedCall {
    fn report(self, out: &mut DriverOutput) {
        let call = AgentEventKind::ToolCall {
            id: Some(self.id).filter(|id| !id.is_empty()),
            name: self.name,
            input: self.input,
        };
        out.event(of(self.parent, call));
    }
}

impl LastMessage {
    fn push(&mut self, id: Option<String>, text: &str) {
        if id.is_none() && self.id.is_some() {
            return;
        }
        if id != self.id {
            self.text.clear();
            self.is_too_long = false;
            self.id = id;
        }
        self.is_too_long |= self.text.len() + text.len() > MAX_MESSAGE;
        if !self.is_too_long {
            self.text.push_str(text);
        }
    }

    /// `None` without ids: the pieces themselves then tell where the last message begins.
    fn into_text(self) -> Option<String> {
        (self.id.is_some() && !self.is_too_long).then_some(self.text)
    }
}

impl UsageCount {
    fn add(&mut self, usage: Usage) {
        self.turn = self.turn.plus(&usage);
    }

    fn totals(&self) -> UsageTotals {
        let mut totals = UsageTotals::of_run(self.before.plus(&self.turn));
        totals.session.cost_usd = self.cost;
        totals
    }

    /// What the agent reports for the whole turn replaces what it has reported for its parts.
    fn end_turn(&mut self, reported: Option<Usage>) -> Option<UsageTotals> {
        if let Some(reported) = reported {
            self.turn = reported;
        }
        let totals = self.totals();
        let is_known = self.turn != Usage::default();
        self.before = totals.run;
        self.turn = Usage::default();
        is_known.then_some(totals)
    }
}

fn of(parent: Option<String>, kind: AgentEventKind) -> AgentEvent {
    match parent {
        Some(parent) => AgentEvent::of_sub_agent(parent, kind),
        None => AgentEvent::from(kind),
    }
}

fn text_block(text: &str) -> serde_json::Value {
    json!([{ "type": "text", "text": text }])
}

fn cancelled() -> serde_json::Value {
    json!({ "outcome": { "outcome": "cancelled" } })
}

/// The option for one call. None that allows later calls, too: the policy decides each call.
fn option_for(options: &[PermissionOption], decision: Decision) -> Option<&str> {
    let kinds: &[&str] = match decision {
        Decision::Allow => &["allow_once"],
        Decision::Deny => &["reject_once", "reject_always"],
    };
    let of_kind = |kind: &&str| options.iter().find(|option| option.kind == **kind);
    let option = kinds.iter().find_map(of_kind);
    option.map(|option| option.id.as_str())
}

fn failure(error: &RpcError) -> Failure {
    // -32000 is the protocol's "authentication required". Some agents use the HTTP status as the code.
    let kind = match error.code {
        -32000 => Some(FailureKind::Authentication),
        code => u64::try_from(code)
            .ok()
            .and_then(FailureKind::of_http_status),
    };
    Failure::new(kind.unwrap_or(FailureKind::Agent), error.text())
}

#[cfg(test)]
mod tests {
    use exec_core::DriverSignal;

    use super::*;

    fn option(id: &str, kind: &str) -> PermissionOption {
        PermissionOption {
            id: id.to_owned(),
            kind: kind.to_owned(),
        }
    }

    #[test]
    fn an_answer_never_allows_more_than_one_call() {
        let always = [option("a", "allow_always"), option("r", "reject_always")];
        assert_eq!(option_for(&always, Decision::Allow), None);
        assert_eq!(option_for(&always, Decision::Deny), Some("r"));
        let once = [option("a", "allow_always"), option("o", "allow_once")];
        assert_eq!(option_for(&once, Decision::Allow), Some("o"));
        assert_eq!(option_for(&once, Decision::Deny), None);
    }

    #[test]
    fn an_answer_that_the_agent_does_not_offer_is_refused() {
        let answer = |decision| {
            let mut driver = AcpDriver::new(Path::new("/w"), None);
            driver.line(
                r#"{"id":1,"method":"session/request_permission","params":{"toolCall":{"kind":"read"},"options":[{"optionId":"a","kind":"allow_always"}]}}"#,
                &mut DriverOutput::default(),
            );
            let mut out = DriverOutput::default();
            let permission = "1";
            let command = DriverCommand::Answer {
                permission,
                decision,
            };
            driver.command(command, &mut out);
            assert!(out.lines()[0].contains("cancelled"), "{:?}", out.lines());
            let mut signals = out.signals().iter();
            signals.any(|signal| matches!(signal, DriverSignal::Refused { .. }))
        };
        assert!(answer(Decision::Allow));
        // The call is not made.
        assert!(!answer(Decision::Deny));
    }

    fn command_of(mut driver: AcpDriver, call: &str) -> Option<String> {
        let line = format!(
            r#"{{"id":1,"method":"session/request_permission","params":{{"toolCall":{call},"options":[]}}}}"#
        );
        let mut out = DriverOutput::default();
        driver.line(&line, &mut out);
        match &out.signals()[0] {
            DriverSignal::Asked(request) => request.command.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_title_is_a_command_for_rules_that_forbid_only() {
        let driver = || AcpDriver::new(Path::new("/w"), None);
        let call = r#"{"kind":"execute","title":"cargo test"}"#;
        assert_eq!(command_of(driver(), call).as_deref(), Some("(cargo test)"));
        let exact = driver().with_exact_titles();
        assert_eq!(command_of(exact, call).as_deref(), Some("cargo test"));
        let named = r#"{"kind":"execute","title":"Tests","rawInput":{"command":"cargo test"}}"#;
        assert_eq!(command_of(driver(), named).as_deref(), Some("cargo test"));
        let other = r#"{"kind":"read","title":"cargo test"}"#;
        assert_eq!(command_of(driver(), other), None);
    }
}
