//! Requests, and the contract with the profiles.

mod command_config;
mod env_policy;
mod execution_context;
mod execution_id;
mod launch_request;
mod process_parameters;
mod profile;
mod session_id;
mod session_id_resolver;
mod stop_ladder;

pub use command_config::{CommandConfig, Wrapper};
pub use env_policy::EnvPolicy;
pub use execution_context::ExecutionContext;
pub use execution_id::ExecutionId;
pub use launch_request::{ExecutionKind, FollowUpRequest, LaunchRequest, NewChatRequest};
pub use process_parameters::ProcessParameters;
pub use profile::{Profile, ProfileSource};
pub use session_id::SessionId;
pub use session_id_resolver::{SessionIdLookup, SessionIdResolver, SessionResolutionContext};
pub use stop_ladder::{StopAction, StopLadder, StopStep};
