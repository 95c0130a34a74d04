//! Requests and what profiles make of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use exec_core::{
    CommandConfig, ExecutionContext, FollowUpRequest, LaunchRequest, NewChatRequest,
    ProcessParameters, Profile, ProfileSource,
};
use exec_profiles::ProfileRegistry;

pub(crate) const UUID: &str = "0581226d-7c23-487e-ac1e-86a6ff59a883";

pub(crate) fn context(profile: &str, variant: Option<&str>, workspace: &Path) -> ExecutionContext {
    let mut context = ExecutionContext::for_workspace(profile, workspace).unwrap();
    context.variant_label = variant.map(str::to_owned);
    context
}

pub(crate) fn new_chat(context: ExecutionContext, prompt: &str) -> LaunchRequest {
    let prompt = prompt.to_owned();
    LaunchRequest::try_from(NewChatRequest { context, prompt }).unwrap()
}

pub(crate) fn follow_up(context: ExecutionContext, agent_id: &str, message: &str) -> LaunchRequest {
    let session_id =
        exec_core::SessionId::new(&context.executor_type, &context.actual_project_id, agent_id);
    LaunchRequest::try_from(FollowUpRequest {
        session_id: session_id.unwrap(),
        context,
        message: message.to_owned(),
    })
    .unwrap()
}

/// What the service would start.
pub(crate) struct Launch {
    pub(crate) argv: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) parameters: ProcessParameters,
}

/// Goes the service's way from request to command line.
pub(crate) fn launch(
    registry: &ProfileRegistry,
    request: &LaunchRequest,
) -> Result<Launch, Box<dyn std::error::Error + Send + Sync>> {
    let profile = find(registry, &request.context.profile_label);
    let command: CommandConfig = profile
        .command(request.context.variant_label.as_deref())
        .unwrap();
    let parameters = profile.build_process_parameters(&command, request)?;
    let mut argv = Vec::new();
    if let Some(wrapper) = &parameters.wrapper {
        argv.push(wrapper.binary.clone());
        argv.extend(wrapper.args.clone());
    }
    argv.push(parameters.binary.clone().unwrap_or(command.binary));
    argv.extend(parameters.args.clone());
    let mut env = command.env;
    env.extend(parameters.env.clone());
    Ok(Launch {
        argv,
        env,
        parameters,
    })
}

pub(crate) fn find(registry: &ProfileRegistry, label: &str) -> Arc<dyn Profile> {
    registry.find_profile(label).expect("the profile is there")
}

/// The error and its causes in one line.
pub(crate) fn message(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
