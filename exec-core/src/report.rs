use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::SessionId;

/// How an execution ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExitReport {
    /// The session, as finally resolved.
    pub session_id: SessionId,
    /// The exit code; `None` if a signal ended the process.
    pub code: Option<i32>,
    /// The signal that ended the process.
    pub signal: Option<i32>,
    /// Who stopped it; `None` if it ended by itself. Exit codes do not tell this: some agents exit
    /// with 0 when they are interrupted.
    pub stopped_by: Option<StoppedBy>,
    /// The last lines of standard error, oldest first.
    pub stderr_tail: Vec<String>,
    /// From the start until the process was gone.
    pub wall_time: Duration,
    /// User and system time of the process and of those descendants it has waited for: a lower
    /// bound, since the kernel adds up no others.
    pub cpu_time: Duration,
    /// The largest resident set of any one process among the same: a lower bound, too.
    pub peak_memory_bytes: u64,
    /// Lines that were longer than the cap and delivered truncated.
    pub truncated_lines: u64,
    /// Processes that were still alive when the agent itself had ended by itself, and were ended.
    pub leftover_processes: usize,
}

impl ExitReport {
    /// Ended by itself, with code 0.
    pub fn is_success(&self) -> bool {
        self.code == Some(0) && self.stopped_by.is_none()
    }
}

/// Who stopped an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StoppedBy {
    /// A call of `stop` or `stop_execution`.
    Caller,
    /// A watchdog.
    Watchdog(Watchdog),
}

/// What a watchdog waits for. Both are off unless asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Watchdog {
    /// No output for a while.
    NoOutput,
    /// Still alive a while after [`AgentEvent::Finished`](crate::AgentEvent::Finished).
    StillAliveAfterFinish,
}

/// The answer to a stop.
#[derive(Clone, Debug, PartialEq)]
pub enum StopOutcome {
    /// It was running; now no process of it is left.
    Stopped(StopReport),
    /// There is no such execution, or it has already ended.
    NotFound,
}

/// What it took to stop an execution.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StopReport {
    /// How many processes were found.
    pub processes: usize,
    /// How far up the ladder it went.
    pub level: StopLevel,
    /// How long it took.
    pub took: Duration,
    /// How the execution ended.
    pub exit: Arc<ExitReport>,
}

/// How far up the ladder a stop went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum StopLevel {
    /// Everything had ended before the first step.
    AlreadyGone,
    /// The end of standard input.
    StdinClosed,
    /// `SIGINT`.
    Interrupted,
    /// `SIGTERM`.
    Terminated,
    /// `SIGKILL`.
    Killed,
}
