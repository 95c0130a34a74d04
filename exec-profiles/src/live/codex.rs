//! The protocol of `codex app-server`: JSON-RPC lines without the version field.
//!
//! - The thread id is the session id. A turn has an id of its own, which an interrupt and a steer name;
//!   an interrupt that comes before Codex has begun the turn waits for that: Codex would confirm it and
//!   run the turn to its end.
//! - Sub-agents are threads of their own: what they do is an event with their thread as the parent, and
//!   the end of their turns ends nothing. Each thread counts its own tokens: see `codex_usage.rs`.
//! - A command arrives as `/bin/bash -lc '…'`; rules see the text in the quotes.
//! - The question about a change of files does not name them; the item that was started before it does.

use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use exec_core::{
    AgentEvent, AgentEventKind, Decision, DriverCommand, DriverOutput, Failure, FailureKind,
    PermissionRequest, ProtocolDriver, ToolInput, TurnOutcome, UsageTotals,
};
use serde::Deserialize;
use serde_json::json;

use super::ANY_PATH;
use super::codex_usage::{ThreadTokens, Tokens};
use super::json_rpc::{Incoming, MAX_ID, Requests, RpcError, SeenRequests};
use crate::events::{Json, codex_error};

/// How many permission requests may be open. The service bounds them, too.
const MAX_OPEN: usize = 256;
/// How many changes of files are remembered for the question about them, and with how many files.
const MAX_CHANGES: usize = 16;
const MAX_PATHS: usize = 256;

pub(crate) struct CodexDriver {
    workspace: PathBuf,
    /// The thread to continue.
    resume: Option<String>,
    requests: Requests<Sent>,
    thread: String,
    /// The model of the next turns, if it was selected.
    model: Option<String>,
    /// The running turn, once Codex has named it.
    turn: Option<String>,
    in_turn: bool,
    /// The turn before: what is still said about it does not concern the next one.
    ended_turn: Option<String>,
    /// Codex works on the turn: it has announced it, or an item of it.
    has_begun: bool,
    /// An interrupt came before that.
    interrupt_due: bool,
    /// How many texts were steered.
    steers: u64,
    asked: BTreeSet<String>,
    seen: SeenRequests,
    /// The files of the latest changes, by item.
    changes: VecDeque<(String, Vec<PathBuf>)>,
    tokens: ThreadTokens,
}

#[derive(Clone, Copy)]
enum Sent {
    Initialize,
    Thread,
    Turn,
    /// With its number: a late answer does not concern the next one.
    Steer(u64),
    Interrupt,
}

impl CodexDriver {
    pub(crate) fn new(workspace: &Path, resume: Option<String>) -> Self {
        Self {
            workspace: workspace.to_owned(),
            resume,
            requests: Requests::without_version(),
            thread: String::new(),
            model: None,
            turn: None,
            in_turn: false,
            ended_turn: None,
            has_begun: false,
            interrupt_due: false,
            steers: 0,
            asked: BTreeSet::new(),
            seen: SeenRequests::default(),
            changes: VecDeque::new(),
            tokens: ThreadTokens::default(),
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
        let id_of = |result: &str, path: &str| {
            let id = Json::document(result).and_then(|result| result.at(path).text());
            id.unwrap_or_default()
        };
        match (sent, result) {
            (Sent::Initialize, Ok(_)) => self.open_thread(out),
            (Sent::Initialize, Err(error)) => {
                out.open_failed(Failure::new(FailureKind::Agent, error.text()));
            }
            (Sent::Thread, Ok(result)) => {
                self.thread = id_of(result, "thread.id");
                if self.thread.is_empty() {
                    let message = "Codex has opened a thread without an id";
                    return out.open_failed(Failure::new(FailureKind::Agent, message));
                }
                out.opened(Some(self.thread.clone()));
            }
            (Sent::Thread, Err(error)) => {
                let kind = match self.resume {
                    Some(_) => FailureKind::SessionGone,
                    None => FailureKind::Agent,
                };
                out.open_failed(Failure::new(kind, error.text()));
            }
            (Sent::Turn, Ok(result)) => self.turn_named(id_of(result, "turn.id")),
            (Sent::Turn, Err(error)) => {
                let failure = Failure::new(FailureKind::Agent, error.text());
                self.end_turn(TurnOutcome::Failed { failure }, out);
            }
            (Sent::Steer(number), result) => {
                if number == self.steers {
                    out.steered(result.is_ok());
                }
            }
            // The turn has ended by itself.
            (Sent::Interrupt, _) => {}
        }
    }

    /// `turn/started` and the response to `turn/start` both name the turn, in any order.
    fn turn_named(&mut self, id: String) {
        let is_new = self.in_turn && self.turn.is_none();
        if !is_new || id.is_empty() || self.ended_turn.as_ref() == Some(&id) {
            return;
        }
        self.turn = Some(id);
    }

    /// Sends an interrupt that has waited.
    fn turn_begun(&mut self, out: &mut DriverOutput) {
        self.has_begun |= self.in_turn && self.turn.is_some();
        if self.has_begun && std::mem::take(&mut self.interrupt_due) {
            self.interrupt(out);
        }
    }

    fn interrupt(&mut self, out: &mut DriverOutput) {
        match &self.turn {
            Some(turn) if self.has_begun => {
                let params = json!({ "threadId": self.thread, "turnId": turn });
                self.request(Sent::Interrupt, "turn/interrupt", params, out);
            }
            _ => self.interrupt_due = true,
        }
    }

    fn end_turn(&mut self, outcome: TurnOutcome, out: &mut DriverOutput) {
        if std::mem::take(&mut self.in_turn) {
            self.ended_turn = self.turn.take().or(self.ended_turn.take());
            self.has_begun = false;
            self.interrupt_due = false;
            out.turn_ended(outcome, None);
        }
    }

    fn notified(&mut self, method: &str, params: &str, out: &mut DriverOutput) {
        let Ok(params) = serde_json::from_str::<Notification<'_>>(params) else {
            return;
        };
        let thread = params.thread_id.text();
        let other = thread.filter(|thread| *thread != self.thread);
        let is_own = other.is_none();
        let delta = || params.delta.text().filter(|text| !text.is_empty());
        if is_own && method.starts_with("item/") {
            self.turn_begun(out);
        }
        let mut event = |kind: AgentEventKind| {
            out.event(match &other {
                Some(thread) => AgentEvent::of_sub_agent(thread.as_str(), kind),
                None => AgentEvent::from(kind),
            });
        };
        match method {
            "item/agentMessage/delta" => {
                if let Some(text) = delta() {
                    event(AgentEventKind::Text { text, delta: true });
                }
            }
            "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta" => {
                if let Some(text) = delta() {
                    event(AgentEventKind::Thinking { text, delta: true });
                }
            }
            "item/started" => {
                let item: Item<'_> = params.item.object();
                if let Some(call) = item.call() {
                    event(call);
                }
                self.remember_change(&item);
            }
            "item/completed" => {
                if let Some(result) = params.item.object::<Item<'_>>().result() {
                    event(result);
                }
            }
            "serverRequest/resolved" => {
                let id = params.request_id.tool_input();
                if self.asked.remove(id.as_str()) {
                    out.withdrawn(id.as_str());
                }
            }
            "turn/started" if is_own => {
                self.turn_named(params.turn.at("id").text().unwrap_or_default());
                self.turn_begun(out);
            }
            "turn/completed" if is_own => self.completed(params.turn, out),
            "thread/tokenUsage/updated" => {
                let is_work = self.is_work(is_own, params.turn_id);
                let thread = other.unwrap_or_else(|| self.thread.clone());
                let used = params.token_usage;
                let (total, last) = (Tokens::of(used.at("total")), Tokens::of(used.at("last")));
                if let Some(run) = self.tokens.count(thread, total, last, is_work) {
                    // As Codex counts it, so that it fits the totals of launches for one prompt.
                    let session = self.tokens.total_of(&self.thread);
                    let mut totals = UsageTotals::of_session(session.unwrap_or_default());
                    totals.run = run;
                    // Not an event of the sub-agent: it is the total of all.
                    out.event(AgentEventKind::Usage(totals));
                }
            }
            "error" => {
                let message = params.error.at("message").flatten();
                event(match params.will_retry.is_true() {
                    true => retry(message),
                    false => AgentEventKind::Error(failure(params.error, message)),
                });
            }
            _ => {}
        }
    }

    /// Whether tokens were used by this process. A thread that is resumed first repeats its earlier total,
    /// with the turn of that time.
    fn is_work(&self, is_own: bool, turn: Json<'_>) -> bool {
        if self.resume.is_none() {
            return true;
        }
        match (is_own, turn.text()) {
            (true, Some(turn)) => [&self.turn, &self.ended_turn].contains(&&Some(turn)),
            _ => self.in_turn || self.ended_turn.is_some(),
        }
    }

    fn completed(&mut self, turn: Json<'_>, out: &mut DriverOutput) {
        let id = turn.at("id").text().unwrap_or_default();
        let is_other = self.turn.as_ref().is_some_and(|running| *running != id);
        if is_other || self.ended_turn.as_ref() == Some(&id) {
            return;
        }
        let outcome = match turn.at("status").word() {
            "completed" => TurnOutcome::Completed,
            "interrupted" => TurnOutcome::Interrupted,
            status => {
                let error = turn.at("error");
                let message = match error.is_null() {
                    true => format!("the turn ended with `{status}`"),
                    false => error.at("message").flatten(),
                };
                TurnOutcome::Failed {
                    failure: failure(error, message),
                }
            }
        };
        // A late answer to `turn/start` must not name the next turn after this one.
        self.turn_named(id);
        self.end_turn(outcome, out);
    }

    fn remember_change(&mut self, item: &Item<'_>) {
        let Some(id) = item.id.text().filter(|id| id.len() <= MAX_ID) else {
            return;
        };
        if item.r#type.word() != "fileChange" {
            return;
        }
        let mut paths = Vec::new();
        let mut is_complete = true;
        item.changes.each(|change| match change.at("path").text() {
            Some(path) if paths.len() < MAX_PATHS => {
                paths.push(PathBuf::from(path));
                // A change can move its file.
                for key in ["kind.move_path", "kind.movePath"] {
                    paths.extend(change.at(key).text().map(PathBuf::from));
                }
            }
            _ => is_complete = false,
        });
        if !is_complete {
            paths = vec![PathBuf::from(ANY_PATH)];
        }
        self.changes.retain(|(known, _)| *known != id);
        if self.changes.len() == MAX_CHANGES {
            self.changes.pop_front();
        }
        self.changes.push_back((id, paths));
    }

    fn asked(&mut self, id: &str, method: &str, params: &str, out: &mut DriverOutput) {
        let tool = match method {
            ASK_COMMAND => COMMAND,
            ASK_CHANGE => CHANGE,
            _ => return out.send(self.requests.method_not_found(id)),
        };
        let question = serde_json::from_str::<Question<'_>>(params);
        let (Ok(question), true) = (question, id.len() <= MAX_ID) else {
            return out.send(self.requests.invalid_params(id));
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
        let command = question.command.text();
        request.command = command.map(|command| match script(&command) {
            Some(script) => script.to_owned(),
            None => command,
        });
        let cwd = question.cwd.text().map(PathBuf::from);
        let cwd = cwd.filter(|cwd| tool == COMMAND && *cwd != self.workspace);
        request.paths.extend(cwd);
        if tool == CHANGE {
            let item = question.item_id.text().unwrap_or_default();
            let known = self.changes.iter().position(|(known, _)| *known == item);
            let change = known.and_then(|at| self.changes.remove(at));
            // A rule must not see the folder and miss the files.
            request.paths = match change {
                Some((_, paths)) => paths,
                None => vec![PathBuf::from(ANY_PATH)],
            };
            let root = question.grant_root.text();
            request.paths.extend(root.map(PathBuf::from));
        }
        let thread = question.thread_id.text();
        request.parent = thread.filter(|thread| *thread != self.thread);
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
        let info = json!({
            "name": "exec-profiles",
            "title": "exec-profiles",
            "version": env!("CARGO_PKG_VERSION"),
        });
        let params = json!({ "clientInfo": info });
        self.request(Sent::Initialize, "initialize", params, out);
    }

    fn line(&mut self, line: &str, out: &mut DriverOutput) {
        match Incoming::parse(line) {
            Some(Incoming::Request { id, method, params }) => {
                let is_question = matches!(method.as_ref(), ASK_COMMAND | ASK_CHANGE);
                if !is_question || !self.seen.is_repeated(line) {
                    self.asked(id, &method, params, out);
                }
            }
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
        let input = |text: &str| json!([{ "type": "text", "text": text }]);
        match command {
            DriverCommand::Prompt(text) => {
                self.in_turn = true;
                self.turn = None;
                self.has_begun = false;
                self.interrupt_due = false;
                let mut params = json!({ "threadId": self.thread, "input": input(text) });
                if let Some(model) = self.model.take() {
                    params["model"] = json!(model);
                }
                out.send(self.requests.prompt(Sent::Turn, "turn/start", &params));
            }
            DriverCommand::Steer(text) => match self.turn.clone() {
                Some(turn) => {
                    let params = json!({
                        "threadId": self.thread,
                        "expectedTurnId": turn,
                        "input": input(text),
                    });
                    self.steers += 1;
                    self.request(Sent::Steer(self.steers), "turn/steer", params, out);
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
            // Codex takes it with a turn, and keeps it for the turns after it.
            DriverCommand::SetModel(model) => self.model = Some(model.to_owned()),
            _ => out.refused("Codex does not know this command"),
        }
    }

    fn can_steer(&self) -> bool {
        self.turn.is_some()
    }
}

/// The requests for a permission.
const ASK_COMMAND: &str = "item/commandExecution/requestApproval";
const ASK_CHANGE: &str = "item/fileChange/requestApproval";

/// The names of tools, as in a launch for one prompt.
const COMMAND: &str = "command_execution";
const CHANGE: &str = "file_change";

/// The script of `/bin/bash -lc '…'`, if the quotes contain all of it literally. Codex puts every
/// command into its shell; another program with such arguments is not taken for it.
fn script(command: &str) -> Option<&str> {
    let (shell, rest) = command.split_once(' ')?;
    let name = shell
        .strip_prefix("/bin/")
        .or_else(|| shell.strip_prefix("/usr/bin/"))
        .unwrap_or(shell);
    if !matches!(name, "bash" | "sh" | "zsh" | "dash") {
        return None;
    }
    let quoted = rest
        .strip_prefix("-lc ")
        .or_else(|| rest.strip_prefix("-c "))?;
    let inside = |quote: char| quoted.strip_prefix(quote)?.strip_suffix(quote);
    match (inside('\''), inside('"')) {
        (Some(script), _) if !script.contains('\'') => Some(script),
        (_, Some(script)) if !script.contains(['"', '\\', '$', '`', '!']) => Some(script),
        _ => None,
    }
}

fn retry(message: String) -> AgentEventKind {
    match codex_error(message) {
        AgentEventKind::Error(failure) => AgentEventKind::Retry {
            failure,
            attempt: None,
            max_attempts: None,
            delay: None,
        },
        retry => retry,
    }
}

/// `codexErrorInfo` is a name, or an object with the name as its key and the HTTP status in it.
fn failure(error: Json<'_>, message: String) -> Failure {
    let info = error.at("codexErrorInfo");
    let mut name = info.word();
    let mut status = None;
    let mut owned = String::new();
    info.each_entry(|key, value| {
        key.clone_into(&mut owned);
        status = value.at("httpStatusCode").number();
        false
    });
    if !owned.is_empty() {
        name = &owned;
    }
    let kind = match name {
        "unauthorized" => Some(FailureKind::Authentication),
        "contextWindowExceeded" => Some(FailureKind::ContextFull),
        "usageLimitExceeded" => FailureKind::of_http_status(429),
        "serverOverloaded" | "internalServerError" => Some(FailureKind::Overloaded),
        "httpConnectionFailed" | "responseStreamConnectionFailed" if status.is_none() => {
            Some(FailureKind::Network)
        }
        _ => status.and_then(FailureKind::of_http_status),
    };
    Failure::new(kind.unwrap_or(FailureKind::Agent), message)
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Notification<'a> {
    #[serde(borrow)]
    thread_id: Json<'a>,
    turn: Json<'a>,
    turn_id: Json<'a>,
    delta: Json<'a>,
    item: Json<'a>,
    token_usage: Json<'a>,
    error: Json<'a>,
    will_retry: Json<'a>,
    request_id: Json<'a>,
}

/// An item of a turn, as far as events use it.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Item<'a> {
    #[serde(borrow)]
    r#type: Json<'a>,
    id: Json<'a>,
    command: Json<'a>,
    changes: Json<'a>,
    query: Json<'a>,
    server: Json<'a>,
    tool: Json<'a>,
    arguments: Json<'a>,
    status: Json<'a>,
    aggregated_output: Json<'a>,
    result: Json<'a>,
    error: Json<'a>,
}

impl Item<'_> {
    fn tool(&self) -> Option<(Cow<'static, str>, ToolInput)> {
        let wrapped = |key: &str, value: Json<'_>| {
            let json = format!("{{\"{key}\":{}}}", value.tool_input());
            ToolInput::new(&json).unwrap_or_default()
        };
        Some(match self.r#type.word() {
            "commandExecution" => (COMMAND.into(), wrapped("command", self.command)),
            "fileChange" => (CHANGE.into(), wrapped("changes", self.changes)),
            "webSearch" => ("web_search".into(), wrapped("query", self.query)),
            "mcpToolCall" => {
                let name = format!("{}.{}", self.server.flatten(), self.tool.flatten());
                (name.into(), self.arguments.tool_input())
            }
            _ => return None,
        })
    }

    fn call(&self) -> Option<AgentEventKind> {
        let (name, input) = self.tool()?;
        Some(AgentEventKind::ToolCall {
            id: self.id.text(),
            name: name.into_owned(),
            input,
        })
    }

    fn result(&self) -> Option<AgentEventKind> {
        self.tool()?;
        let outputs = [self.aggregated_output, self.error, self.result];
        let output = outputs.into_iter().find(|output| !output.is_null());
        Some(AgentEventKind::ToolResult {
            id: self.id.text(),
            output: output.map(Json::flatten).unwrap_or_default(),
            is_error: !matches!(self.status.word(), "" | "completed"),
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Question<'a> {
    #[serde(borrow)]
    thread_id: Json<'a>,
    item_id: Json<'a>,
    command: Json<'a>,
    cwd: Json<'a>,
    grant_root: Json<'a>,
}

#[cfg(test)]
mod tests {
    use exec_core::DriverSignal;

    use super::*;

    #[test]
    fn a_script_is_taken_out_of_its_shell_only_if_that_is_certain() {
        assert_eq!(script("/bin/bash -lc 'touch a; b'"), Some("touch a; b"));
        assert_eq!(script("bash -c 'x'"), Some("x"));
        assert_eq!(script(r#"/usr/bin/zsh -lc "it's""#), Some("it's"));
        for other in [
            "/bin/bash -lc 'a' 'b'",
            r"/bin/bash -lc 'it'\''s'",
            r#"/bin/bash -lc "$(x)""#,
            r#"/bin/bash -lc "a" "b""#,
            "python3 -c 'ls'",
            "./bash -c 'ls'",
            "/tmp/bash -lc 'ls'",
            "env X=1 bash -c 'ls'",
            "bash -x -c 'ls'",
            "bash -c '",
            "cargo test",
        ] {
            assert_eq!(script(other), None, "{other}");
        }
    }

    #[test]
    fn an_interrupt_waits_for_the_begin_of_its_turn() {
        let mut driver = CodexDriver::new(Path::new("/w"), None);
        let lines = |driver: &mut CodexDriver, line: &str| {
            let mut out = DriverOutput::default();
            driver.line(line, &mut out);
            out.lines().join("\n")
        };
        driver.open(&mut DriverOutput::default());
        lines(&mut driver, r#"{"id":1,"result":{}}"#);
        lines(&mut driver, r#"{"id":2,"result":{"thread":{"id":"t"}}}"#);
        let mut out = DriverOutput::default();
        driver.command(DriverCommand::Prompt("a"), &mut out);
        driver.command(DriverCommand::Interrupt, &mut out);
        assert_eq!(out.lines().len(), 1, "the prompt only");
        let sent = lines(&mut driver, r#"{"id":3,"result":{"turn":{"id":"u"}}}"#);
        assert_eq!(sent, "", "the turn has a name, but has not begun");
        let begun = r#"{"method":"turn/started","params":{"threadId":"t","turn":{"id":"u"}}}"#;
        let sent = lines(&mut driver, begun);
        assert!(sent.contains("turn/interrupt") && sent.contains(r#""turnId":"u""#));
    }

    #[test]
    fn a_late_answer_to_a_prompt_does_not_name_the_next_turn() {
        let mut driver = CodexDriver::new(Path::new("/w"), None);
        driver.thread = "t".to_owned();
        let prompt = |driver: &mut CodexDriver| {
            driver.command(DriverCommand::Prompt("a"), &mut DriverOutput::default());
        };
        let ends = |driver: &mut CodexDriver, line: &str| {
            let mut out = DriverOutput::default();
            driver.line(line, &mut out);
            let mut signals = out.signals().iter();
            signals.any(|signal| matches!(signal, DriverSignal::TurnEnded { .. }))
        };
        let completed = |turn: &str| {
            let turn = json!({ "id": turn, "status": "completed" });
            let params = json!({ "threadId": "t", "turn": turn });
            json!({ "method": "turn/completed", "params": params }).to_string()
        };
        prompt(&mut driver);
        assert!(ends(&mut driver, &completed("u")));
        prompt(&mut driver);
        ends(&mut driver, r#"{"id":1,"result":{"turn":{"id":"u"}}}"#);
        assert!(ends(&mut driver, &completed("v")));
    }

    /// The tokens of the run after these updates: thread, turn, total and last.
    fn tokens_of(driver: &mut CodexDriver, updates: &[(&str, &str, u64, u64)]) -> Vec<Option<u64>> {
        let mut out = DriverOutput::default();
        for (thread, turn, total, last) in updates {
            let used = json!({
                "total": { "inputTokens": total }, "last": { "inputTokens": last },
            });
            let params = json!({ "threadId": thread, "turnId": turn, "tokenUsage": used });
            let method = "thread/tokenUsage/updated";
            let line = json!({ "method": method, "params": params }).to_string();
            driver.line(&line, &mut out);
        }
        let signals = out.signals().iter();
        let used = signals.filter_map(|signal| match signal {
            DriverSignal::Event(event) => match &event.kind {
                AgentEventKind::Usage(totals) => Some(totals.run.input_tokens),
                _ => None,
            },
            _ => None,
        });
        used.collect()
    }

    #[test]
    fn the_tokens_of_sub_agents_count_once() {
        let mut driver = CodexDriver::new(Path::new("/w"), None);
        driver.thread = "t".to_owned();
        let updates = [
            ("t", "u", 10, 10),
            ("sub", "v", 7, 7),
            ("sub", "v", 7, 7),
            ("t", "u", 25, 15),
            ("sub", "v", 12, 5),
            // It begins with the context of its parent.
            ("fork", "w", 103, 3),
        ];
        let expected = [10, 17, 17, 32, 37, 40].map(Some);
        assert_eq!(tokens_of(&mut driver, &updates), expected);
    }

    #[test]
    fn a_resumed_thread_counts_from_its_resume() {
        let resumed = || {
            let mut driver = CodexDriver::new(Path::new("/w"), Some("t".to_owned()));
            driver.thread = "t".to_owned();
            driver.command(DriverCommand::Prompt("a"), &mut DriverOutput::default());
            driver
        };
        // The earlier total is repeated, even behind the first prompt.
        let mut driver = resumed();
        assert_eq!(tokens_of(&mut driver, &[("t", "old", 500, 20)]), []);
        driver.turn = Some("u".to_owned());
        let used = tokens_of(&mut driver, &[("t", "u", 510, 10), ("t", "u", 515, 5)]);
        assert_eq!(used, [Some(10), Some(15)]);
        // It is not repeated.
        let mut driver = resumed();
        driver.turn = Some("u".to_owned());
        let used = tokens_of(&mut driver, &[("t", "u", 510, 10), ("sub", "v", 4, 4)]);
        assert_eq!(used, [Some(10), Some(14)]);
    }

    #[test]
    fn a_late_answer_to_a_steer_does_not_concern_the_next_one() {
        let mut driver = CodexDriver::new(Path::new("/w"), None);
        driver.turn = Some("u".to_owned());
        for text in ["a", "b"] {
            let mut out = DriverOutput::default();
            driver.command(DriverCommand::Steer(text), &mut out);
            assert_eq!(out.lines().len(), 1);
        }
        let mut out = DriverOutput::default();
        driver.line(r#"{"id":1,"error":{"code":1,"message":"late"}}"#, &mut out);
        assert!(out.signals().is_empty());
        driver.line(r#"{"id":2,"result":{}}"#, &mut out);
        assert_eq!(out.signals(), [DriverSignal::Steered { injected: true }]);
    }

    #[test]
    fn a_question_that_is_repeated_after_its_answer_is_not_asked_again() {
        let mut driver = CodexDriver::new(Path::new("/w"), None);
        let question = r#"{"id":7,"method":"item/commandExecution/requestApproval","params":{"itemId":"i","command":"ls"}}"#;
        let mut out = DriverOutput::default();
        driver.line(question, &mut out);
        let answer = DriverCommand::Answer {
            permission: "7",
            decision: Decision::Allow,
        };
        driver.command(answer, &mut out);
        driver.line(question, &mut out);
        assert_eq!((out.signals().len(), out.lines().len()), (1, 1));
        driver.line(&question.replace("ls", "rm x"), &mut out);
        assert_eq!(out.signals().len(), 2, "another request");
    }

    #[test]
    fn a_change_whose_files_are_not_all_known_may_mean_any_path() {
        let paths = |changes: &str| {
            let mut driver = CodexDriver::new(Path::new("/w"), None);
            let item = format!(r#"{{"type":"fileChange","id":"i","changes":{changes}}}"#);
            let params = format!(r#"{{"threadId":"t","item":{item}}}"#);
            let started = format!(r#"{{"method":"item/started","params":{params}}}"#);
            driver.line(&started, &mut DriverOutput::default());
            let mut out = DriverOutput::default();
            let asked = r#"{"id":7,"method":"item/fileChange/requestApproval","params":{"threadId":"t","itemId":"i","grantRoot":"/w"}}"#;
            driver.line(asked, &mut out);
            match out.signals() {
                [DriverSignal::Asked(request)] => request.paths.clone(),
                other => panic!("{other:?}"),
            }
        };
        let expected = ["a", "/out", "b", "/w"].map(PathBuf::from);
        assert_eq!(
            paths(r#"[{"path":"a","kind":{"type":"update","move_path":"/out"}},{"path":"b"}]"#),
            expected
        );
        let any = ["/", "/w"].map(PathBuf::from);
        assert_eq!(paths(r#"[{"path":"a"},{"diff":"x"}]"#), any);
        let many = vec![r#"{"path":"a"}"#; MAX_PATHS + 1].join(",");
        assert_eq!(paths(&format!("[{many}]")), any);
        // The change was never announced.
        let mut out = DriverOutput::default();
        let asked = r#"{"id":7,"method":"item/fileChange/requestApproval","params":{"threadId":"t","itemId":"i"}}"#;
        CodexDriver::new(Path::new("/w"), None).line(asked, &mut out);
        assert!(
            matches!(out.signals(), [DriverSignal::Asked(request)] if request.paths == [Path::new("/")])
        );
    }

    #[test]
    fn a_command_in_another_folder_than_the_workspace_names_it() {
        let folder = |cwd: &str| {
            let asked = format!(
                r#"{{"id":7,"method":"item/commandExecution/requestApproval","params":{{"command":"ls","cwd":"{cwd}"}}}}"#
            );
            let mut out = DriverOutput::default();
            CodexDriver::new(Path::new("/w"), None).line(&asked, &mut out);
            match out.signals() {
                [DriverSignal::Asked(request)] => request.paths.clone(),
                other => panic!("{other:?}"),
            }
        };
        assert!(folder("/w").is_empty());
        assert_eq!(folder("/etc"), [PathBuf::from("/etc")]);
    }

    #[test]
    fn failures_have_the_class_that_codex_names() {
        let kind = |info: &str| {
            let json = format!(r#"{{"codexErrorInfo":{info}}}"#);
            failure(Json::document(&json).expect("JSON"), String::new()).kind
        };
        assert_eq!(kind(r#""unauthorized""#), FailureKind::Authentication);
        assert_eq!(kind(r#""contextWindowExceeded""#), FailureKind::ContextFull);
        assert_eq!(kind(r#""other""#), FailureKind::Agent);
        assert_eq!(
            kind(r#"{"responseTooManyFailedAttempts":{"httpStatusCode":503}}"#),
            FailureKind::Overloaded
        );
        assert_eq!(
            kind(r#"{"httpConnectionFailed":{"httpStatusCode":null}}"#),
            FailureKind::Network
        );
        assert_eq!(kind("null"), FailureKind::Agent);
    }
}
