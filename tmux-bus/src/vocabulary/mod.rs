#![doc = include_str!("../../docs/vocabulary.md")]

mod failure;
mod reply;
mod request;

pub use failure::{Failure, FailureKind};
pub use reply::{
    AgentReport, AskReport, AskState, ExplainReport, InboxItem, InboxReport, LogReport, PostReport,
    PostState, Reply, StatusReport,
};
pub use request::Request;

use std::fmt;

/// In the `Debug` of a type with the texts of messages, in their place.
struct Hidden(usize);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0)
    }
}
