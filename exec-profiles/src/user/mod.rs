//! Profiles from the user's file.

mod agent;
mod define;
mod file;
mod profile;
mod template;

pub(crate) use agent::UserPart;
pub(crate) use file::{Loaded, UserFile};
pub use profile::{SessionIdSource, UserProfile, UserStopAction, UserStopStep, UserVariant};
