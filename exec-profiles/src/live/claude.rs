//! The control protocol of Claude Code: `-p --input-format stream-json --output-format stream-json
//! --permission-prompt-tool stdio`.
//!
//! - Events come from the parser of a launch for one prompt. It holds the result of a run back while there
//!   are sub-agents in the background; a turn ends nevertheless with its own `result`.
//! - A `result` whose `origin` is a `task-notification` belongs to a turn that Claude started itself,
//!   when a sub-agent in the background had finished. It does not end the turn of a prompt.
//! - After an interrupt the `result` line is an error without a `result`. One that crossed the interrupt
//!   is a success.
//! - Claude confirms an interrupt that comes before the turn has begun, and then runs the turn to its
//!   end. So the interrupt waits for the begin of the turn (`system/init`).
//! - Claude withdraws the permission requests of a turn that is cancelled (`control_cancel_request`),
//!   and ignores the answers to them. A void request is denied nevertheless: one of a sub-agent in the
//!   background would stay open.
//! - A text for the running turn cannot be injected: Claude would queue it, and the queue is ours.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::path::{Component, Path, PathBuf};

use exec_core::{
    AgentEventKind, Decision, DriverCommand, DriverOutput, EventParser, Failure, FailureKind,
    Outcome, PermissionRequest, ProtocolDriver, ToolInput, TurnOutcome,
};
use serde::Deserialize;
use serde_json::json;

use super::ANY_PATH;
use super::json_rpc::{MAX_ID, SeenRequests};
use crate::EventFormat;
use crate::events::{Json, parse_line};

/// How many permission requests may be open. The service bounds them, too.
const MAX_OPEN: usize = 256;

/// How many modes and models may wait for their confirmation; of more, the oldest is forgotten.
const MAX_OPTIONS: usize = 64;

/// The characters that a pattern of files does not take literally.
const GLOB: [char; 6] = ['*', '?', '[', '{', '(', '!'];

/// The id of the first request.
const INITIALIZE: &str = "initialize";

pub(crate) struct ClaudeDriver {
    /// The id that Claude gets as an argument.
    session: String,
    parser: Box<dyn EventParser>,
    phase: Phase,
    interrupt: Interrupt,
    last_request: u64,
    /// The hash of the last `result` line.
    last_result: Option<u64>,
    /// The requests of modes and models without an answer, the oldest first.
    options: VecDeque<String>,
    /// The arguments of the open permission requests: an answer repeats them.
    asked: BTreeMap<String, ToolInput>,
    seen: SeenRequests,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Opening,
    Idle,
    /// A prompt is sent; Claude has not begun its turn.
    Prompted,
    InTurn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interrupt {
    No,
    /// To be sent when the turn has begun.
    Due,
    Sent,
}

impl ClaudeDriver {
    pub(crate) fn new(session: impl Into<String>) -> Self {
        Self {
            session: session.into(),
            parser: EventFormat::Claude.parser(),
            phase: Phase::Opening,
            interrupt: Interrupt::No,
            last_request: 0,
            last_result: None,
            options: VecDeque::new(),
            asked: BTreeMap::new(),
            seen: SeenRequests::default(),
        }
    }

    fn control(&mut self, request: serde_json::Value, out: &mut DriverOutput) -> String {
        self.last_request += 1;
        let id = format!("host-{}", self.last_request);
        let line = json!({ "type": "control_request", "request_id": id, "request": request });
        out.send(line.to_string());
        id
    }

    /// Sends a request whose refusal is reported.
    fn set(&mut self, request: serde_json::Value, out: &mut DriverOutput) {
        if self.options.len() == MAX_OPTIONS {
            self.options.pop_front();
        }
        let id = self.control(request, out);
        self.options.push_back(id);
    }

    fn send_interrupt(&mut self, out: &mut DriverOutput) {
        self.interrupt = Interrupt::Sent;
        self.control(json!({ "subtype": "interrupt" }), out);
    }

    fn requested(&mut self, line: &ClaudeLine<'_>, out: &mut DriverOutput) {
        let Some(id) = line.request_id.text() else {
            return;
        };
        let request: ControlBody<'_> = line.request.object();
        let subtype = request.subtype.word();
        if subtype != "can_use_tool" || id.len() > MAX_ID {
            let error = format!("unknown request `{subtype}`");
            let response = json!({ "subtype": "error", "request_id": id, "error": error });
            let line = json!({ "type": "control_response", "response": response });
            return out.send(line.to_string());
        }
        if self.asked.contains_key(&id) {
            return;
        }
        if self.asked.len() >= MAX_OPEN {
            return out.send(response(&id, &denied("too many open requests")));
        }
        let input = request.input.tool_input();
        self.asked.insert(id.clone(), input.clone());
        let tool = request.tool_name.text().unwrap_or_default();
        let mut asked = PermissionRequest::new(id, tool, input);
        asked.command = request.input.at("command").text();
        let keys = ["file_path", "notebook_path", "path"].into_iter();
        let paths = keys.filter_map(|key| request.input.at(key).text());
        asked.paths = paths.map(PathBuf::from).collect();
        if matches!(asked.tool.as_str(), "Glob" | "Grep") {
            let folder = asked.paths.pop().unwrap_or_else(|| PathBuf::from("."));
            let pattern = request.input.at("pattern").text();
            let pattern = pattern.filter(|_| asked.tool == "Glob");
            let part = pattern.as_deref().map(literal_part);
            let part = part.filter(|part| !part.as_os_str().is_empty());
            asked.paths.push(match part {
                Some(part) => folder.join(part),
                None => folder,
            });
            if pattern.as_deref().is_some_and(may_leave_its_folder) {
                asked.paths.push(PathBuf::from(ANY_PATH));
            }
        }
        let parents = [request.parent_tool_use_id, request.agent_id].into_iter();
        asked.parent = parents.filter_map(Json::text).next();
        out.asked(asked);
    }

    fn responded(&mut self, line: &ClaudeLine<'_>, out: &mut DriverOutput) {
        let response: ResponseBody<'_> = line.response.object();
        let id = response.request_id.text().unwrap_or_default();
        let failed = response.subtype.word() == "error";
        let reason = || match response.error.text() {
            Some(reason) => reason,
            None => "it gave no reason".to_owned(),
        };
        if self.phase == Phase::Opening && id == INITIALIZE {
            if failed {
                return out.open_failed(Failure::new(FailureKind::Agent, reason()));
            }
            self.phase = Phase::Idle;
            out.opened(Some(self.session.clone()));
        } else if let Some(at) = self.options.iter().position(|option| *option == id) {
            self.options.remove(at);
            if failed {
                out.refused(reason());
            }
        }
    }

    /// Reads events, and the end of the turn.
    fn worked(&mut self, text: &str, line: &ClaudeLine<'_>, out: &mut DriverOutput) {
        let kind = line.r#type.word();
        if kind == "system" && line.subtype.word() == "init" && self.phase == Phase::Prompted {
            self.phase = Phase::InTurn;
            if self.interrupt == Interrupt::Due {
                self.send_interrupt(out);
            }
        }
        let mut events = self.parser.parse_line(text);
        let is_result = kind == "result";
        if is_result {
            events.extend(self.parser.finish());
        }
        let mut finish = None;
        for event in events {
            match event.kind {
                AgentEventKind::Finished {
                    outcome,
                    text,
                    failure,
                } => finish = Some((outcome, text, failure)),
                _ => out.event(event),
            }
        }
        if !is_result {
            return;
        }
        // A repeated line would end the turn of the next prompt. Only the id tells a repetition from
        // an equal answer to that prompt; without it, the session would wait for ever.
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(text);
        let is_equal = self.last_result.replace(hash) == Some(hash);
        if is_equal && !line.uuid.word().is_empty() {
            return;
        }
        if !matches!(self.phase, Phase::Prompted | Phase::InTurn) {
            return;
        }
        if line.origin.at("kind").word() == "task-notification" {
            // The prompt waits behind the turn that has ended here, so its own is still to begin.
            self.phase = Phase::Prompted;
            if self.interrupt == Interrupt::Sent {
                self.interrupt = Interrupt::Due;
            }
            return;
        }
        let (outcome, text, failure) = finish.unwrap_or((Outcome::Failure, None, None));
        self.phase = Phase::Idle;
        let was_interrupted = std::mem::replace(&mut self.interrupt, Interrupt::No);
        let is_success = outcome == Outcome::Success;
        let outcome = match (is_success, was_interrupted) {
            (true, _) => TurnOutcome::Completed,
            (false, Interrupt::Sent) => TurnOutcome::Interrupted,
            (false, _) => TurnOutcome::Failed {
                failure: failure.unwrap_or_else(|| {
                    Failure::new(FailureKind::Agent, "the turn ended without a result")
                }),
            },
        };
        out.turn_ended(outcome, text.filter(|_| is_success));
    }
}

impl ProtocolDriver for ClaudeDriver {
    fn open(&mut self, out: &mut DriverOutput) {
        let request = json!({ "subtype": "initialize" });
        let line =
            json!({ "type": "control_request", "request_id": INITIALIZE, "request": request });
        out.send(line.to_string());
    }

    fn line(&mut self, text: &str, out: &mut DriverOutput) {
        let Some(line) = parse_line::<ClaudeLine<'_>>(text) else {
            return;
        };
        match line.r#type.word() {
            "control_request" => {
                let is_question = line.request.at("subtype").word() == "can_use_tool";
                if !is_question || !self.seen.is_repeated(text) {
                    self.requested(&line, out);
                }
            }
            "control_response" => self.responded(&line, out),
            "control_cancel_request" => {
                if let Some(id) = line.request_id.text()
                    && self.asked.remove(&id).is_some()
                {
                    out.withdrawn(id);
                }
            }
            _ => self.worked(text, &line, out),
        }
    }

    fn command(&mut self, command: DriverCommand<'_>, out: &mut DriverOutput) {
        match command {
            DriverCommand::Prompt(text) => {
                self.phase = Phase::Prompted;
                self.interrupt = Interrupt::No;
                let message = json!({ "role": "user", "content": text });
                out.send(json!({ "type": "user", "message": message }).to_string());
            }
            DriverCommand::Interrupt => match self.phase {
                Phase::InTurn => self.send_interrupt(out),
                Phase::Prompted => self.interrupt = Interrupt::Due,
                Phase::Opening | Phase::Idle => {}
            },
            DriverCommand::Answer {
                permission,
                decision,
            } => {
                let Some(input) = self.asked.remove(permission) else {
                    return;
                };
                let answer = match decision {
                    // As text: a number that is parsed and printed may change.
                    Decision::Allow => format!(r#"{{"behavior":"allow","updatedInput":{input}}}"#),
                    Decision::Deny => denied("the user does not allow this call"),
                };
                out.send(response(permission, &answer));
            }
            DriverCommand::Withdraw { permission } => {
                if self.asked.remove(permission).is_some() {
                    out.send(response(permission, &denied("the question is void")));
                }
            }
            DriverCommand::SetMode(mode) => {
                self.set(
                    json!({ "subtype": "set_permission_mode", "mode": mode }),
                    out,
                );
            }
            DriverCommand::SetModel(model) => {
                self.set(json!({ "subtype": "set_model", "model": model }), out);
            }
            _ => out.refused("Claude Code does not know this command"),
        }
    }

    fn reports_cost(&self) -> bool {
        true
    }
}

/// The folder that a pattern searches: an absolute one, or one with `..`, leads out of the folder that
/// the request names.
fn literal_part(pattern: &str) -> PathBuf {
    let is_literal = |part: &Component<'_>| !part.as_os_str().to_string_lossy().contains(GLOB);
    Path::new(pattern)
        .components()
        .take_while(is_literal)
        .collect()
}

/// Whether a pattern has a part behind its literal one that may lead elsewhere: `*/../x`, `{/etc,a}`.
fn may_leave_its_folder(pattern: &str) -> bool {
    let glob = pattern.find(GLOB).map_or("", |at| &pattern[at..]);
    let begins = |start: char| ["{", ","].map(|before| format!("{before}{start}"));
    let absolute = [begins('/'), begins('~')].concat();
    glob.contains("..") || absolute.iter().any(|start| glob.contains(start))
}

fn denied(message: &str) -> String {
    json!({ "behavior": "deny", "message": message }).to_string()
}

/// The answer to a request; `answer` is JSON.
fn response(id: &str, answer: &str) -> String {
    format!(
        r#"{{"type":"control_response","response":{{"subtype":"success","request_id":{},"response":{answer}}}}}"#,
        json!(id)
    )
}

/// The fields of a line that no event uses.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ClaudeLine<'a> {
    #[serde(borrow)]
    r#type: Json<'a>,
    subtype: Json<'a>,
    request_id: Json<'a>,
    request: Json<'a>,
    response: Json<'a>,
    origin: Json<'a>,
    uuid: Json<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ControlBody<'a> {
    #[serde(borrow)]
    subtype: Json<'a>,
    tool_name: Json<'a>,
    input: Json<'a>,
    parent_tool_use_id: Json<'a>,
    agent_id: Json<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseBody<'a> {
    #[serde(borrow)]
    subtype: Json<'a>,
    request_id: Json<'a>,
    error: Json<'a>,
}

#[cfg(test)]
mod tests {
    use exec_core::DriverSignal;

    use super::*;

    const INIT: &str = r#"{"type":"system","subtype":"init","session_id":"s"}"#;
    const RESULT: &str = r#"{"type":"result","subtype":"success","result":"done","uuid":"1"}"#;
    const ABORTED: &str =
        r#"{"type":"result","subtype":"error_during_execution","is_error":true,"uuid":"2"}"#;
    const OF_A_TASK: &str = r#"{"type":"result","subtype":"success","result":"x","origin":{"kind":"task-notification"},"uuid":"3"}"#;

    fn opened() -> ClaudeDriver {
        let mut driver = ClaudeDriver::new("s");
        driver.open(&mut DriverOutput::default());
        let answer = r#"{"type":"control_response","response":{"subtype":"success","request_id":"initialize"}}"#;
        assert_eq!(driver.says(answer).1, ["opened"]);
        driver
    }

    impl ClaudeDriver {
        /// The kinds of the lines that are sent, and of the signals.
        fn says(&mut self, line: &str) -> (Vec<String>, Vec<String>) {
            let mut out = DriverOutput::default();
            self.line(line, &mut out);
            kinds(&out)
        }

        fn told(&mut self, command: DriverCommand<'_>) -> (Vec<String>, Vec<String>) {
            let mut out = DriverOutput::default();
            self.command(command, &mut out);
            kinds(&out)
        }
    }

    fn kinds(out: &DriverOutput) -> (Vec<String>, Vec<String>) {
        let line = |line: &String| {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let subtype = line["request"]["subtype"].as_str();
            subtype
                .or(line["type"].as_str())
                .unwrap_or_default()
                .to_owned()
        };
        let signals = out.signals().iter().filter_map(|signal| match signal {
            DriverSignal::Opened { .. } => Some("opened".to_owned()),
            DriverSignal::TurnEnded { outcome, .. } => Some(format!("{outcome:?}")),
            _ => None,
        });
        (out.lines().iter().map(line).collect(), signals.collect())
    }

    #[test]
    fn the_pattern_of_a_search_names_its_folder() {
        let paths = |input: &str| {
            let request =
                format!(r#"{{"subtype":"can_use_tool","tool_name":"Glob","input":{input}}}"#);
            let line =
                format!(r#"{{"type":"control_request","request_id":"1","request":{request}}}"#);
            let mut out = DriverOutput::default();
            opened().line(&line, &mut out);
            match out.signals() {
                [DriverSignal::Asked(request)] => request.paths.clone(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(paths(r#"{"pattern":"/h/.ssh/*"}"#), [Path::new("/h/.ssh")]);
        assert_eq!(
            paths(r#"{"pattern":"../x/**/a","path":"/w"}"#),
            [Path::new("/w/../x")]
        );
        assert_eq!(
            paths(r#"{"pattern":"**/*.rs","path":"/w"}"#),
            [Path::new("/w")]
        );
        assert_eq!(paths(r#"{"pattern":"*.rs"}"#), [Path::new(".")]);
        assert_eq!(paths(r#"{"pattern":"**/*.{ts,tsx}"}"#), [Path::new(".")]);
        for pattern in [
            "*/../../x",
            "{/etc,src}/*",
            "{src,~/.ssh}/*",
            "{src,../x}/*",
        ] {
            let found = paths(&format!(r#"{{"pattern":"{pattern}"}}"#));
            assert!(
                found.contains(&PathBuf::from(ANY_PATH)),
                "{pattern}: {found:?}"
            );
        }
    }

    #[test]
    fn a_turn_that_claude_starts_itself_does_not_end_that_of_a_prompt() {
        let mut driver = opened();
        driver.told(DriverCommand::Prompt("a"));
        for line in [INIT, OF_A_TASK, INIT] {
            assert!(driver.says(line).1.is_empty(), "{line}");
        }
        assert_eq!(driver.says(RESULT).1, ["Completed"]);
        assert!(driver.says(RESULT).1.is_empty(), "a repeated line");
    }

    #[test]
    fn equal_results_without_an_id_end_a_turn_each() {
        let mut driver = opened();
        for prompt in ["a", "b"] {
            driver.told(DriverCommand::Prompt(prompt));
            driver.says(INIT);
            let result = r#"{"type":"result","subtype":"success","result":"done"}"#;
            assert_eq!(driver.says(result).1, ["Completed"], "{prompt}");
        }
    }

    #[test]
    fn an_interrupt_waits_for_the_begin_of_the_turn() {
        let mut driver = opened();
        driver.told(DriverCommand::Prompt("a"));
        assert!(driver.told(DriverCommand::Interrupt).0.is_empty());
        assert_eq!(driver.says(INIT).0, ["interrupt"]);
        assert_eq!(driver.says(ABORTED).1, ["Interrupted"]);
    }

    #[test]
    fn an_interrupt_that_hits_a_turn_of_claude_itself_is_repeated_for_that_of_the_prompt() {
        let mut driver = opened();
        driver.told(DriverCommand::Prompt("a"));
        driver.says(INIT);
        assert_eq!(driver.told(DriverCommand::Interrupt).0, ["interrupt"]);
        assert!(driver.says(OF_A_TASK).1.is_empty());
        assert_eq!(driver.says(INIT).0, ["interrupt"]);
        assert_eq!(driver.says(ABORTED).1, ["Interrupted"]);
    }

    #[test]
    fn every_option_that_claude_refuses_is_reported_once() {
        let mut driver = opened();
        driver.told(DriverCommand::SetMode("no such mode"));
        driver.told(DriverCommand::SetModel("no such model"));
        let mut is_refused = |id: &str| {
            let response = json!({ "subtype": "error", "request_id": id, "error": "no" });
            let line = json!({ "type": "control_response", "response": response });
            let mut out = DriverOutput::default();
            driver.line(&line.to_string(), &mut out);
            matches!(out.signals(), [DriverSignal::Refused { .. }])
        };
        assert_eq!(["host-1", "host-2"].map(&mut is_refused), [true; 2]);
        assert_eq!(["host-1", "host-2", "host-3"].map(is_refused), [false; 3]);
    }

    #[test]
    fn a_turn_ends_while_a_sub_agent_works_in_the_background() {
        let mut driver = opened();
        driver.told(DriverCommand::Prompt("a"));
        driver.says(INIT);
        driver.says(r#"{"type":"system","subtype":"task_started","task_id":"t"}"#);
        assert_eq!(driver.says(RESULT).1, ["Completed"]);
    }
}
