use exec_core::{AgentEvent, EventParser, Outcome, Usage};
use serde_json::Value;

use super::{Object, claude, flatten, owned};

/// Messages are shaped like Claude's; tools have an event of their own. On failure there is no
/// final event: the exit code tells.
pub(super) struct CursorParser;

impl EventParser for CursorParser {
    fn parse_line(&mut self, line: &str) -> Vec<AgentEvent> {
        let Some(event) = Object::parse(line) else {
            return Vec::new();
        };
        match (event.text("type"), event.text("subtype")) {
            (Some("system"), Some("init")) => claude::session(&event),
            (Some("assistant"), _) => claude::assistant(&event),
            (Some("thinking"), Some("delta")) => owned(event.at("text"))
                .map(|text| AgentEvent::Thinking { text, delta: true })
                .into_iter()
                .collect(),
            (Some("tool_call"), Some(phase @ ("started" | "completed"))) => {
                tool(&event, phase == "completed").into_iter().collect()
            }
            (Some("result"), _) => result(&event),
            _ => Vec::new(),
        }
    }
}

/// `tool_call` holds one key that names the tool: `{"shellToolCall": {"args": …, "result": …}}`,
/// or `{"function": {"name": …, "arguments": …}}`.
fn tool(event: &Object, completed: bool) -> Option<AgentEvent> {
    let (key, call) = event.at("tool_call").as_object()?.iter().next()?;
    let id = owned(event.at("call_id"));
    if completed {
        let result = &call["result"];
        return Some(AgentEvent::ToolResult {
            id,
            output: output(result),
            is_error: result.is_object() && result.get("success").is_none(),
        });
    }
    Some(AgentEvent::ToolCall {
        id,
        name: match owned(&call["name"]) {
            Some(name) => name,
            None => key.strip_suffix("ToolCall").unwrap_or(key).to_owned(),
        },
        input: match call.get("args") {
            Some(args) => args.clone(),
            None => call["arguments"].clone(),
        },
    })
}

/// `{"success": {…}}`, or another key that names the failure.
fn output(result: &Value) -> String {
    let Some(inner) = result.as_object().and_then(|fields| fields.values().next()) else {
        return flatten(result);
    };
    ["output", "stdout", "content", "error", "message"]
        .iter()
        .find_map(|key| owned(&inner[*key]).filter(|text| !text.is_empty()))
        .unwrap_or_else(|| flatten(inner))
}

fn result(event: &Object) -> Vec<AgentEvent> {
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
