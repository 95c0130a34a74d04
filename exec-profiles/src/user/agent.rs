use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use exec_core::{CommandConfig, ExecutionKind, LaunchRequest, ProcessParameters, Wrapper};

use super::profile::SessionIdSource;
use super::template::{Placeholder, Template, Values};
use crate::error::Result;
use crate::session_files::{SessionFiles, field_text};
use crate::{Error, EventFormat};

/// Linux takes no single argument of more bytes than this, its final zero included.
const ARGUMENT_LIMIT: usize = 128 * 1024;

/// What a profile from the user's file adds to its definition: the texts of its commands are
/// templates, and it may be an agent of its own.
#[derive(Clone)]
pub(crate) struct UserPart {
    pub(super) agent: Option<UserAgent>,
}

/// An agent that the user's file describes.
#[derive(Clone)]
pub(crate) struct UserAgent {
    /// By variant; `None` is the profile without one.
    argvs: BTreeMap<Option<String>, Argv>,
    session_id: SessionIdSource,
    events: EventFormat,
    keep_stdin_open: bool,
}

/// What the two kinds of launch pass to the agent, and how they pass the prompt.
#[derive(Clone)]
pub(super) struct Argv {
    follow_up: Option<Vec<String>>,
    new_holds_prompt: bool,
    new_holds_id: bool,
}

impl Argv {
    pub(super) fn new(command: &CommandConfig, follow_up: Option<Vec<String>>) -> Self {
        Self {
            follow_up,
            new_holds_prompt: holds(&command.args, Placeholder::Prompt),
            new_holds_id: holds(&command.args, Placeholder::SessionId),
        }
    }

    fn holds_prompt(&self, kind: ExecutionKind) -> bool {
        match kind {
            ExecutionKind::New => self.new_holds_prompt,
            ExecutionKind::FollowUp => {
                let args = self.follow_up.as_deref().unwrap_or_default();
                holds(args, Placeholder::Prompt)
            }
        }
    }
}

fn holds(args: &[String], placeholder: Placeholder) -> bool {
    args.iter()
        .any(|arg| Template::parse(arg).is_ok_and(|template| template.uses(placeholder)))
}

impl UserAgent {
    /// Works out how the session id is found, or says why it cannot be.
    pub(super) fn new(
        argvs: BTreeMap<Option<String>, Argv>,
        session_id: Option<SessionIdSource>,
        events: EventFormat,
        keep_stdin_open: bool,
    ) -> Result<Self, String> {
        let id_is_passed = argvs.values().all(|argv| argv.new_holds_id);
        let session_id = match session_id {
            Some(SessionIdSource::Minted) if !id_is_passed => {
                return Err(
                    "session_id: a minted id has to reach the agent: put `{session_id}` into `args`"
                        .into(),
                );
            }
            Some(SessionIdSource::Events) if events == EventFormat::Raw => {
                return Err("session_id: raw `events` tell no id".into());
            }
            Some(given) => given,
            None if id_is_passed => SessionIdSource::Minted,
            None if events != EventFormat::Raw => SessionIdSource::Events,
            None if argvs.values().any(|argv| argv.follow_up.is_some()) => {
                return Err(
                    "a follow-up needs the agent's session id: put `{session_id}` into `args`, or \
                     say by `session_id` or `events` where it is found"
                        .into(),
                );
            }
            None => SessionIdSource::Minted,
        };
        for argv in argvs.values() {
            if let Some(args) = &argv.follow_up
                && !holds(args, Placeholder::SessionId)
            {
                return Err(
                    "follow_up_args: without `{session_id}` the agent would not know what to resume"
                        .into(),
                );
            }
        }
        Ok(Self {
            argvs,
            session_id,
            events,
            keep_stdin_open,
        })
    }

    fn argv(&self, request: &LaunchRequest) -> Option<&Argv> {
        self.argvs.get(&request.context.variant_label)
    }

    /// `command` is expanded; its arguments are those of this kind of launch.
    pub(crate) fn parameters(
        &self,
        command: &CommandConfig,
        request: &LaunchRequest,
    ) -> Result<ProcessParameters> {
        let mut parameters = ProcessParameters::new(command.args.clone());
        let in_arguments = self
            .argv(request)
            .is_some_and(|argv| argv.holds_prompt(request.kind));
        parameters.stdin_payload = (!in_arguments).then(|| request.text.clone());
        parameters.keep_stdin_open = self.keep_stdin_open;
        if self.events != EventFormat::Raw {
            parameters.event_parser = Some(self.events.parser());
        }
        match &self.session_id {
            // A follow-up that comes back with another id is worth knowing about.
            SessionIdSource::Minted if request.kind == ExecutionKind::FollowUp => {
                parameters.session_id_resolver =
                    (self.events != EventFormat::Raw).then(|| self.events.resolver());
            }
            SessionIdSource::Minted => {}
            SessionIdSource::Events => {
                parameters.session_id_resolver = Some(self.events.resolver());
            }
            SessionIdSource::Stdout { field } => {
                let field = field.clone();
                parameters.session_id_resolver = Some(Box::new(move |line: &str| {
                    let document = serde_json::from_str(line).ok()?;
                    field_text(&document, &field)
                }));
            }
            SessionIdSource::Files { dir, name, field } => {
                let dir = expand("session_id.dir", dir, request)?;
                parameters.session_id_lookup = Some(Box::new(SessionFiles::new(
                    Box::new(move |home: Option<&Path>| folder(&dir, home)),
                    &[name],
                    field,
                    &["HOME"],
                    command,
                )));
            }
        }
        Ok(parameters)
    }
}

impl UserPart {
    pub(crate) fn agent(&self) -> Option<&UserAgent> {
        self.agent.as_ref()
    }

    /// The command of this launch with everything filled in.
    pub(crate) fn expand_command(
        &self,
        command: &CommandConfig,
        request: &LaunchRequest,
    ) -> Result<CommandConfig> {
        let (field, args) = match (&self.agent, request.kind) {
            (Some(agent), ExecutionKind::FollowUp) => {
                let argv = agent.argv(request);
                let args = argv.and_then(|argv| argv.follow_up.as_ref());
                ("follow_up_args", args.ok_or(Error::NoFollowUp)?)
            }
            _ => ("args", &command.args),
        };
        Ok(CommandConfig {
            binary: expand("binary", &command.binary, request)?,
            args: expand_args(field, args, request)?,
            env: command
                .env
                .iter()
                .map(|(name, value)| {
                    let value = expand(&format!("env.{name}"), value, request)?;
                    Ok((name.clone(), value))
                })
                .collect::<Result<_>>()?,
        })
    }

    pub(crate) fn expand_wrapper(
        &self,
        wrapper: &Wrapper,
        request: &LaunchRequest,
    ) -> Result<Wrapper> {
        Ok(Wrapper {
            binary: expand("wrapper", &wrapper.binary, request)?,
            args: wrapper
                .args
                .iter()
                .map(|arg| expand("wrapper", arg, request))
                .collect::<Result<_>>()?,
        })
    }
}

/// Refuses a prompt that the agent, or the system, would not take as one argument.
fn expand_args(field: &str, args: &[String], request: &LaunchRequest) -> Result<Vec<String>> {
    let mut expanded: Vec<String> = Vec::with_capacity(args.len());
    for (index, arg) in args.iter().enumerate() {
        let field = format!("{field}[{index}]");
        let template = parse(&field, arg)?;
        let text = fill(&field, &template, request)?;
        if template.uses(Placeholder::Prompt) {
            let after_options = expanded.last().is_some_and(|last| last == "--");
            let becomes_option = template.starts_with(Placeholder::Prompt)
                && request.text.starts_with('-')
                && !after_options;
            if becomes_option {
                return Err(Error::PromptAsArgument {
                    reason: "it starts with '-': write `--option={prompt}` or put `--` before it",
                });
            }
            if text.contains('\0') {
                return Err(Error::PromptAsArgument {
                    reason: "it holds a zero byte",
                });
            }
            if text.len() >= ARGUMENT_LIMIT {
                return Err(Error::PromptAsArgument {
                    reason: "it is longer than 128 KiB: without `{prompt}` it goes to stdin",
                });
            }
        }
        expanded.push(text);
    }
    Ok(expanded)
}

fn expand(field: &str, text: &str, request: &LaunchRequest) -> Result<String> {
    fill(field, &parse(field, text)?, request)
}

fn parse(field: &str, text: &str) -> Result<Template> {
    Template::parse(text).map_err(|reason| Error::Expand {
        field: field.to_owned(),
        reason,
    })
}

fn fill(field: &str, template: &Template, request: &LaunchRequest) -> Result<String> {
    template
        .expand(&Launch(request))
        .map_err(|reason| Error::Expand {
            field: field.to_owned(),
            reason,
        })
}

struct Launch<'a>(&'a LaunchRequest);

impl Values for Launch<'_> {
    fn placeholder(&self, placeholder: Placeholder) -> Result<&str, String> {
        match placeholder {
            Placeholder::Prompt => Ok(&self.0.text),
            Placeholder::SessionId => Ok(self.0.session_id.agent_id()),
            Placeholder::Workspace => self
                .0
                .context
                .workspace_path
                .to_str()
                .ok_or_else(|| "the workspace's path is not UTF-8".to_owned()),
        }
    }

    fn variable(&self, name: &str) -> Result<String, String> {
        match std::env::var(name) {
            Ok(value) => Ok(value),
            Err(std::env::VarError::NotPresent) => {
                Err(format!("the environment variable {name} is not set"))
            }
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(format!("the environment variable {name} is not UTF-8"))
            }
        }
    }
}

fn folder(dir: &str, home: Option<&Path>) -> Vec<PathBuf> {
    match (dir.strip_prefix("~/"), home) {
        (Some(below), Some(home)) => vec![home.join(below)],
        (Some(_), None) => Vec::new(),
        (None, _) => vec![PathBuf::from(dir)],
    }
}
