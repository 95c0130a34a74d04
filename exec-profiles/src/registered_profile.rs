use exec_core::{CommandConfig, EnvPolicy, LaunchRequest, ProcessParameters, Profile};

use crate::error::Result;
use crate::user::UserPart;
use crate::{EntryError, ProfileConfig, ProfileDefinition};

/// A profile as a service gets it.
pub(crate) struct RegisteredProfile {
    pub(crate) config: ProfileConfig,
    definition: ProfileDefinition,
    user: Option<UserPart>,
    /// Why it cannot be started.
    refusal: Option<EntryError>,
}

impl RegisteredProfile {
    pub(crate) fn new(definition: ProfileDefinition) -> Self {
        Self {
            config: definition.normalise(),
            definition,
            user: None,
            refusal: None,
        }
    }

    pub(crate) fn of_user(definition: ProfileDefinition, part: UserPart) -> Self {
        Self {
            user: Some(part),
            ..Self::new(definition)
        }
    }

    /// What the user meant to change, but could not: starting it unchanged could allow the agent
    /// what they meant to forbid.
    pub(crate) fn refused(definition: ProfileDefinition, reason: EntryError) -> Self {
        Self {
            refusal: Some(reason),
            ..Self::new(definition)
        }
    }

    fn build(
        &self,
        command: &CommandConfig,
        request: &LaunchRequest,
    ) -> Result<ProcessParameters, Box<dyn std::error::Error + Send + Sync>> {
        if let Some(reason) = &self.refusal {
            return Err(reason.clone().into());
        }
        let definition = &self.definition;
        let expanded = match &self.user {
            Some(user) => user.expand_command(command, request)?,
            None => command.clone(),
        };
        let launched = definition
            .launcher
            .apply(&expanded, definition.native_binary.as_deref())?;
        let agent = self.user.as_ref().and_then(UserPart::agent);
        let mut parameters = match (agent, &definition.build_process_parameters) {
            (Some(agent), _) => agent.parameters(&launched, request)?,
            (None, Some(build)) => build(&launched, request)?,
            (None, None) => {
                let mut parameters = ProcessParameters::new(launched.args);
                parameters.stdin_payload = Some(request.text.clone());
                parameters
            }
        };
        // The service starts `command` with these changes.
        if launched.binary != command.binary {
            parameters.binary.get_or_insert(launched.binary);
        }
        for (name, value) in launched.env {
            if command.env.get(&name) != Some(&value) {
                parameters.env.entry(name).or_insert(value);
            }
        }
        if let Some(policy) = &definition.env_policy {
            parameters.env_policy = both(&parameters.env_policy, policy);
        }
        if let Some(ladder) = &definition.stop_ladder {
            parameters.stop_ladder = Some(ladder.clone());
        }
        if let Some(wrapper) = &definition.wrapper {
            parameters.wrapper = Some(match &self.user {
                Some(user) => user.expand_wrapper(wrapper, request)?,
                None => wrapper.clone(),
            });
        }
        Ok(parameters)
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
        self.build(command, request)
    }
}

/// What an agent must not get is kept from it, whoever said so; a list of what it gets is taken at
/// its word.
fn both(agents: &EnvPolicy, asked: &EnvPolicy) -> EnvPolicy {
    match (agents, asked) {
        (EnvPolicy::AllExcept(agents), EnvPolicy::AllExcept(asked)) => {
            EnvPolicy::AllExcept(agents.iter().chain(asked).cloned().collect())
        }
        (EnvPolicy::Only(agents), EnvPolicy::AllExcept(_)) => EnvPolicy::Only(
            agents
                .iter()
                .filter(|name| asked.passes(name))
                .cloned()
                .collect(),
        ),
        (agents, EnvPolicy::All) => agents.clone(),
        (_, asked) => asked.clone(),
    }
}
