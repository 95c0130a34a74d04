//! One pane: its state, its lock, and sending to it.

pub(crate) mod caller_pane;
mod echo_wait;
mod exit;
pub(crate) mod exit_watch;
mod pane_id;
pub(crate) mod pane_info;
mod pane_io;
pub(crate) mod pane_lock;
pub(crate) mod pane_processes;
pub(crate) mod pane_table;
pub(crate) mod paste_buffer;
mod refusal;
pub(crate) mod sender;
mod tty_modes;
mod typed_text;
pub(crate) mod typist;

pub use exit::Exit;
pub use pane_id::PaneId;
pub use pane_io::{AnswerEnd, PaneIo, ResponseOptions, Sent};
pub use refusal::Refusal;
pub use sender::SendOptions;
