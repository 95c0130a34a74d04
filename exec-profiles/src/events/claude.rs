//! The parser for the output of Claude Code, and of Qwen Code, which has its format.

use std::collections::VecDeque;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::{Duration, SystemTime};

use exec_core::{
    AgentEvent, AgentEventKind, EventParser, Failure, FailureKind, Outcome, RateLimit,
    RateLimitStatus, Usage, UsageTotals,
};
use serde::Deserialize;

use super::json::{Events, Json, parse_line};

/// How many messages are kept apart. Older ones cannot change any more: a message is repeated only
/// until the next one of the same agent.
const OPEN_MESSAGES: usize = 64;

/// The output of one run.
///
/// **One finish.** With a sub-agent in the background, claude prints a `result`, then a second
/// `init` and a second `result` when the sub-agent has reported. The first result does not tell
/// whether another one follows. So once a task runs in the background, results are held back, and
/// the last one is the finish, at the end of the output.
///
/// **Usage.** Claude repeats the usage of a message on each of its content blocks, under one message
/// id; the last one wins. The sum over messages is a lower bound, because a message is printed
/// before its output tokens are counted. The `result` has the exact totals with all sub-agents.
#[derive(Default)]
pub(super) struct ClaudeRun {
    session_reported: bool,
    is_qwen: bool,
    has_background_tasks: bool,
    held: Option<AgentEvent>,
    /// The last refusal by a usage limit, until claude reports that requests are allowed again. The
    /// error that follows the refusal has no reset time.
    rejected: Option<RateLimit>,
    /// The total of all results so far.
    results: Usage,
    /// Messages since the last result.
    messages: MessageUsage,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ClaudeLine<'a> {
    #[serde(borrow)]
    r#type: Json<'a>,
    subtype: Json<'a>,
    session_id: Json<'a>,
    model: Json<'a>,
    qwen_code_version: Json<'a>,
    message: Json<'a>,
    parent_tool_use_id: Json<'a>,
    // Errors.
    error: Json<'a>,
    is_api_error_message: Json<'a>,
    api_error_status: Json<'a>,
    // `api_retry`.
    attempt: Json<'a>,
    max_retries: Json<'a>,
    retry_delay_ms: Json<'a>,
    error_status: Json<'a>,
    // `rate_limit_event`.
    rate_limit_info: Json<'a>,
    // `result`.
    is_error: Json<'a>,
    result: Json<'a>,
    errors: Json<'a>,
    usage: Json<'a>,
    total_cost_usd: Json<'a>,
    #[serde(rename = "modelUsage")]
    model_usage: Json<'a>,
    model_usage_since_last_result: Json<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ClaudeMessage<'a> {
    #[serde(borrow)]
    id: Json<'a>,
    model: Json<'a>,
    pub(super) content: Json<'a>,
    usage: Json<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContentBlock<'a> {
    #[serde(borrow)]
    r#type: Json<'a>,
    text: Json<'a>,
    thinking: Json<'a>,
    id: Json<'a>,
    name: Json<'a>,
    input: Json<'a>,
    tool_use_id: Json<'a>,
    content: Json<'a>,
    is_error: Json<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenCounts<'a> {
    #[serde(borrow)]
    input_tokens: Json<'a>,
    cache_creation_input_tokens: Json<'a>,
    cache_read_input_tokens: Json<'a>,
    output_tokens: Json<'a>,
    output_tokens_details: Json<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ModelUsage<'a> {
    #[serde(borrow)]
    input_tokens: Json<'a>,
    output_tokens: Json<'a>,
    cache_read_input_tokens: Json<'a>,
    cache_creation_input_tokens: Json<'a>,
    thinking_tokens: Json<'a>,
    #[serde(rename = "costUSD")]
    cost_usd: Json<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RateLimitInfo<'a> {
    #[serde(borrow)]
    status: Json<'a>,
    resets_at: Json<'a>,
    rate_limit_type: Json<'a>,
    utilization: Json<'a>,
    unified_windows: Json<'a>,
}

impl EventParser for ClaudeRun {
    /// `stream_event` lines (printed with `--include-partial-messages`) give no events: the complete
    /// message follows, and parsing both would report its text twice.
    fn parse_line(&mut self, text: &str) -> Vec<AgentEvent> {
        let Some(line) = parse_line::<ClaudeLine<'_>>(text) else {
            return Vec::new();
        };
        let mut events = Events::of(line.parent_tool_use_id.text());
        match (line.r#type.word(), line.subtype.word()) {
            ("system", "init") => self.session(&line, &mut events),
            ("system", "api_retry") => events.push(retry(&line)),
            ("system", "task_started") => self.has_background_tasks = true,
            ("rate_limit_event", _) => self.rate_limit(&line, &mut events),
            ("assistant", _) => self.assistant(&line, &mut events),
            ("user", _) => tool_results(line.message.object(), &mut events),
            ("result", _) => self.result(&line, &mut events),
            _ => {}
        }
        events.done()
    }

    fn finish(&mut self) -> Vec<AgentEvent> {
        self.held.take().into_iter().collect()
    }

    fn reports_cost(&self) -> bool {
        true
    }
}

impl ClaudeRun {
    fn session(&mut self, line: &ClaudeLine<'_>, events: &mut Events) {
        self.is_qwen |= !line.qwen_code_version.is_null();
        if let Some(session_id) = line.session_id.text()
            && !std::mem::replace(&mut self.session_reported, true)
        {
            events.push(AgentEventKind::SessionStarted {
                session_id,
                model: line.model.text(),
            });
        }
    }

    fn assistant(&mut self, line: &ClaudeLine<'_>, events: &mut Events) {
        let message: ClaudeMessage<'_> = line.message.object();
        let usage = tokens(&message.usage.object());
        // Claude reports an API error as an assistant message that it writes itself. Qwen Code does
        // so without a mark, but no token of it is the model's.
        let is_synthetic = message.model.word() == "<synthetic>";
        let is_unmarked = usage.output_tokens == Some(0) && {
            let mut is_error = false;
            message.content.each(|block| {
                let block: ContentBlock<'_> = block.object();
                let text = block.text.text().unwrap_or_default();
                is_error |= text.starts_with("[API Error: ");
            });
            is_error
        };
        if line.is_api_error_message.is_true() || is_synthetic || is_unmarked {
            let kind = self.failure_kind(line.error.word(), line.api_error_status.number());
            message.content.each(|block| {
                let block: ContentBlock<'_> = block.object();
                if let Some(text) = block.text.text() {
                    let failure = Failure::new(kind.clone(), text);
                    events.push(AgentEventKind::Error(failure));
                }
            });
            return;
        }
        content(message.content, events);
        if let Some(id) = message.id.text()
            && self.messages.update(&id, usage)
        {
            let run = self.results.plus(&self.messages.total());
            push_usage(events, UsageTotals::of_run(run));
        }
    }

    fn rate_limit(&mut self, line: &ClaudeLine<'_>, events: &mut Events) {
        let info: RateLimitInfo<'_> = line.rate_limit_info.object();
        let mut notice = RateLimit::new(match info.status.word() {
            "allowed" => RateLimitStatus::Allowed,
            "allowed_warning" => RateLimitStatus::Warning,
            "rejected" => RateLimitStatus::Rejected,
            _ => return,
        });
        notice.scope = info.rate_limit_type.text();
        notice.resets_at = info
            .resets_at
            .number()
            .and_then(|seconds| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
        notice.used = info.utilization.float().or_else(|| {
            let window = info.unified_windows.at(notice.scope.as_deref()?);
            window.at("utilization").float()
        });
        let is_rejected = notice.status == RateLimitStatus::Rejected;
        self.rejected = is_rejected.then(|| notice.clone());
        events.push(AgentEventKind::RateLimit(notice));
    }

    /// `is_error` decides before `subtype`, which is `success` for some failures too.
    fn result(&mut self, line: &ClaudeLine<'_>, events: &mut Events) {
        if let Some(totals) = self.totals(line) {
            push_usage(events, totals);
        }
        let failed = line.is_error.is_true() || line.subtype.word().starts_with("error");
        let finished = match failed {
            false => AgentEventKind::Finished {
                outcome: Outcome::Success,
                text: line.result.text(),
                failure: None,
            },
            true => AgentEventKind::Finished {
                outcome: Outcome::Failure,
                text: None,
                failure: Some(self.failure(line)),
            },
        };
        if self.has_background_tasks {
            self.held = Some(finished.into());
        } else {
            events.push(finished);
        }
    }

    fn failure(&self, line: &ClaudeLine<'_>) -> Failure {
        let message = [
            line.result,
            line.errors,
            line.error.at("message"),
            line.subtype,
        ]
        .into_iter()
        .map(Json::flatten)
        .find(|text| !text.is_empty())
        .unwrap_or_default();
        let kind = self.failure_kind(line.error.word(), line.api_error_status.number());
        Failure::new(kind, message)
    }

    /// The class by the name and the HTTP status that claude gives. `Agent` if they say too little:
    /// the text then decides.
    fn failure_kind(&self, name: &str, status: Option<u64>) -> FailureKind {
        match (kind_of(name, status), &self.rejected) {
            (Some(FailureKind::Limited { .. }), Some(notice)) => FailureKind::Limited {
                scope: notice.scope.clone(),
                resets_at: notice.resets_at,
            },
            (kind, _) => kind.unwrap_or(FailureKind::Agent),
        }
    }

    fn totals(&mut self, line: &ClaudeLine<'_>) -> Option<UsageTotals> {
        if !line.usage.is_object() {
            return None;
        }
        let counts: TokenCounts<'_> = line.usage.object();
        let mut own = tokens(&counts);
        let cost = line.total_cost_usd.float();
        if self.is_qwen || counts.cache_creation_input_tokens.is_null() {
            // Qwen reports the totals of the session, and counts cached tokens as input.
            own.input_tokens = counts.input_tokens.number();
            own.cost_usd = cost;
            return Some(UsageTotals::of_session(own));
        }
        self.messages = MessageUsage::default();
        let all = by_model(line.model_usage);
        let since = by_model(line.model_usage_since_last_result);
        let before = self.results;
        self.results = before.plus(&own);
        let mut session = None;
        match (since, all) {
            // Since 2.1.3xx: both totals, with sub-agents and cost.
            (Some(mut since), all) => {
                since.reasoning_tokens = since.reasoning_tokens.or(own.reasoning_tokens);
                self.results = before.plus(&since);
                session = all.map(|mut all| {
                    all.cost_usd = cost.or(all.cost_usd);
                    all
                });
            }
            // Before: `modelUsage` and the cost are totals of this process.
            (None, all) if line.model_usage_since_last_result.is_null() => {
                let own_total = self.results;
                if let Some(all) = all {
                    self.results = all;
                }
                let reasoning = self.results.reasoning_tokens;
                self.results.reasoning_tokens = reasoning.or(own_total.reasoning_tokens);
                self.results.cost_usd = cost.or(self.results.cost_usd);
            }
            // No model was asked.
            (None, _) => {}
        }
        let mut totals = UsageTotals::of_run(self.results);
        totals.session = session.unwrap_or_default();
        Some(totals)
    }
}

/// The text, thoughts and tool calls of a message.
pub(super) fn content(blocks: Json<'_>, events: &mut Events) {
    blocks.each(|block| {
        if events.omit() {
            return;
        }
        let block: ContentBlock<'_> = block.object();
        match block.r#type.word() {
            "text" => {
                if let Some(text) = block.text.text() {
                    events.push(AgentEventKind::Text { text, delta: false });
                }
            }
            "thinking" => {
                if let Some(text) = block.thinking.text() {
                    events.push(AgentEventKind::Thinking { text, delta: false });
                }
            }
            "tool_use" | "server_tool_use" | "mcp_tool_use" => {
                if let Some(name) = block.name.text() {
                    events.push(AgentEventKind::ToolCall {
                        id: block.id.text(),
                        name,
                        input: block.input.tool_input(),
                    });
                }
            }
            _ => {}
        }
    });
}

fn tool_results(message: ClaudeMessage<'_>, events: &mut Events) {
    message.content.each(|block| {
        if events.omit() {
            return;
        }
        let block: ContentBlock<'_> = block.object();
        if block.r#type.word() == "tool_result" {
            events.push(AgentEventKind::ToolResult {
                id: block.tool_use_id.text(),
                output: block.content.flatten(),
                is_error: block.is_error.is_true(),
            });
        }
    });
}

fn retry(line: &ClaudeLine<'_>) -> AgentEventKind {
    let status = line.error_status.number();
    let name = line.error.word();
    let (kind, message) = match status {
        Some(status) => (
            kind_of(name, Some(status)).unwrap_or(FailureKind::Agent),
            format!("{name} (HTTP status {status})"),
        ),
        // There was no answer.
        None => (FailureKind::Network, name.to_owned()),
    };
    AgentEventKind::Retry {
        failure: Failure::new(kind, message),
        attempt: line.attempt.number(),
        max_attempts: line.max_retries.number(),
        delay: line.retry_delay_ms.number().map(Duration::from_millis),
    }
}

fn kind_of(name: &str, status: Option<u64>) -> Option<FailureKind> {
    match name {
        "authentication_failed" | "oauth_org_not_allowed" => Some(FailureKind::Authentication),
        "rate_limit" | "billing_error" => FailureKind::of_http_status(429),
        "overloaded" | "server_error" => Some(FailureKind::Overloaded),
        _ => status.and_then(FailureKind::of_http_status),
    }
}

/// Usage is that of the whole run, whichever agent has caused it.
fn push_usage(events: &mut Events, totals: UsageTotals) {
    events.push_own(AgentEventKind::Usage(totals));
}

/// Anthropic's `input_tokens` excludes cached tokens.
fn tokens(counts: &TokenCounts<'_>) -> Usage {
    let mut usage = Usage::default();
    usage.cache_read_tokens = counts.cache_read_input_tokens.number();
    usage.cache_write_tokens = counts.cache_creation_input_tokens.number();
    usage.input_tokens = sum([
        counts.input_tokens.number(),
        usage.cache_read_tokens,
        usage.cache_write_tokens,
    ]);
    usage.output_tokens = counts.output_tokens.number();
    usage.reasoning_tokens = counts.output_tokens_details.at("thinking_tokens").number();
    usage
}

/// The sum over all models; `None` if there is none.
fn by_model(models: Json<'_>) -> Option<Usage> {
    let mut total = None;
    models.each_entry(|_, model| {
        let model: ModelUsage<'_> = model.object();
        let mut usage = Usage::default();
        usage.cache_read_tokens = model.cache_read_input_tokens.number();
        usage.cache_write_tokens = model.cache_creation_input_tokens.number();
        usage.input_tokens = sum([
            model.input_tokens.number(),
            usage.cache_read_tokens,
            usage.cache_write_tokens,
        ]);
        usage.output_tokens = model.output_tokens.number();
        usage.reasoning_tokens = model.thinking_tokens.number();
        usage.cost_usd = model.cost_usd.float();
        total = Some(total.unwrap_or_else(Usage::default).plus(&usage));
        true
    });
    total
}

/// The sum of the counters that are present; `None` if all are missing.
pub(super) fn sum(counters: [Option<u64>; 3]) -> Option<u64> {
    counters.into_iter().flatten().reduce(u64::saturating_add)
}

/// The usage of messages, the last report of each.
#[derive(Default)]
struct MessageUsage {
    /// By a hash of the message id, which can be of any length.
    open: VecDeque<(u64, Usage)>,
    /// The sum of all older ones.
    closed: Usage,
}

impl MessageUsage {
    /// Returns whether the total has changed.
    fn update(&mut self, id: &str, usage: Usage) -> bool {
        if usage == Usage::default() {
            return false;
        }
        let id = BuildHasherDefault::<DefaultHasher>::default().hash_one(id);
        if let Some((_, known)) = self.open.iter_mut().find(|(known, _)| *known == id) {
            let changed = *known != usage;
            *known = usage;
            return changed;
        }
        if self.open.len() == OPEN_MESSAGES
            && let Some((_, oldest)) = self.open.pop_front()
        {
            self.closed = self.closed.plus(&oldest);
        }
        self.open.push_back((id, usage));
        true
    }

    fn total(&self) -> Usage {
        let open = self.open.iter();
        open.fold(self.closed, |sum, (_, usage)| sum.plus(usage))
    }
}
