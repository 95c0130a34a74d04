use exec_core::{CommandConfig, ExecutionKind};

use super::parameters;
use crate::{Error, EventFormat, ProfileDefinition};

/// Opencode, label `opencode`.
///
/// Facts: full turns of version 1.18.33 against a model server on loopback.
///
/// - The specification's `opencode` does not exist on npm: the package is `opencode-ai`. Without
///   `run --format json` it would start its terminal interface; without `--auto` it waits for
///   approvals that nobody gives.
/// - It takes no id; every line tells it (`ses_…`), the first one only once the model answers, after
///   4 to 9 s (23 s were seen on a busy machine; where that is usual, give the service more than its
///   30 s to learn the id). A follow-up is `--session=<id>`.
/// - It follows `PWD` rather than its working directory; the service sets both.
/// - Another agent's API key in the environment changes its choice of provider: give it an
///   [`env_policy`](ProfileDefinition::env_policy) where that matters.
pub fn opencode() -> ProfileDefinition {
    let command = CommandConfig::new(
        "npx",
        [
            "-y",
            "opencode-ai@latest",
            "run",
            "--format",
            "json",
            "--auto",
        ],
    );
    let mut profile =
        ProfileDefinition::new("opencode", command).with_builder(|command, request| {
            let agent_id = request.session_id.agent_id();
            let session = match request.kind {
                ExecutionKind::New => None,
                ExecutionKind::FollowUp if agent_id.starts_with("ses_") => {
                    Some(format!("--session={agent_id}"))
                }
                ExecutionKind::FollowUp => {
                    return Err(Error::NotAnAgentId {
                        agent_id: agent_id.to_owned(),
                        expected: "opencode's session ids start with `ses_`",
                    }
                    .into());
                }
            };
            let mut parameters = parameters(command, request, session, EventFormat::Opencode);
            parameters.session_id_resolver = Some(EventFormat::Opencode.resolver());
            Ok(parameters)
        });
    profile.native_binary = Some("opencode".to_owned());
    profile
}
