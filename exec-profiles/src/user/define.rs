//! From an entry of the user file to a registered profile. Errors are texts of the form
//! `field: mistake`; the caller adds the file and the label.

use std::collections::BTreeMap;
use std::time::Duration;

use exec_core::{CommandConfig, EnvPolicy, Sandbox, SandboxSetting, Wrapper};

use super::user_agent::{LaunchArgs, UserAgent};
use super::user_profile::{SessionIdSource, UserProfile, UserVariant};
use crate::definition::check_label;
use crate::launch::{Placeholder, ProfileOrigin, RegisteredProfile, Template, path_lists};
use crate::{LiveConfig, LiveVariant, ProfileDefinition, ProfileVariantConfig};

impl UserProfile {
    pub(crate) fn define(
        &self,
        label: &str,
        known: &BTreeMap<String, ProfileDefinition>,
    ) -> Result<RegisteredProfile, String> {
        check_label(label).map_err(|error| error.to_string())?;
        for variant in self.variants.keys() {
            check_label(variant).map_err(|error| format!("variants: {error}"))?;
        }
        self.check_templates()?;
        let (mut definition, origin) = match &self.binary {
            Some(binary) => self.define_agent(label, binary)?,
            None => (self.define_change(label, known)?, ProfileOrigin::UserChange),
        };
        if self.native_binary.is_some() {
            definition.native_binary.clone_from(&self.native_binary);
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
        if self.stop.is_some() {
            definition.stop_ladder.clone_from(&self.stop);
        }
        if let Some(wrapper) = &self.wrapper {
            definition.wrapper = wrapper.split_first().map(|(binary, args)| Wrapper {
                binary: binary.clone(),
                args: args.to_vec(),
            });
        } else if let Some(wrapper) = &mut definition.wrapper {
            escape_all([&mut wrapper.binary].into_iter().chain(&mut wrapper.args));
        }
        match &self.sandbox {
            Some(setting) => definition.sandbox = setting.sandbox().cloned(),
            None => definition.sandbox = definition.sandbox.map(escape_paths),
        }
        for variant in &mut definition.variants {
            let change = self.variants.get(&variant.label);
            let inherited = variant.sandbox.take().map(|setting| match setting {
                SandboxSetting::Off => SandboxSetting::Off,
                SandboxSetting::On(sandbox) => SandboxSetting::On(escape_paths(sandbox)),
            });
            variant.sandbox = change
                .and_then(|change| change.sandbox.clone())
                .or(inherited);
        }
        for (index, rule) in self.failures.iter().enumerate() {
            rule.check()
                .map_err(|reason| format!("failures[{index}]: {reason}"))?;
        }
        definition
            .failures
            .splice(..0, self.failures.iter().cloned());
        definition.accepts_empty_prompt |= self.accepts_empty_prompt;
        let base = self.base.as_deref().unwrap_or(label);
        let base = known.get(base).filter(|_| self.binary.is_none());
        self.define_live(&mut definition, base)?;
        Ok(RegisteredProfile::new(definition, origin))
    }

    /// A profile with a binary of its own.
    fn define_agent(
        &self,
        label: &str,
        binary: &str,
    ) -> Result<(ProfileDefinition, ProfileOrigin), String> {
        if self.base.is_some() {
            return Err("`base` and `binary` exclude each other".into());
        }
        let args_of = |variant: Option<&UserVariant>| {
            let new = variant.and_then(|v| v.args.as_ref()).or(self.args.as_ref());
            let follow_up = variant.and_then(|v| v.follow_up_args.as_ref());
            let follow_up = follow_up.or(self.follow_up_args.as_ref());
            LaunchArgs {
                is_live_only: self.protocol.is_some() && new.is_none(),
                new: self.with_appended(new.cloned().unwrap_or_default(), variant),
                follow_up: follow_up.map(|args| self.with_appended(args.clone(), variant)),
            }
        };
        let command = |args: &LaunchArgs, variant: Option<&UserVariant>| CommandConfig {
            binary: binary.to_owned(),
            args: args.new.clone(),
            env: self.env_of(variant),
        };
        let args = args_of(None);
        let mut definition = ProfileDefinition::new(label, command(&args, None));
        let mut variants = BTreeMap::new();
        for (variant_label, variant) in &self.variants {
            let args = args_of(Some(variant));
            definition = definition.with_variant(variant_label, command(&args, Some(variant)));
            variants.insert(variant_label.clone(), args);
        }
        let agent = UserAgent::new(
            args,
            variants,
            self.session_id.clone(),
            self.events.unwrap_or_default(),
            self.keep_stdin_open,
        )?;
        Ok((definition, ProfileOrigin::UserAgent(agent)))
    }

    /// A change of a profile that is registered in code.
    fn define_change(
        &self,
        label: &str,
        known: &BTreeMap<String, ProfileDefinition>,
    ) -> Result<ProfileDefinition, String> {
        let base = self.base.as_deref().unwrap_or(label);
        let mut definition = known.get(base).cloned().ok_or_else(|| {
            let known: Vec<_> = known.keys().map(String::as_str).collect();
            format!(
                "it has no `binary`, and there is no profile {base:?} to change; known are {}",
                known.join(", ")
            )
        })?;
        for (given, field) in [
            (self.follow_up_args.is_some(), "follow_up_args"),
            (self.session_id.is_some(), "session_id"),
            (self.events.is_some(), "events"),
            (self.protocol.is_some(), "protocol"),
            (self.keep_stdin_open, "keep_stdin_open"),
        ] {
            if given {
                return Err(format!(
                    "`{field}` needs `binary`: a profile without one inherits it from its base"
                ));
            }
        }
        definition.label = label.to_owned();
        // The launch expands all texts as templates, so the literal texts of the base are escaped.
        let commands = definition.variants.iter_mut();
        let commands = commands.filter_map(|variant| variant.command.as_mut());
        for command in commands.chain([&mut definition.command]) {
            let texts = [&mut command.binary].into_iter().chain(&mut command.args);
            escape_all(texts.chain(command.env.values_mut()));
        }
        for (variant_label, variant) in &self.variants {
            if variant.follow_up_args.is_some() {
                return Err(format!(
                    "variants.{variant_label}: `follow_up_args` needs `binary`"
                ));
            }
            let mut existing = definition.variants.iter();
            if !existing.any(|variant| variant.label == *variant_label) {
                let mut command = definition.command.clone();
                if let Some(args) = &self.args {
                    command.args.clone_from(args);
                }
                definition.variants.push(ProfileVariantConfig {
                    label: variant_label.clone(),
                    command: Some(command),
                    sandbox: None,
                });
            }
        }
        self.change_command(&mut definition.command, self.args.as_ref(), None);
        for variant in &mut definition.variants {
            let change = self.variants.get(&variant.label);
            if let Some(command) = &mut variant.command {
                self.change_command(command, change.and_then(|v| v.args.as_ref()), change);
            }
        }
        Ok(definition)
    }

    /// Sets or changes the live mode. The arguments of a base are escaped, because the launch expands
    /// all texts as templates.
    fn define_live(
        &self,
        definition: &mut ProfileDefinition,
        base: Option<&ProfileDefinition>,
    ) -> Result<(), String> {
        let has_rules = |variant: &UserVariant| !variant.permissions.is_empty();
        let uses_live = self.live_args.is_some()
            || !self.permissions.is_empty()
            || self.permission_deadline_ms.is_some()
            || self
                .variants
                .values()
                .any(|variant| variant.live_args.is_some() || has_rules(variant));
        let mut live = match (self.protocol, definition.live.take()) {
            (Some(protocol), _) => LiveConfig::new(protocol, Vec::<String>::new()),
            (None, Some(mut base)) => {
                let variants = base.variants.values_mut();
                let args = variants.flat_map(|variant| &mut variant.args);
                escape_all(args.chain(&mut base.args).chain(base.env.values_mut()));
                base
            }
            (None, None) if uses_live => {
                return Err(
                    "`live_args` and `permissions` need a `protocol`, or a base that has one"
                        .into(),
                );
            }
            (None, None) => return Ok(()),
        };
        let base_args = self.live_args.as_ref().unwrap_or(&live.args).clone();
        let is_inherited = |label: &str| {
            let mut variants = base.into_iter().flat_map(|base| &base.variants);
            variants.any(|variant| variant.label == label)
        };
        for (label, variant) in &self.variants {
            // With the arguments of the profile, the agent could have more permissions than the variant.
            let has_no_mode = is_inherited(label)
                && !live.variants.contains_key(label)
                && variant.live_args.is_none();
            if has_no_mode && has_rules(variant) {
                return Err(format!(
                    "variants.{label}: `permissions` need `live_args`: the variant has no live mode"
                ));
            }
            if has_no_mode {
                continue;
            }
            live.variant_env.insert(label.clone(), variant.env.clone());
            live.variants
                .entry(label.clone())
                .or_insert_with(|| LiveVariant::new(base_args.clone()))
                .permissions
                .extend(variant.permissions.iter().cloned());
        }
        for (label, variant) in &mut live.variants {
            let change = self.variants.get(label);
            let args = change.and_then(|change| change.live_args.as_ref());
            let args = args.unwrap_or(&variant.args).clone();
            variant.args = self.with_appended(args, change);
        }
        live.args = self.with_appended(base_args, None);
        live.env.extend(self.env.clone());
        live.permissions.extend(self.permissions.iter().cloned());
        let deadline = self.permission_deadline_ms.map(Duration::from_millis);
        live.permission_deadline = deadline.or(live.permission_deadline);
        definition.live = Some(live);
        Ok(())
    }

    fn change_command(
        &self,
        command: &mut CommandConfig,
        args: Option<&Vec<String>>,
        variant: Option<&UserVariant>,
    ) {
        let args = args.unwrap_or(&command.args).clone();
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

    /// Reports a mistake in a template at load time instead of at launch.
    fn check_templates(&self) -> Result<(), String> {
        let outside_args = Some("`{prompt}` is allowed in arguments only");
        let in_args = match self.binary {
            Some(_) => None,
            None => Some("`{prompt}` needs `binary`: the base passes the prompt itself"),
        };
        let env = |prefix: &str, env: &BTreeMap<String, String>| {
            env.iter().try_for_each(|(name, value)| {
                if name.is_empty() || name.contains(['=', '\0']) {
                    return Err(format!("{prefix}env: {name:?} is not a variable name"));
                }
                check_template(&format!("{prefix}env.{name}"), value, outside_args)
            })
        };
        let binary = self.binary.as_deref().unwrap_or_default();
        check_template("binary", binary, outside_args)?;
        check_list("wrapper", self.wrapper.as_deref(), outside_args)?;
        check_sandbox("", self.sandbox.as_ref(), outside_args)?;
        if let Some(SessionIdSource::Files { dir, .. }) = &self.session_id {
            check_template("session_id.dir", dir, outside_args)?;
        }
        check_list("args", self.args.as_deref(), in_args)?;
        check_list("append_args", Some(&self.append_args), in_args)?;
        check_list("follow_up_args", self.follow_up_args.as_deref(), in_args)?;
        let in_live = Some("`{prompt}` is not known when a live session is opened");
        check_list("live_args", self.live_args.as_deref(), in_live)?;
        if self.protocol.is_some() {
            check_list("append_args", Some(&self.append_args), in_live)?;
        }
        env("", &self.env)?;
        for (label, variant) in &self.variants {
            let field = |name: &str| format!("variants.{label}.{name}");
            check_list(&field("args"), variant.args.as_deref(), in_args)?;
            check_list(&field("append_args"), Some(&variant.append_args), in_args)?;
            let follow_up_args = variant.follow_up_args.as_deref();
            check_list(&field("follow_up_args"), follow_up_args, in_args)?;
            check_list(&field("live_args"), variant.live_args.as_deref(), in_live)?;
            if self.protocol.is_some() {
                check_list(&field("append_args"), Some(&variant.append_args), in_live)?;
            }
            env(&field(""), &variant.env)?;
            check_sandbox(&field(""), variant.sandbox.as_ref(), outside_args)?;
        }
        Ok(())
    }
}

/// `no_prompt` is the reason why `{prompt}` is not allowed in this field, if it is not.
fn check_template(field: &str, text: &str, no_prompt: Option<&str>) -> Result<(), String> {
    let template = Template::parse(text).map_err(|reason| format!("{field}: {reason}"))?;
    match no_prompt {
        Some(reason) if template.uses(Placeholder::Prompt) => Err(format!("{field}: {reason}")),
        _ => Ok(()),
    }
}

fn check_list(
    field: &str,
    texts: Option<&[String]>,
    no_prompt: Option<&str>,
) -> Result<(), String> {
    let mut texts = texts.unwrap_or_default().iter().enumerate();
    texts
        .try_for_each(|(index, text)| check_template(&format!("{field}[{index}]"), text, no_prompt))
}

/// Also refuses a relative path at load time. What a variable stands for is known at launch only.
fn check_sandbox(
    prefix: &str,
    setting: Option<&SandboxSetting>,
    no_prompt: Option<&str>,
) -> Result<(), String> {
    let Some(mut sandbox) = setting.and_then(SandboxSetting::sandbox).cloned() else {
        return Ok(());
    };
    for (list, paths) in path_lists(&mut sandbox) {
        for (index, path) in paths.iter().enumerate() {
            let text = path.to_str().unwrap_or_default();
            let field = format!("{prefix}{list}[{index}]");
            check_template(&field, text, no_prompt)?;
            let first = text.split('/').next().unwrap_or_default();
            if !["", "~", "{workspace}"].contains(&first) && !first.starts_with("${")
                || text.is_empty()
            {
                return Err(format!(
                    "{field}: {text:?} is a relative path; begin it with `/`, `~/` or `{{workspace}}/`"
                ));
            }
        }
    }
    Ok(())
}

/// The paths of a sandbox that was defined in code are literal.
fn escape_paths(mut sandbox: Sandbox) -> Sandbox {
    for (_, paths) in path_lists(&mut sandbox) {
        for path in paths {
            if let Some(text) = path.to_str() {
                *path = Template::escape(text).into();
            }
        }
    }
    sandbox
}

fn escape_all<'a>(texts: impl Iterator<Item = &'a mut String>) {
    for text in texts {
        *text = Template::escape(text);
    }
}
