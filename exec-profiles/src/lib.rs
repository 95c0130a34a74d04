#![doc = include_str!("../README.md")]

/// Modules that other crates of this workspace have too, byte for byte.
mod shared {
    pub(crate) mod kernel_lock;
    pub(crate) mod private_file;
}

mod error;
mod profile_definition;
mod registry;

mod launcher;
mod registered_profile;
mod session_files;

pub mod builtin;
mod events;
mod user;

pub use builtin::profile_definitions;
pub use error::{EntryError, Error};
pub use events::EventFormat;
pub use launcher::Launcher;
pub use profile_definition::{
    ProcessParameterBuilder, ProfileConfig, ProfileDefinition, ProfileVariantConfig,
};
pub use registry::{LoadReport, ProfileRegistry};
pub use user::{SessionIdSource, UserProfile, UserStopAction, UserStopStep, UserVariant};
