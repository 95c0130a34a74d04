//! Outgoing messages of the Agent Client Protocol, read with the types of its schema.

use agent_client_protocol_schema::v1::{
    CancelNotification, InitializeRequest, LoadSessionRequest, NewSessionRequest, PromptRequest,
    RequestPermissionResponse, ResumeSessionRequest, SetSessionConfigOptionRequest,
    SetSessionModeRequest,
};
use agent_client_protocol_schema::v1::{JsonRpcMessage, Notification, Request, Response};
use exec_core::{Decision, DriverCommand, DriverOutput, DriverSignal, ProtocolDriver};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::live_replay::{driver, recording};
use crate::request::{UUID, chat, resume};

/// Reads the message with a type of the schema, and writes it again: no field may be unknown to it.
fn check<T: DeserializeOwned + Serialize>(line: &str) {
    let typed: JsonRpcMessage<T> =
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let again = serde_json::to_value(&typed).unwrap();
    let mut lost = Vec::new();
    missing(&serde_json::from_str(line).unwrap(), &again, "", &mut lost);
    assert_eq!(lost, [""; 0], "{line}");
}

/// The fields of `sent` that are not in `known`. A value that is the default may be left out.
fn missing(sent: &Value, known: &Value, path: &str, lost: &mut Vec<String>) {
    match (sent, known) {
        (Value::Object(sent), Value::Object(known)) => {
            for (key, value) in sent {
                let path = format!("{path}.{key}");
                match known.get(key) {
                    Some(known) => missing(value, known, &path, lost),
                    None if *value == Value::Bool(false) || *value == Value::Array(Vec::new()) => {}
                    None => lost.push(path),
                }
            }
        }
        (Value::Array(sent), Value::Array(known)) if sent.len() == known.len() => {
            for (sent, known) in sent.iter().zip(known) {
                missing(sent, known, path, lost);
            }
        }
        (sent, known) if sent == known => {}
        _ => lost.push(path.to_owned()),
    }
}

/// Returns the method, or `result` or `error`.
fn check_line(line: &str) -> String {
    let value: Value = serde_json::from_str(line).unwrap();
    let method = value["method"].as_str().unwrap_or_default().to_owned();
    match method.as_str() {
        "initialize" => check::<Request<InitializeRequest>>(line),
        "session/new" => check::<Request<NewSessionRequest>>(line),
        "session/load" => check::<Request<LoadSessionRequest>>(line),
        "session/resume" => check::<Request<ResumeSessionRequest>>(line),
        "session/prompt" => check::<Request<PromptRequest>>(line),
        "session/set_mode" => check::<Request<SetSessionModeRequest>>(line),
        "session/set_config_option" => check::<Request<SetSessionConfigOptionRequest>>(line),
        "session/cancel" => check::<Notification<CancelNotification>>(line),
        // Extensions, and a request that is not part of version 1 any more but of its agents.
        "_session/steering" | "_barrier" | "session/set_model" => check::<Request<Value>>(line),
        "" => {
            check::<Response<RequestPermissionResponse>>(line);
            let kind = if value.get("error").is_some() {
                "error"
            } else {
                "result"
            };
            return kind.to_owned();
        }
        other => panic!("{other} is not checked"),
    }
    method
}

/// All lines that the driver sends when a recording is played to it, and every command is given.
fn lines(mut driver: Box<dyn ProtocolDriver>, said: &[String]) -> Vec<String> {
    let mut sent = Vec::new();
    let mut drive = |call: &mut dyn FnMut(&mut dyn ProtocolDriver, &mut DriverOutput)| {
        let mut out = DriverOutput::default();
        call(driver.as_mut(), &mut out);
        sent.extend(out.lines().iter().cloned());
        let signals = out.signals().iter();
        let asked = signals.filter_map(|signal| match signal {
            DriverSignal::Asked(request) => Some(request.id.clone()),
            _ => None,
        });
        asked.collect::<Vec<_>>()
    };
    drive(&mut |driver, out| driver.open(out));
    for (i, line) in said.iter().enumerate() {
        for permission in drive(&mut |driver, out| driver.line(line, out)) {
            let permission = permission.as_str();
            let command = match i % 3 {
                0 => DriverCommand::Withdraw { permission },
                1 => DriverCommand::Answer {
                    permission,
                    decision: Decision::Allow,
                },
                _ => DriverCommand::Answer {
                    permission,
                    decision: Decision::Deny,
                },
            };
            drive(&mut |driver, out| driver.command(command, out));
        }
        for command in [
            DriverCommand::Prompt("do \"it\"\n\u{1}日本"),
            DriverCommand::Steer("more"),
            DriverCommand::SetMode("plan"),
            DriverCommand::SetModel("small"),
            DriverCommand::Interrupt,
        ] {
            drive(&mut |driver, out| driver.command(command, out));
        }
    }
    sent
}

#[test]
fn outgoing_messages_are_those_of_the_protocol() {
    let mut kinds = std::collections::BTreeSet::new();
    let agents = ["gemini", "opencode", "qwen", "claude-acp", "codex-acp"];
    for agent in agents.into_iter().chain(["gemini-load"]) {
        let label = match agent {
            "gemini" | "gemini-load" | "opencode" => agent.trim_end_matches("-load"),
            _ => "acp-agent",
        };
        let requests = [
            chat(label, None, ""),
            match label {
                "opencode" => resume(label, None, "ses_1", ""),
                _ => resume(label, None, UUID, ""),
            },
        ];
        let said: Vec<String> = recording(agent)
            .into_iter()
            .filter_map(|(dir, line)| (dir == "out").then_some(line))
            .collect();
        for request in requests {
            for line in lines(driver(&request), &said) {
                kinds.insert(check_line(&line));
            }
        }
    }
    let all = [
        "_barrier",
        "_session/steering",
        "error",
        "initialize",
        "result",
        "session/cancel",
        "session/load",
        "session/new",
        "session/prompt",
        "session/resume",
        "session/set_config_option",
        "session/set_mode",
        "session/set_model",
    ];
    assert_eq!(
        Vec::from_iter(&kinds),
        Vec::from_iter(&all),
        "every kind was sent"
    );
}
