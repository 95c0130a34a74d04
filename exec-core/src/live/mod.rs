//! Live sessions: one process for many turns.

mod live_engine;
mod live_event;
mod permission_policy;
mod protocol_driver;
mod shell_words;

pub use live_event::{DropReason, LiveEvent, MessageId, SettledBy, TurnId};
pub use permission_policy::{PermissionAction, PermissionPolicy, PermissionRule};
pub use protocol_driver::{
    Decision, DriverCommand, DriverOutput, DriverSignal, PermissionRequest, ProtocolDriver,
    TurnOutcome,
};
