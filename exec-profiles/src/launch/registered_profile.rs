//! From a registered profile and a request to the parameters of one process.

use std::time::Duration;

use exec_core::{
    AgentFolder, CommandConfig, EnvPolicy, LaunchRequest, ProcessParameters, Profile, Sandbox,
    StopAction, StopLadder, Wrapper,
};

use super::{LaunchValues, is_npx, launcher_args};
use crate::failures::RuleSet;
use crate::user::UserAgent;
use crate::{EntryError, ProfileConfig, ProfileDefinition};

/// A profile as an execution service sees it.
pub(crate) struct RegisteredProfile {
    pub(crate) config: ProfileConfig,
    definition: ProfileDefinition,
    origin: ProfileOrigin,
    failures: RuleSet,
}

/// The source of a profile. It decides how the parameters of a launch are built.
pub(crate) enum ProfileOrigin {
    /// Registered in code: the texts of its command are literal.
    Code,
    /// Changed by the user file: the texts of its command are templates.
    UserChange,
    /// Described by the user file: the texts of its command are templates.
    UserAgent(UserAgent),
    /// Registered in code, with an invalid change in the user file. Launches are refused: without
    /// the change, the agent could have permissions that the user meant to take away.
    InvalidChange(EntryError),
}

impl RegisteredProfile {
    pub(crate) fn new(definition: ProfileDefinition, origin: ProfileOrigin) -> Self {
        Self {
            config: definition.normalise(),
            failures: RuleSet::new(&definition.failures),
            definition,
            origin,
        }
    }

    /// The sandbox of a variant, or else of the profile.
    fn sandbox(&self, variant: Option<&str>) -> Option<Sandbox> {
        let variant = variant.and_then(|label| self.config.variant(label));
        match variant.and_then(|variant| variant.sandbox.as_ref()) {
            Some(setting) => setting.sandbox().cloned(),
            None => self.definition.sandbox.clone(),
        }
    }
}

impl Profile for RegisteredProfile {
    fn variant_labels(&self) -> Vec<String> {
        let variants = self.config.variants.iter();
        variants.map(|variant| variant.label.clone()).collect()
    }

    fn command(&self, variant: Option<&str>) -> Option<CommandConfig> {
        self.config.command(variant).cloned()
    }

    fn accepts_empty_prompt(&self) -> bool {
        self.definition.accepts_empty_prompt
    }

    fn build_process_parameters(
        &self,
        command: &CommandConfig,
        request: &LaunchRequest,
    ) -> Result<ProcessParameters, Box<dyn std::error::Error + Send + Sync>> {
        let templates = match &self.origin {
            ProfileOrigin::Code => None,
            ProfileOrigin::UserChange => Some(("args", command.args.as_slice())),
            ProfileOrigin::UserAgent(agent) => Some(agent.args(request)?),
            ProfileOrigin::InvalidChange(error) => return Err(error.clone().into()),
        };
        let definition = &self.definition;
        let mut wrapper = definition.wrapper.clone();
        let mut sandbox = self.sandbox(request.context.variant_label.as_deref());
        let mut launched = command.clone();
        if let Some((field, args)) = templates {
            let values = LaunchValues::new(request);
            launched = values.expand_command(command, field, args)?;
            wrapper = wrapper.map(|w| values.expand_wrapper(&w)).transpose()?;
            sandbox = sandbox.map(|s| values.expand_sandbox(s)).transpose()?;
        }
        let native_binary = definition.native_binary.as_deref();
        let launched = definition.launcher.apply(launched, native_binary)?;

        let mut parameters = match (&self.origin, &definition.build_process_parameters) {
            (ProfileOrigin::UserAgent(agent), _) => agent.parameters(&launched, request)?,
            (_, Some(build)) => build(&launched, request)?,
            (_, None) => {
                let mut parameters = ProcessParameters::new(launched.args.clone());
                parameters.stdin_payload = Some(request.text.clone());
                parameters
            }
        };
        if let Some(ladder) = &definition.stop_ladder {
            parameters.stop_ladder = Some(ladder.clone());
        }
        self.complete(&mut parameters, command, launched, wrapper, sandbox);
        Ok(parameters)
    }

    fn build_live_parameters(
        &self,
        command: &CommandConfig,
        request: &LaunchRequest,
    ) -> Result<Option<ProcessParameters>, Box<dyn std::error::Error + Send + Sync>> {
        let definition = &self.definition;
        let Some(live) = &definition.live else {
            return Ok(None);
        };
        let variant = request.context.variant_label.as_deref();
        let own_args = live.args(variant)?;
        let args = [launcher_args(command), own_args].concat();
        let mut with_env = command.clone();
        with_env.env = live.env_of(command, variant);
        let sandbox = self.sandbox(variant);
        let (launched, wrapper, sandbox) = match &self.origin {
            ProfileOrigin::Code => {
                with_env.args = args;
                (with_env, definition.wrapper.clone(), sandbox)
            }
            ProfileOrigin::UserChange | ProfileOrigin::UserAgent(_) => {
                let values = LaunchValues::new(request);
                let launched = values.expand_command(&with_env, "live_args", &args)?;
                let wrapper = definition.wrapper.as_ref();
                let wrapper = wrapper.map(|w| values.expand_wrapper(w)).transpose()?;
                let sandbox = sandbox.map(|s| values.expand_sandbox(s)).transpose()?;
                (launched, wrapper, sandbox)
            }
            ProfileOrigin::InvalidChange(error) => return Err(error.clone().into()),
        };
        if let Some(guard) = live.guard {
            guard(&launched, request)?;
        }
        let native_binary = definition.native_binary.as_deref();
        let launched = definition.launcher.apply(launched, native_binary)?;
        let mut parameters = live.parameters(&launched, request)?;
        let steps = definition.stop_ladder.as_ref();
        let steps = steps.or(parameters.stop_ladder.as_ref());
        parameters.stop_ladder = Some(live_ladder(steps));
        self.complete(&mut parameters, command, launched, wrapper, sandbox);
        Ok(Some(parameters))
    }
}

impl RegisteredProfile {
    /// Adds what both kinds of launch have in common.
    fn complete(
        &self,
        parameters: &mut ProcessParameters,
        command: &CommandConfig,
        launched: CommandConfig,
        wrapper: Option<Wrapper>,
        sandbox: Option<Sandbox>,
    ) {
        let is_npx = is_npx(&launched.binary);
        // The service starts `command`, so the parameters carry what differs in `launched`.
        if launched.binary != command.binary {
            parameters.binary.get_or_insert(launched.binary);
        }
        for (name, value) in launched.env {
            if command.env.get(&name) != Some(&value) {
                parameters.env.entry(name).or_insert(value);
            }
        }
        if let Some(policy) = &self.definition.env_policy {
            parameters.env_policy = combine(&parameters.env_policy, policy);
        }
        if wrapper.is_some() {
            parameters.wrapper = wrapper;
        }
        if let Some(mut sandbox) = sandbox {
            let folders = &mut sandbox.agent_folders;
            folders.extend(self.definition.agent_folders.iter().cloned());
            if is_npx {
                folders.push(AgentFolder::new("~/.npm").or_variable("npm_config_cache"));
            }
            parameters.sandbox = Some(sandbox);
            // Claude Code refuses to skip permissions as root unless it is told of a sandbox.
            let told = parameters.env.entry("IS_SANDBOX".to_owned());
            told.or_insert_with(|| "1".to_owned());
        }
        if parameters.failure_classifier.is_none() {
            parameters.failure_classifier = Some(Box::new(self.failures.clone()));
        }
    }
}

/// How long an agent may take to end at the end of its input.
const END_OF_INPUT: Duration = Duration::from_secs(3);

/// The ladder of a live session: the end of the input first, then the steps of the profile.
fn live_ladder(steps: Option<&StopLadder>) -> StopLadder {
    let ladder = StopLadder::kill_at_once().then(StopAction::CloseStdin, END_OF_INPUT);
    let Some(steps) = steps else {
        return ladder.then(StopAction::Terminate, Duration::from_secs(2));
    };
    let steps = steps.steps().iter();
    steps
        .filter(|step| step.action != StopAction::CloseStdin)
        .fold(ladder, |ladder, step| ladder.then(step.action, step.grace))
}

/// Combines the agent's own policy with the policy of its definition.
///
/// A list of the definition (`Only`) replaces the agent's policy. Otherwise a variable that either
/// policy excludes stays excluded.
///
/// | agent's own | definition | result |
/// |---|---|---|
/// | all except A | all except B | all except A and B |
/// | only A | all except B | only the names of A that are not in B, and the patterns of A that match no name of B |
/// | any | only B | only B |
/// | any | all | the agent's own |
fn combine(agents: &EnvPolicy, defined: &EnvPolicy) -> EnvPolicy {
    match (agents, defined) {
        (EnvPolicy::AllExcept(agents), EnvPolicy::AllExcept(defined)) => {
            EnvPolicy::AllExcept(agents.iter().chain(defined).cloned().collect())
        }
        (EnvPolicy::Only(agents), EnvPolicy::AllExcept(excluded)) => {
            // A list cannot express `AWS_*` without `AWS_SECRET`, so the pattern is left out.
            let covers = |name: &str| {
                let prefix = name.strip_suffix('*');
                prefix.is_some_and(|prefix| excluded.iter().any(|it| it.starts_with(prefix)))
            };
            let passed = agents
                .iter()
                .filter(|name| defined.passes(name) && !covers(name));
            EnvPolicy::Only(passed.cloned().collect())
        }
        (agents, EnvPolicy::All) => agents.clone(),
        (_, defined) => defined.clone(),
    }
}
