//! Outgoing messages of the Agent Client Protocol. `scripts/check-acp` reads them with the types of its
//! schema.

use std::collections::BTreeSet;
use std::io::Write;

use exec_core::{Decision, DriverCommand, DriverOutput, DriverSignal, ProtocolDriver};
use serde_json::Value;

use crate::live_replay::{driver, recording};
use crate::request::{UUID, chat, resume};

/// The file for the messages.
const FILE: &str = "EXEC_PROFILES_ACP_MESSAGES";

/// The method, or `result` or `error`.
fn kind(line: &str) -> String {
    let value: Value = serde_json::from_str(line).unwrap();
    match value["method"].as_str() {
        Some(method) => method.to_owned(),
        None if value.get("error").is_some() => "error".to_owned(),
        None => "result".to_owned(),
    }
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
fn every_kind_of_message_is_sent() {
    let mut kinds = BTreeSet::new();
    let mut file = std::env::var_os(FILE).map(|path| std::fs::File::create(path).unwrap());
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
                kinds.insert(kind(&line));
                if let Some(file) = &mut file {
                    writeln!(file, "{line}").unwrap();
                }
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
    assert_eq!(Vec::from_iter(&kinds), Vec::from_iter(&all));
}
