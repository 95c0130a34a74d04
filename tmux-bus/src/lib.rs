#![doc = include_str!("../README.md")]

/// Modules that other crates of this workspace have too, byte for byte.
mod shared {
    pub(crate) mod fifo_lock;
    pub(crate) mod json_lines;
    pub(crate) mod kernel_lock;
    pub(crate) mod private_file;
}

mod error;
mod pane;
mod version;

mod client;
mod control;
mod octal;
mod panes;
mod parser;
mod tap;
mod watch;

mod folder;
mod launch;
mod process;
mod server;
mod tmux;

mod answer;
mod detector;
#[cfg(hot_paths)]
#[doc(hidden)]
pub mod hot_paths;
mod marker;
mod transcript;
mod vt;

mod buffer;
mod pane_io;
mod queue;
mod reading;
mod send;
mod terminal;

mod message;
mod message_log;

mod agent;
mod cluster;
mod config;
mod ready;

pub use agent::{Agent, AskOptions};
pub use cluster::{AgentStatus, ClusterBuilder, ClusterManager, ClusterStatus};
pub use config::{ClusterConfig, ProcessConfig, ProcessRole};
pub use error::{Error, Exit, PartialAnswer, Refusal, Result};
pub use launch::Launch;
pub use message::{Message, MessageLogEntry, MessageType};
pub use message_log::{LogFilter, LogFollower, MessageLog, MessageLogger, SkippedLine};
pub use pane::PaneId;
pub use pane_io::{AnswerEnd, PaneIo, ResponseOptions, Sent};
pub use send::SendOptions;
pub use server::{Server, ServerBuilder};
