#![doc = include_str!("../README.md")]

mod agent_event;
mod command;
mod error;
mod profile;
mod request;
mod resolution;
mod session_id;
mod stop_ladder;

pub use agent_event::{AgentEvent, EventParser, Outcome, Usage};
pub use command::{CommandConfig, EnvPolicy, ProcessParameters, Wrapper};
pub use error::{Error, Result};
pub use profile::{Profile, ProfileSource};
pub use request::{
    ExecutionContext, ExecutionKind, ExecutionResult, FollowUpRequest, LaunchRequest,
    NewChatRequest,
};
pub use resolution::{SessionIdLookup, SessionIdResolver, SessionResolutionContext};
pub use session_id::SessionId;
pub use stop_ladder::{StopAction, StopLadder, StopStep};
