//! The result of an execution.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{BudgetNotice, Failure, SessionId, UsageTotals};

/// How an execution ended. `Debug` shows the number of lines of `stderr_tail`, not the lines.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, execution) = doctest::launch("echo oops >&2; exit 3").await;
/// let report = execution.wait().await?;
/// assert_eq!(report.code, Some(3));
/// assert_eq!(report.stderr_tail, ["oops"]);
/// assert!(!report.is_success());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExitReport {
    /// The session, with its final id.
    pub session_id: SessionId,
    /// The exit code; `None` if a signal ended the process.
    pub code: Option<i32>,
    /// The signal that ended the process.
    pub signal: Option<i32>,
    /// The origin of the stop; `None` if the execution ended by itself. The exit code does not
    /// show it: some agents exit with 0 when they are interrupted.
    pub stopped_by: Option<StoppedBy>,
    /// The budget that was exceeded first, if one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetNotice>,
    /// Why the agent failed; `None` if it did not. A stopped execution has the failure that the agent
    /// was trying to overcome, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The tokens and the cost, as far as they were known at the end.
    #[serde(default)]
    pub usage: UsageTotals,
    /// The last lines of standard error, oldest first.
    pub stderr_tail: Vec<String>,
    /// From the start to the end of the process.
    pub wall_time: Duration,
    /// User and system time of the process and of the descendants that were waited for. A lower
    /// bound: the kernel does not count other descendants. In a sandbox, all descendants count, and
    /// a few milliseconds of bubblewrap.
    pub cpu_time: Duration,
    /// The largest resident set of one of these processes. A lower bound, too. But never below the
    /// peak of the host at the launch: Linux counts it for a child that was created without a copy.
    pub peak_memory_bytes: u64,
    /// How many lines were longer than the cap and delivered truncated.
    pub truncated_lines: u64,
    /// How many processes were still alive after the agent had ended by itself. They were ended. In
    /// a sandbox it is 0: the kernel kills them together with the agent.
    pub leftover_processes: usize,
}

impl ExitReport {
    /// Whether the execution ended by itself with code 0, and the agent reported no failure.
    pub fn is_success(&self) -> bool {
        self.code == Some(0) && self.stopped_by.is_none() && self.failure.is_none()
    }
}

impl fmt::Debug for ExitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExitReport")
            .field("session_id", &self.session_id)
            .field("code", &self.code)
            .field("signal", &self.signal)
            .field("stopped_by", &self.stopped_by)
            .field("budget", &self.budget)
            .field("failure", &self.failure)
            .field("usage", &self.usage)
            .field("stderr_tail_lines", &self.stderr_tail.len())
            .field("wall_time", &self.wall_time)
            .field("cpu_time", &self.cpu_time)
            .field("peak_memory_bytes", &self.peak_memory_bytes)
            .field("truncated_lines", &self.truncated_lines)
            .field("leftover_processes", &self.leftover_processes)
            .finish()
    }
}

/// The origin of a stop.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, execution) = doctest::launch("exec sleep 60").await;
/// use exec_core::StoppedBy;
///
/// execution.stop().await?;
/// assert_eq!(execution.wait().await?.stopped_by, Some(StoppedBy::Caller));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StoppedBy {
    /// A call of `stop` or `stop_execution`.
    Caller,
    /// A watchdog.
    Watchdog(Watchdog),
    /// The time limit of [`run`](crate::ExecutionService::run).
    TimeLimit,
    /// A budget; see [`ExitReport::budget`].
    Budget,
    /// The agent of a live session did not read its input, has closed its input or output, or could
    /// not open the session.
    Disconnected,
}

/// A condition that stops an execution. Both are off by default; see
/// [`stop_after_silence`](crate::ExecutionServiceBuilder::stop_after_silence) and
/// [`stop_after_finish`](crate::ExecutionServiceBuilder::stop_after_finish).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let profiles = doctest::Script("exec sleep 60");
/// # let request = doctest::request("go");
/// use std::time::Duration;
/// use exec_core::{ExecutionService, StoppedBy, Watchdog};
///
/// let service = ExecutionService::builder(profiles)
///     .stop_after_silence(Duration::from_millis(100))
/// #   .state_dir(folder.path())
///     .open()?;
/// let execution = service.launch(request).await?;
/// let stopped_by = execution.wait().await?.stopped_by;
/// assert_eq!(stopped_by, Some(StoppedBy::Watchdog(Watchdog::NoOutput)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Watchdog {
    /// The agent has written nothing for too long.
    NoOutput,
    /// The agent is still alive too long after [`Finished`](crate::AgentEventKind::Finished).
    StillAliveAfterFinish,
}
