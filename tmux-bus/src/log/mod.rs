//! The log of all messages.

mod file_watch;
mod log_follower;
mod message;
mod message_log;
mod message_logger;

pub(crate) use file_watch::FileWatch;
pub use log_follower::LogFollower;
pub use message::{Message, MessageLogEntry, MessageType};
pub use message_log::{LogFilter, MessageLog, SkippedLine};
pub use message_logger::MessageLogger;
