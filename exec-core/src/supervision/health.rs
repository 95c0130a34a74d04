//! The health of one execution.

use std::time::{Duration, SystemTime};

use crate::{Error, Execution, LiveStatus, TreeUsage};

/// How an execution is doing; see [`Execution::health`].
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, execution) = doctest::launch("exec sleep 60").await;
/// use exec_core::HealthState;
///
/// let health = execution.health().await?;
/// assert!(health.alive);
/// assert_eq!(health.state, HealthState::Starting);
/// println!("silent for {:?}, {} bytes", health.silence, health.usage.resident_bytes);
/// # execution.stop().await?;
/// # assert_eq!(execution.health().await?.state, HealthState::Ended);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Health {
    /// Whether the process that was started is alive. Its tools can outlive it for a moment.
    pub alive: bool,
    /// What the execution is doing.
    pub state: HealthState,
    /// When the last event was published.
    pub last_event: SystemTime,
    /// How long the agent has written nothing, to standard output or standard error.
    pub silence: Duration,
    /// The resources that all processes of the tree use now.
    pub usage: TreeUsage,
}

/// What an execution is doing.
///
/// ```
/// use exec_core::{HealthState, LiveStatus};
///
/// assert_ne!(HealthState::Working, HealthState::Live(LiveStatus::Idle));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HealthState {
    /// The agent has written nothing yet.
    Starting,
    /// The agent works.
    Working,
    /// The agent has reported the end of its run, and its process is alive.
    Finished,
    /// A live session, with its own state.
    Live(LiveStatus),
    /// The execution is being stopped.
    Stopping,
    /// The execution has ended.
    Ended,
}

impl Execution {
    /// Looks at the process, the events and the resources of the execution.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the processes of the machine cannot be listed.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future has no effect.
    pub async fn health(&self) -> Result<Health, Error> {
        let usage = self.usage().await?;
        let live = &self.live;
        let activity = live.activity.look();
        let (has_ended, child_ended) = {
            let progress = live.progress.borrow();
            (progress.end.is_some(), progress.child_ended)
        };
        let state = if has_ended {
            HealthState::Ended
        } else if live.stop_asked.borrow().is_some() {
            HealthState::Stopping
        } else if let Some(control) = live.control() {
            HealthState::Live(control.status())
        } else if activity.has_finished {
            HealthState::Finished
        } else if activity.has_written {
            HealthState::Working
        } else {
            HealthState::Starting
        };
        Ok(Health {
            alive: !has_ended && !child_ended,
            state,
            last_event: live.log.last_event_at().unwrap_or(live.started_at),
            silence: activity.silence,
            usage,
        })
    }
}
