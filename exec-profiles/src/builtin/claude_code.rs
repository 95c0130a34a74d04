//! The built-in profile of Claude Code.

use std::time::Duration;

use exec_core::{AgentFolder, CommandConfig, EnvPolicy, StopAction, StopLadder};

use super::{parameters, session_option};
use crate::failures::built_in_rules;
use crate::{EventFormat, LiveConfig, LiveProtocol, LiveVariant, ProfileDefinition};

/// Claude Code: label `claude-code`, variant `plan`.
///
/// Source of the facts: complete turns of versions 2.1.197 and 2.1.325 against a model server on
/// loopback.
///
/// - The arguments are the specification's. A new chat adds `--session-id=<uuid>`, so that the id is
///   known at once; a follow-up adds `--resume=<uuid>`.
/// - A session can be resumed only in the workspace where it was started.
/// - `CLAUDECODE` is not inherited: if it is set, claude refuses to run inside itself.
/// - As root, claude refuses `--dangerously-skip-permissions` unless `IS_SANDBOX=1` is set. The
///   profile sets it if it has a sandbox.
/// - Live sessions use Claude's control protocol (`--input-format=stream-json`), run with 2.1.325. A text
///   for the running turn cannot be injected; it is queued. The variant `plan` starts in that mode.
/// - In a sandbox, `CLAUDE_CONFIG_DIR` or `~/.claude` is writable. `~/.claude.json` is not: claude
///   replaces that file, which needs a writable home folder, and does without.
/// - A stop begins with `INT`: claude then ends its tools and saves the session. On `TERM` it leaves
///   its tools running.
#[must_use]
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
                let session = session_option(request)?;
                let mut parameters = parameters(command, request, [session], EventFormat::Claude);
                parameters.env_policy = EnvPolicy::AllExcept(vec!["CLAUDECODE".to_owned()]);
                Ok(parameters)
            });
    profile.failures = built_in_rules("claude-code");
    profile.native_binary = Some("claude".to_owned());
    profile.agent_folders = vec![AgentFolder::new("~/.claude").or_variable("CLAUDE_CONFIG_DIR")];
    profile.stop_ladder = Some(
        StopLadder::kill_at_once()
            .then(StopAction::Interrupt, Duration::from_secs(3))
            .then(StopAction::Terminate, Duration::from_secs(2)),
    );
    let live = |mode: &str| {
        [
            "-p",
            "--input-format=stream-json",
            "--output-format=stream-json",
            "--verbose",
            "--permission-prompt-tool=stdio",
            mode,
        ]
        .map(str::to_owned)
    };
    profile.live = Some(
        LiveConfig::new(LiveProtocol::Claude, live("--permission-mode=default"))
            .with_variant("plan", LiveVariant::new(live("--permission-mode=plan"))),
    );
    profile
}
