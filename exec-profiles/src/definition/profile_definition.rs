//! A profile as the registry holds it, and the check of labels.

use std::fmt;
use std::sync::Arc;

use exec_core::{
    AgentFolder, CommandConfig, EnvPolicy, LaunchRequest, ProcessParameters, Sandbox, StopLadder,
    Wrapper,
};

use super::{LiveConfig, ProfileConfig, ProfileVariantConfig};
use crate::failures::built_in_rules;
use crate::{Error, FailureRule, Launcher};

/// A function from the profile's command and a request to the parameters of one process.
///
/// The service calls it directly before the spawn. An error refuses the launch.
///
/// ```
/// use std::sync::Arc;
/// use exec_core::{CommandConfig, LaunchRequest, ProcessParameters};
/// use exec_profiles::{ProcessParameterBuilder, ProfileDefinition};
///
/// // Passes the prompt as the last argument.
/// let build: ProcessParameterBuilder = Arc::new(|command: &CommandConfig, request: &LaunchRequest| {
///     let mut parameters = ProcessParameters::new(command.args.clone());
///     parameters.args.push(request.text.clone());
///     Ok(parameters)
/// });
/// let mut profile = ProfileDefinition::new("my-agent", CommandConfig::new("my-agent-cli", ["-p"]));
/// profile.build_process_parameters = Some(build);
/// ```
pub type ProcessParameterBuilder = Arc<
    dyn Fn(
            &CommandConfig,
            &LaunchRequest,
        ) -> Result<ProcessParameters, Box<dyn std::error::Error + Send + Sync>>
        + Send
        + Sync,
>;

/// One kind of agent: its commands, and the rules for starting and stopping it.
///
/// ```
/// use exec_core::CommandConfig;
/// use exec_profiles::{ProfileDefinition, ProfileRegistry};
///
/// let registry = ProfileRegistry::new();
/// let command = |mode| CommandConfig::new("my-agent-cli", ["--mode", mode]);
/// registry.register(
///     ProfileDefinition::new("my-agent", command("code")).with_variant("ask", command("ask")),
/// )?;
/// assert_eq!(registry.get_command("my-agent", Some("ask")).unwrap().args, ["--mode", "ask"]);
/// # Ok::<(), exec_profiles::Error>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct ProfileDefinition {
    /// The label that requests use.
    pub label: String,
    /// The command without a variant.
    pub command: CommandConfig,
    /// The variants.
    pub variants: Vec<ProfileVariantConfig>,
    /// Builds the parameters of a launch. `None`: the arguments of the command, with the prompt or
    /// message on standard input.
    pub build_process_parameters: Option<ProcessParameterBuilder>,
    /// The program that the npm package of an `npx` command installs.
    pub native_binary: Option<String>,
    /// Selects between `npx` and the native binary.
    pub launcher: Launcher,
    /// The host variables that the agent inherits, combined with the policy that
    /// [`build_process_parameters`](Self::build_process_parameters) sets. `None`: that policy alone.
    pub env_policy: Option<EnvPolicy>,
    /// A command that runs the agent's command, such as `nice`.
    pub wrapper: Option<Wrapper>,
    /// The sandbox of the agent; a variant can have another one. `None`: no sandbox.
    pub sandbox: Option<Sandbox>,
    /// The folders that the agent itself needs: writable in every sandbox of this profile.
    pub agent_folders: Vec<AgentFolder>,
    /// The steps of a stop. `None`: the ladder of the parameters, or else of the service.
    pub stop_ladder: Option<StopLadder>,
    /// How failures of the agent are recognised by their text. The default is the rules that hold
    /// for every agent: what providers of models answer.
    pub failures: Vec<FailureRule>,
    /// Whether the agent can start without a prompt.
    pub accepts_empty_prompt: bool,
    /// How a live session is started. `None`: the agent has no live protocol.
    pub live: Option<LiveConfig>,
}

impl ProfileDefinition {
    /// A profile with this command and the default for everything else.
    #[must_use]
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
            sandbox: None,
            agent_folders: Vec::new(),
            stop_ladder: None,
            failures: built_in_rules("common"),
            accepts_empty_prompt: false,
            live: None,
        }
    }

    /// Adds a variant.
    #[must_use]
    pub fn with_variant(mut self, label: impl Into<String>, command: CommandConfig) -> Self {
        self.variants.push(ProfileVariantConfig {
            label: label.into(),
            command: Some(command),
            sandbox: None,
        });
        self
    }

    /// Sets the [`sandbox`](Self::sandbox).
    ///
    /// ```
    /// use exec_core::Sandbox;
    /// use exec_profiles::{ProfileRegistry, builtin};
    ///
    /// let sandbox = Sandbox::new().hide("~/.ssh").hide("~/.aws");
    /// ProfileRegistry::new().register(builtin::codex().with_sandbox(sandbox))?;
    /// # Ok::<(), exec_profiles::Error>(())
    /// ```
    #[must_use]
    pub fn with_sandbox(mut self, sandbox: Sandbox) -> Self {
        self.sandbox = Some(sandbox);
        self
    }

    /// Sets [`build_process_parameters`](Self::build_process_parameters).
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

    /// Sets the [`launcher`](Self::launcher).
    #[must_use]
    pub fn with_launcher(mut self, launcher: Launcher) -> Self {
        self.launcher = launcher;
        self
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        check_label(&self.label)?;
        for (index, variant) in self.variants.iter().enumerate() {
            check_label(&variant.label)?;
            let before = &self.variants[..index];
            if before.iter().any(|v| v.label == variant.label) {
                return Err(Error::Invalid {
                    what: "label",
                    value: variant.label.clone(),
                    reason: "two variants have it",
                });
            }
        }
        for rule in &self.failures {
            rule.check().map_err(|reason| Error::Invalid {
                what: "failure rule",
                value: rule.contains.join(", "),
                reason,
            })?;
        }
        Ok(())
    }

    /// Replaces a command with a blank binary by `None`: the service then refuses the launch with
    /// the specified message `Profile command not found for …`.
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
                    sandbox: variant.sandbox.clone(),
                })
                .collect(),
        }
    }
}

pub(crate) fn check_label(label: &str) -> Result<(), Error> {
    let reason = if label.is_empty() {
        "it is empty"
    } else if label.chars().any(|c| c.is_whitespace() || c.is_control()) {
        "it contains white space or a control character"
    } else {
        return Ok(());
    };
    Err(Error::Invalid {
        what: "label",
        value: label.to_owned(),
        reason,
    })
}

/// Shows the names of environment variables without their values.
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
            .field("sandbox", &self.sandbox)
            .field("stop_ladder", &self.stop_ladder)
            .field("live", &self.live)
            .finish_non_exhaustive()
    }
}
