//! The parser for the output of Cursor.

use exec_core::{AgentEvent, Outcome, Usage};
use serde_json::Value;

use super::claude;
use super::event_object::{EventObject, flatten, owned};

/// Messages have Claude's shape, tools have events of their own. A failed run prints no final event:
/// only its exit code shows the failure.
pub(super) fn parse(event: &EventObject) -> Vec<AgentEvent> {
    match (event.text("type"), event.text("subtype")) {
        (Some("system"), Some("init")) => claude::session(event),
        (Some("assistant"), _) => claude::assistant(event),
        (Some("thinking"), Some("delta")) => {
            let text = owned(event.at("text"));
            Vec::from_iter(text.map(|text| AgentEvent::Thinking { text, delta: true }))
        }
        (Some("tool_call"), Some("started")) => Vec::from_iter(tool_call(event)),
        (Some("tool_call"), Some("completed")) => Vec::from_iter(tool_result(event)),
        (Some("result"), _) => result(event),
        _ => Vec::new(),
    }
}

fn tool_call(event: &EventObject) -> Option<AgentEvent> {
    let (key, call) = tool(event)?;
    Some(AgentEvent::ToolCall {
        id: owned(event.at("call_id")),
        name: owned(&call["name"])
            .unwrap_or_else(|| key.strip_suffix("ToolCall").unwrap_or(key).to_owned()),
        input: call.get("args").unwrap_or(&call["arguments"]).clone(),
    })
}

fn tool_result(event: &EventObject) -> Option<AgentEvent> {
    let (_, call) = tool(event)?;
    let result = &call["result"];
    Some(AgentEvent::ToolResult {
        id: owned(event.at("call_id")),
        output: output(result),
        is_error: result.is_object() && result.get("success").is_none(),
    })
}

/// The only key of `tool_call` names the tool: `{"shellToolCall": {"args": …, "result": …}}` or
/// `{"function": {"name": …, "arguments": …}}`.
fn tool(event: &EventObject) -> Option<(&String, &Value)> {
    event.at("tool_call").as_object()?.iter().next()
}

/// The only key of a result is `success`, or a name for the failure.
fn output(result: &Value) -> String {
    let Some(inner) = result.as_object().and_then(|fields| fields.values().next()) else {
        return flatten(result);
    };
    ["output", "stdout", "content", "error", "message"]
        .iter()
        .find_map(|key| owned(&inner[*key]).filter(|text| !text.is_empty()))
        .unwrap_or_else(|| flatten(inner))
}

fn result(event: &EventObject) -> Vec<AgentEvent> {
    let mut events = Vec::new();
    if let counters @ Value::Object(_) = event.at("usage") {
        let mut usage = Usage::default();
        usage.input_tokens = counters["inputTokens"].as_u64();
        usage.cache_read_tokens = counters["cacheReadTokens"].as_u64();
        usage.cache_write_tokens = counters["cacheWriteTokens"].as_u64();
        usage.output_tokens = counters["outputTokens"].as_u64();
        events.push(AgentEvent::Usage(usage));
    }
    events.push(AgentEvent::Finished {
        outcome: match event.at("is_error").as_bool() {
            Some(true) => Outcome::Failure,
            _ => Outcome::Success,
        },
        text: owned(event.at("result")),
    });
    events
}
