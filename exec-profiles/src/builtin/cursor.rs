//! The built-in profile of Cursor.

use exec_core::{AgentFolder, CommandConfig, ExecutionKind};

use super::parameters;
use crate::failures::built_in_rules;
use crate::{EventFormat, LiveConfig, LiveProtocol, ProfileDefinition};

/// Cursor: label `cursor`.
///
/// Source of the facts: Cursor's documentation of its command line and output, and programs that
/// call it. It is in no package registry, so this profile has not been run against it.
///
/// - The arguments are the specification's. A follow-up adds `--resume=<chat id>`.
/// - Every event carries the id. A failed run prints no final event, only text on standard error. The
///   process may stay alive after its `result`; `stop_after_finish` of the service ends it.
/// - Live sessions use `cursor-agent acp`. This, too, has not been run.
/// - Newer builds are also installed as `agent`: select one with
///   [`Launcher::NativeAt`](crate::Launcher::NativeAt). [`Launcher::Npx`](crate::Launcher::Npx) is
///   refused, because `npx cursor-agent` would run an unrelated package.
/// - In a sandbox, `~/.cursor` and `~/.config/cursor` are writable.
#[must_use]
pub fn cursor() -> ProfileDefinition {
    let command = CommandConfig::new(
        "cursor-agent",
        ["-p", "--output-format=stream-json", "--force"],
    );
    let mut profile = ProfileDefinition::new("cursor", command).with_builder(|command, request| {
        let resume = (request.kind == ExecutionKind::FollowUp)
            .then(|| format!("--resume={}", request.session_id.native_id()));
        let mut parameters = parameters(command, request, resume, EventFormat::Cursor);
        parameters.session_id_resolver = Some(EventFormat::Cursor.resolver());
        Ok(parameters)
    });
    profile.failures = built_in_rules("cursor");
    profile.live = Some(LiveConfig::new(LiveProtocol::Acp, ["acp"]));
    profile.agent_folders = vec![
        AgentFolder::new("~/.cursor"),
        AgentFolder::new("~/.config/cursor").or_below("XDG_CONFIG_HOME", "cursor"),
    ];
    profile
}
