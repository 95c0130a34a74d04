//! The parser for the output of Opencode.

use exec_core::{
    AgentEvent, AgentEventKind, EventParser, Failure, FailureKind, Outcome, Usage, UsageTotals,
};
use serde::Deserialize;

use super::claude::sum;
use super::json::{Events, Json, parse_line};

/// The output of one run.
///
/// Opencode prints no event for the start or the end of a run. Every line carries the session id,
/// and the reason of a finished step shows whether another step follows. Lines of another session
/// are those of a sub-agent. Usage is printed for each step: the run has used the sum.
#[derive(Default)]
pub(super) struct OpencodeRun {
    session: Option<String>,
    used: Usage,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OpencodeLine<'a> {
    #[serde(borrow)]
    r#type: Json<'a>,
    #[serde(rename = "sessionID")]
    session_id: Json<'a>,
    part: Json<'a>,
    error: Json<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Part<'a> {
    #[serde(borrow)]
    text: Json<'a>,
    tool: Json<'a>,
    #[serde(rename = "callID")]
    call_id: Json<'a>,
    state: Json<'a>,
    reason: Json<'a>,
    tokens: Json<'a>,
    cost: Json<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ToolState<'a> {
    #[serde(borrow)]
    status: Json<'a>,
    input: Json<'a>,
    output: Json<'a>,
    error: Json<'a>,
    metadata: Json<'a>,
}

impl EventParser for OpencodeRun {
    fn parse_line(&mut self, text: &str) -> Vec<AgentEvent> {
        let Some(line) = parse_line::<OpencodeLine<'_>>(text) else {
            return Vec::new();
        };
        let mut started = None;
        let mut parent = None;
        if let Some(id) = line.session_id.text() {
            match &self.session {
                None => started = self.session.insert(id).clone().into(),
                Some(own) if *own != id => parent = Some(id),
                Some(_) => {}
            }
        }
        let is_own = parent.is_none();
        let mut events = Events::of(parent);
        if let Some(session_id) = started {
            events.push(AgentEventKind::SessionStarted {
                session_id,
                model: None,
            });
        }
        let part: Part<'_> = line.part.object();
        match line.r#type.word() {
            "text" => events.push(AgentEventKind::Text {
                text: part.text.flatten(),
                delta: false,
            }),
            "reasoning" => events.push(AgentEventKind::Thinking {
                text: part.text.flatten(),
                delta: false,
            }),
            "tool_use" => tool(&part, &mut events),
            "step_finish" => {
                self.used = self.used.plus(&usage(&part));
                events.push_own(AgentEventKind::Usage(UsageTotals::of_run(self.used)));
                if let Some(finished) = finished(&part).filter(|_| is_own) {
                    events.push(finished);
                }
            }
            "error" => {
                let failure = failure(line.error);
                events.push(AgentEventKind::Error(failure.clone()));
                if is_own {
                    // Opencode does not report retries, so a reported error ends the run.
                    events.push(AgentEventKind::Finished {
                        outcome: Outcome::Failure,
                        text: None,
                        failure: Some(failure),
                    });
                }
            }
            _ => {}
        }
        events.done()
    }

    fn reports_cost(&self) -> bool {
        true
    }
}

/// Opencode reports a tool on completion only: one line holds the call and the result.
fn tool(part: &Part<'_>, events: &mut Events) {
    let Some(name) = part.tool.text() else { return };
    let state: ToolState<'_> = part.state.object();
    let id = part.call_id.text();
    let exit_code = state.metadata.at("exit").text_of_number();
    events.push(AgentEventKind::ToolCall {
        id: id.clone(),
        name,
        input: state.input.tool_input(),
    });
    events.push(AgentEventKind::ToolResult {
        id,
        output: match state.output.is_null() {
            true => state.error.flatten(),
            false => state.output.flatten(),
        },
        is_error: state.status.word() != "completed" || !matches!(exit_code, "" | "0"),
    });
}

fn usage(part: &Part<'_>) -> Usage {
    let tokens = part.tokens;
    let mut usage = Usage::default();
    usage.cache_read_tokens = tokens.at("cache.read").number();
    usage.cache_write_tokens = tokens.at("cache.write").number();
    // Opencode's `input` excludes cached tokens.
    usage.input_tokens = sum([
        tokens.at("input").number(),
        usage.cache_read_tokens,
        usage.cache_write_tokens,
    ]);
    usage.output_tokens = tokens.at("output").number();
    usage.reasoning_tokens = tokens.at("reasoning").number();
    usage.cost_usd = part.cost.float();
    usage
}

fn finished(part: &Part<'_>) -> Option<AgentEventKind> {
    match part.reason.word() {
        // Another step follows.
        "" | "tool-calls" | "unknown" => None,
        "stop" => Some(AgentEventKind::Finished {
            outcome: Outcome::Success,
            text: None,
            failure: None,
        }),
        reason => Some(AgentEventKind::Finished {
            outcome: Outcome::Failure,
            text: None,
            failure: Some(Failure::new(
                FailureKind::Agent,
                format!("the model stopped: {reason}"),
            )),
        }),
    }
}

fn failure(error: Json<'_>) -> Failure {
    let message = [
        error.at("data.message"),
        error.at("message"),
        error.at("name"),
        error,
    ]
    .into_iter()
    .map(Json::flatten)
    .find(|text| !text.is_empty())
    .unwrap_or_default();
    let status = error.at("data.statusCode").number();
    let kind = match error.at("name").word() {
        "ProviderAuthError" => Some(FailureKind::Authentication),
        _ => status.and_then(FailureKind::of_http_status),
    };
    Failure::new(kind.unwrap_or(FailureKind::Agent), message)
}
