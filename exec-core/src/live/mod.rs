//! Live sessions: one process for many turns.
//!
//! ```text
//! LiveSession --commands--> LiveControl --> LiveEngine --> ProtocolDriver (of the profile)
//! stdout lines ----------------^  \--> events (EventLog), reports (Turn), lines (InputQueue)
//! supervisor: deadlines, stop ---^                                           \--> stdin
//! ```

mod input_queue;
mod interrupt_report;
mod live_control;
mod live_engine;
mod live_event;
mod live_link;
mod live_request;
mod live_session;
mod live_state;
mod permission_policy;
mod protocol_driver;
mod run_turn;
mod shell_words;
mod turn;

pub use interrupt_report::InterruptReport;
pub use live_event::{DropReason, LiveEvent, MessageId, SettledBy, TurnId};
pub use live_request::LiveRequest;
pub use live_session::{LiveSession, QueuedMessage, Steered};
pub use live_state::{LiveState, LiveStatus};
pub use permission_policy::{PermissionAction, PermissionPolicy, PermissionRule};
pub use protocol_driver::{
    Decision, DriverCommand, DriverOutput, DriverSignal, PermissionRequest, ProtocolDriver,
    TurnOutcome,
};
pub use turn::{Turn, TurnReport};

pub(crate) use live_control::LiveControl;
pub(crate) use live_engine::{LiveEngine, Observed};
pub(crate) use live_link::LiveLink;
pub(crate) use live_request::LiveOptions;
