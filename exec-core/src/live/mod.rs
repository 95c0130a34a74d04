//! Live sessions: one process for many turns.

mod permission_policy;
mod shell_words;

pub use permission_policy::{PermissionAction, PermissionPolicy, PermissionRule};
