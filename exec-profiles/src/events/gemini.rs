//! The parser for the output of Gemini CLI.

use exec_core::{AgentEvent, Outcome, Usage};
use serde_json::Value;

use super::claude;
use super::event_object::{EventObject, flatten, owned};

pub(super) fn parse(event: &EventObject) -> Vec<AgentEvent> {
    match event.text("type") {
        Some("init") => claude::session(event),
        // Gemini repeats the user's message as well; that line gives no event.
        Some("message") if event.text("role") == Some("assistant") => vec![AgentEvent::Text {
            text: flatten(event.at("content")),
            delta: event.at("delta").as_bool() == Some(true),
        }],
        Some("tool_use") => {
            let name = owned(event.at("tool_name"));
            Vec::from_iter(name.map(|name| AgentEvent::ToolCall {
                id: owned(event.at("tool_id")),
                name,
                input: event.at("parameters").clone(),
            }))
        }
        Some("tool_result") => vec![AgentEvent::ToolResult {
            id: owned(event.at("tool_id")),
            output: match event.at("output") {
                Value::Null => error_text(event).unwrap_or_default(),
                output => flatten(output),
            },
            is_error: event.text("status") != Some("success"),
        }],
        Some("error") => vec![AgentEvent::Error {
            message: flatten(event.at("message")),
        }],
        Some("result") => result(event),
        _ => Vec::new(),
    }
}

fn result(event: &EventObject) -> Vec<AgentEvent> {
    let stats = event.at("stats");
    let mut usage = Usage::default();
    usage.input_tokens = stats["input_tokens"].as_u64();
    usage.cache_read_tokens = stats["cached"].as_u64();
    usage.output_tokens = stats["output_tokens"].as_u64();
    let outcome = match event.text("status") {
        Some("success") => Outcome::Success,
        _ => Outcome::Failure,
    };
    let text = error_text(event);
    vec![
        AgentEvent::Usage(usage),
        AgentEvent::Finished { outcome, text },
    ]
}

fn error_text(event: &EventObject) -> Option<String> {
    owned(&event.at("error")["message"])
}
