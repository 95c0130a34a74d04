use exec_core::{AgentEvent, EventParser, Outcome, Usage};
use serde_json::Value;

use super::{Object, claude, flatten, owned};

pub(super) struct GeminiParser;

impl EventParser for GeminiParser {
    fn parse_line(&mut self, line: &str) -> Vec<AgentEvent> {
        let Some(event) = Object::parse(line) else {
            return Vec::new();
        };
        match event.text("type") {
            Some("init") => claude::session(&event),
            // The user's own message is echoed too; it stays raw.
            Some("message") if event.text("role") == Some("assistant") => vec![AgentEvent::Text {
                text: flatten(event.at("content")),
                delta: event.at("delta").as_bool() == Some(true),
            }],
            Some("tool_use") => event
                .text("tool_name")
                .map(|name| AgentEvent::ToolCall {
                    id: owned(event.at("tool_id")),
                    name: name.to_owned(),
                    input: event.at("parameters").clone(),
                })
                .into_iter()
                .collect(),
            Some("tool_result") => vec![AgentEvent::ToolResult {
                id: owned(event.at("tool_id")),
                output: match event.at("output") {
                    Value::Null => error_text(&event).unwrap_or_default(),
                    output => flatten(output),
                },
                is_error: event.text("status") != Some("success"),
            }],
            Some("error") => vec![AgentEvent::Error {
                message: flatten(event.at("message")),
            }],
            Some("result") => result(&event),
            _ => Vec::new(),
        }
    }
}

fn result(event: &Object) -> Vec<AgentEvent> {
    let stats = event.at("stats");
    let mut usage = Usage::default();
    usage.input_tokens = stats["input_tokens"].as_u64();
    usage.cache_read_tokens = stats["cached"].as_u64();
    usage.output_tokens = stats["output_tokens"].as_u64();
    let outcome = match event.text("status") {
        Some("success") => Outcome::Success,
        _ => Outcome::Failure,
    };
    vec![
        AgentEvent::Usage(usage),
        AgentEvent::Finished {
            outcome,
            text: error_text(event),
        },
    ]
}

fn error_text(event: &Object) -> Option<String> {
    owned(&event.at("error")["message"])
}
