use std::time::Duration;

use exec_core::{CommandConfig, EnvPolicy, ExecutionKind, StopAction, StopLadder};

use super::{parameters, uuid};
use crate::{EventFormat, ProfileDefinition};

/// Claude Code, label `claude-code`, variant `plan`.
///
/// Facts: full turns of versions 2.1.197 and 2.1.325 against a model server on loopback.
///
/// - The arguments are the specification's. Added at the launch: `--session-id=<uuid>` for a new
///   chat, so that the id is known at once, and `--resume=<uuid>` for a follow-up.
/// - A session can be resumed only from the folder it was started in.
/// - `CLAUDECODE` is not passed on: with it set, claude refuses to run inside of itself.
/// - As root it refuses `--dangerously-skip-permissions` unless `IS_SANDBOX=1` is set. That is for
///   whoever really runs in a sandbox to set, so the profile does not.
/// - `INT` comes first when it is stopped: then it ends its own tools and saves the session. On
///   `TERM` it leaves them behind.
pub fn claude_code() -> ProfileDefinition {
    let command = |permissions: &str| {
        CommandConfig::new(
            "npx",
            [
                "-y",
                "@anthropic-ai/claude-code@latest",
                "-p",
                permissions,
                "--verbose",
                "--output-format=stream-json",
            ],
        )
    };
    let mut profile =
        ProfileDefinition::new("claude-code", command("--dangerously-skip-permissions"))
            .with_variant("plan", command("--permission-mode=plan"))
            .with_builder(|command, request| {
                let id = uuid(request)?;
                let session = match request.kind {
                    ExecutionKind::New => format!("--session-id={id}"),
                    ExecutionKind::FollowUp => format!("--resume={id}"),
                };
                let mut parameters = parameters(command, request, [session], EventFormat::Claude);
                parameters.env_policy = EnvPolicy::AllExcept(vec!["CLAUDECODE".to_owned()]);
                Ok(parameters)
            });
    profile.native_binary = Some("claude".to_owned());
    profile.stop_ladder = Some(
        StopLadder::kill_at_once()
            .then(StopAction::Interrupt, Duration::from_secs(3))
            .then(StopAction::Terminate, Duration::from_secs(2)),
    );
    profile
}
