//! Recorded live sessions of the real agents, played to the drivers.
//!
//! `tests/data/live/<agent>.jsonl` has both directions. A line of the agent is given to the driver. A
//! line of the recorded client becomes the command that caused it, and the driver's own line must mean
//! the same. What the driver reports is compared with `<agent>.txt`, section by section.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use exec_core::{
    AgentEventKind, Decision, DriverCommand, DriverOutput, DriverSignal, LaunchRequest,
    ProtocolDriver, SessionId, TurnOutcome, UsageTotals,
};
use exec_profiles::ProfileRegistry;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::request::{UUID, chat, find, resume};

#[derive(Deserialize)]
struct Record {
    dir: String,
    line: String,
}

/// The lines of a recording, by direction.
pub(crate) fn recording(name: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(data(&format!("{name}.jsonl"))).unwrap();
    let records = text.lines().map(|line| serde_json::from_str(line).unwrap());
    records.map(|r: Record| (r.dir, r.line)).collect()
}

fn data(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/live");
    folder.join(name)
}

/// The agents of the recordings, and their profiles.
pub(crate) const AGENTS: [(&str, &str); 7] = [
    ("claude", "claude-code"),
    ("codex", "codex"),
    ("gemini", "gemini"),
    ("opencode", "opencode"),
    ("qwen", "acp-agent"),
    ("claude-acp", "acp-agent"),
    ("codex-acp", "acp-agent"),
];

/// The built-in profiles, and one of the user file for any ACP agent.
static REGISTRY: LazyLock<ProfileRegistry> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("profiles.toml");
    let entry = "[profiles.acp-agent]\nbinary = \"agent\"\nprotocol = \"acp\"\n";
    fs::write(&file, entry).unwrap();
    let registry = ProfileRegistry::new();
    assert_eq!(registry.load_user_file(&file).unwrap().errors, []);
    registry
});

pub(crate) fn driver(request: &LaunchRequest) -> Box<dyn ProtocolDriver> {
    let profile = find(&REGISTRY, &request.context.profile_label);
    let variant = request.context.variant_label.as_deref();
    let command = profile.command(variant).unwrap();
    let parameters = profile.build_live_parameters(&command, request).unwrap();
    let parameters = parameters.expect("the profile has a live mode");
    parameters
        .protocol_driver
        .expect("live parameters have a driver")
}

struct Replay {
    driver: Box<dyn ProtocolDriver>,
    /// The driver's lines that the recorded client has not sent yet.
    sent: VecDeque<String>,
    /// Ids of the client's requests: the recorded one and ours.
    ids: Vec<(String, String)>,
    /// The options of open permission requests, by the ids of the requests.
    options: BTreeMap<String, Value>,
    report: String,
    text: String,
}

impl Replay {
    fn new(request: &LaunchRequest) -> Self {
        let mut replay = Self {
            driver: driver(request),
            sent: VecDeque::new(),
            ids: Vec::new(),
            options: BTreeMap::new(),
            report: String::new(),
            text: String::new(),
        };
        replay.drive(|driver, out| driver.open(out));
        replay
    }

    fn drive(&mut self, call: impl FnOnce(&mut dyn ProtocolDriver, &mut DriverOutput)) {
        let mut out = DriverOutput::default();
        call(self.driver.as_mut(), &mut out);
        self.sent.extend(out.lines().iter().cloned());
        for signal in out.signals() {
            self.note_signal(signal);
        }
    }

    fn write(&mut self, line: &str) {
        if !self.text.is_empty() {
            let text = std::mem::take(&mut self.text);
            self.report.push_str(&format!("  text {text:?}\n"));
        }
        self.report.push_str(line);
        self.report.push('\n');
    }

    fn note_signal(&mut self, signal: &DriverSignal) {
        let line = match signal {
            DriverSignal::Event(event) => {
                let of = match &event.parent {
                    Some(_) => "sub-agent: ",
                    None => "",
                };
                match &event.kind {
                    AgentEventKind::Text { text, delta: true } if of.is_empty() => {
                        self.text.push_str(text);
                        return;
                    }
                    AgentEventKind::Text { text, .. } => format!("{of}text {text:?}"),
                    AgentEventKind::ToolCall { name, input, .. } => {
                        format!("{of}call {name} {input}")
                    }
                    AgentEventKind::ToolResult {
                        output, is_error, ..
                    } => {
                        let short: String = output.chars().take(40).collect();
                        format!("{of}result {short:?} is_error={is_error}")
                    }
                    AgentEventKind::Usage(totals) => {
                        format!(
                            "{of}usage {}",
                            serde_json::to_string(&rounded(*totals)).unwrap()
                        )
                    }
                    AgentEventKind::Error(failure) => {
                        format!("{of}error {:?} {:?}", failure.kind, failure.message)
                    }
                    AgentEventKind::SessionStarted { session_id, .. } => {
                        format!("{of}session {session_id}")
                    }
                    other => format!("{of}{other:?}"),
                }
            }
            DriverSignal::Opened { native_id } => format!("opened {native_id:?}"),
            DriverSignal::TurnEnded { outcome, text } => {
                let outcome = match outcome {
                    TurnOutcome::Failed { failure } => {
                        format!("Failed {:?} {:?}", failure.kind, failure.message)
                    }
                    other => format!("{other:?}"),
                };
                format!("TURN ENDED {outcome} {text:?}")
            }
            DriverSignal::Asked(request) => format!(
                "asked {} command={:?} paths={:?} parent={:?}",
                request.tool, request.command, request.paths, request.parent
            ),
            other => format!("{other:?}"),
        };
        self.write(&format!("  {line}"));
    }

    /// A line of the agent, with our ids in place of the recorded ones.
    fn agent_says(&mut self, line: &str) {
        let mut line = line.to_owned();
        for (recorded, own) in &self.ids {
            let [recorded, own] = [recorded, own].map(|id| format!(r#""request_id":{id}"#));
            line = line.replace(&recorded, &own);
        }
        if let Ok(value) = serde_json::from_str::<Value>(&line)
            && value["params"]["options"].is_array()
        {
            let options = value["params"]["options"].clone();
            self.options.insert(value["id"].to_string(), options);
        }
        self.drive(|driver, out| driver.line(&line, out));
    }

    fn client_said(&mut self, line: &str) {
        let recorded: Value = serde_json::from_str(line).unwrap();
        self.repeat(&recorded);
        let own = self.sent.pop_front();
        let own = own.unwrap_or_else(|| panic!("the driver has not sent {line}"));
        let own: Value = serde_json::from_str(&own).unwrap();
        if recorded["type"] == "control_request" {
            let ids = [&recorded, &own].map(|value| value["request_id"].to_string());
            let [recorded, own] = ids;
            self.ids.retain(|(known, _)| *known != recorded);
            self.ids.push((recorded, own));
        }
        assert_eq!(meaning(own), meaning(recorded));
    }

    /// Gives the command to the driver that made the recorded client send this.
    fn repeat(&mut self, line: &Value) {
        let text_of = |value: &Value| value[0]["text"].as_str().unwrap().to_owned();
        let params = &line["params"];
        let method = line["method"].as_str().unwrap_or_default();
        let subtype = line["request"]["subtype"].as_str().unwrap_or_default();
        match (method, subtype) {
            ("session/prompt", _) => {
                self.command(DriverCommand::Prompt(&text_of(&params["prompt"])));
            }
            ("turn/start", _) => self.command(DriverCommand::Prompt(&text_of(&params["input"]))),
            ("_session/steering", _) => {
                self.command(DriverCommand::Steer(&text_of(&params["prompt"])));
            }
            ("turn/steer", _) => self.command(DriverCommand::Steer(&text_of(&params["input"]))),
            ("session/cancel" | "turn/interrupt", _) | (_, "interrupt") => {
                self.command(DriverCommand::Interrupt);
            }
            ("session/set_mode", _) => {
                self.command(DriverCommand::SetMode(params["modeId"].as_str().unwrap()));
            }
            (_, "set_permission_mode") => {
                self.command(DriverCommand::SetMode(
                    line["request"]["mode"].as_str().unwrap(),
                ));
            }
            _ if line["type"] == "user" => {
                let text = line["message"]["content"].as_str().unwrap();
                self.command(DriverCommand::Prompt(text));
            }
            _ if line["type"] == "control_response" => {
                let response = &line["response"];
                let decision = match response["response"]["behavior"].as_str().unwrap() {
                    "allow" => Decision::Allow,
                    _ => Decision::Deny,
                };
                let id = response["request_id"].as_str().unwrap().to_owned();
                self.answer(&id, decision);
            }
            ("", "") if line.get("result").is_some() => {
                let id = line["id"].to_string();
                let outcome = &line["result"]["outcome"];
                if outcome["outcome"] == "cancelled" {
                    return self.command(DriverCommand::Withdraw { permission: &id });
                }
                let is_allowed = match line["result"]["decision"].as_str() {
                    Some(decision) => decision == "accept",
                    None => {
                        let options = self.options[&id].as_array().unwrap();
                        let option = options
                            .iter()
                            .find(|option| option["optionId"] == outcome["optionId"]);
                        option.unwrap()["kind"] == "allow_once"
                    }
                };
                let decision = if is_allowed {
                    Decision::Allow
                } else {
                    Decision::Deny
                };
                self.answer(&id, decision);
            }
            // The driver sends these by itself.
            _ => {}
        }
    }

    fn command(&mut self, command: DriverCommand<'_>) {
        self.drive(|driver, out| driver.command(command, out));
    }

    fn answer(&mut self, permission: &str, decision: Decision) {
        self.command(DriverCommand::Answer {
            permission,
            decision,
        });
    }
}

/// What a line means: without names of the client, ids of its requests, and choices that the recorder
/// made in another way.
fn meaning(mut line: Value) -> Value {
    if line["type"] == "control_request" {
        line["request_id"] = json!("");
    }
    if let Some(object) = line.as_object_mut() {
        if object.get("params") == Some(&json!({})) {
            object.remove("params");
        }
        if let Some(params) = object.get_mut("params").and_then(Value::as_object_mut) {
            for choice in ["clientInfo", "sandbox", "_meta"] {
                params.remove(choice);
            }
        }
    }
    if let Some(denial) = line.pointer_mut("/response/response/message") {
        *denial = json!("");
    }
    // The recorder selected modes in one way only.
    if line["params"]["configId"] == "mode" {
        let (session, mode) = (&line["params"]["sessionId"], &line["params"]["value"]);
        let params = json!({ "sessionId": session, "modeId": mode });
        line["method"] = json!("session/set_mode");
        line["params"] = params;
    }
    line
}

#[track_caller]
fn check(name: &str, request: &LaunchRequest) {
    let mut replay = Replay::new(request);
    for (dir, line) in recording(name) {
        match dir.as_str() {
            "in" => replay.client_said(&line),
            "out" => replay.agent_says(&line),
            _ => replay.write(&line),
        }
    }
    replay.write("end");
    assert_eq!(
        replay.sent, [""; 0],
        "lines that the recorded client did not send"
    );
    let golden = data(&format!("{name}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&golden, &replay.report).unwrap();
    }
    let expected = fs::read_to_string(&golden).unwrap();
    assert_eq!(
        replay.report,
        expected,
        "UPDATE_GOLDEN=1 rewrites {}",
        golden.display()
    );
}

/// The last digit of a cost depends on how exactly serde_json parses, which is one of its features.
fn rounded(mut totals: UsageTotals) -> UsageTotals {
    for usage in [&mut totals.run, &mut totals.session] {
        usage.cost_usd = usage.cost_usd.map(|cost| (cost * 1e9).round() / 1e9);
    }
    totals
}

#[test]
fn recorded_sessions_are_understood() {
    for (agent, label) in AGENTS {
        let mut request = chat(label, None, "");
        let context = &mut request.context;
        context.workspace_path = "/workspace".into();
        let (executor, project) = (&context.executor_type, &context.actual_project_id);
        request.session_id = SessionId::new(executor, project, UUID).unwrap();
        check(agent, &request);
    }
}

#[test]
fn a_replay_of_gemini_behind_its_answer_is_no_event() {
    let mut request = resume("gemini", None, UUID, "");
    request.context.workspace_path = "/workspace".into();
    check("gemini-load", &request);
}
