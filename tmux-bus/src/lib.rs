#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(unix))]
compile_error!("tmux-bus needs Unix: tmux, terminals, Unix sockets, file owners and modes");

// The public types.
mod bus;
mod cluster;
mod error;
mod inbox;
mod log;
mod pane;
mod state;
mod tmux;
pub mod vocabulary;

// Used by them.
mod answer;
mod control;
mod definition;
mod hook;
mod timing;

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

pub use answer::PartialAnswer;
pub use bus::{Bus, BusBuilder};
pub use cluster::{
    Agent, AgentConfig, AgentRole, AgentStatus, Answer, ClusterBuilder, ClusterConfig,
    ClusterConfigBuilder, ClusterManager, ClusterStatus, SendToOptions, StopOnDrop,
};
pub use error::Error;
pub use inbox::{DeadReason, Inbox, InboxEntry, InboxLimits, MessageId, MessageState};
pub use log::{
    LogFilter, LogFollower, Message, MessageLog, MessageLogEntry, MessageLogger, MessageType,
    SkippedLine,
};
pub use pane::{AnswerEnd, Exit, PaneId, PaneIo, Refusal, ResponseOptions, SendOptions, Sent};
pub use state::{AgentState, Evidence, EvidenceSource, Explanation, TriedRule};
pub use tmux::{Launch, Server, ServerBuilder};
