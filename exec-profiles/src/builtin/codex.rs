use exec_core::{CommandConfig, ExecutionKind};

use super::{parameters, uuid};
use crate::{EventFormat, ProfileDefinition};

/// Codex, label `codex`.
///
/// Facts: full turns of version 0.166.0 against a model server on loopback.
///
/// - The specification's `@codex/cli` does not exist on npm: the package is `@openai/codex`. Without
///   `exec --json` it would start its terminal interface; without
///   `--dangerously-bypass-approvals-and-sandbox` its sandbox is read-only and nobody is there to
///   approve more. `--skip-git-repo-check`: a workspace need not be a git repository.
/// - It takes no id; its first line tells it, after about 0.2 s. A follow-up is `resume <id>`. Given
///   a name that is not a UUID it would start a new thread and succeed, so such an id is refused.
/// - It takes at most 1,048,576 characters of prompt.
/// - Its tools end with it, so the service's own stop ladder is right.
pub fn codex() -> ProfileDefinition {
    let command = CommandConfig::new(
        "npx",
        [
            "-y",
            "@openai/codex@latest",
            "exec",
            "--json",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
        ],
    );
    let mut profile = ProfileDefinition::new("codex", command).with_builder(|command, request| {
        let extra = match request.kind {
            ExecutionKind::New => vec!["-".to_owned()],
            // Options stand before `resume`, which takes none of `exec`'s.
            ExecutionKind::FollowUp => vec![
                "resume".to_owned(),
                uuid(request)?.to_owned(),
                "-".to_owned(),
            ],
        };
        let mut parameters = parameters(command, request, extra, EventFormat::Codex);
        parameters.session_id_resolver = Some(EventFormat::Codex.resolver());
        Ok(parameters)
    });
    profile.native_binary = Some("codex".to_owned());
    profile
}
