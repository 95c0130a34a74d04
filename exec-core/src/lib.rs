#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_os = "linux"))]
compile_error!("exec-core finds and ends process trees through /proc and pidfd: it needs Linux");

mod error;

// Requests, and the contract with the profiles.
mod request;

// What an agent may write, read and not see.
mod sandbox;

// Types that the embedder holds and receives.
mod service;

// When a launch may start, and how much it may use.
mod admission;
mod budget;

// One execution, from the launch to the exit report.
mod run;

// One process for many turns.
mod live;

// Limits, failures, health, and the executions of a host that has died.
mod limits;
mod supervision;

// Names of span attributes.
mod telemetry;

// The layers below a run.
mod output;
mod process;
mod records;

#[cfg(hot_paths)]
#[doc(hidden)]
pub mod hot_paths;

/// Modules that other crates of this workspace have too, byte for byte.
mod shared {
    pub(crate) mod fifo_lock;
    pub(crate) mod json_lines;
    pub(crate) mod kernel_lock;
    pub(crate) mod private_file;
    pub(crate) mod proc_stat;
    pub(crate) mod process_tree;
}

pub use admission::{WaitReason, WaitingLaunch};
pub use budget::{Budget, BudgetNotice, BudgetResource, BudgetScope, Price, PriceTable, Spent};
pub use error::Error;
pub use limits::LimitPolicy;
pub use live::{
    Decision, DriverCommand, DriverOutput, DriverSignal, DropReason, InterruptReport, LiveEvent,
    LiveRequest, LiveSession, LiveState, LiveStatus, MessageId, PermissionAction, PermissionPolicy,
    PermissionRequest, PermissionRule, ProtocolDriver, QueuedMessage, SettledBy, Steered, Turn,
    TurnId, TurnOutcome, TurnReport,
};
pub use output::{
    AgentEvent, AgentEventKind, Event, EventKind, EventParser, EventStream, Failure,
    FailureClassifier, FailureKind, FailureMatch, Line, MemoryPolicy, Outcome, Output,
    OutputStream, RateLimit, RateLimitStatus, ToolInput, Usage, UsageTotals, print_prefixed,
};
pub use records::{
    History, HistoryContents, HistoryEntry, HistoryPermission, HistoryState, ProfileStatistics,
    ReapReport, ReapedExecution, SkippedLine,
};
pub use request::{
    CommandConfig, EnvPolicy, ExecutionContext, ExecutionId, ExecutionKind, FollowUpRequest,
    LaunchRequest, NewChatRequest, ProcessParameters, Profile, ProfileSource, SessionId,
    SessionIdLookup, SessionIdResolver, SessionResolutionContext, StopAction, StopLadder, StopStep,
    Wrapper,
};
pub use run::{
    Execution, ExecutionResult, ExitReport, StopLevel, StopOutcome, StopReport, StoppedBy,
    TreeUsage, Watchdog,
};
pub use sandbox::{AgentFolder, ReadAccess, Sandbox, SandboxSetting};
pub use service::{
    ActiveExecutionRegistry, ExecutionService, ExecutionServiceBuilder, Run, RunResult,
    ShutdownGuard, ShutdownReport, termination_signal,
};
pub use supervision::{
    Health, HealthState, LeaderEvidence, RecoveredSession, RecoveredState, Recovery,
    RecoveryEvidence, RestartPolicy, SessionIdEvidence,
};
