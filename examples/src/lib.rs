//! What several of the example programs share: a stand-in for a coding agent, and a small
//! terminal of our own for programs that live in a tmux pane.

#![allow(
    clippy::missing_errors_doc,
    clippy::print_stderr,
    reason = "these are parts of programs: the terminal is theirs, and main prints what failed"
)]

pub mod console;
pub mod scripted_agent;
