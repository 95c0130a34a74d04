//! Lists of messages that providers accept.

mod repair;
mod request;

pub(super) use repair::abort;
pub use repair::{AbortedCall, Repaired, repair};
pub use request::{anthropic_request, openai_request};
