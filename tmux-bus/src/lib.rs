#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

/// Modules that other crates of this workspace have too, byte for byte.
mod shared {
    pub(crate) mod fifo_lock;
    pub(crate) mod json_lines;
    pub(crate) mod kernel_lock;
    pub(crate) mod private_file;
    pub(crate) mod proc_stat;
    pub(crate) mod process_tree;
}

mod error;
mod timing;

/// The connection to a tmux server.
mod control {
    pub(crate) mod client_process;
    pub(crate) mod command_queue;
    pub(crate) mod control_client;
    pub(crate) mod quoting;
    pub(crate) mod stream_parser;
    pub(crate) mod tap;
}

/// A private tmux server and the programs in its panes.
mod tmux {
    pub(crate) mod launch;
    pub(crate) mod server;
    pub(crate) mod server_builder;
    pub(crate) mod session_folder;
    pub(crate) mod tmux_program;
    pub(crate) mod tmux_version;
}

/// One pane: its state, its lock, and sending to it.
mod pane {
    pub(crate) mod exit_watch;
    pub(crate) mod pane_id;
    pub(crate) mod pane_info;
    pub(crate) mod pane_io;
    pub(crate) mod pane_lock;
    pub(crate) mod pane_processes;
    pub(crate) mod pane_table;
    pub(crate) mod paste_buffer;
    pub(crate) mod sender;
    pub(crate) mod settle;
    pub(crate) mod tty_modes;
}

/// Finding the answer in the output of a pane.
mod answer {
    pub(crate) mod answer_reader;
    pub(crate) mod detector;
    pub(crate) mod extract;
    pub(crate) mod line_reader;
    pub(crate) mod marker;
    pub(crate) mod screen_markers;
    pub(crate) mod screen_reader;
    pub(crate) mod tokenizer;
    pub(crate) mod transcript;
}

/// The log of all messages.
mod log {
    pub(crate) mod file_watch;
    pub(crate) mod log_follower;
    pub(crate) mod message;
    pub(crate) mod message_log;
    pub(crate) mod message_logger;
}

/// Agents with names, by a configuration file.
mod cluster {
    pub(crate) mod agent;
    pub(crate) mod agent_config;
    pub(crate) mod cluster_builder;
    pub(crate) mod cluster_config;
    pub(crate) mod cluster_manager;
    pub(crate) mod cluster_status;
    pub(crate) mod readiness;
}

#[cfg(hot_paths)]
#[doc(hidden)]
pub mod hot_paths;

pub use cluster::agent::{Agent, AskOptions};
pub use cluster::agent_config::{AgentConfig, AgentRole};
pub use cluster::cluster_builder::ClusterBuilder;
pub use cluster::cluster_config::ClusterConfig;
pub use cluster::cluster_manager::ClusterManager;
pub use cluster::cluster_status::{AgentStatus, ClusterStatus};
pub use error::{Error, Exit, PartialAnswer, Refusal};
pub use log::log_follower::LogFollower;
pub use log::message::{Message, MessageLogEntry, MessageType};
pub use log::message_log::{LogFilter, MessageLog, SkippedLine};
pub use log::message_logger::MessageLogger;
pub use pane::pane_id::PaneId;
pub use pane::pane_io::{AnswerEnd, PaneIo, ResponseOptions, Sent};
pub use pane::sender::SendOptions;
pub use tmux::launch::Launch;
pub use tmux::server::Server;
pub use tmux::server_builder::ServerBuilder;
