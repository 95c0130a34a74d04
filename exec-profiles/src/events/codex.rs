//! The parser for the output of Codex.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use exec_core::{
    AgentEvent, AgentEventKind, EventParser, Failure, FailureKind, Outcome, ToolInput, Usage,
    UsageTotals,
};
use serde::Deserialize;

use super::json::{Events, Json, parse_line};

/// How many tools can be open. The result of a further one repeats its call.
const MAX_OPEN_TOOLS: usize = 4096;

/// The output of one run.
///
/// Codex reports the start of some tools, but only the completion of others. Either way one tool
/// gives one call and one result.
#[derive(Default)]
pub(super) struct CodexRun {
    /// Hashes of the ids of items with a reported call and no reported result.
    open_tools: HashSet<u64>,
    session_reported: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CodexLine<'a> {
    #[serde(borrow)]
    r#type: Json<'a>,
    thread_id: Json<'a>,
    item: Json<'a>,
    usage: Json<'a>,
    error: Json<'a>,
    message: Json<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Item<'a> {
    #[serde(borrow)]
    id: Json<'a>,
    r#type: Json<'a>,
    text: Json<'a>,
    message: Json<'a>,
    command: Json<'a>,
    changes: Json<'a>,
    query: Json<'a>,
    server: Json<'a>,
    tool: Json<'a>,
    arguments: Json<'a>,
    aggregated_output: Json<'a>,
    error: Json<'a>,
    result: Json<'a>,
    status: Json<'a>,
    exit_code: Json<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenCounts<'a> {
    #[serde(borrow)]
    input_tokens: Json<'a>,
    cached_input_tokens: Json<'a>,
    cache_write_input_tokens: Json<'a>,
    output_tokens: Json<'a>,
    reasoning_output_tokens: Json<'a>,
}

impl EventParser for CodexRun {
    fn parse_line(&mut self, text: &str) -> Vec<AgentEvent> {
        let Some(line) = parse_line::<CodexLine<'_>>(text) else {
            return Vec::new();
        };
        let mut events = Events::new();
        match line.r#type.word() {
            "thread.started" => {
                if let Some(session_id) = line.thread_id.text()
                    && !std::mem::replace(&mut self.session_reported, true)
                {
                    events.push(AgentEventKind::SessionStarted {
                        session_id,
                        model: None,
                    });
                }
            }
            "item.started" => self.item(&line.item.object(), false, &mut events),
            "item.completed" => self.item(&line.item.object(), true, &mut events),
            "turn.completed" => {
                // The totals of the thread.
                let usage = usage(&line.usage.object());
                events.push(AgentEventKind::Usage(UsageTotals::of_session(usage)));
                events.push(AgentEventKind::Finished {
                    outcome: Outcome::Success,
                    text: None,
                    failure: None,
                });
            }
            "turn.failed" => events.push(AgentEventKind::Finished {
                outcome: Outcome::Failure,
                text: None,
                failure: line.error.at("message").text().map(failure),
            }),
            "error" => events.push(error(line.message.flatten())),
            _ => {}
        }
        events.done()
    }
}

impl CodexRun {
    fn item(&mut self, item: &Item<'_>, completed: bool, events: &mut Events) {
        match item.r#type.word() {
            "agent_message" if completed => {
                if let Some(text) = item.text.text() {
                    events.push(AgentEventKind::Text { text, delta: false });
                }
            }
            "reasoning" if completed => {
                if let Some(text) = item.text.text() {
                    events.push(AgentEventKind::Thinking { text, delta: false });
                }
            }
            "error" if completed => events.push(error(item.message.flatten())),
            kind @ ("command_execution" | "file_change" | "mcp_tool_call" | "web_search") => {
                self.tool(kind, item, completed, events);
            }
            _ => {}
        }
    }

    fn tool(&mut self, kind: &str, item: &Item<'_>, completed: bool, events: &mut Events) {
        let id = item.id.text();
        let key = BuildHasherDefault::<DefaultHasher>::default().hash_one(&id);
        if !self.open_tools.contains(&key) {
            let (name, input) = match kind {
                "command_execution" => (kind.to_owned(), wrapped("command", item.command)),
                "file_change" => (kind.to_owned(), wrapped("changes", item.changes)),
                "web_search" => (kind.to_owned(), wrapped("query", item.query)),
                _ => (
                    format!("{}.{}", item.server.flatten(), item.tool.flatten()),
                    item.arguments.tool_input(),
                ),
            };
            events.push(AgentEventKind::ToolCall {
                id: id.clone(),
                name,
                input,
            });
        }
        if completed {
            self.open_tools.remove(&key);
            let status = item.status.word();
            let exit_code = item.exit_code.text_of_number();
            events.push(AgentEventKind::ToolResult {
                id,
                output: output(item),
                is_error: !matches!(status, "" | "completed") || !matches!(exit_code, "" | "0"),
            });
        } else if self.open_tools.len() < MAX_OPEN_TOOLS {
            self.open_tools.insert(key);
        }
    }
}

fn wrapped(key: &str, value: Json<'_>) -> ToolInput {
    let json = format!("{{\"{key}\":{}}}", value.tool_input());
    ToolInput::new(&json).unwrap_or_default()
}

/// Commands have `aggregated_output`; MCP tools have `error`, or else `result.content`.
fn output(item: &Item<'_>) -> String {
    if let Some(output) = item.aggregated_output.text() {
        return output;
    }
    let (value, key) = match item.error.is_null() {
        true => (item.result, "content"),
        false => (item.error, "message"),
    };
    match value.at(key) {
        inner if inner.is_null() => value.flatten(),
        inner => inner.flatten(),
    }
}

/// Not fatal: `Reconnecting... 1/5 (…)` is such an error. `turn.failed` is fatal.
pub(crate) fn error(message: String) -> AgentEventKind {
    let Some(attempts) = message.strip_prefix("Reconnecting... ") else {
        return AgentEventKind::Error(failure(message));
    };
    let mut numbers = attempts
        .split(|c: char| !c.is_ascii_digit())
        .map(str::parse);
    let (attempt, max_attempts) = (numbers.next(), numbers.next());
    AgentEventKind::Retry {
        attempt: attempt.and_then(Result::ok),
        max_attempts: max_attempts.and_then(Result::ok),
        delay: None,
        failure: failure(message),
    }
}

/// Codex gives no class: the text decides.
fn failure(message: String) -> Failure {
    Failure::new(FailureKind::Agent, message)
}

fn usage(counts: &TokenCounts<'_>) -> Usage {
    let mut usage = Usage::default();
    usage.input_tokens = counts.input_tokens.number();
    usage.cache_read_tokens = counts.cached_input_tokens.number();
    usage.cache_write_tokens = counts.cache_write_input_tokens.number();
    usage.output_tokens = counts.output_tokens.number();
    usage.reasoning_tokens = counts.reasoning_output_tokens.number();
    usage
}
