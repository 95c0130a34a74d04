//! One call that runs an agent to its end.

use std::fmt;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::process::deadline_after;
use crate::run::StopManner;
use crate::{
    AgentEventKind, Error, EventKind, Execution, ExecutionService, ExitReport, Failure,
    LaunchRequest, OutputStream, SessionId, StoppedBy, UsageTotals,
};

/// The time limit, if none is set.
const DEFAULT_TIME_LIMIT: Duration = Duration::from_secs(3600);
/// The longest text of a result.
const MAX_TEXT: usize = 16 << 20;

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
}

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
    /// Tokens and cost, of the run and of the session.
    pub usage: UsageTotals,
    /// Why the agent failed; `None` if it did not.
    pub failure: Option<Failure>,
    /// The session, for a follow-up.
    pub session_id: SessionId,
    /// From the start to the end of the process.
    pub duration: Duration,
    /// How the process ended.
    pub exit: Arc<ExitReport>,
}

impl Run {
    pub(super) fn new(service: ExecutionService, request: Result<LaunchRequest, Error>) -> Self {
        Self {
            service,
            request,
            time_limit: DEFAULT_TIME_LIMIT,
        }
    }

    /// Sets after how much time the execution is stopped; the default is one hour. The result then
    /// has what was received until the stop, and its exit report says
    /// [`StoppedBy::TimeLimit`].
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    async fn run_to_end(self) -> Result<RunResult, Error> {
        let deadline = deadline_after(self.time_limit);
        let execution = self.service.launch(self.request?).await?;
        let guard = StopOnDrop(Some(execution.clone()));
        let mut answer = Answer {
            is_raw: !execution.live.has_parser,
            ..Answer::default()
        };
        let mut events = execution.events();
        let mut in_time = true;
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(event) => answer.take(&event),
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
        Ok(RunResult {
            text: answer.text(),
            usage: exit.usage,
            failure: exit.failure.clone(),
            session_id: exit.session_id.clone(),
            duration: exit.wall_time,
            exit,
        })
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
    /// Whether the agent has ended by itself and without a failure.
    pub fn is_success(&self) -> bool {
        self.exit.is_success()
    }

    /// The cost of this run in US dollars, if it is known.
    pub fn cost_usd(&self) -> Option<f64> {
        self.usage.run.cost_usd
    }
}

/// Stops the execution of a run whose future was dropped.
struct StopOnDrop(Option<Execution>);

impl StopOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some(execution) = &self.0 {
            execution
                .live
                .ask_to_stop(StoppedBy::Caller, StopManner::Ladder);
        }
    }
}

/// The answer, folded from the events.
#[derive(Default)]
struct Answer {
    /// The last message of the agent itself.
    message: String,
    /// Whether the next piece continues `message`.
    continues: bool,
    /// The text of the final event.
    last: Option<String>,
    /// Whether standard output is the answer: the profile has no parser.
    is_raw: bool,
}

impl Answer {
    fn take(&mut self, event: &crate::Event) {
        if let EventKind::Output(output) = &event.kind
            && output.stream == OutputStream::Stdout
            && self.is_raw
        {
            append(&mut self.message, &output.line.text());
            append(&mut self.message, "\n");
        }
        for event in event.agent_events() {
            if event.parent.is_some() {
                continue;
            }
            match &event.kind {
                AgentEventKind::Text { text, delta } => {
                    if !(*delta && self.continues) {
                        self.message.clear();
                    }
                    append(&mut self.message, text);
                    self.continues = *delta;
                }
                AgentEventKind::Finished { text, .. } => self.last.clone_from(text),
                AgentEventKind::Usage(_) | AgentEventKind::RateLimit(_) => {}
                _ => self.continues = false,
            }
        }
    }

    fn text(mut self) -> String {
        if self.is_raw {
            let end = self.message.trim_end_matches('\n').len();
            self.message.truncate(end);
        }
        self.last.unwrap_or(self.message)
    }
}

fn append(text: &mut String, piece: &str) {
    let room = MAX_TEXT - text.len();
    text.push_str(&piece[..crate::output::cut_at(piece, room)]);
}

impl fmt::Debug for RunResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunResult")
            .field("len", &self.text.len())
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
