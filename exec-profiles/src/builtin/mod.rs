//! The profiles that come with the crate, one file an agent.
//!
//! Each is an ordinary [`ProfileDefinition`]: change it and register it again to pin a version, add
//! variables or put a wrapper in front.
//!
//! ```
//! use exec_profiles::{Launcher, ProfileRegistry, builtin};
//!
//! let registry = ProfileRegistry::new();
//! registry.register(builtin::codex().with_launcher(Launcher::NpxVersion("0.166.0".into())))?;
//! # Ok::<(), exec_profiles::Error>(())
//! ```

// To add one: CONTRIBUTING.md of the workspace, 'Add an agent'.
mod claude_code;
mod codex;
mod cursor;
mod gemini;
mod opencode;

pub use claude_code::claude_code;
pub use codex::codex;
pub use cursor::cursor;
pub use gemini::{gemini, gemini_without_session_id_option};
pub use opencode::opencode;

use exec_core::{CommandConfig, ExecutionKind, LaunchRequest, ProcessParameters};

use crate::error::Result;
use crate::{Error, EventFormat, ProfileDefinition};

/// All built-in profiles.
pub fn profile_definitions() -> Vec<ProfileDefinition> {
    vec![claude_code(), cursor(), gemini(), codex(), opencode()]
}

/// What all built-in profiles have in common: the prompt on standard input (as an argument it
/// would show in `ps`, meet the limit of one argument, and become an option when it starts with
/// `-`), events in the agent's format, and a look at the id that a follow-up comes back with.
fn parameters(
    command: &CommandConfig,
    request: &LaunchRequest,
    extra: impl IntoIterator<Item = String>,
    events: EventFormat,
) -> ProcessParameters {
    let mut parameters = ProcessParameters::new(command.args.iter().cloned().chain(extra));
    parameters.stdin_payload = Some(request.text.clone());
    parameters.event_parser = Some(events.parser());
    if request.kind == ExecutionKind::FollowUp {
        parameters.session_id_resolver = Some(events.resolver());
    }
    parameters
}

/// Refuses an id that the agent would read as something else (an index, a name).
fn uuid(request: &LaunchRequest) -> Result<&str> {
    let agent_id = request.session_id.agent_id();
    match uuid::Uuid::try_parse(agent_id) {
        Ok(_) => Ok(agent_id),
        Err(_) => Err(Error::NotAnAgentId {
            agent_id: agent_id.to_owned(),
            expected: "the session ids of this agent are UUIDs",
        }),
    }
}
