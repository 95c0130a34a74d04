//! A private tmux server and the programs in its panes.

pub(crate) mod launch;
mod server;
pub(crate) mod server_builder;
pub(crate) mod session_folder;
pub(crate) mod tmux_program;
pub(crate) mod tmux_version;

pub use launch::Launch;
pub use server::Server;
pub use server_builder::ServerBuilder;
