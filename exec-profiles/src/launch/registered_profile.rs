//! From a registered profile and a request to the parameters of one process.

use exec_core::{
    AgentFolder, CommandConfig, EnvPolicy, LaunchRequest, ProcessParameters, Profile, Sandbox,
};

use super::LaunchValues;
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
                let mut parameters = ProcessParameters::new(launched.args);
                parameters.stdin_payload = Some(request.text.clone());
                parameters
            }
        };
        let is_npx = launched.binary == "npx";
        // The service starts `command`, so the parameters carry what differs in `launched`.
        if launched.binary != command.binary {
            parameters.binary.get_or_insert(launched.binary);
        }
        for (name, value) in launched.env {
            if command.env.get(&name) != Some(&value) {
                parameters.env.entry(name).or_insert(value);
            }
        }
        if let Some(policy) = &definition.env_policy {
            parameters.env_policy = combine(&parameters.env_policy, policy);
        }
        if let Some(ladder) = &definition.stop_ladder {
            parameters.stop_ladder = Some(ladder.clone());
        }
        if wrapper.is_some() {
            parameters.wrapper = wrapper;
        }
        if let Some(mut sandbox) = sandbox {
            let folders = &mut sandbox.agent_folders;
            folders.extend(definition.agent_folders.iter().cloned());
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
        Ok(parameters)
    }
}

/// Combines the agent's own policy with the policy of its definition.
///
/// A list of the definition (`Only`) replaces the agent's policy. Otherwise a variable that either
/// policy excludes stays excluded.
///
/// | agent's own | definition | result |
/// |---|---|---|
/// | all except A | all except B | all except A and B |
/// | only A | all except B | only the names of A that are not in B |
/// | any | only B | only B |
/// | any | all | the agent's own |
fn combine(agents: &EnvPolicy, defined: &EnvPolicy) -> EnvPolicy {
    match (agents, defined) {
        (EnvPolicy::AllExcept(agents), EnvPolicy::AllExcept(defined)) => {
            EnvPolicy::AllExcept(agents.iter().chain(defined).cloned().collect())
        }
        (EnvPolicy::Only(agents), EnvPolicy::AllExcept(_)) => {
            let passed = agents.iter().filter(|name| defined.passes(name));
            EnvPolicy::Only(passed.cloned().collect())
        }
        (agents, EnvPolicy::All) => agents.clone(),
        (_, defined) => defined.clone(),
    }
}
