#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_os = "linux"))]
compile_error!("exec-core finds and ends process trees through /proc and pidfd: it needs Linux");

/// Modules that other crates of this workspace have too, byte for byte.
mod shared {
    pub(crate) mod json_lines;
    pub(crate) mod kernel_lock;
    pub(crate) mod private_file;
    pub(crate) mod proc_stat;
    pub(crate) mod process_tree;
}

// Requests, and the contract with the profiles.
mod agent_event;
mod command_config;
mod env_policy;
mod error;
mod execution_context;
mod execution_id;
mod launch_request;
mod process_parameters;
mod profile;
mod session_id;
mod session_id_resolver;
mod stop_ladder;

// What the embedder holds and receives.
mod active_execution_registry;
mod event;
mod execution;
mod execution_service;
mod execution_service_builder;
mod exit_report;
mod stop_report;

// The life of an execution, in the order of its use.
mod launch;
mod live_execution;
mod supervisor;
// Used by the supervisor.
mod activity;
mod output;
mod process;
mod records;
mod session_resolution;

#[cfg(hot_paths)]
#[doc(hidden)]
pub mod hot_paths;

pub use active_execution_registry::ActiveExecutionRegistry;
pub use agent_event::{AgentEvent, EventParser, Outcome, Usage};
pub use command_config::{CommandConfig, Wrapper};
pub use env_policy::EnvPolicy;
pub use error::Error;
pub use event::{Event, EventKind, Output, OutputStream};
pub use execution::{Execution, ExecutionResult, TreeUsage};
pub use execution_context::ExecutionContext;
pub use execution_id::ExecutionId;
pub use execution_service::ExecutionService;
pub use execution_service_builder::ExecutionServiceBuilder;
pub use exit_report::{ExitReport, StoppedBy, Watchdog};
pub use launch_request::{ExecutionKind, FollowUpRequest, LaunchRequest, NewChatRequest};
pub use output::{EventStream, Line, MemoryPolicy, print_prefixed};
pub use process_parameters::ProcessParameters;
pub use profile::{Profile, ProfileSource};
pub use records::{
    History, HistoryContents, HistoryEntry, HistoryState, ProfileStatistics, ReapReport,
    ReapedExecution,
};
pub use session_id::SessionId;
pub use session_id_resolver::{SessionIdLookup, SessionIdResolver, SessionResolutionContext};
pub use stop_ladder::{StopAction, StopLadder, StopStep};
pub use stop_report::{StopLevel, StopOutcome, StopReport};
