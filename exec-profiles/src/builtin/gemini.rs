//! The built-in profile of Gemini CLI.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use exec_core::{CommandConfig, ExecutionContext, ExecutionKind, StopAction, StopLadder};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{parameters, session_option};
use crate::failures::built_in_rules;
use crate::launch::{SessionFiles, SessionFolders};
use crate::{EventFormat, LiveConfig, LiveProtocol, LiveVariant, ProfileDefinition};

/// Gemini CLI: label `gemini`, variant `flash`.
///
/// Source of the facts: complete turns of version 0.61.0 against a model server on loopback.
///
/// - Two arguments are added to the specification's: `--output-format=stream-json` for events, and
///   `--skip-trust`, because `--yolo` alone exits in a folder that the user has not trusted.
/// - Gemini accepts the id of a new chat (`--session-id=<uuid>`), so no file has to be watched. A
///   follow-up is `--resume=<uuid>`. Gemini would read a number as an index into its list of sessions,
///   so the profile refuses an id that is not a UUID. [`gemini_without_session_id_option`] supports
///   versions without that option.
/// - `GEMINI_CLI_NO_RELAUNCH=true` saves a second process and 1.3 s, and lets `TERM` end the agent.
/// - Gemini deletes old sessions unless `general.sessionRetention.enabled` is false in the user's
///   settings. A follow-up to a deleted session exits with code 42.
#[must_use]
pub fn gemini() -> ProfileDefinition {
    profile().with_builder(|command, request| {
        let session = session_option(request)?;
        Ok(parameters(command, request, [session], EventFormat::Gemini))
    })
}

/// [`gemini`] for versions without `--session-id`: the id comes from the first event or from the
/// session file, whichever appears first.
///
/// The file is searched in the folders of all known versions: the folder that
/// `~/.gemini/projects.json` names, the SHA-256 of the workspace path, and the specification's
/// `{projectId}`. Only a file that did not exist before the launch counts.
#[must_use]
pub fn gemini_without_session_id_option() -> ProfileDefinition {
    profile().with_builder(|command, request| {
        let resume = match request.kind {
            ExecutionKind::New => None,
            ExecutionKind::FollowUp => Some(session_option(request)?),
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

fn profile() -> ProfileDefinition {
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
        .with_variant("flash", command(&["--model", "gemini-2.5-flash"]));
    profile.failures = built_in_rules("gemini");
    profile.native_binary = Some("gemini".to_owned());
    // Gemini needs about a second to end.
    profile.stop_ladder =
        Some(StopLadder::kill_at_once().then(StopAction::Terminate, Duration::from_secs(5)));
    let flash = ["--acp", "--skip-trust", "--model", "gemini-2.5-flash"];
    let mut live = LiveConfig::new(LiveProtocol::Acp, ["--acp", "--skip-trust"])
        .with_variant("flash", LiveVariant::new(flash));
    live.titles_are_commands = true;
    profile.live = Some(live);
    profile
}

/// The folders that may hold the session files of a workspace.
fn chat_folders(context: &ExecutionContext) -> SessionFolders {
    let given = context.workspace_path.clone();
    let project_id = context.actual_project_id.clone();
    Box::new(move |home: Option<&Path>| {
        let Some(gemini) = home.map(|home| home.join(".gemini")) else {
            return Vec::new();
        };
        // Gemini derives the name from its working directory, where links are resolved.
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
    // Path traversal: the index must not lead out of the folder.
    (!name.contains('/') && name != "..").then(|| name.to_owned())
}

fn sha256(workspace: &Path) -> String {
    let digest = Sha256::digest(workspace.as_os_str().as_encoded_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
