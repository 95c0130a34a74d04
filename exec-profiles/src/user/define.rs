//! From an entry of the user's file to a profile.

use std::collections::BTreeMap;
use std::time::Duration;

use exec_core::{CommandConfig, EnvPolicy, StopAction, StopLadder, Wrapper};

use super::agent::{Argv, UserAgent, UserPart};
use super::profile::{SessionIdSource, UserProfile, UserStopAction, UserStopStep, UserVariant};
use super::template::{Placeholder, Template};
use crate::profile_definition::check_label;
use crate::{ProfileDefinition, ProfileVariantConfig};

impl UserProfile {
    /// Turns the entry into a profile, or says what is wrong with it.
    pub(crate) fn define(
        &self,
        label: &str,
        known: &BTreeMap<String, ProfileDefinition>,
    ) -> Result<(ProfileDefinition, UserPart), String> {
        check_label(label).map_err(|error| error.to_string())?;
        for variant in self.variants.keys() {
            check_label(variant).map_err(|error| format!("variants: {error}"))?;
        }
        self.check_templates()?;
        let (mut definition, agent) = match &self.binary {
            Some(binary) => self.define_agent(label, binary)?,
            None => (self.define_change(label, known)?, None),
        };
        if let Some(native_binary) = &self.native_binary {
            definition.native_binary = Some(native_binary.clone());
        }
        if let Some(launcher) = &self.launcher {
            definition.launcher = launcher.clone();
        }
        match (&self.pass_env, &self.drop_env[..]) {
            (None, []) => {}
            (Some(names), []) => definition.env_policy = Some(EnvPolicy::Only(names.clone())),
            (None, names) => definition.env_policy = Some(EnvPolicy::AllExcept(names.to_vec())),
            (Some(_), _) => return Err("`pass_env` and `drop_env` exclude each other".into()),
        }
        if let Some(steps) = &self.stop {
            definition.stop_ladder = Some(ladder(steps));
        }
        if let Some(wrapper) = &self.wrapper {
            definition.wrapper = wrapper.split_first().map(|(binary, args)| Wrapper {
                binary: binary.clone(),
                args: args.to_vec(),
            });
        } else if let Some(wrapper) = &mut definition.wrapper {
            escape_all([&mut wrapper.binary].into_iter().chain(&mut wrapper.args));
        }
        definition.accepts_empty_prompt |= self.accepts_empty_prompt;
        Ok((definition, UserPart { agent }))
    }

    /// An agent of its own.
    fn define_agent(
        &self,
        label: &str,
        binary: &str,
    ) -> Result<(ProfileDefinition, Option<UserAgent>), String> {
        if self.base.is_some() {
            return Err("`base` and `binary` exclude each other".into());
        }
        let command = |variant: Option<&UserVariant>| {
            let args = variant.and_then(|v| v.args.as_ref()).or(self.args.as_ref());
            CommandConfig {
                binary: binary.to_owned(),
                args: self.with_appended(args.cloned().unwrap_or_default(), variant),
                env: self.env_of(variant),
            }
        };
        let follow_up = |variant: Option<&UserVariant>| {
            let args = variant.and_then(|v| v.follow_up_args.as_ref());
            let args = args.or(self.follow_up_args.as_ref())?;
            Some(self.with_appended(args.clone(), variant))
        };
        let mut definition = ProfileDefinition::new(label, command(None));
        let mut argvs = BTreeMap::from([(None, Argv::new(&command(None), follow_up(None)))]);
        for (variant_label, variant) in &self.variants {
            let command = command(Some(variant));
            argvs.insert(
                Some(variant_label.clone()),
                Argv::new(&command, follow_up(Some(variant))),
            );
            definition = definition.with_variant(variant_label, command);
        }
        let agent = UserAgent::new(
            argvs,
            self.session_id.clone(),
            self.events.unwrap_or_default(),
            self.keep_stdin_open,
        )?;
        Ok((definition, Some(agent)))
    }

    /// A change of a profile that is there already.
    fn define_change(
        &self,
        label: &str,
        known: &BTreeMap<String, ProfileDefinition>,
    ) -> Result<ProfileDefinition, String> {
        let base = self.base.as_deref().unwrap_or(label);
        let mut definition = known.get(base).cloned().ok_or_else(|| {
            let known: Vec<_> = known.keys().map(String::as_str).collect();
            format!(
                "it has no `binary`, and there is no profile {base:?} to take one from; there are {}",
                known.join(", ")
            )
        })?;
        for (given, field) in [
            (self.follow_up_args.is_some(), "follow_up_args"),
            (self.session_id.is_some(), "session_id"),
            (self.events.is_some(), "events"),
            (self.keep_stdin_open, "keep_stdin_open"),
        ] {
            if given {
                return Err(format!(
                    "`{field}` needs `binary`: a profile with a base does that as its base does"
                ));
            }
        }
        let uses_prompt = |args: &[String]| {
            args.iter()
                .any(|arg| Template::parse(arg).is_ok_and(|t| t.uses(Placeholder::Prompt)))
        };
        let own_args = [self.args.as_ref(), Some(&self.append_args)];
        let variant_args = self.variants.values();
        let variant_args = variant_args.flat_map(|v| [v.args.as_ref(), Some(&v.append_args)]);
        if own_args
            .into_iter()
            .chain(variant_args)
            .flatten()
            .any(|args| uses_prompt(args))
        {
            return Err("`{prompt}` needs `binary`: the base passes the prompt on its own".into());
        }
        definition.label = label.to_owned();
        // From here on the texts of the commands are templates, those of the base included.
        escape_command(&mut definition.command);
        for variant in &mut definition.variants {
            if let Some(command) = &mut variant.command {
                escape_command(command);
            }
        }
        for (variant_label, variant) in &self.variants {
            if variant.follow_up_args.is_some() {
                return Err(format!(
                    "variants.{variant_label}: `follow_up_args` needs `binary`"
                ));
            }
            if !definition
                .variants
                .iter()
                .any(|v| v.label == *variant_label)
            {
                let mut command = definition.command.clone();
                if let Some(args) = &self.args {
                    command.args = args.clone();
                }
                definition.variants.push(ProfileVariantConfig {
                    label: variant_label.clone(),
                    command: Some(command),
                });
            }
        }
        self.change_command(&mut definition.command, self.args.as_ref(), None);
        for variant in &mut definition.variants {
            let user = self.variants.get(&variant.label);
            if let Some(command) = &mut variant.command {
                self.change_command(command, user.and_then(|v| v.args.as_ref()), user);
            }
        }
        Ok(definition)
    }

    fn change_command(
        &self,
        command: &mut CommandConfig,
        args: Option<&Vec<String>>,
        variant: Option<&UserVariant>,
    ) {
        let args = args.cloned().unwrap_or_else(|| command.args.clone());
        command.args = self.with_appended(args, variant);
        command.env.extend(self.env_of(variant));
    }

    fn with_appended(&self, mut args: Vec<String>, variant: Option<&UserVariant>) -> Vec<String> {
        args.extend(self.append_args.iter().cloned());
        args.extend(variant.iter().flat_map(|v| v.append_args.iter().cloned()));
        args
    }

    fn env_of(&self, variant: Option<&UserVariant>) -> BTreeMap<String, String> {
        let mut env = self.env.clone();
        env.extend(variant.iter().flat_map(|v| v.env.clone()));
        env
    }

    /// Finds mistakes when the file is loaded rather than when the agent is needed.
    fn check_templates(&self) -> Result<(), String> {
        let check = |field: String, text: &str, without_prompt: bool| {
            let template = Template::parse(text).map_err(|reason| format!("{field}: {reason}"))?;
            if without_prompt && template.uses(Placeholder::Prompt) {
                return Err(format!("{field}: `{{prompt}}` belongs into the arguments"));
            }
            Ok(())
        };
        let list = |field: String, texts: &[String], without_prompt: bool| {
            texts.iter().enumerate().try_for_each(|(index, text)| {
                check(format!("{field}[{index}]"), text, without_prompt)
            })
        };
        let env = |prefix: &str, env: &BTreeMap<String, String>| {
            env.iter().try_for_each(|(name, value)| {
                if name.is_empty() || name.contains(['=', '\0']) {
                    return Err(format!("{prefix}env: {name:?} cannot be a variable's name"));
                }
                check(format!("{prefix}env.{name}"), value, true)
            })
        };
        let optional = Option::unwrap_or_default;
        check("binary".into(), self.binary.as_deref().unwrap_or(""), true)?;
        list("args".into(), optional(self.args.as_deref()), false)?;
        list("append_args".into(), &self.append_args, false)?;
        let follow_up = optional(self.follow_up_args.as_deref());
        list("follow_up_args".into(), follow_up, false)?;
        list("wrapper".into(), optional(self.wrapper.as_deref()), true)?;
        env("", &self.env)?;
        if let Some(SessionIdSource::Files { dir, .. }) = &self.session_id {
            check("session_id.dir".into(), dir, true)?;
        }
        for (label, variant) in &self.variants {
            let field = |name: &str| format!("variants.{label}.{name}");
            list(field("args"), optional(variant.args.as_deref()), false)?;
            list(field("append_args"), &variant.append_args, false)?;
            let follow_up = optional(variant.follow_up_args.as_deref());
            list(field("follow_up_args"), follow_up, false)?;
            env(&format!("variants.{label}."), &variant.env)?;
        }
        Ok(())
    }
}

fn ladder(steps: &[UserStopStep]) -> StopLadder {
    steps
        .iter()
        .fold(StopLadder::kill_at_once(), |ladder, step| {
            let action = match step.action {
                UserStopAction::CloseStdin => StopAction::CloseStdin,
                UserStopAction::Interrupt => StopAction::Interrupt,
                UserStopAction::Terminate => StopAction::Terminate,
            };
            ladder.then(action, Duration::from_millis(step.grace_ms))
        })
}

fn escape_command(command: &mut CommandConfig) {
    escape_all(
        [&mut command.binary]
            .into_iter()
            .chain(&mut command.args)
            .chain(command.env.values_mut()),
    );
}

fn escape_all<'a>(texts: impl Iterator<Item = &'a mut String>) {
    for text in texts {
        *text = Template::escape(text);
    }
}
