use std::collections::HashSet;

use exec_core::{AgentEvent, Outcome, Usage};
use serde_json::{Value, json};

use super::event_object::{EventObject, flatten, owned};

/// Codex reports the start of some tools, but only the completion of others. Either way one tool
/// gives one call and one result.
#[derive(Default)]
pub(super) struct CodexRun {
    /// Ids of items with a reported call and no reported result.
    open_tools: HashSet<String>,
}

impl CodexRun {
    pub(super) fn parse(&mut self, event: &EventObject) -> Vec<AgentEvent> {
        match event.text("type") {
            Some("thread.started") => {
                let started = owned(event.at("thread_id"));
                Vec::from_iter(started.map(|session_id| AgentEvent::SessionStarted {
                    session_id,
                    model: None,
                }))
            }
            Some("item.started") => self.item(event.at("item"), false),
            Some("item.completed") => self.item(event.at("item"), true),
            Some("turn.completed") => vec![
                AgentEvent::Usage(usage(event.at("usage"))),
                AgentEvent::Finished {
                    outcome: Outcome::Success,
                    text: None,
                },
            ],
            Some("turn.failed") => vec![AgentEvent::Finished {
                outcome: Outcome::Failure,
                text: owned(&event.at("error")["message"]),
            }],
            // Not fatal: `Reconnecting... 1/5` is such an error.
            Some("error") => error(event.at("message")),
            _ => Vec::new(),
        }
    }

    fn item(&mut self, item: &Value, completed: bool) -> Vec<AgentEvent> {
        let text = owned(&item["text"]).filter(|_| completed);
        match item["type"].as_str() {
            Some("agent_message") => {
                Vec::from_iter(text.map(|text| AgentEvent::Text { text, delta: false }))
            }
            Some("reasoning") => {
                Vec::from_iter(text.map(|text| AgentEvent::Thinking { text, delta: false }))
            }
            Some("error") if completed => error(&item["message"]),
            Some(kind @ ("command_execution" | "file_change" | "mcp_tool_call" | "web_search")) => {
                self.tool(kind, item, completed)
            }
            _ => Vec::new(),
        }
    }

    fn tool(&mut self, kind: &str, item: &Value, completed: bool) -> Vec<AgentEvent> {
        let id = owned(&item["id"]);
        let key = id.clone().unwrap_or_default();
        let mut events = Vec::new();
        if !self.open_tools.contains(&key) {
            let (name, input) = match kind {
                "command_execution" => (kind.to_owned(), json!({ "command": item["command"] })),
                "file_change" => (kind.to_owned(), json!({ "changes": item["changes"] })),
                "web_search" => (kind.to_owned(), json!({ "query": item["query"] })),
                _ => (
                    format!("{}.{}", flatten(&item["server"]), flatten(&item["tool"])),
                    item["arguments"].clone(),
                ),
            };
            events.push(AgentEvent::ToolCall {
                id: id.clone(),
                name,
                input,
            });
        }
        if completed {
            self.open_tools.remove(&key);
            events.push(AgentEvent::ToolResult {
                id,
                output: output(item),
                is_error: item["status"].as_str().is_some_and(|s| s != "completed")
                    || item["exit_code"].as_i64().is_some_and(|code| code != 0),
            });
        } else {
            self.open_tools.insert(key);
        }
        events
    }
}

/// Commands have `aggregated_output`; MCP tools have `error`, or else `result.content`.
fn output(item: &Value) -> String {
    let first_of = |value: &Value, key: &str| flatten(value.get(key).unwrap_or(value));
    match (&item["aggregated_output"], &item["error"]) {
        (Value::String(output), _) => output.clone(),
        (_, Value::Null) => first_of(&item["result"], "content"),
        (_, error) => first_of(error, "message"),
    }
}

fn error(message: &Value) -> Vec<AgentEvent> {
    vec![AgentEvent::Error {
        message: flatten(message),
    }]
}

fn usage(counters: &Value) -> Usage {
    let mut usage = Usage::default();
    usage.input_tokens = counters["input_tokens"].as_u64();
    usage.cache_read_tokens = counters["cached_input_tokens"].as_u64();
    usage.cache_write_tokens = counters["cache_write_input_tokens"].as_u64();
    usage.output_tokens = counters["output_tokens"].as_u64();
    usage.reasoning_tokens = counters["reasoning_output_tokens"].as_u64();
    usage
}
