//! Profiles from the user file.

mod define;
mod file_format;
mod load_report;
mod stop_steps;
mod user_agent;
mod user_file;
mod user_profile;

pub use load_report::LoadReport;
pub(crate) use user_agent::UserAgent;
pub(crate) use user_file::{FileContents, UserFile};
pub use user_profile::{SessionIdSource, UserProfile, UserVariant};
