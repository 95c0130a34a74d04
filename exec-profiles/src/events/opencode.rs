use exec_core::{AgentEvent, Outcome, Usage};
use serde_json::Value;

use super::event_object::{EventObject, flatten, owned, sum};

/// Opencode prints no event for the start or the end of a run. Every line carries the session id,
/// and the reason of a finished step shows whether another step follows.
#[derive(Default)]
pub(super) struct OpencodeRun {
    session_reported: bool,
}

impl OpencodeRun {
    pub(super) fn parse(&mut self, event: &EventObject) -> Vec<AgentEvent> {
        let mut events = Vec::new();
        if let Some(session_id) = owned(event.at("sessionID")).filter(|_| !self.session_reported) {
            self.session_reported = true;
            events.push(AgentEvent::SessionStarted {
                session_id,
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
            Some("step_finish") => {
                events.push(AgentEvent::Usage(usage(part)));
                events.extend(finished(part));
            }
            Some("error") => {
                let message = error_text(event.at("error"));
                events.push(AgentEvent::Error {
                    message: message.clone(),
                });
                // Opencode does not report retries, so a reported error ends the run.
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

/// Opencode reports a tool on completion only: one line holds the call and the result.
fn tool(part: &Value) -> Option<[AgentEvent; 2]> {
    let state = &part["state"];
    let id = owned(&part["callID"]);
    let exit_code = state["metadata"]["exit"].as_i64();
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
            is_error: state["status"] != "completed" || exit_code.is_some_and(|code| code != 0),
        },
    ])
}

fn usage(part: &Value) -> Usage {
    let tokens = &part["tokens"];
    let cache = &tokens["cache"];
    let mut usage = Usage::default();
    // Opencode's `input` excludes cached tokens.
    usage.input_tokens = sum(&[&tokens["input"], &cache["read"], &cache["write"]]);
    usage.cache_read_tokens = cache["read"].as_u64();
    usage.cache_write_tokens = cache["write"].as_u64();
    usage.output_tokens = tokens["output"].as_u64();
    usage.reasoning_tokens = tokens["reasoning"].as_u64();
    usage.cost_usd = part["cost"].as_f64();
    usage
}

fn finished(part: &Value) -> Option<AgentEvent> {
    match part["reason"].as_str()? {
        // Another step follows.
        "tool-calls" | "unknown" => None,
        "stop" => Some(AgentEvent::Finished {
            outcome: Outcome::Success,
            text: None,
        }),
        reason => Some(AgentEvent::Finished {
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
