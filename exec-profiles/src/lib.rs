// In rustdoc these definitions precede, and so replace, the README's links to docs.rs.
//! [`builtin`]: crate::builtin
//! [`EntryError`]: crate::EntryError
//! [`EventFormat`]: crate::EventFormat
//! [`FailureRule`]: crate::FailureRule
//! [`Launcher`]: crate::Launcher
//! [`LiveConfig`]: crate::LiveConfig
//! [`LiveConfig::with_builder`]: crate::LiveConfig::with_builder
//! [`ProfileDefinition`]: crate::ProfileDefinition
//! [`ProfileRegistry`]: crate::ProfileRegistry
//! [`save_user_profile`]: crate::ProfileRegistry::save_user_profile
//! [`UserProfile`]: crate::UserProfile
//!
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod error;
mod profile_registry;

// The parts of a profile, and the profiles of the supported agents.
pub mod builtin;
mod definition;

// From a profile and a request to the parameters of one process.
mod launch;

// From the output of an agent to events and classes of failures.
mod events;
mod failures;

// The protocols of live sessions.
mod live;

// Profiles from the user file.
mod user;

/// Modules that other crates of this workspace have too, byte for byte.
mod shared {
    pub(crate) mod kernel_lock;
    pub(crate) mod private_file;
}

pub use builtin::profile_definitions;
pub use definition::{
    LiveConfig, LiveProtocol, LiveVariant, ProcessParameterBuilder, ProfileConfig,
    ProfileDefinition, ProfileVariantConfig,
};
pub use error::{EntryError, Error};
pub use events::EventFormat;
pub use failures::{FailureClass, FailureRule};
pub use launch::Launcher;
pub use profile_registry::ProfileRegistry;
pub use user::{LoadReport, SessionIdSource, UserProfile, UserVariant};
