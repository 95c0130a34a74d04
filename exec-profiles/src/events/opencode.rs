use exec_core::{AgentEvent, EventParser, Outcome, Usage};
use serde_json::Value;

use super::{Object, flatten, owned, sum, text};

/// Opencode has no event for the start and none for the end: the session's id stands on every
/// line, and the last step's reason tells the end.
#[derive(Default)]
pub(super) struct OpencodeParser {
    session_known: bool,
}

impl EventParser for OpencodeParser {
    fn parse_line(&mut self, line: &str) -> Vec<AgentEvent> {
        let Some(event) = Object::parse(line) else {
            return Vec::new();
        };
        let mut events = Vec::new();
        if let Some(id) = event.text("sessionID").filter(|_| !self.session_known) {
            self.session_known = true;
            events.push(AgentEvent::SessionStarted {
                session_id: id.to_owned(),
                model: None,
            });
        }
        let part = event.at("part");
        match event.text("type") {
            Some("text") => events.push(AgentEvent::Text {
                text: flatten(&part["text"]),
                delta: false,
            }),
            Some("reasoning") => events.push(AgentEvent::Thinking {
                text: flatten(&part["text"]),
                delta: false,
            }),
            Some("tool_use") => events.extend(tool(part).into_iter().flatten()),
            Some("step_finish") => step_finish(part, &mut events),
            Some("error") => {
                let message = error_text(event.at("error"));
                events.push(AgentEvent::Error {
                    message: message.clone(),
                });
                // Retries are not reported; an error that is ends the turn.
                events.push(AgentEvent::Finished {
                    outcome: Outcome::Failure,
                    text: Some(message),
                });
            }
            _ => {}
        }
        events
    }
}

/// Opencode reports a tool only once it is done: the call and its result in one line.
fn tool(part: &Value) -> Option<[AgentEvent; 2]> {
    let state = &part["state"];
    let id = owned(&part["callID"]);
    let is_error = text(state.get("status")) != Some("completed")
        || state["metadata"]["exit"]
            .as_i64()
            .is_some_and(|code| code != 0);
    Some([
        AgentEvent::ToolCall {
            id: id.clone(),
            name: owned(&part["tool"])?,
            input: state["input"].clone(),
        },
        AgentEvent::ToolResult {
            id,
            output: match &state["output"] {
                Value::Null => flatten(&state["error"]),
                output => flatten(output),
            },
            is_error,
        },
    ])
}

fn step_finish(part: &Value, events: &mut Vec<AgentEvent>) {
    let tokens = &part["tokens"];
    let cache = &tokens["cache"];
    let mut usage = Usage::default();
    // Opencode counts cached tokens apart from `input`.
    usage.input_tokens = sum(&[&tokens["input"], &cache["read"], &cache["write"]]);
    usage.cache_read_tokens = cache["read"].as_u64();
    usage.cache_write_tokens = cache["write"].as_u64();
    usage.output_tokens = tokens["output"].as_u64();
    usage.reasoning_tokens = tokens["reasoning"].as_u64();
    usage.cost_usd = part["cost"].as_f64();
    events.push(AgentEvent::Usage(usage));
    match text(part.get("reason")) {
        // Another step follows these.
        Some("tool-calls" | "unknown") | None => {}
        Some("stop") => events.push(AgentEvent::Finished {
            outcome: Outcome::Success,
            text: None,
        }),
        Some(reason) => events.push(AgentEvent::Finished {
            outcome: Outcome::Failure,
            text: Some(format!("the model stopped: {reason}")),
        }),
    }
}

fn error_text(error: &Value) -> String {
    let message = error["data"]
        .get("message")
        .or_else(|| error.get("message"))
        .or_else(|| error.get("name"));
    flatten(message.unwrap_or(error))
}
