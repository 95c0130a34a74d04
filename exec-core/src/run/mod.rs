//! The run of one execution, from the launch to the exit report.
//!
//! `launch.rs` starts the process and a supervisor, a task that lives as long as the process tree.
//! The supervisor and the [`Execution`] handles of the embedder share a [`LiveExecution`].

mod activity;
mod execution;
mod exit_report;
mod launch;
mod live_execution;
mod run_tracker;
mod session_resolution;
mod stop_report;
mod supervisor;
mod tool_spans;

pub use execution::{Execution, ExecutionResult, TreeUsage};
pub use exit_report::{ExitReport, StoppedBy, Watchdog};
pub use stop_report::{StopLevel, StopOutcome, StopReport};

pub(crate) use activity::{Activity, WatchdogLimits};
pub(crate) use launch::LiveStart;
pub(crate) use live_execution::{LiveExecution, StopManner};
pub(crate) use session_resolution::LookupSlots;
