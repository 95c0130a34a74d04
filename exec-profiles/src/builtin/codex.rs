//! The built-in profile of Codex.

use exec_core::{AgentFolder, CommandConfig, ExecutionKind};

use super::{parameters, uuid};
use crate::failures::built_in_rules;
use crate::{EventFormat, LiveConfig, LiveProtocol, ProfileDefinition};

/// Codex: label `codex`.
///
/// Source of the facts: complete turns of version 0.166.0 against a model server on loopback.
///
/// - The specification's package `@codex/cli` does not exist on npm; the package is `@openai/codex`.
///   `exec --json` avoids the terminal interface. `--dangerously-bypass-approvals-and-sandbox` is
///   needed because the default sandbox is read-only and an unattended run cannot approve more.
///   `--skip-git-repo-check` allows workspaces that are not git repositories.
/// - Codex mints the session id and prints it on its first line, after about 0.2 s. A follow-up is
///   `resume <id>`. For an id that is not a UUID codex would start a new thread and succeed, so the
///   profile refuses such an id.
/// - A prompt has at most 1,048,576 characters.
/// - Live sessions use `codex app-server`, with its sandbox for the workspace and the approval policy
///   `untrusted`: Codex asks for every command that it does not know to be harmless.
/// - In a sandbox, `CODEX_HOME` or `~/.codex` is writable. In live sessions, Codex's own sandbox works
///   inside of it for a normal user. For root a nested `bwrap` fails (`setting up uid map: Read-only
///   file system`): Codex then runs an allowed command without its own sandbox and does not say so.
///   It still asks, and the sandbox of the profile holds.
/// - Codex ends its tools when it ends, so the service's default stop ladder is sufficient.
#[must_use]
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
        let extra_args = match request.kind {
            ExecutionKind::New => vec!["-".to_owned()],
            // `resume` accepts none of the options of `exec`, so it follows them.
            ExecutionKind::FollowUp => vec![
                "resume".to_owned(),
                uuid(request)?.to_owned(),
                "-".to_owned(),
            ],
        };
        let mut parameters = parameters(command, request, extra_args, EventFormat::Codex);
        parameters.session_id_resolver = Some(EventFormat::Codex.resolver());
        Ok(parameters)
    });
    profile.failures = built_in_rules("codex");
    profile.native_binary = Some("codex".to_owned());
    profile.live = Some(LiveConfig::new(LiveProtocol::Codex, ["app-server"]));
    profile.agent_folders = vec![AgentFolder::new("~/.codex").or_variable("CODEX_HOME")];
    profile
}
