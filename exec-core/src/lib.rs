#![doc = include_str!("../README.md")]

#[cfg(not(target_os = "linux"))]
compile_error!("exec-core finds and ends process trees through /proc and pidfd: it needs Linux");

// What is asked for, and the contract with the profiles.
/// Modules that other crates of this workspace have too, byte for byte.
mod shared {
    pub(crate) mod json_lines;
    pub(crate) mod kernel_lock;
    pub(crate) mod private_file;
    pub(crate) mod proc_stat;
    pub(crate) mod process_tree;
}

mod agent_event;
mod command;
mod error;
mod profile;
mod request;
mod resolution;
mod session_id;
mod stop_ladder;

// What an embedder holds.
mod builder;
mod event;
mod event_log;
mod execution;
mod history;
mod line;
mod orphans;
mod prefix;
mod registry;
mod report;
mod service;

// How it is done, from the process up.
mod activity;
mod child;
mod framing;
#[cfg(hot_paths)]
#[doc(hidden)]
pub mod hot_paths;
mod launch;
mod launch_plan;
mod pump;
mod raw_log;
mod session_resolution;
mod state;
mod state_folder;
mod stop;
mod supervisor;

pub use agent_event::{AgentEvent, EventParser, Outcome, Usage};
pub use builder::ExecutionServiceBuilder;
pub use command::{CommandConfig, EnvPolicy, ProcessParameters, Wrapper};
pub use error::Error;
pub use event::{Event, EventKind, Output, OutputStream};
pub use event_log::{EventStream, MemoryPolicy};
pub use execution::{Execution, TreeUsage};
pub use history::{History, HistoryContents, HistoryEntry, HistoryState, ProfileStatistics};
pub use line::Line;
pub use orphans::{ReapReport, ReapedExecution};
pub use prefix::print_prefixed;
pub use profile::{Profile, ProfileSource};
pub use registry::ActiveExecutionRegistry;
pub use report::{ExitReport, StopLevel, StopOutcome, StopReport, StoppedBy, Watchdog};
pub use request::{
    ExecutionContext, ExecutionKind, ExecutionResult, FollowUpRequest, LaunchRequest,
    NewChatRequest,
};
pub use resolution::{SessionIdLookup, SessionIdResolver, SessionResolutionContext};
pub use service::ExecutionService;
pub use session_id::SessionId;
pub use stop_ladder::{StopAction, StopLadder, StopStep};
