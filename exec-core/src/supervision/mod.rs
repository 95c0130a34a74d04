//! What happens to executions that are silent, fail, or lose their host.

mod health;
mod recovery;
mod restart_policy;
mod resume_loop;

pub use health::{Health, HealthState};
pub use recovery::{
    LeaderEvidence, RecoveredSession, RecoveredState, Recovery, RecoveryEvidence, SessionIdEvidence,
};
pub use restart_policy::RestartPolicy;

pub(crate) use recovery::{is_alive, record_context};
pub(crate) use restart_policy::{Backoff, DEFAULT_MESSAGE, jitter};
pub(crate) use resume_loop::{Attempt, AttemptEnd, Attempts, ResumeLoop};
