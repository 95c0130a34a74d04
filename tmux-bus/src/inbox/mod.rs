//! Messages that are left for an agent and delivered when it is idle.

mod deliverer;
mod delivery;
#[expect(
    clippy::module_inception,
    reason = "a file is named after its main type"
)]
mod inbox;
mod inbox_entry;
mod inbox_file;
mod inbox_limits;
mod inbox_model;
mod inbox_record;
#[cfg(test)]
mod inbox_tests;
mod message_id;

pub(crate) use deliverer::{Deliverer, DeliveryEnd};
pub(crate) use delivery::Delivery;
pub use inbox::Inbox;
pub use inbox_entry::{DeadReason, InboxEntry, MessageState};
pub use inbox_limits::InboxLimits;
pub(crate) use inbox_limits::MAX_LEFT_MESSAGE;
pub use message_id::MessageId;
