use std::fmt;
use std::sync::Arc;

use exec_core::{CommandConfig, EnvPolicy, LaunchRequest, ProcessParameters, StopLadder, Wrapper};

use crate::error::Result;
use crate::{Error, Launcher};

/// Turns the command of a profile and a request into what one launch passes to the process.
///
/// It runs right before the process is started. An error refuses the launch.
pub type ProcessParameterBuilder = Arc<
    dyn Fn(
            &CommandConfig,
            &LaunchRequest,
        ) -> Result<ProcessParameters, Box<dyn std::error::Error + Send + Sync>>
        + Send
        + Sync,
>;

/// A kind of agent, as it is registered.
///
/// ```
/// use exec_core::CommandConfig;
/// use exec_profiles::{ProfileDefinition, ProfileRegistry};
///
/// let registry = ProfileRegistry::new();
/// registry.register(ProfileDefinition::new(
///     "my-agent",
///     CommandConfig::new("my-agent-cli", ["--mode", "code"]),
/// ))?;
/// assert_eq!(registry.get_command("my-agent", None).unwrap().binary, "my-agent-cli");
/// # Ok::<(), exec_profiles::Error>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct ProfileDefinition {
    /// The name that requests use.
    pub label: String,
    /// The command without a variant.
    pub command: CommandConfig,
    /// The variants.
    pub variants: Vec<ProfileVariantConfig>,
    /// How a request becomes arguments. `None`: the command's arguments as they are, and the
    /// prompt or message on standard input.
    pub build_process_parameters: Option<ProcessParameterBuilder>,
    /// The program that the npm package of an `npx` command installs.
    pub native_binary: Option<String>,
    /// Whether that program is started in place of `npx`.
    pub launcher: Launcher,
    /// Which of the host's variables the agent gets. `None`: as
    /// [`build_process_parameters`](Self::build_process_parameters) says, which is all of them if
    /// it says nothing.
    pub env_policy: Option<EnvPolicy>,
    /// A command in front of the agent's.
    pub wrapper: Option<Wrapper>,
    /// How the agent is stopped. `None`: as the parameters or the service say.
    pub stop_ladder: Option<StopLadder>,
    /// Whether the agent can start without a prompt.
    pub accepts_empty_prompt: bool,
}

/// A variant of a profile: the same agent with another command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileVariantConfig {
    /// The name that requests use.
    pub label: String,
    /// The command in place of the profile's; `None` if it has no usable one.
    pub command: Option<CommandConfig>,
}

/// A profile as the registry serves it: normalised.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProfileConfig {
    /// The name that requests use.
    pub label: String,
    /// The command without a variant; `None` if its binary is blank.
    pub command: Option<CommandConfig>,
    /// The variants.
    pub variants: Vec<ProfileVariantConfig>,
}

impl ProfileDefinition {
    /// A profile with this command and nothing else.
    pub fn new(label: impl Into<String>, command: CommandConfig) -> Self {
        Self {
            label: label.into(),
            command,
            variants: Vec::new(),
            build_process_parameters: None,
            native_binary: None,
            launcher: Launcher::default(),
            env_policy: None,
            wrapper: None,
            stop_ladder: None,
            accepts_empty_prompt: false,
        }
    }

    /// The same profile with one more variant.
    #[must_use]
    pub fn with_variant(mut self, label: impl Into<String>, command: CommandConfig) -> Self {
        self.variants.push(ProfileVariantConfig {
            label: label.into(),
            command: Some(command),
        });
        self
    }

    /// The same profile with another way from request to arguments.
    #[must_use]
    pub fn with_builder<F>(mut self, build: F) -> Self
    where
        F: Fn(
                &CommandConfig,
                &LaunchRequest,
            ) -> Result<ProcessParameters, Box<dyn std::error::Error + Send + Sync>>
            + Send
            + Sync
            + 'static,
    {
        self.build_process_parameters = Some(Arc::new(build));
        self
    }

    /// The same profile with another [`Launcher`].
    #[must_use]
    pub fn with_launcher(mut self, launcher: Launcher) -> Self {
        self.launcher = launcher;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_label(&self.label)?;
        for (index, variant) in self.variants.iter().enumerate() {
            check_label(&variant.label)?;
            if self.variants[..index]
                .iter()
                .any(|v| v.label == variant.label)
            {
                return Err(Error::InvalidLabel {
                    label: variant.label.clone(),
                    reason: "two variants have it",
                });
            }
        }
        Ok(())
    }

    /// A blank binary is no command: launching it gives the specification's third error text.
    pub(crate) fn normalise(&self) -> ProfileConfig {
        let usable = |command: &CommandConfig| !command.binary.trim().is_empty();
        ProfileConfig {
            label: self.label.clone(),
            command: Some(self.command.clone()).filter(usable),
            variants: self
                .variants
                .iter()
                .map(|variant| ProfileVariantConfig {
                    label: variant.label.clone(),
                    command: variant.command.clone().filter(usable),
                })
                .collect(),
        }
    }
}

impl ProfileConfig {
    pub(crate) fn variant(&self, label: &str) -> Option<&ProfileVariantConfig> {
        self.variants.iter().find(|variant| variant.label == label)
    }

    /// As specified, an unknown variant gets the profile's own command; a known one without a
    /// usable command gets none, rather than one that may be allowed more.
    pub(crate) fn command(&self, variant: Option<&str>) -> Option<&CommandConfig> {
        match variant.and_then(|label| self.variant(label)) {
            Some(variant) => variant.command.as_ref(),
            None => self.command.as_ref(),
        }
    }
}

pub(crate) fn check_label(label: &str) -> Result<()> {
    let reason = if label.is_empty() {
        "it is empty"
    } else if label.chars().any(|c| c.is_whitespace() || c.is_control()) {
        "it holds white space or a control character"
    } else {
        return Ok(());
    };
    Err(Error::InvalidLabel {
        label: label.to_owned(),
        reason,
    })
}

/// Names the variables of the commands, not their values.
impl fmt::Debug for ProfileDefinition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProfileDefinition")
            .field("label", &self.label)
            .field("command", &self.command)
            .field("variants", &self.variants)
            .field("native_binary", &self.native_binary)
            .field("launcher", &self.launcher)
            .field("env_policy", &self.env_policy)
            .field("wrapper", &self.wrapper)
            .field("stop_ladder", &self.stop_ladder)
            .finish_non_exhaustive()
    }
}
