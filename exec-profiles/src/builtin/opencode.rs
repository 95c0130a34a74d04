//! The built-in profile of Opencode.

use exec_core::{AgentFolder, CommandConfig, ExecutionKind};

use super::parameters;
use crate::failures::built_in_rules;
use crate::{Error, EventFormat, LiveConfig, LiveProtocol, ProfileDefinition};

/// Opencode: label `opencode`.
///
/// Source of the facts: complete turns of version 1.18.33 against a model server on loopback.
///
/// - The specification's package `opencode` does not exist on npm; the package is `opencode-ai`.
///   `run --format json` avoids the terminal interface. Without `--auto` it waits for approvals.
/// - `--print-logs --log-level=ERROR`: on an error of the model's service Opencode tries again and
///   prints nothing, for minutes. Its log, on standard error, tells of each attempt.
/// - Opencode mints the session id (`ses_…`) and prints it on every line. The first line appears with
///   the model's first answer, after 4 to 9 s, and after 23 s on a busy machine. After the
///   service's timeout the minted id stays an alias of it. A follow-up is `--session=<id>`.
/// - Live sessions use `opencode acp`. Opencode allows everything by default, so the profile sets
///   `OPENCODE_PERMISSION`: it asks before commands, edits and web requests.
/// - Opencode uses `PWD` instead of its working directory; the service sets both.
/// - In a sandbox, the folder `opencode` of the four XDG base folders (data, configuration, state,
///   cache) is writable.
/// - API keys of other agents in the environment change its choice of provider: set an
///   [`env_policy`](ProfileDefinition::env_policy) to hide them.
#[must_use]
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
            "--print-logs",
            "--log-level=ERROR",
        ],
    );
    let mut profile =
        ProfileDefinition::new("opencode", command).with_builder(|command, request| {
            let native_id = request.session_id.native_id();
            let session = match request.kind {
                ExecutionKind::New => None,
                ExecutionKind::FollowUp if native_id.starts_with("ses_") => {
                    Some(format!("--session={native_id}"))
                }
                ExecutionKind::FollowUp => {
                    return Err(Error::Invalid {
                        what: "session id",
                        value: native_id.to_owned(),
                        reason: "opencode's session ids start with `ses_`",
                    }
                    .into());
                }
            };
            let mut parameters = parameters(command, request, session, EventFormat::Opencode);
            parameters.session_id_resolver = Some(EventFormat::Opencode.resolver());
            Ok(parameters)
        });
    profile.failures = built_in_rules("opencode");
    profile.native_binary = Some("opencode".to_owned());
    let mut live = LiveConfig::new(LiveProtocol::Acp, ["acp"]);
    let ask = r#"{"bash":"ask","edit":"ask","webfetch":"ask"}"#;
    live.env
        .insert("OPENCODE_PERMISSION".to_owned(), ask.to_owned());
    profile.live = Some(live);
    let below = |path: &str, variable| AgentFolder::new(path).or_below(variable, "opencode");
    profile.agent_folders = vec![
        below("~/.local/share/opencode", "XDG_DATA_HOME"),
        below("~/.config/opencode", "XDG_CONFIG_HOME"),
        below("~/.local/state/opencode", "XDG_STATE_HOME"),
        below("~/.cache/opencode", "XDG_CACHE_HOME"),
    ];
    profile
}
