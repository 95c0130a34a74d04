//! Requests, and the command lines that profiles build from them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use exec_core::{
    CommandConfig, ExecutionContext, FollowUpRequest, LaunchRequest, NewChatRequest,
    ProcessParameters, Profile, ProfileSource, SessionId,
};
use exec_profiles::ProfileRegistry;

pub(crate) const UUID: &str = "0581226d-7c23-487e-ac1e-86a6ff59a883";

pub(crate) fn context(profile: &str, variant: Option<&str>, workspace: &Path) -> ExecutionContext {
    let mut context = ExecutionContext::for_workspace(profile, workspace).unwrap();
    context.variant_label = variant.map(str::to_owned);
    context
}

/// A new chat in a workspace that does not exist: the profile does not look at it.
pub(crate) fn chat(profile: &str, variant: Option<&str>, prompt: &str) -> LaunchRequest {
    new_chat(context(profile, variant, Path::new("/w")), prompt)
}

/// A follow-up in the same workspace.
pub(crate) fn resume(
    profile: &str,
    variant: Option<&str>,
    native_id: &str,
    message: &str,
) -> LaunchRequest {
    let context = context(profile, variant, Path::new("/w"));
    let session_id = SessionId::new(
        &context.executor_type,
        &context.actual_project_id,
        native_id,
    );
    LaunchRequest::try_from(FollowUpRequest {
        session_id: session_id.unwrap(),
        context,
        message: message.to_owned(),
    })
    .unwrap()
}

pub(crate) fn new_chat(context: ExecutionContext, prompt: &str) -> LaunchRequest {
    let prompt = prompt.to_owned();
    LaunchRequest::try_from(NewChatRequest { context, prompt }).unwrap()
}

/// The process that the service would start.
pub(crate) struct Launch {
    pub(crate) argv: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) parameters: ProcessParameters,
}

/// Builds the command line as the service does.
pub(crate) fn launch(
    registry: &ProfileRegistry,
    request: &LaunchRequest,
) -> Result<Launch, Box<dyn std::error::Error + Send + Sync>> {
    let profile = find(registry, &request.context.profile_label);
    let command: CommandConfig = profile
        .command(request.context.variant_label.as_deref())
        .unwrap();
    let parameters = profile.build_process_parameters(&command, request)?;
    Ok(started(command, parameters))
}

/// The process of a live session; `None` if the profile has no live mode.
pub(crate) fn live(
    registry: &ProfileRegistry,
    request: &LaunchRequest,
) -> Result<Option<Launch>, Box<dyn std::error::Error + Send + Sync>> {
    let profile = find(registry, &request.context.profile_label);
    let command: CommandConfig = profile
        .command(request.context.variant_label.as_deref())
        .unwrap();
    let parameters = profile.build_live_parameters(&command, request)?;
    Ok(parameters.map(|parameters| started(command, parameters)))
}

fn started(command: CommandConfig, parameters: ProcessParameters) -> Launch {
    let mut argv = Vec::new();
    if let Some(wrapper) = &parameters.wrapper {
        argv.push(wrapper.binary.clone());
        argv.extend(wrapper.args.clone());
    }
    argv.push(parameters.binary.clone().unwrap_or(command.binary));
    argv.extend(parameters.args.clone());
    let mut env = command.env;
    env.extend(parameters.env.clone());
    Launch {
        argv,
        env,
        parameters,
    }
}

pub(crate) fn find(registry: &ProfileRegistry, label: &str) -> Arc<dyn Profile> {
    registry.find_profile(label).expect("the profile exists")
}

/// The error with its causes, in one line.
pub(crate) fn message(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
