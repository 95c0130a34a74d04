//! An agent that only the user file describes: from its templates to process parameters.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use exec_core::{CommandConfig, ExecutionKind, LaunchRequest, ProcessParameters};

use super::user_profile::SessionIdSource;
use crate::events::Json;
use crate::launch::{LaunchValues, Placeholder, SessionFiles, Template};
use crate::{Error, EventFormat};

/// An agent that the user file describes.
pub(crate) struct UserAgent {
    args: LaunchArgs,
    variants: BTreeMap<String, LaunchArgs>,
    session_id: SessionIdSource,
    events: EventFormat,
    keep_stdin_open: bool,
}

/// The arguments of both kinds of launch, as templates.
pub(super) struct LaunchArgs {
    pub(super) new: Vec<String>,
    pub(super) follow_up: Option<Vec<String>>,
    /// There are no arguments for one prompt.
    pub(super) is_live_only: bool,
}

impl UserAgent {
    /// Chooses the source of the session id; the error is the reason why there is none.
    pub(super) fn new(
        args: LaunchArgs,
        variants: BTreeMap<String, LaunchArgs>,
        session_id: Option<SessionIdSource>,
        events: EventFormat,
        keep_stdin_open: bool,
    ) -> Result<Self, &'static str> {
        let all = || variants.values().chain([&args]);
        let passes_id = all().all(|args| uses(&args.new, Placeholder::SessionId));
        let session_id = match session_id {
            Some(SessionIdSource::Minted) if !passes_id => {
                return Err("session_id: a minted id needs `{session_id}` in `args`");
            }
            Some(SessionIdSource::Events) if events == EventFormat::Raw => {
                return Err("session_id: raw `events` contain no id");
            }
            Some(given) => given,
            None if passes_id => SessionIdSource::Minted,
            None if events != EventFormat::Raw => SessionIdSource::Events,
            None if all().any(|args| args.follow_up.is_some()) => {
                return Err(
                    "a follow-up needs the agent's session id: put `{session_id}` into `args`, or \
                     set `session_id` or `events`",
                );
            }
            None => SessionIdSource::Minted,
        };
        let lacks_id = |args: &Vec<String>| !uses(args, Placeholder::SessionId);
        if all().any(|args| args.follow_up.as_ref().is_some_and(lacks_id)) {
            return Err(
                "follow_up_args: without `{session_id}` the agent cannot know the session to resume",
            );
        }
        Ok(Self {
            args,
            variants,
            session_id,
            events,
            keep_stdin_open,
        })
    }

    /// The argument templates of this launch, with the name of their field.
    pub(crate) fn args(&self, request: &LaunchRequest) -> Result<(&str, &[String]), Error> {
        let variant = request.context.variant_label.as_ref();
        let args = variant
            .and_then(|label| self.variants.get(label))
            .unwrap_or(&self.args);
        match (request.kind, &args.follow_up) {
            (ExecutionKind::New, _) if args.is_live_only => Err(Error::LiveOnly),
            (ExecutionKind::New, _) => Ok(("args", &args.new)),
            (ExecutionKind::FollowUp, Some(args)) => Ok(("follow_up_args", args)),
            (ExecutionKind::FollowUp, None) => Err(Error::NoFollowUp),
        }
    }

    /// The parameters for `command`, whose templates are expanded.
    pub(crate) fn parameters(
        &self,
        command: &CommandConfig,
        request: &LaunchRequest,
    ) -> Result<ProcessParameters, Error> {
        let (_, templates) = self.args(request)?;
        let mut parameters = ProcessParameters::new(command.args.clone());
        if !uses(templates, Placeholder::Prompt) {
            parameters.stdin_payload = Some(request.text.clone());
        }
        parameters.keep_stdin_open = self.keep_stdin_open;
        let has_events = self.events != EventFormat::Raw;
        parameters.event_parser = has_events.then(|| self.events.parser());
        match &self.session_id {
            // The service reports a follow-up that answers in another session.
            SessionIdSource::Minted if request.kind == ExecutionKind::FollowUp => {
                parameters.session_id_resolver = has_events.then(|| self.events.resolver());
            }
            SessionIdSource::Minted => {}
            SessionIdSource::Events => {
                parameters.session_id_resolver = Some(self.events.resolver());
            }
            SessionIdSource::Stdout { field } => {
                let field = field.clone();
                parameters.session_id_resolver = Some(Box::new(move |line: &str| {
                    Json::document(line)?.at(&field).text()
                }));
            }
            SessionIdSource::Files { dir, name, field } => {
                let dir = LaunchValues::new(request).expand("session_id.dir", dir)?;
                parameters.session_id_lookup = Some(Box::new(SessionFiles::new(
                    Box::new(move |home: Option<&Path>| Vec::from_iter(below_home(&dir, home))),
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

fn uses(templates: &[String], placeholder: Placeholder) -> bool {
    templates
        .iter()
        .any(|text| Template::parse(text).is_ok_and(|template| template.uses(placeholder)))
}

fn below_home(dir: &str, home: Option<&Path>) -> Option<PathBuf> {
    match dir.strip_prefix("~/") {
        Some(below) => Some(home?.join(below)),
        None => Some(PathBuf::from(dir)),
    }
}
