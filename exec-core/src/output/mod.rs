//! From the bytes of a pipe to events.
//!
//! ```text
//! pipe --(Pump)--> bytes --(LineFramer)--> Line --(LineHandler)--> EventLog --> EventStream
//!                    \--> RawLog (byte for byte)
//! ```

mod agent_event;
mod event;
mod event_log;
mod event_stream;
mod failure;
mod last_message;
mod line;
mod line_framer;
mod line_handler;
mod memory_policy;
mod print_prefixed;
mod pump;
mod raw_log;
mod tool_input;
mod usage;

pub use agent_event::{AgentEvent, AgentEventKind, EventParser, Outcome};
pub use event::{Event, EventKind, Output, OutputStream};
pub use event_stream::EventStream;
pub use failure::{
    Failure, FailureClassifier, FailureKind, FailureMatch, RateLimit, RateLimitStatus,
};
pub use line::Line;
pub use memory_policy::MemoryPolicy;
pub use print_prefixed::print_prefixed;
pub use tool_input::ToolInput;
pub use usage::{Usage, UsageTotals};

pub(crate) use event_log::EventLog;
pub(crate) use failure::{MAX_MESSAGE, cut_at, epoch_seconds};
pub(crate) use last_message::{LastMessage, MAX_TEXT};
#[cfg(hot_paths)]
pub(crate) use line_framer::LineFramer;
pub(crate) use line_handler::LineHandler;
pub(crate) use pump::Pump;
pub(crate) use raw_log::RawLog;
