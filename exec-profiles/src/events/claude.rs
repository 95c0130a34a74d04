use exec_core::{AgentEvent, EventParser, Outcome, Usage};
use serde_json::Value;

use super::{Object, flatten, owned, sum, text};

/// `stream_event` lines (only with `--include-partial-messages`) stay raw: the whole message
/// follows, and its text would come twice.
pub(super) struct ClaudeParser;

impl EventParser for ClaudeParser {
    fn parse_line(&mut self, line: &str) -> Vec<AgentEvent> {
        let Some(event) = Object::parse(line) else {
            return Vec::new();
        };
        match event.text("type") {
            Some("system") if event.text("subtype") == Some("init") => session(&event),
            Some("assistant") => assistant(&event),
            Some("user") => tool_results(&event),
            Some("result") => result(&event),
            _ => Vec::new(),
        }
    }
}

pub(super) fn session(event: &Object) -> Vec<AgentEvent> {
    let started = event
        .text("session_id")
        .map(|id| AgentEvent::SessionStarted {
            session_id: id.to_owned(),
            model: owned(event.at("model")),
        });
    started.into_iter().collect()
}

pub(super) fn assistant(event: &Object) -> Vec<AgentEvent> {
    // Claude reports a refused request as an assistant message of its own making.
    let is_error = event.at("is_api_error_message").as_bool() == Some(true);
    blocks(event)
        .filter_map(|block| match text(block.get("type"))? {
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

fn tool_results(event: &Object) -> Vec<AgentEvent> {
    blocks(event)
        .filter(|block| text(block.get("type")) == Some("tool_result"))
        .map(|block| AgentEvent::ToolResult {
            id: owned(&block["tool_use_id"]),
            output: flatten(&block["content"]),
            is_error: block["is_error"].as_bool() == Some(true),
        })
        .collect()
}

/// `subtype` says `success` for some failures too, so `is_error` decides.
fn result(event: &Object) -> Vec<AgentEvent> {
    let failed = event.at("is_error").as_bool() == Some(true)
        || event
            .text("subtype")
            .is_some_and(|subtype| subtype.starts_with("error"));
    let text = owned(event.at("result")).or_else(|| match event.at("errors") {
        Value::Null => None,
        errors => Some(flatten(errors)),
    });
    let finished = AgentEvent::Finished {
        outcome: if failed {
            Outcome::Failure
        } else {
            Outcome::Success
        },
        text,
    };
    usage(event).into_iter().chain([finished]).collect()
}

fn usage(event: &Object) -> Option<AgentEvent> {
    let counters = event.at("usage").as_object()?;
    let counter = |key: &str| counters.get(key).unwrap_or(&Value::Null);
    let mut usage = Usage::default();
    // Anthropic counts cached tokens apart from `input_tokens`.
    usage.input_tokens = sum(&[
        counter("input_tokens"),
        counter("cache_creation_input_tokens"),
        match counters.contains_key("cache_creation_input_tokens") {
            true => counter("cache_read_input_tokens"),
            // Qwen's counter already holds them.
            false => &Value::Null,
        },
    ]);
    usage.cache_read_tokens = counter("cache_read_input_tokens").as_u64();
    usage.cache_write_tokens = counter("cache_creation_input_tokens").as_u64();
    usage.output_tokens = counter("output_tokens").as_u64();
    usage.reasoning_tokens = counter("output_tokens_details")["thinking_tokens"].as_u64();
    usage.cost_usd = event.at("total_cost_usd").as_f64();
    Some(AgentEvent::Usage(usage))
}

fn blocks(event: &Object) -> impl Iterator<Item = &Value> {
    let content = event.at("message").get("content").and_then(Value::as_array);
    content.into_iter().flatten()
}
