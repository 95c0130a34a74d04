//! The parser for the output of Claude Code.

use exec_core::{AgentEvent, Outcome, Usage};
use serde_json::Value;

use super::event_object::{EventObject, flatten, owned, sum};

/// `stream_event` lines (printed with `--include-partial-messages`) give no events: the complete
/// message follows, and parsing both would report its text twice.
pub(super) fn parse(event: &EventObject) -> Vec<AgentEvent> {
    match event.text("type") {
        Some("system") if event.text("subtype") == Some("init") => session(event),
        Some("assistant") => assistant(event),
        Some("user") => tool_results(event),
        Some("result") => result(event),
        _ => Vec::new(),
    }
}

pub(super) fn session(event: &EventObject) -> Vec<AgentEvent> {
    let started = owned(event.at("session_id")).map(|session_id| AgentEvent::SessionStarted {
        session_id,
        model: owned(event.at("model")),
    });
    Vec::from_iter(started)
}

pub(super) fn assistant(event: &EventObject) -> Vec<AgentEvent> {
    // Claude reports an API error as an assistant message that it writes itself.
    let is_error = event.at("is_api_error_message").as_bool() == Some(true);
    blocks(event)
        .filter_map(|block| match block["type"].as_str()? {
            "text" if is_error => Some(AgentEvent::Error {
                message: owned(&block["text"])?,
            }),
            "text" => Some(AgentEvent::Text {
                text: owned(&block["text"])?,
                delta: false,
            }),
            "thinking" => Some(AgentEvent::Thinking {
                text: owned(&block["thinking"])?,
                delta: false,
            }),
            "tool_use" | "server_tool_use" | "mcp_tool_use" => Some(AgentEvent::ToolCall {
                id: owned(&block["id"]),
                name: owned(&block["name"])?,
                input: block["input"].clone(),
            }),
            _ => None,
        })
        .collect()
}

fn tool_results(event: &EventObject) -> Vec<AgentEvent> {
    blocks(event)
        .filter(|block| block["type"] == "tool_result")
        .map(|block| AgentEvent::ToolResult {
            id: owned(&block["tool_use_id"]),
            output: flatten(&block["content"]),
            is_error: block["is_error"].as_bool() == Some(true),
        })
        .collect()
}

/// `is_error` decides before `subtype`, which is `success` for some failures too.
fn result(event: &EventObject) -> Vec<AgentEvent> {
    let failed = event.at("is_error").as_bool() == Some(true)
        || event
            .text("subtype")
            .is_some_and(|subtype| subtype.starts_with("error"));
    let text = owned(event.at("result")).or_else(|| match event.at("errors") {
        Value::Null => None,
        errors => Some(flatten(errors)),
    });
    let finished = AgentEvent::Finished {
        outcome: match failed {
            true => Outcome::Failure,
            false => Outcome::Success,
        },
        text,
    };
    usage(event).into_iter().chain([finished]).collect()
}

fn usage(event: &EventObject) -> Option<AgentEvent> {
    let counters = event.at("usage");
    let has_cache_writes = counters
        .as_object()?
        .contains_key("cache_creation_input_tokens");
    let mut usage = Usage::default();
    usage.input_tokens = match has_cache_writes {
        // Anthropic's `input_tokens` excludes cached tokens.
        true => sum(&[
            &counters["input_tokens"],
            &counters["cache_creation_input_tokens"],
            &counters["cache_read_input_tokens"],
        ]),
        // Qwen's includes them.
        false => counters["input_tokens"].as_u64(),
    };
    usage.cache_read_tokens = counters["cache_read_input_tokens"].as_u64();
    usage.cache_write_tokens = counters["cache_creation_input_tokens"].as_u64();
    usage.output_tokens = counters["output_tokens"].as_u64();
    usage.reasoning_tokens = counters["output_tokens_details"]["thinking_tokens"].as_u64();
    usage.cost_usd = event.at("total_cost_usd").as_f64();
    Some(AgentEvent::Usage(usage))
}

fn blocks(event: &EventObject) -> impl Iterator<Item = &Value> {
    let content = event.at("message")["content"].as_array();
    content.into_iter().flatten()
}
