//! Drivers and agents that do not keep to their protocol: no panic, bounded memory, one answer for
//! each request.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use exec_core::{Decision, DriverCommand, DriverOutput, DriverSignal, ProtocolDriver};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::Value;

use crate::live_replay::{AGENTS, driver, recording};
use crate::request::{UUID, chat, resume};

/// What happens to a driver.
#[derive(Clone, Debug)]
enum Input {
    /// A line of a recording.
    Recorded(Index),
    /// A line of a recording of another agent.
    Foreign(Index, Index),
    /// A recorded line that ends early.
    Half(Index, Index),
    /// A recorded line with other characters in one place.
    Mutated(Index, Index, String),
    /// A recorded line whose ids are others.
    OtherId(Index, u64),
    /// The line before, again.
    Again,
    /// Any text.
    Noise(String),
    /// A request that no protocol has.
    Unknown(u64),
    Prompt,
    Steer,
    Interrupt,
    Answer(Index, bool),
    Withdraw(Index),
    AnswerUnknown,
    SetMode,
    SetModel,
}

fn input() -> impl Strategy<Value = Input> {
    let index = any::<Index>;
    prop_oneof![
        8 => index().prop_map(Input::Recorded),
        1 => (index(), index()).prop_map(|(a, b)| Input::Foreign(a, b)),
        2 => (index(), index()).prop_map(|(a, b)| Input::Half(a, b)),
        3 => (index(), index(), "[^\n]{0,6}").prop_map(|(a, b, text)| Input::Mutated(a, b, text)),
        2 => (index(), 0..40_u64).prop_map(|(a, id)| Input::OtherId(a, id)),
        2 => Just(Input::Again),
        1 => "[^\n]{0,80}".prop_map(Input::Noise),
        2 => (0..20_u64).prop_map(Input::Unknown),
        2 => Just(Input::Prompt),
        1 => Just(Input::Steer),
        2 => Just(Input::Interrupt),
        3 => (index(), any::<bool>()).prop_map(|(a, allow)| Input::Answer(a, allow)),
        1 => index().prop_map(Input::Withdraw),
        1 => Just(Input::AnswerUnknown),
        1 => Just(Input::SetMode),
        1 => Just(Input::SetModel),
    ]
}

/// Drives one driver and checks what it says.
struct Watched {
    driver: Box<dyn ProtocolDriver>,
    /// Requests of the agent, and answers to them, by id.
    requests: BTreeMap<String, (usize, usize)>,
    /// Permission requests that the driver has reported as open.
    open: Vec<String>,
    in_turn: bool,
    is_open: bool,
}

impl Watched {
    fn new(driver: Box<dyn ProtocolDriver>) -> Self {
        let mut watched = Self {
            driver,
            requests: BTreeMap::new(),
            open: Vec::new(),
            in_turn: false,
            is_open: false,
        };
        watched.drive(|driver, out| driver.open(out));
        watched
    }

    fn line(&mut self, line: &str) {
        if let Some(id) = request_id(line) {
            self.requests.entry(id).or_default().0 += 1;
        }
        self.drive(|driver, out| driver.line(line, out));
    }

    fn command(&mut self, command: DriverCommand<'_>) {
        self.drive(|driver, out| driver.command(command, out));
    }

    fn drive(&mut self, call: impl FnOnce(&mut dyn ProtocolDriver, &mut DriverOutput)) {
        let mut out = DriverOutput::default();
        call(self.driver.as_mut(), &mut out);
        for line in out.lines() {
            let value: Value = serde_json::from_str(line).expect("the driver sends JSON");
            assert!(!line.contains('\n'), "one line: {line}");
            if let Some(id) = answered_id(&value) {
                let (asked, answered) = self.requests.entry(id).or_default();
                *answered += 1;
                assert!(answered <= asked, "answered without a request: {line}");
            }
        }
        for signal in out.signals() {
            match signal {
                DriverSignal::Asked(request) => {
                    assert!(!self.open.contains(&request.id), "asked twice");
                    self.open.push(request.id.clone());
                }
                DriverSignal::Withdrawn { permission } => {
                    assert!(self.open.contains(permission), "withdrawn, but not open");
                    self.open.retain(|open| open != permission);
                }
                DriverSignal::TurnEnded { .. } => {
                    assert!(self.in_turn, "the end of a turn that does not run");
                    self.in_turn = false;
                }
                DriverSignal::Opened { .. } => {
                    assert!(!self.is_open, "opened twice");
                    self.is_open = true;
                }
                _ => {}
            }
        }
    }

    fn settle(&mut self, at: Index, command: impl Fn(&str) -> DriverCommand<'_>) {
        if self.open.is_empty() {
            return;
        }
        let permission = self.open.remove(at.index(self.open.len()));
        self.command(command(&permission));
        let (asked, answered) = self.requests[&json_id(&permission)];
        assert!(
            answered > 0 && answered <= asked,
            "one answer to {permission}"
        );
        // The first answer wins: the driver has forgotten the request.
        self.command(command(&permission));
    }

    fn play(&mut self, lines: &[String], inputs: &[Input]) {
        let mut last = String::new();
        for input in inputs {
            let line = |at: &Index| at.get(lines).clone();
            let said = match input {
                Input::Recorded(at) => line(at),
                Input::Foreign(agent, at) => at.get(agent.get(&SAID).as_slice()).clone(),
                Input::Half(at, cut) => {
                    let line = line(at);
                    let cut = cut.index(line.len() + 1);
                    line.chars().take(cut).collect()
                }
                Input::Mutated(at, place, text) => {
                    let mut characters: Vec<char> = line(at).chars().collect();
                    let place = place.index(characters.len() + 1);
                    let end = characters.len().min(place + text.chars().count());
                    characters.splice(place..end, text.chars());
                    characters.into_iter().collect()
                }
                Input::OtherId(at, id) => match serde_json::from_str::<Value>(&line(at)) {
                    Ok(mut value) if value.get("id").is_some() => {
                        value["id"] = (*id).into();
                        value.to_string()
                    }
                    Ok(mut value) if value.get("request_id").is_some() => {
                        value["request_id"] = id.to_string().into();
                        value.to_string()
                    }
                    _ => line(at),
                },
                Input::Again => last.clone(),
                Input::Noise(text) => text.clone(),
                Input::Unknown(id) => {
                    format!(
                        r#"{{"jsonrpc":"2.0","id":{id},"method":"no/such","type":"control_request","request_id":"{id}","request":{{"subtype":"no_such"}}}}"#
                    )
                }
                Input::Prompt if self.is_open && !self.in_turn => {
                    self.in_turn = true;
                    self.command(DriverCommand::Prompt("a prompt"));
                    continue;
                }
                Input::Steer if self.in_turn => {
                    self.command(DriverCommand::Steer("more"));
                    continue;
                }
                Input::Interrupt if self.in_turn => {
                    self.command(DriverCommand::Interrupt);
                    continue;
                }
                Input::Answer(at, allow) => {
                    let decision = if *allow {
                        Decision::Allow
                    } else {
                        Decision::Deny
                    };
                    self.settle(*at, |permission| DriverCommand::Answer {
                        permission,
                        decision,
                    });
                    continue;
                }
                Input::Withdraw(at) => {
                    self.settle(*at, |permission| DriverCommand::Withdraw { permission });
                    continue;
                }
                Input::AnswerUnknown => {
                    self.command(DriverCommand::Answer {
                        permission: "never asked",
                        decision: Decision::Allow,
                    });
                    continue;
                }
                Input::SetMode if self.is_open => {
                    self.command(DriverCommand::SetMode("plan"));
                    continue;
                }
                Input::SetModel if self.is_open => {
                    self.command(DriverCommand::SetModel("small"));
                    continue;
                }
                _ => continue,
            };
            self.line(&said);
            last = said;
        }
    }
}

/// The id of a request of the agent as the driver repeats it, in both kinds of protocol.
fn request_id(line: &str) -> Option<String> {
    // As the drivers read it: raw text, and no key twice.
    let value: Value = serde_json::from_str(line).ok()?;
    if value["type"] == "control_request" {
        return value["request_id"].as_str().map(json_id);
    }
    (value.get("method")?.is_string() && !value["id"].is_null()).then(|| value["id"].to_string())
}

/// Permission ids of Claude are texts; those of JSON-RPC are JSON.
fn json_id(id: &str) -> String {
    match serde_json::from_str::<Value>(id) {
        Ok(value) if !value.is_string() => value.to_string(),
        Ok(_) => id.to_owned(),
        Err(_) => Value::from(id).to_string(),
    }
}

fn answered_id(line: &Value) -> Option<String> {
    if line["type"] == "control_response" {
        return line["response"]["request_id"].as_str().map(json_id);
    }
    let is_answer = line.get("method").is_none() && line.get("type").is_none();
    is_answer.then(|| line["id"].to_string())
}

/// The lines of all agents, in order.
static SAID: LazyLock<Vec<Vec<String>>> = LazyLock::new(|| {
    let lines = |agent| {
        let lines = recording(agent).into_iter();
        lines.filter_map(|(dir, line)| (dir == "out").then_some(line))
    };
    let agents = AGENTS.iter();
    agents.map(|(agent, _)| lines(agent).collect()).collect()
});

fn said(agent: &str) -> &'static [String] {
    let at = AGENTS.iter().position(|(known, _)| *known == agent);
    &SAID[at.expect("an agent with a recording")]
}

fn cases() -> u32 {
    let cases = std::env::var("PROPTEST_CASES").ok();
    cases.and_then(|cases| cases.parse().ok()).unwrap_or(48)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn no_input_makes_a_driver_panic_or_answer_twice(
        (agent, label) in select(AGENTS.to_vec()),
        is_resumed in any::<bool>(),
        opening in 0..8_usize,
        inputs in vec(input(), 0..120),
    ) {
        let request = match is_resumed {
            true if label == "opencode" => resume(label, None, "ses_1", ""),
            true => resume(label, None, UUID, ""),
            false => chat(label, None, ""),
        };
        let lines = said(agent);
        let mut watched = Watched::new(driver(&request));
        // Most sessions are opened as recorded, so that turns are reached.
        for line in &lines[..opening.min(lines.len())] {
            watched.line(line);
        }
        watched.play(lines, &inputs);
    }
}

/// The answers of an agent that the driver has to be opened with.
fn opened(agent: &str, label: &str) -> Watched {
    let mut watched = Watched::new(driver(&chat(label, None, "")));
    for line in said(agent) {
        if watched.is_open {
            break;
        }
        let line = line.replace("\"initialize-1\"", "\"initialize\"");
        watched.line(&line);
    }
    assert!(watched.is_open, "{agent} did not open its session");
    watched
}

#[test]
fn unknown_requests_get_an_error_at_once() {
    for (agent, label) in AGENTS {
        let mut watched = opened(agent, label);
        let line = match agent {
            "claude" => {
                r#"{"type":"control_request","request_id":"\"q\"","request":{"subtype":"new_thing"}}"#
            }
            _ => {
                r#"{"jsonrpc":"2.0","id":"q","method":"fs/read_text_file","params":{"path":"/etc"}}"#
            }
        };
        let mut out = DriverOutput::default();
        watched.driver.line(line, &mut out);
        let [answer] = out.lines() else {
            panic!("{agent}: {out:?}");
        };
        let answer: Value = serde_json::from_str(answer).unwrap();
        match agent {
            "claude" => {
                assert_eq!(answer["response"]["subtype"], "error");
                assert_eq!(answer["response"]["request_id"], "\"q\"");
            }
            _ => {
                assert_eq!(answer["error"]["code"], -32601);
                assert_eq!(answer["id"], "q");
            }
        }
        assert_eq!(out.signals(), []);
    }
}

#[test]
fn a_flood_of_questions_is_bounded_and_each_gets_one_answer() {
    for (agent, label) in AGENTS {
        let mut watched = opened(agent, label);
        watched.in_turn = true;
        watched.command(DriverCommand::Prompt("go"));
        for id in 100..2_100 {
            let line = match agent {
                "claude" => format!(
                    r#"{{"type":"control_request","request_id":"{id}","request":{{"subtype":"can_use_tool","tool_name":"Bash","input":{{"command":"ls"}}}}}}"#
                ),
                "codex" => format!(
                    r#"{{"id":{id},"method":"item/commandExecution/requestApproval","params":{{"command":"ls"}}}}"#
                ),
                _ => format!(
                    r#"{{"id":{id},"method":"session/request_permission","params":{{"toolCall":{{"toolCallId":"{id}"}},"options":[]}}}}"#
                ),
            };
            watched.line(&line);
        }
        assert!(watched.open.len() <= 256, "{agent}: {}", watched.open.len());
        let answered = watched
            .requests
            .values()
            .filter(|(_, answered)| *answered == 1);
        assert_eq!(answered.count() + watched.open.len(), 2_000, "{agent}");
        while !watched.open.is_empty() {
            let permission = watched.open.remove(0);
            watched.command(DriverCommand::Withdraw {
                permission: &permission,
            });
        }
        let answers = watched.requests.values().map(|(_, answered)| answered);
        assert!(answers.clone().all(|answered| *answered == 1), "{agent}");
    }
}

#[test]
fn a_flood_of_tool_calls_without_arguments_is_reported_and_not_kept() {
    let mut watched = opened("gemini", "gemini");
    watched.in_turn = true;
    watched.command(DriverCommand::Prompt("go"));
    let mut reported = 0;
    for id in 0..10_000 {
        let line = format!(
            r#"{{"method":"session/update","params":{{"update":{{"sessionUpdate":"tool_call","toolCallId":"{id}","status":"pending","kind":"read"}}}}}}"#
        );
        let mut out = DriverOutput::default();
        watched.driver.line(&line, &mut out);
        reported += out.signals().len();
    }
    assert!(reported >= 10_000 - 64, "{reported}");
}
