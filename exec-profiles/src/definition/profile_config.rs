//! A profile as the specification describes it: label, command, variants.

use exec_core::{CommandConfig, SandboxSetting};

/// A profile as [`ProfileRegistry::get_profile`](crate::ProfileRegistry::get_profile) returns it:
/// normalised, so that every command in it can be started.
///
/// ```
/// use exec_profiles::ProfileRegistry;
///
/// let profile = ProfileRegistry::new().get_profile("gemini").unwrap();
/// assert_eq!(profile.label, "gemini");
/// assert_eq!(profile.command.unwrap().binary, "npx");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProfileConfig {
    /// The label that requests use.
    pub label: String,
    /// The command without a variant; `None` if its binary is blank.
    pub command: Option<CommandConfig>,
    /// The variants.
    pub variants: Vec<ProfileVariantConfig>,
}

/// A variant of a profile: the same agent with another command.
///
/// ```
/// use exec_profiles::ProfileRegistry;
///
/// let plan = ProfileRegistry::new().get_variant("claude-code", Some("plan")).unwrap();
/// assert!(plan.command.unwrap().args.contains(&"--permission-mode=plan".to_owned()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProfileVariantConfig {
    /// The label that requests use.
    pub label: String,
    /// The command that replaces the profile's command; `None` if its binary is blank.
    pub command: Option<CommandConfig>,
    /// The sandbox that replaces the profile's sandbox; `None` inherits it.
    pub sandbox: Option<SandboxSetting>,
}

impl ProfileConfig {
    pub(crate) fn variant(&self, label: &str) -> Option<&ProfileVariantConfig> {
        self.variants.iter().find(|variant| variant.label == label)
    }

    /// The specification gives an unknown variant the profile's own command. A known variant with a
    /// blank command gets none: the profile's own command may have more permissions.
    pub(crate) fn command(&self, variant: Option<&str>) -> Option<&CommandConfig> {
        match variant.and_then(|label| self.variant(label)) {
            Some(variant) => variant.command.as_ref(),
            None => self.command.as_ref(),
        }
    }
}
