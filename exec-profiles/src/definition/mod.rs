//! The parts of a profile.

mod live_config;
mod profile_config;
mod profile_definition;

pub use live_config::{LiveConfig, LiveProtocol, LiveVariant};
pub use profile_config::{ProfileConfig, ProfileVariantConfig};
pub(crate) use profile_definition::check_label;
pub use profile_definition::{ProcessParameterBuilder, ProfileDefinition};
