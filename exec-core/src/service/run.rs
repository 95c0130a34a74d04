//! One call that runs an agent to its end.

use std::fmt;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::stop_on_drop::StopOnDrop;
use crate::limits::HoldPass;
use crate::output::{LastMessage, MAX_TEXT, cut_at};
use crate::process::deadline_after;
use crate::run::StopManner;
use crate::supervision::{Attempt, AttemptEnd, Attempts, ResumeLoop};
use crate::{
    AgentEventKind, Error, EventKind, Execution, ExecutionKind, ExecutionService, ExitReport,
    Failure, FailureKind, LaunchRequest, LimitPolicy, OutputStream, RateLimitStatus, RestartPolicy,
    SessionId, StoppedBy, UsageTotals, Watchdog,
};

/// The time limit, if none is set.
const DEFAULT_TIME_LIMIT: Duration = Duration::from_secs(3600);

/// A run of an agent that begins when it is awaited; see [`ExecutionService::run`].
///
/// Dropping the future that `.await` polls stops the execution.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, service) = doctest::open("cat");
/// # let request = doctest::request("hello");
/// use std::time::Duration;
///
/// let result = service.run(request).time_limit(Duration::from_secs(600)).await?;
/// assert_eq!(result.text, "hello");
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is started until it is awaited"]
pub struct Run {
    service: ExecutionService,
    request: Result<LaunchRequest, Error>,
    time_limit: Duration,
    restart: Option<RestartPolicy>,
    limits: Option<LimitPolicy>,
    on_execution: Option<OnExecution>,
}

type OnExecution = Box<dyn FnMut(&Execution) + Send>;

/// The result of a [`Run`]. `Debug` shows the size of the text.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, service) = doctest::open("echo no such model >&2; exit 1");
/// # let request = doctest::request("hello");
/// let result = service.run(request).await?;
/// assert!(!result.is_success());
/// assert_eq!(result.failure.unwrap().message, "no such model");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct RunResult {
    /// The answer: the text of the final event, or else the last message of the agent itself. Of a
    /// profile without a parser: standard output. At most 16 MiB; the rest is cut.
    pub text: String,
    /// Whether `text` is the whole answer: it was not cut, no line that may have been a part of it was
    /// [too long](crate::ExecutionServiceBuilder::max_line_bytes), and the event log dropped no such event
    /// before the run could read it; see [`MemoryPolicy`](crate::MemoryPolicy).
    pub is_whole: bool,
    /// Tokens and cost, of all executions of the run and of the session.
    pub usage: UsageTotals,
    /// Why the agent failed; `None` if it did not.
    pub failure: Option<Failure>,
    /// The session, for a follow-up.
    pub session_id: SessionId,
    /// From the start to the end of the process; of several executions, the sum.
    pub duration: Duration,
    /// How the process ended.
    pub exit: Arc<ExitReport>,
    /// How the executions before the last one ended, the oldest first: one for each
    /// [restart](Run::restart) and each [wait for a limit](Run::wait_for_limits).
    pub earlier_exits: Vec<Arc<ExitReport>>,
}

impl Run {
    pub(super) fn new(service: ExecutionService, request: Result<LaunchRequest, Error>) -> Self {
        Self {
            service,
            request,
            time_limit: DEFAULT_TIME_LIMIT,
            restart: None,
            limits: None,
            on_execution: None,
        }
    }

    /// Sets after how much time an execution is stopped, from its start; the default is one hour. The
    /// result then has what was received until the stop, and its exit report says
    /// [`StoppedBy::TimeLimit`].
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Restarts an agent that fails; the default is not to. See [`RestartPolicy`] for what is sent.
    pub fn restart(mut self, policy: RestartPolicy) -> Self {
        self.restart = Some(policy);
        self
    }

    /// Waits when the agent reaches a usage limit, and resumes the session; the default is not to.
    pub fn wait_for_limits(mut self, policy: LimitPolicy) -> Self {
        self.limits = Some(policy);
        self
    }

    /// Calls a function with each execution when it has started, for example to read its events.
    pub fn on_execution(mut self, started: impl FnMut(&Execution) + Send + 'static) -> Self {
        self.on_execution = Some(Box::new(started));
        self
    }

    async fn run_to_end(self) -> Result<RunResult, Error> {
        let request = self.request?;
        let (session_id, context) = (request.session_id.clone(), request.context.clone());
        let policy = self.limits.as_ref();
        let named = policy.and_then(|policy| policy.credential.as_deref());
        let service = self.service.clone();
        let resume_loop = ResumeLoop {
            limits: policy,
            restart: self.restart.as_ref(),
            holds: &service.inner().holds,
            waits: &service.inner().waits,
            credential: named.unwrap_or(&context.executor_type),
            profile_label: &context.profile_label,
        };
        let mut attempts = RunAttempts {
            service: self.service,
            request,
            time_limit: self.time_limit,
            on_execution: self.on_execution,
        };
        let mut results = resume_loop.run(&session_id, &mut attempts).await?;
        let mut last = results.pop().ok_or(Error::ShuttingDown)?;
        for earlier in &results {
            last.usage.run = earlier.usage.run.plus(&last.usage.run);
            last.duration += earlier.duration;
        }
        last.earlier_exits = results.into_iter().map(|earlier| earlier.exit).collect();
        Ok(last)
    }
}

/// The executions of a run.
struct RunAttempts {
    service: ExecutionService,
    /// The request of the next execution.
    request: LaunchRequest,
    time_limit: Duration,
    on_execution: Option<OnExecution>,
}

impl Attempts for RunAttempts {
    type Result = RunResult;

    async fn attempt(
        &mut self,
        message: Option<&str>,
        pass: &mut Option<HoldPass>,
    ) -> Result<Attempt<RunResult>, Error> {
        if let Some(message) = message {
            self.request.kind = ExecutionKind::FollowUp;
            message.clone_into(&mut self.request.text);
        }
        let execution = self.service.launch(self.request.clone()).await?;
        let guard = StopOnDrop::new(&execution);
        if let Some(started) = &mut self.on_execution {
            started(&execution);
        }
        let deadline = deadline_after(self.time_limit);
        let mut answer = Answer {
            is_raw: !execution.live.has_parser,
            ..Answer::default()
        };
        let mut signs = Signs::default();
        let mut events = execution.events();
        let mut in_time = true;
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(event) => {
                        answer.take(&event);
                        signs.take(&event);
                        if let Some(pass) = pass && signs.has_progressed {
                            pass.progress();
                        }
                    }
                    None => break,
                },
                () = tokio::time::sleep_until(deadline), if in_time => {
                    in_time = false;
                    execution.live.ask_to_stop(StoppedBy::TimeLimit, StopManner::Ladder);
                    // Returns at the end of all processes, or with those that cannot be ended. The
                    // remaining events are read below.
                    execution.stop().await?;
                }
            }
        }
        let exit = execution.wait().await?;
        guard.disarm();
        self.request.session_id = exit.session_id.clone();
        let (text, is_whole) = answer.finish();
        Ok(Attempt {
            end: signs.end(&exit),
            is_resumable: execution.live.is_session_known()
                && !execution.live.continues_another_session(),
            session_id: exit.session_id.clone(),
            result: RunResult {
                text,
                is_whole,
                usage: exit.usage,
                failure: exit.failure.clone(),
                session_id: exit.session_id.clone(),
                duration: exit.wall_time,
                exit,
                earlier_exits: Vec::new(),
            },
        })
    }
}

/// What the events say about a next attempt.
#[derive(Default)]
struct Signs {
    /// The model has answered.
    has_progressed: bool,
    /// Agents often tell the reset in a notice, and not in the failure.
    resets_at: Option<SystemTime>,
}

impl Signs {
    fn take(&mut self, event: &crate::Event) {
        for event in event.agent_events() {
            match &event.kind {
                AgentEventKind::Text { .. }
                | AgentEventKind::Thinking { .. }
                | AgentEventKind::ToolCall { .. } => self.has_progressed = true,
                AgentEventKind::RateLimit(notice) if notice.status == RateLimitStatus::Rejected => {
                    self.resets_at = notice.resets_at.or(self.resets_at);
                }
                _ => {}
            }
        }
    }

    fn end(&self, exit: &ExitReport) -> AttemptEnd {
        let is_silent = exit.stopped_by == Some(StoppedBy::Watchdog(Watchdog::NoOutput));
        if exit.stopped_by.is_some() && !is_silent {
            return AttemptEnd::Done;
        }
        match &exit.failure {
            None if is_silent => AttemptEnd::Silent,
            None => AttemptEnd::Done,
            Some(failure) if is_silent && failure.kind == FailureKind::Agent => AttemptEnd::Silent,
            Some(failure) => {
                let mut kind = failure.kind.clone();
                if let FailureKind::Limited { resets_at, .. } = &mut kind {
                    *resets_at = resets_at.or(self.resets_at);
                }
                AttemptEnd::Failed {
                    kind,
                    has_progressed: self.has_progressed || exit.signal.is_some(),
                }
            }
        }
    }
}

impl IntoFuture for Run {
    type Output = Result<RunResult, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run_to_end())
    }
}

impl RunResult {
    /// Whether the agent has ended by itself and without a failure, and the answer is whole.
    pub fn is_success(&self) -> bool {
        self.exit.is_success() && self.is_whole
    }
}

/// The answer, folded from the events.
#[derive(Default)]
struct Answer {
    message: LastMessage,
    /// The final event: its text, and whether it is whole.
    last: Option<(String, bool)>,
    /// Whether standard output is the answer: the profile has no parser.
    is_raw: bool,
}

impl Answer {
    fn take(&mut self, event: &crate::Event) {
        match &event.kind {
            EventKind::Output(output) if output.stream == OutputStream::Stdout => {
                if self.is_raw {
                    self.message.append(&output.line.text());
                    self.message.append("\n");
                }
                // The events of such a line are missing, too.
                if output.line.is_truncated() {
                    self.missed();
                }
            }
            EventKind::Gap { .. } => self.missed(),
            _ => {}
        }
        for event in event.agent_events() {
            if event.parent.is_some() {
                continue;
            }
            match &event.kind {
                AgentEventKind::Finished { text, .. } => {
                    self.last = text.as_deref().map(|text| {
                        let end = cut_at(text, MAX_TEXT);
                        (text[..end].to_owned(), end == text.len())
                    });
                }
                other => self.message.observe(other),
            }
        }
    }

    fn missed(&mut self) {
        self.message.missed();
        if let Some((_, is_whole)) = &mut self.last {
            *is_whole = false;
        }
    }

    /// The text, and whether it is whole.
    fn finish(self) -> (String, bool) {
        let is_whole = self.message.is_whole();
        self.last.unwrap_or_else(|| {
            let mut text = self.message.into_text();
            if self.is_raw {
                text.truncate(text.trim_end_matches('\n').len());
            }
            (text, is_whole)
        })
    }
}

impl fmt::Debug for RunResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunResult")
            .field("len", &self.text.len())
            .field("is_whole", &self.is_whole)
            .field("usage", &self.usage)
            .field("failure", &self.failure)
            .field("session_id", &self.session_id)
            .field("duration", &self.duration)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("time_limit", &self.time_limit)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AgentEvent, Event};

    /// The text of the events, and whether it is whole. `"gap"` stands for missed events.
    fn fold(events: &[&str]) -> (String, bool) {
        let mut answer = Answer::default();
        for json in events {
            let kind = if *json == "gap" {
                EventKind::Gap { missed: 3 }
            } else {
                EventKind::Agent(vec![serde_json::from_str::<AgentEvent>(json).unwrap()])
            };
            let (sequence, at) = (0, std::time::SystemTime::UNIX_EPOCH);
            answer.take(&Event { sequence, at, kind });
        }
        answer.finish()
    }

    #[test]
    fn a_text_has_a_hole_if_missed_events_may_be_a_part_of_it() {
        let message = r#"{"type":"text","text":"answer"}"#;
        let piece = r#"{"type":"text","text":"answer","delta":true}"#;
        let tool = r#"{"type":"tool_call","name":"Bash","input":{}}"#;
        let usage = r#"{"type":"usage","run":{"input_tokens":7}}"#;
        let finished = r#"{"type":"finished","outcome":"success","text":"answer"}"#;
        let end = r#"{"type":"finished","outcome":"success"}"#;
        for (events, is_whole) in [
            (vec![message, end], true),
            (vec![piece, "gap"], false),
            (vec!["gap", message, end], true),
            (vec![message, "gap", end], false),
            (vec!["gap", piece, end], false),
            (vec!["gap", usage, piece, end], false),
            (vec!["gap", tool, piece, end], true),
            (vec![message, "gap", tool, piece, end], true),
            (vec!["gap", finished], true),
            (vec![finished, "gap"], false),
        ] {
            assert_eq!(fold(&events), ("answer".to_owned(), is_whole), "{events:?}");
        }
        assert!(!fold(&[piece, "gap", piece]).1);
    }

    #[test]
    fn a_text_that_was_cut_is_not_whole() {
        for (json, is_whole) in [
            (r#"{"type":"text","text":"TEXT","delta":true}"#, false),
            (
                r#"{"type":"finished","outcome":"success","text":"TEXT"}"#,
                false,
            ),
            (r#"{"type":"text","text":"short"}"#, true),
        ] {
            let json = json.replace("TEXT", &"x".repeat(MAX_TEXT + 1));
            let (text, whole) = fold(&[&json]);
            assert_eq!((text.len() <= MAX_TEXT, whole), (true, is_whole));
        }
    }
}
