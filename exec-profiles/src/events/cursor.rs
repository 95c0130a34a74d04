//! The parser for the output of Cursor.

use exec_core::{
    AgentEvent, AgentEventKind, EventParser, Failure, FailureKind, Outcome, Usage, UsageTotals,
};
use serde::Deserialize;

use super::claude::{ClaudeMessage, content};
use super::json::{Events, Json, parse_line};

/// The output of one run.
///
/// Messages have Claude's shape, tools have events of their own. A failed run prints no final event:
/// only its exit code and standard error show the failure.
#[derive(Default)]
pub(super) struct CursorRun {
    session_reported: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CursorLine<'a> {
    #[serde(borrow)]
    r#type: Json<'a>,
    subtype: Json<'a>,
    session_id: Json<'a>,
    model: Json<'a>,
    message: Json<'a>,
    text: Json<'a>,
    call_id: Json<'a>,
    tool_call: Json<'a>,
    is_error: Json<'a>,
    result: Json<'a>,
    usage: Json<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Call<'a> {
    #[serde(borrow)]
    name: Json<'a>,
    args: Json<'a>,
    arguments: Json<'a>,
    result: Json<'a>,
}

impl EventParser for CursorRun {
    fn parse_line(&mut self, text: &str) -> Vec<AgentEvent> {
        let Some(line) = parse_line::<CursorLine<'_>>(text) else {
            return Vec::new();
        };
        let mut events = Events::new();
        match (line.r#type.word(), line.subtype.word()) {
            ("system", "init") => {
                if let Some(session_id) = line.session_id.text()
                    && !std::mem::replace(&mut self.session_reported, true)
                {
                    events.push(AgentEventKind::SessionStarted {
                        session_id,
                        model: line.model.text(),
                    });
                }
            }
            ("assistant", _) => {
                content(
                    line.message.object::<ClaudeMessage<'_>>().content,
                    &mut events,
                );
            }
            ("thinking", "delta") => {
                if let Some(text) = line.text.text() {
                    events.push(AgentEventKind::Thinking { text, delta: true });
                }
            }
            ("tool_call", "started") => tool_call(&line, &mut events),
            ("tool_call", "completed") => tool_result(&line, &mut events),
            ("result", _) => result(&line, &mut events),
            _ => {}
        }
        events.done()
    }
}

fn tool_call(line: &CursorLine<'_>, events: &mut Events) {
    let Some((key, call)) = tool(line) else {
        return;
    };
    let name = call.name.text();
    events.push(AgentEventKind::ToolCall {
        id: line.call_id.text(),
        name: name.unwrap_or_else(|| key.strip_suffix("ToolCall").unwrap_or(&key).to_owned()),
        input: match call.args.is_null() {
            true => call.arguments.tool_input(),
            false => call.args.tool_input(),
        },
    });
}

fn tool_result(line: &CursorLine<'_>, events: &mut Events) {
    let Some((_, call)) = tool(line) else { return };
    let mut outcome = None;
    call.result.each_entry(|key, value| {
        outcome = Some((key == "success", value));
        false
    });
    events.push(AgentEventKind::ToolResult {
        id: line.call_id.text(),
        output: match outcome {
            Some((_, value)) => output(value),
            None => call.result.flatten(),
        },
        is_error: outcome.is_some_and(|(is_success, _)| !is_success),
    });
}

/// The only key of `tool_call` names the tool: `{"shellToolCall": {"args": …, "result": …}}` or
/// `{"function": {"name": …, "arguments": …}}`.
fn tool<'a>(line: &CursorLine<'a>) -> Option<(String, Call<'a>)> {
    let mut found = None;
    line.tool_call.each_entry(|key, call| {
        found = Some((key.to_owned(), call.object()));
        false
    });
    found
}

/// The only key of a result is `success`, or a name for the failure; this is its value.
fn output(value: Json<'_>) -> String {
    ["output", "stdout", "content", "error", "message"]
        .iter()
        .find_map(|key| value.at(key).text().filter(|text| !text.is_empty()))
        .unwrap_or_else(|| value.flatten())
}

fn result(line: &CursorLine<'_>, events: &mut Events) {
    if line.usage.is_object() {
        let mut usage = Usage::default();
        usage.input_tokens = line.usage.at("inputTokens").number();
        usage.cache_read_tokens = line.usage.at("cacheReadTokens").number();
        usage.cache_write_tokens = line.usage.at("cacheWriteTokens").number();
        usage.output_tokens = line.usage.at("outputTokens").number();
        events.push(AgentEventKind::Usage(UsageTotals::of_run(usage)));
    }
    let text = line.result.text();
    events.push(match line.is_error.is_true() {
        true => AgentEventKind::Finished {
            outcome: Outcome::Failure,
            text: None,
            failure: text.map(|text| Failure::new(FailureKind::Agent, text)),
        },
        false => AgentEventKind::Finished {
            outcome: Outcome::Success,
            text,
            failure: None,
        },
    });
}
