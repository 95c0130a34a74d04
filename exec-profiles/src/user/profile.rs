use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use exec_core::{CommandConfig, EnvPolicy, StopAction, StopLadder, Wrapper};
use serde::{Deserialize, Serialize};

use super::agent::{Argv, UserAgent, UserPart};
use super::template::{Placeholder, Template};
use crate::profile_definition::check_label;
use crate::{EventFormat, Launcher, ProfileDefinition, ProfileVariantConfig};

/// A profile of the user, as it stands in their file.
///
/// With [`binary`](Self::binary) it describes an agent of its own. Without, it changes another
/// profile: the one that [`base`](Self::base) names, or the built-in one with its own label.
///
/// The texts of `binary`, `args`, `append_args`, `follow_up_args`, `env` and `wrapper` may hold
/// `${VAR}` from the environment of the host and the placeholders `{prompt}`, `{session_id}` (the
/// agent's own) and `{workspace}`. Both are filled in at the launch, so a secret never rests in the
/// registry, and a variable that is not set refuses the launch and not the whole file. `$${` and
/// `{{prompt}}` stand for the plain text.
///
/// ```
/// use exec_profiles::{EventFormat, UserProfile};
///
/// let mut qwen = UserProfile::default();
/// qwen.binary = Some("qwen".into());
/// qwen.args = Some(vec!["--yolo".into(), "--session-id={session_id}".into()]);
/// qwen.follow_up_args = Some(vec!["--yolo".into(), "--resume={session_id}".into()]);
/// qwen.events = Some(EventFormat::Claude);
/// ```
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct UserProfile {
    /// The profile to change; not together with `binary`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// The agent's program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binary: Option<String>,
    /// The arguments of a new chat; for a profile with a base, in place of the base's. The prompt
    /// goes to standard input unless `{prompt}` stands here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// Added after `args` and `follow_up_args`, in every variant.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub append_args: Vec<String>,
    /// The arguments of a follow-up: all of them, with `{session_id}` somewhere. A profile with a
    /// base resumes as its base does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow_up_args: Option<Vec<String>>,
    /// How the agent's session id is found. By default it is minted if `args` holds
    /// `{session_id}`, and read from the events otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionIdSource>,
    /// How the output is read; raw by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<EventFormat>,
    /// Leaves standard input open after the prompt, for an agent that runs until its end (the
    /// first stop step is then `close_stdin`).
    #[serde(skip_serializing_if = "is_false")]
    pub keep_stdin_open: bool,
    /// Whether the agent can start without a prompt.
    #[serde(skip_serializing_if = "is_false")]
    pub accepts_empty_prompt: bool,
    /// The program that the npm package of an `npx` command installs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native_binary: Option<String>,
    /// Whether that program is started in place of `npx`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launcher: Option<Launcher>,
    /// The host's variables that are passed on; all by default. A name may end in `*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pass_env: Option<Vec<String>>,
    /// The host's variables that are not passed on; not together with `pass_env`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drop_env: Vec<String>,
    /// A command in front of the agent's, such as `["nice", "-n", "10"]`; empty for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wrapper: Option<Vec<String>>,
    /// The steps of a stop, before the kill that always comes last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Vec<UserStopStep>>,
    /// Variables to add to the agent's environment.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The variants, by label.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub variants: BTreeMap<String, UserVariant>,
}

/// A variant of a [`UserProfile`]: what is not given is the profile's.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct UserVariant {
    /// The arguments of a new chat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// Added after the arguments and after the profile's `append_args`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub append_args: Vec<String>,
    /// The arguments of a follow-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow_up_args: Option<Vec<String>>,
    /// Variables to add to those of the profile.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// How the session id of an agent from the user's file is found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum SessionIdSource {
    /// Made here and passed to the agent by `{session_id}`.
    Minted,
    /// The agent's own 'session started' event.
    Events,
    /// The first JSON line of standard output that has this field.
    Stdout {
        /// The field, such as `session_id` or `session.id`.
        field: String,
    },
    /// A file that the agent writes after it was started.
    Files {
        /// The folder; `~/` is the agent's home.
        dir: String,
        /// The file's name, with at most one `*`.
        name: String,
        /// The JSON field inside of it that holds the id.
        field: String,
    },
}

/// One step of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserStopStep {
    /// What is done.
    pub action: UserStopAction,
    /// How long the agent may take to end before the next step.
    pub grace_ms: u64,
}

/// What a step of a stop does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum UserStopAction {
    /// End of standard input.
    CloseStdin,
    /// `SIGINT`.
    Interrupt,
    /// `SIGTERM`.
    Terminate,
}

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

fn is_false(value: &bool) -> bool {
    !value
}

/// Names the variables, not their values.
impl fmt::Debug for UserProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserProfile")
            .field("base", &self.base)
            .field("binary", &self.binary)
            .field("args", &self.args)
            .field("append_args", &self.append_args)
            .field("follow_up_args", &self.follow_up_args)
            .field("session_id", &self.session_id)
            .field("events", &self.events)
            .field("launcher", &self.launcher)
            .field("wrapper", &self.wrapper)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("variants", &self.variants)
            .finish_non_exhaustive()
    }
}

/// Names the variables, not their values.
impl fmt::Debug for UserVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserVariant")
            .field("args", &self.args)
            .field("append_args", &self.append_args)
            .field("follow_up_args", &self.follow_up_args)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .finish()
    }
}
