//! What happens to executions that are silent, fail, or lose their host.

mod health;
mod recovery;

pub use health::{Health, HealthState};
pub use recovery::{
    LeaderEvidence, RecoveredSession, RecoveredState, Recovery, RecoveryEvidence, SessionIdSource,
};
pub(crate) use recovery::{is_alive, record_context};
