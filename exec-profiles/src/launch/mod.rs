//! From a profile and a request to the parameters of one process.

mod launch_values;
mod launcher;
mod registered_profile;
mod session_files;
mod template;

pub(crate) use launch_values::{LaunchValues, path_lists};
pub use launcher::Launcher;
pub(crate) use launcher::{is_npx, launcher_args};
pub(crate) use registered_profile::{ProfileOrigin, RegisteredProfile};
pub(crate) use session_files::{SessionFiles, SessionFolders};
pub(crate) use template::{Placeholder, Template};
