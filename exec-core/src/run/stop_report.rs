//! The result of a stop.

use std::sync::Arc;
use std::time::Duration;

use crate::ExitReport;

/// The result of a stop.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, execution) = doctest::launch("exit 0").await;
/// use exec_core::StopOutcome;
///
/// execution.wait().await?;
/// assert_eq!(execution.stop().await?, StopOutcome::NotFound);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum StopOutcome {
    /// The execution was running; no process of it is left.
    Stopped(StopReport),
    /// There is no such execution, or it had already ended.
    NotFound,
}

/// How an execution was stopped.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, execution) = doctest::launch("exec sleep 60").await;
/// use exec_core::{StopLevel, StopOutcome};
///
/// if let StopOutcome::Stopped(report) = execution.stop().await? {
///     assert_eq!(report.processes, 1);
///     assert_eq!(report.level, StopLevel::Terminated);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StopReport {
    /// How many processes were found.
    pub processes: usize,
    /// The last step that was taken.
    pub level: StopLevel,
    /// How long the stop took.
    pub took: Duration,
    /// How the execution ended.
    pub exit: Arc<ExitReport>,
}

/// The last step of the [`StopLadder`](crate::StopLadder) that a stop took.
///
/// ```
/// use exec_core::StopLevel;
///
/// assert!(StopLevel::Terminated < StopLevel::Killed);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum StopLevel {
    /// All processes had ended before the first step.
    AlreadyGone,
    /// Standard input was closed.
    StdinClosed,
    /// `SIGINT`.
    Interrupted,
    /// `SIGTERM`.
    Terminated,
    /// `SIGKILL`.
    Killed,
}
