//! The connection to a tmux server.

mod attach_lock;
mod client_process;
pub(crate) mod command_queue;
pub(crate) mod control_client;
pub(crate) mod quoting;
mod stream_parser;
pub(crate) mod tap;
