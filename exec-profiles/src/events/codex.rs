use std::collections::HashSet;

use exec_core::{AgentEvent, EventParser, Outcome, Usage};
use serde_json::{Value, json};

use super::{Object, flatten, owned, text};

/// Codex announces some tools before they run and others only when they are done; every tool
/// becomes one call and one result.
#[derive(Default)]
pub(super) struct CodexParser {
    /// Items whose call was reported and whose result was not.
    open: HashSet<String>,
}

impl EventParser for CodexParser {
    fn parse_line(&mut self, line: &str) -> Vec<AgentEvent> {
        let Some(event) = Object::parse(line) else {
            return Vec::new();
        };
        match event.text("type") {
            Some("thread.started") => event
                .text("thread_id")
                .map(|id| AgentEvent::SessionStarted {
                    session_id: id.to_owned(),
                    model: None,
                })
                .into_iter()
                .collect(),
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
            // Not fatal: 'Reconnecting... 1/5' is one of these.
            Some("error") => error(event.at("message")),
            _ => Vec::new(),
        }
    }
}

impl CodexParser {
    fn item(&mut self, item: &Value, completed: bool) -> Vec<AgentEvent> {
        let words = |key: &str| owned(&item[key]).filter(|_| completed);
        match text(item.get("type")) {
            Some("agent_message") => words("text")
                .map(|text| AgentEvent::Text { text, delta: false })
                .into_iter()
                .collect(),
            Some("reasoning") => words("text")
                .map(|text| AgentEvent::Thinking { text, delta: false })
                .into_iter()
                .collect(),
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
        let announced = self.open.contains(&key);
        if !announced {
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
            self.open.remove(&key);
            let failed = text(item.get("status")).is_some_and(|status| status != "completed")
                || item["exit_code"].as_i64().is_some_and(|code| code != 0);
            let output = match (&item["aggregated_output"], &item["error"]) {
                (Value::String(output), _) => output.clone(),
                (_, Value::Null) => flatten(match &item["result"] {
                    Value::Object(result) => result.get("content").unwrap_or(&item["result"]),
                    result => result,
                }),
                (_, error) => flatten(match error.get("message") {
                    Some(message) => message,
                    None => error,
                }),
            };
            events.push(AgentEvent::ToolResult {
                id,
                output,
                is_error: failed,
            });
        } else {
            self.open.insert(key);
        }
        events
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
