//! The built-in profiles, one file per agent.
//!
//! Each function returns an ordinary [`ProfileDefinition`]. To pin a version, add variables or set a
//! wrapper, change the definition and register it again.
//!
//! A launch for one prompt runs without asking for approval; a live session asks. Without a
//! [`sandbox`](ProfileDefinition::sandbox) the agent has all rights of the user. The prompt is passed
//! on standard input: as an argument it would be visible in `ps`, limited to 128 KiB, and read as an
//! option if it starts with `-`.
//!
//! ```
//! use exec_profiles::{Launcher, ProfileRegistry, builtin};
//!
//! let registry = ProfileRegistry::new();
//! registry.register(builtin::codex().with_launcher(Launcher::NpxVersion("0.166.0".into())))?;
//! # Ok::<(), exec_profiles::Error>(())
//! ```

// CONTRIBUTING.md, 'Add an agent', lists the steps for another one.
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

use crate::{Error, EventFormat, ProfileDefinition};

/// All built-in profiles.
///
/// ```
/// let definitions = exec_profiles::profile_definitions();
/// assert!(definitions.iter().any(|definition| definition.label == "codex"));
/// ```
#[must_use]
pub fn profile_definitions() -> Vec<ProfileDefinition> {
    vec![claude_code(), cursor(), gemini(), codex(), opencode()]
}

/// The parameters that all built-in profiles share. A follow-up gets a resolver even where the id is
/// minted, so that the service notices an answer from another session.
fn parameters(
    command: &CommandConfig,
    request: &LaunchRequest,
    extra_args: impl IntoIterator<Item = String>,
    events: EventFormat,
) -> ProcessParameters {
    let mut parameters = ProcessParameters::new(command.args.iter().cloned().chain(extra_args));
    parameters.stdin_payload = Some(request.text.clone());
    parameters.event_parser = Some(events.parser());
    if request.kind == ExecutionKind::FollowUp {
        parameters.session_id_resolver = Some(events.resolver());
    }
    parameters
}

/// The argument that passes the session id to an agent that accepts a minted UUID.
pub(crate) fn session_option(request: &LaunchRequest) -> Result<String, Error> {
    let id = uuid(request)?;
    Ok(match request.kind {
        ExecutionKind::New => format!("--session-id={id}"),
        ExecutionKind::FollowUp => format!("--resume={id}"),
    })
}

/// Refuses an id that the agent would interpret as something else: an index or a name.
fn uuid(request: &LaunchRequest) -> Result<&str, Error> {
    let native_id = request.session_id.native_id();
    match uuid::Uuid::try_parse(native_id) {
        Ok(_) => Ok(native_id),
        Err(_) => Err(Error::Invalid {
            what: "session id",
            value: native_id.to_owned(),
            reason: "the session ids of this agent are UUIDs",
        }),
    }
}
