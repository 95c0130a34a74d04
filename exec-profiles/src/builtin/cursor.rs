use exec_core::{CommandConfig, ExecutionKind};

use super::parameters;
use crate::{EventFormat, ProfileDefinition};

/// Cursor, label `cursor`.
///
/// Facts: Cursor's documentation of its command line and output format, and how others call it. It
/// is on no package registry, so it could not be run here.
///
/// - The arguments are the specification's. A follow-up adds `--resume=<chat id>`.
/// - The id stands on every event. On failure there is no final event, only the exit code and text
///   on standard error; it may linger after its `result`, which a watchdog of the service ends.
/// - Newer builds are also called `agent`; pin one by
///   [`Launcher::NativeAt`](crate::Launcher::NativeAt). `npx cursor-agent` would run an unrelated
///   package: [`Launcher::Npx`](crate::Launcher::Npx) is refused.
pub fn cursor() -> ProfileDefinition {
    let command = CommandConfig::new(
        "cursor-agent",
        ["-p", "--output-format=stream-json", "--force"],
    );
    ProfileDefinition::new("cursor", command).with_builder(|command, request| {
        let resume = (request.kind == ExecutionKind::FollowUp)
            .then(|| format!("--resume={}", request.session_id.agent_id()));
        let mut parameters = parameters(command, request, resume, EventFormat::Cursor);
        parameters.session_id_resolver = Some(EventFormat::Cursor.resolver());
        Ok(parameters)
    })
}
