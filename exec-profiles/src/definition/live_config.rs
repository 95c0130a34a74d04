//! The live mode of a profile: one process for many turns.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use exec_core::{
    CommandConfig, EnvPolicy, ExecutionKind, LaunchRequest, PermissionPolicy, PermissionRule,
    ProcessParameters, ProtocolDriver,
};
use serde::{Deserialize, Serialize};

use super::ProcessParameterBuilder;
use crate::Error;
use crate::builtin::session_option;
use crate::live::{AcpDriver, ClaudeDriver, CodexDriver};

/// A protocol of live sessions that this crate speaks. [`LiveConfig::with_builder`] is for any other.
///
/// ```
/// use exec_profiles::LiveProtocol;
///
/// assert_eq!(serde_json::to_string(&LiveProtocol::Acp)?, r#""acp""#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LiveProtocol {
    /// The [Agent Client Protocol](https://agentclientprotocol.com), version 1.
    Acp,
    /// Claude Code's stream of JSON with control requests. `--session-id=<uuid>` or `--resume=<uuid>`
    /// is added to the arguments.
    Claude,
    /// `codex app-server`.
    Codex,
}

pub(crate) type LiveGuard = fn(&CommandConfig, &LaunchRequest) -> Result<(), Error>;

/// How the live sessions of a profile are started.
///
/// Unlike in a launch for one prompt, permissions are not switched off: what no rule decides is
/// asked.
///
/// ```
/// use exec_core::{CommandConfig, PermissionAction, PermissionRule};
/// use exec_profiles::{LiveConfig, LiveProtocol, ProfileDefinition};
///
/// let mut live = LiveConfig::new(LiveProtocol::Acp, ["--acp"]);
/// live.permissions = vec![PermissionRule::new(PermissionAction::Allow).command("cargo test *")];
/// let mut profile = ProfileDefinition::new("my-agent", CommandConfig::new("my-agent-cli", ["-p"]));
/// profile.live = Some(live);
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct LiveConfig {
    pub(crate) driver: DriverSource,
    /// The arguments of the agent, in place of those of the profile's command. The part of an `npx`
    /// command up to the package stays.
    pub args: Vec<String>,
    /// Variables to add to those of the command. A variable of the user file replaces them.
    pub env: BTreeMap<String, String>,
    /// Variables that the user file adds to a variant.
    pub(crate) variant_env: BTreeMap<String, BTreeMap<String, String>>,
    /// The live mode of the variants. A variant that is missing here has none: the arguments of the
    /// profile itself could give the agent more permissions than the variant.
    pub variants: BTreeMap<String, LiveVariant>,
    /// Which permission requests are allowed, denied or asked, unless the session has a policy.
    pub permissions: Vec<PermissionRule>,
    /// How long a question stays open before it is denied. `None`: the default of
    /// [`PermissionPolicy`].
    pub permission_deadline: Option<Duration>,
    /// Refuses a session that the agent would damage by opening it. Gets the command of the launch.
    pub(crate) guard: Option<LiveGuard>,
    /// Whether the title of an ACP tool call that runs a command is that command, to the letter.
    pub(crate) titles_are_commands: bool,
}

/// What makes the driver of a session.
#[derive(Clone)]
pub(crate) enum DriverSource {
    Protocol(LiveProtocol),
    Builder(ProcessParameterBuilder),
}

impl fmt::Debug for DriverSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol(protocol) => protocol.fmt(f),
            Self::Builder(_) => f.write_str("Builder"),
        }
    }
}

/// The live mode of a variant.
///
/// ```
/// use exec_profiles::{LiveConfig, LiveProtocol, LiveVariant};
///
/// let live = LiveConfig::new(LiveProtocol::Acp, ["--acp"])
///     .with_variant("fast", LiveVariant::new(["--acp", "--model=small"]));
/// assert!(live.variants.contains_key("fast"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveVariant {
    /// The arguments of the agent.
    pub args: Vec<String>,
    /// Rules in addition to those of the profile. Of all rules that match, the strictest decides.
    pub permissions: Vec<PermissionRule>,
}

impl LiveVariant {
    /// A variant with these arguments and the rules of the profile.
    #[must_use]
    pub fn new<A: Into<String>>(args: impl IntoIterator<Item = A>) -> Self {
        Self {
            args: args.into_iter().map(Into::into).collect(),
            permissions: Vec::new(),
        }
    }
}

impl LiveConfig {
    /// A live mode with these arguments. Every permission request is asked.
    #[must_use]
    pub fn new<A: Into<String>>(protocol: LiveProtocol, args: impl IntoIterator<Item = A>) -> Self {
        Self::with_driver(DriverSource::Protocol(protocol), args)
    }

    /// A live mode with a protocol of your own: `build` sets
    /// [`protocol_driver`](ProcessParameters::protocol_driver), and without one the session is
    /// refused. It gets the command with the arguments of the live mode. Everything else of the
    /// profile applies: variants, permissions, wrapper, sandbox, and changes in the user file.
    ///
    /// ```
    /// use exec_core::{
    ///     AgentEventKind, CommandConfig, DriverCommand, DriverOutput, ExecutionKind,
    ///     ProcessParameters, ProtocolDriver, TurnOutcome,
    /// };
    /// use exec_profiles::{LiveConfig, ProfileDefinition, ProfileRegistry};
    /// use serde_json::{Value, json};
    ///
    /// /// `parrot --live` reads `{"say": …}` and prints `{"squawk": …}` and then `{"rest": true}`.
    /// struct Parrot {
    ///     resumed: Option<String>,
    /// }
    ///
    /// impl ProtocolDriver for Parrot {
    ///     fn open(&mut self, out: &mut DriverOutput) {
    ///         out.send(json!({ "resume": self.resumed }).to_string());
    ///     }
    ///
    ///     fn line(&mut self, line: &str, out: &mut DriverOutput) {
    ///         let line: Value = serde_json::from_str(line).unwrap_or_default();
    ///         if let Some(id) = line["session"].as_str() {
    ///             out.opened(Some(id.to_owned()));
    ///         } else if let Some(text) = line["squawk"].as_str() {
    ///             out.event(AgentEventKind::Text { text: text.to_owned(), delta: false });
    ///         } else if line["rest"] == true {
    ///             out.turn_ended(TurnOutcome::Completed, None);
    ///         }
    ///     }
    ///
    ///     fn command(&mut self, command: DriverCommand<'_>, out: &mut DriverOutput) {
    ///         match command {
    ///             DriverCommand::Prompt(text) => out.send(json!({ "say": text }).to_string()),
    ///             _ => out.refused("a parrot knows prompts only"),
    ///         }
    ///     }
    /// }
    ///
    /// let live = LiveConfig::with_builder(["--live"], |command, request| {
    ///     let native_id = request.session_id.native_id().to_owned();
    ///     let resumed = (request.kind == ExecutionKind::FollowUp).then_some(native_id);
    ///     let mut parameters = ProcessParameters::new(command.args.clone());
    ///     parameters.protocol_driver = Some(Box::new(Parrot { resumed }));
    ///     Ok(parameters)
    /// });
    /// let mut profile = ProfileDefinition::new("parrot", CommandConfig::new("parrot", ["--json"]));
    /// profile.live = Some(live);
    /// ProfileRegistry::new().register(profile)?;
    /// # Ok::<(), exec_profiles::Error>(())
    /// ```
    #[must_use]
    pub fn with_builder<A, F>(args: impl IntoIterator<Item = A>, build: F) -> Self
    where
        A: Into<String>,
        F: Fn(
                &CommandConfig,
                &LaunchRequest,
            ) -> Result<ProcessParameters, Box<dyn std::error::Error + Send + Sync>>
            + Send
            + Sync
            + 'static,
    {
        Self::with_driver(DriverSource::Builder(Arc::new(build)), args)
    }

    fn with_driver<A: Into<String>>(
        driver: DriverSource,
        args: impl IntoIterator<Item = A>,
    ) -> Self {
        Self {
            driver,
            args: args.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
            variant_env: BTreeMap::new(),
            variants: BTreeMap::new(),
            permissions: Vec::new(),
            permission_deadline: None,
            guard: None,
            titles_are_commands: false,
        }
    }

    /// Adds the live mode of a variant.
    #[must_use]
    pub fn with_variant(mut self, label: impl Into<String>, variant: LiveVariant) -> Self {
        self.variants.insert(label.into(), variant);
        self
    }

    /// The variables of a launch with this variant: those of the live mode replace those of the
    /// command, and those of the user file replace both.
    pub(crate) fn env_of(
        &self,
        command: &CommandConfig,
        variant: Option<&str>,
    ) -> BTreeMap<String, String> {
        let of_variant = variant.and_then(|label| self.variant_env.get(label));
        let all = command.env.iter().chain(&self.env);
        let all = all.chain(of_variant.into_iter().flatten());
        all.map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }

    /// The arguments of this variant, or of the profile itself.
    pub(crate) fn args(&self, variant: Option<&str>) -> Result<&[String], Error> {
        match variant.map(|label| (label, self.variants.get(label))) {
            None => Ok(&self.args),
            Some((_, Some(variant))) => Ok(&variant.args),
            Some((label, None)) => Err(Error::Invalid {
                what: "variant",
                value: label.to_owned(),
                reason: "it has no live mode",
            }),
        }
    }

    /// The parameters of a launch of this command, with the driver and the policy.
    pub(crate) fn parameters(
        &self,
        command: &CommandConfig,
        request: &LaunchRequest,
    ) -> Result<ProcessParameters, Box<dyn std::error::Error + Send + Sync>> {
        let mut parameters = match &self.driver {
            DriverSource::Protocol(protocol) => {
                self.protocol_parameters(*protocol, command.args.clone(), request)?
            }
            DriverSource::Builder(build) => build(command, request)?,
        };
        parameters
            .permission_policy
            .get_or_insert_with(|| self.policy(request.context.variant_label.as_deref()));
        Ok(parameters)
    }

    fn protocol_parameters(
        &self,
        protocol: LiveProtocol,
        mut args: Vec<String>,
        request: &LaunchRequest,
    ) -> Result<ProcessParameters, Error> {
        let native_id = request.session_id.native_id();
        let workspace = &request.context.workspace_path;
        let resume = (request.kind == ExecutionKind::FollowUp).then(|| native_id.to_owned());
        let mut env_policy = EnvPolicy::default();
        let driver: Box<dyn ProtocolDriver> = match protocol {
            LiveProtocol::Acp if self.titles_are_commands => {
                Box::new(AcpDriver::new(workspace, resume).with_exact_titles())
            }
            LiveProtocol::Acp => Box::new(AcpDriver::new(workspace, resume)),
            LiveProtocol::Codex => Box::new(CodexDriver::new(workspace, resume)),
            LiveProtocol::Claude => {
                args.push(session_option(request)?);
                // If it is set, claude refuses to run inside itself.
                env_policy = EnvPolicy::AllExcept(vec!["CLAUDECODE".to_owned()]);
                Box::new(ClaudeDriver::new(native_id))
            }
        };
        let mut parameters = ProcessParameters::new(args);
        parameters.env_policy = env_policy;
        parameters.protocol_driver = Some(driver);
        Ok(parameters)
    }

    fn policy(&self, variant: Option<&str>) -> PermissionPolicy {
        let variant = variant.and_then(|label| self.variants.get(label));
        let added = variant.iter().flat_map(|variant| &variant.permissions);
        let rules = self.permissions.iter().chain(added).cloned();
        let policy = rules.fold(PermissionPolicy::default(), PermissionPolicy::rule);
        match self.permission_deadline {
            Some(deadline) => policy.deadline(deadline),
            None => policy,
        }
    }
}

/// Shows the names of environment variables without their values.
impl fmt::Debug for LiveConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveConfig")
            .field("driver", &self.driver)
            .field("args", &self.args)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("variants", &self.variants)
            .field("permissions", &self.permissions)
            .field("permission_deadline", &self.permission_deadline)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_value_of_a_variable() {
        let mut live = LiveConfig::new(LiveProtocol::Acp, ["--acp"]);
        live.env.insert("API_KEY".to_owned(), "s3cret".to_owned());
        let shown = format!("{live:?}");
        assert!(shown.contains("API_KEY"), "{shown}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}
