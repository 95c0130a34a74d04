//! Usage limits of models: wait for the reset, once for each credential.

mod credential_holds;
mod limit_policy;

pub use limit_policy::LimitPolicy;

pub(crate) use credential_holds::{CredentialHolds, HoldPass};
