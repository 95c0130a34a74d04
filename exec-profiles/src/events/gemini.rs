//! The parser for the output of Gemini CLI.

use exec_core::{
    AgentEvent, AgentEventKind, EventParser, Failure, FailureKind, Outcome, Usage, UsageTotals,
};
use serde::Deserialize;

use super::json::{Events, Json, parse_line};

/// The output of one run.
#[derive(Default)]
pub(super) struct GeminiRun {
    session_reported: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GeminiLine<'a> {
    #[serde(borrow)]
    r#type: Json<'a>,
    session_id: Json<'a>,
    model: Json<'a>,
    role: Json<'a>,
    content: Json<'a>,
    delta: Json<'a>,
    tool_name: Json<'a>,
    tool_id: Json<'a>,
    parameters: Json<'a>,
    status: Json<'a>,
    output: Json<'a>,
    error: Json<'a>,
    message: Json<'a>,
    stats: Json<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Stats<'a> {
    #[serde(borrow)]
    input_tokens: Json<'a>,
    cached: Json<'a>,
    output_tokens: Json<'a>,
}

impl EventParser for GeminiRun {
    fn parse_line(&mut self, text: &str) -> Vec<AgentEvent> {
        let Some(line) = parse_line::<GeminiLine<'_>>(text) else {
            return Vec::new();
        };
        let mut events = Events::new();
        match line.r#type.word() {
            "init" => {
                if let Some(session_id) = line.session_id.text()
                    && !std::mem::replace(&mut self.session_reported, true)
                {
                    events.push(AgentEventKind::SessionStarted {
                        session_id,
                        model: line.model.text(),
                    });
                }
            }
            // Gemini repeats the user's message as well; that line gives no event.
            "message" if line.role.word() == "assistant" => events.push(AgentEventKind::Text {
                text: line.content.flatten(),
                delta: line.delta.is_true(),
            }),
            "tool_use" => {
                if let Some(name) = line.tool_name.text() {
                    events.push(AgentEventKind::ToolCall {
                        id: line.tool_id.text(),
                        name,
                        input: line.parameters.tool_input(),
                    });
                }
            }
            "tool_result" => events.push(AgentEventKind::ToolResult {
                id: line.tool_id.text(),
                output: match line.output.is_null() {
                    true => error_text(&line).unwrap_or_default(),
                    false => line.output.flatten(),
                },
                is_error: line.status.word() != "success",
            }),
            "error" => {
                let failure = Failure::new(FailureKind::Agent, line.message.flatten());
                events.push(AgentEventKind::Error(failure));
            }
            "result" => result(&line, &mut events),
            _ => {}
        }
        events.done()
    }
}

fn result(line: &GeminiLine<'_>, events: &mut Events) {
    let stats: Stats<'_> = line.stats.object();
    let mut usage = Usage::default();
    usage.input_tokens = stats.input_tokens.number();
    usage.cache_read_tokens = stats.cached.number();
    usage.output_tokens = stats.output_tokens.number();
    events.push(AgentEventKind::Usage(UsageTotals::of_run(usage)));
    let is_success = line.status.word() == "success";
    events.push(AgentEventKind::Finished {
        outcome: match is_success {
            true => Outcome::Success,
            false => Outcome::Failure,
        },
        text: None,
        failure: error_text(line).map(|text| Failure::new(FailureKind::Agent, text)),
    });
}

fn error_text(line: &GeminiLine<'_>) -> Option<String> {
    line.error.at("message").text()
}
