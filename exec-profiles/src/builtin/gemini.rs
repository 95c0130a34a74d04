use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use exec_core::{
    CommandConfig, ExecutionContext, ExecutionKind, LaunchRequest, StopAction, StopLadder,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{parameters, uuid};
use crate::session_files::{Folders, SessionFiles};
use crate::{EventFormat, ProfileDefinition};

/// Gemini CLI, label `gemini`, variant `flash`.
///
/// Facts: full turns of version 0.61.0 against a model server on loopback.
///
/// - Added to the specification's arguments: `--output-format=stream-json`, without which there are
///   no events, and `--skip-trust`, without which `--yolo` exits in a folder that was never trusted.
/// - It takes the id of a new chat (`--session-id=<uuid>`), so nothing has to be watched; a follow-up
///   is `--resume=<uuid>`. A number would be an index into its list of sessions, so an id that is no
///   UUID is refused. For versions without that option there is
///   [`gemini_without_session_id_option`].
/// - `GEMINI_CLI_NO_RELAUNCH=true` saves a second process and 1.3 s, and makes it end on `TERM`.
/// - It deletes sessions of its own accord unless `general.sessionRetention.enabled` is false in the
///   user's settings; a follow-up then exits with 42.
pub fn gemini() -> ProfileDefinition {
    profile(|command, request| {
        let id = uuid(request)?;
        let session = match request.kind {
            ExecutionKind::New => format!("--session-id={id}"),
            ExecutionKind::FollowUp => format!("--resume={id}"),
        };
        Ok(parameters(command, request, [session], EventFormat::Gemini))
    })
}

/// [`gemini`] for versions that do not know `--session-id`: the id is taken from the first event or
/// from the session file, whichever comes first.
///
/// The file is looked for where each of Gemini's versions put it: the folder that
/// `~/.gemini/projects.json` names, the one named by the SHA-256 of the workspace path, and the
/// specification's `{projectId}`. Only a file that was not there before the launch counts.
pub fn gemini_without_session_id_option() -> ProfileDefinition {
    profile(|command, request| {
        let resume = match request.kind {
            ExecutionKind::New => None,
            ExecutionKind::FollowUp => Some(format!("--resume={}", uuid(request)?)),
        };
        let mut parameters = parameters(command, request, resume, EventFormat::Gemini);
        parameters.session_id_resolver = Some(EventFormat::Gemini.resolver());
        if request.kind == ExecutionKind::New {
            parameters.session_id_lookup = Some(Box::new(SessionFiles::new(
                chat_folders(&request.context),
                &["session-*.json", "session-*.jsonl"],
                "sessionId",
                &["GEMINI_CLI_HOME", "HOME"],
                command,
            )));
        }
        Ok(parameters)
    })
}

fn profile<F>(build: F) -> ProfileDefinition
where
    F: Fn(
            &CommandConfig,
            &LaunchRequest,
        )
            -> Result<exec_core::ProcessParameters, Box<dyn std::error::Error + Send + Sync>>
        + Send
        + Sync
        + 'static,
{
    let command = |model: &[&str]| {
        let fixed = [
            "-y",
            "@google/gemini-cli@latest",
            "--yolo",
            "--skip-trust",
            "--output-format=stream-json",
        ];
        let mut command = CommandConfig::new("npx", fixed.iter().chain(model).copied());
        command
            .env
            .insert("GEMINI_CLI_NO_RELAUNCH".to_owned(), "true".to_owned());
        command
    };
    let mut profile = ProfileDefinition::new("gemini", command(&[]))
        .with_variant("flash", command(&["--model", "gemini-2.5-flash"]))
        .with_builder(build);
    profile.native_binary = Some("gemini".to_owned());
    // It takes about a second to end.
    profile.stop_ladder =
        Some(StopLadder::kill_at_once().then(StopAction::Terminate, Duration::from_secs(5)));
    profile
}

/// The folders that may hold the session files of a workspace.
fn chat_folders(context: &ExecutionContext) -> Folders {
    let given = context.workspace_path.clone();
    let project_id = context.actual_project_id.clone();
    Box::new(move |home: Option<&Path>| {
        let Some(gemini) = home.map(|home| home.join(".gemini")) else {
            return Vec::new();
        };
        // Gemini names a project by the path it sees, which has no symbolic links in it.
        let real = fs::canonicalize(&given).unwrap_or_else(|_| given.clone());
        let mut names = vec![project_id.clone()];
        for workspace in [&given, &real] {
            names.extend(slug(&gemini, workspace));
            names.push(sha256(workspace));
        }
        names.sort();
        names.dedup();
        names
            .into_iter()
            .map(|name| gemini.join("tmp").join(name).join("chats"))
            .collect::<Vec<PathBuf>>()
    })
}

fn slug(gemini: &Path, workspace: &Path) -> Option<String> {
    let text = fs::read_to_string(gemini.join("projects.json")).ok()?;
    let index: Value = serde_json::from_str(&text).ok()?;
    let name = index["projects"][workspace.to_str()?].as_str()?;
    // One plain folder name: the index must not lead out of the folder.
    (!name.contains('/') && name != "..").then(|| name.to_owned())
}

fn sha256(workspace: &Path) -> String {
    let digest = Sha256::digest(workspace.as_os_str().as_encoded_bytes());
    digest.iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
