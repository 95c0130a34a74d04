//! The built-in profile of Gemini CLI.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use exec_core::{
    AgentFolder, CommandConfig, ExecutionContext, ExecutionKind, LaunchRequest, StopAction,
    StopLadder,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{parameters, session_option};
use crate::failures::built_in_rules;
use crate::launch::{SessionFiles, SessionFolders};
use crate::{Error, EventFormat, LiveConfig, LiveProtocol, LiveVariant, ProfileDefinition};

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
/// - Live sessions use `gemini --acp`. Gemini reports no start of a tool, and its questions name the
///   kind of a tool (`execute`, `edit`) in place of its name. A live session cannot be resumed in the
///   minute in which it was started: Gemini would overwrite its file, so the profile refuses that.
/// - `GEMINI_CLI_NO_RELAUNCH=true` saves a second process and 1.3 s, and lets `TERM` end the agent.
/// - Gemini deletes old sessions unless `general.sessionRetention.enabled` is false in the user's
///   settings. A follow-up to a deleted session exits with code 42.
/// - In a sandbox, `~/.gemini` is writable, or `.gemini` below `GEMINI_CLI_HOME`.
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
                HOME_VARIABLES,
                command,
            )));
        }
        Ok(parameters)
    })
}

/// The variables for Gemini's home folder, in order of precedence.
const HOME_VARIABLES: &[&str] = &["GEMINI_CLI_HOME", "HOME"];

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
    profile.agent_folders =
        vec![AgentFolder::new("~/.gemini").or_below("GEMINI_CLI_HOME", ".gemini")];
    // Gemini needs about a second to end.
    profile.stop_ladder =
        Some(StopLadder::kill_at_once().then(StopAction::Terminate, Duration::from_secs(5)));
    let flash = ["--acp", "--skip-trust", "--model", "gemini-2.5-flash"];
    let mut live = LiveConfig::new(LiveProtocol::Acp, ["--acp", "--skip-trust"])
        .with_variant("flash", LiveVariant::new(flash));
    live.titles_are_commands = true;
    live.guard = Some(refuse_overwriting);
    profile.live = Some(live);
    profile
}

/// Gemini names the file of a session after its minute and its id. `session/load` begins such a file
/// before it reads the session: in the minute of the session's start that is the same file, and the
/// conversation is lost.
fn refuse_overwriting(command: &CommandConfig, request: &LaunchRequest) -> Result<(), Error> {
    if request.kind == ExecutionKind::New {
        return Ok(());
    }
    let id = request.session_id.native_id();
    let name = format!("session-{}-{:.8}.jsonl", utc_minute(SystemTime::now()), id);
    let variable = |name: &&str| match command.env.get(*name) {
        Some(home) => Some(home.into()),
        None => std::env::var_os(name),
    };
    let home = HOME_VARIABLES.iter().filter_map(variable);
    let home = home.map(PathBuf::from).find(|home| home != Path::new(""));
    let mut folders = chat_folders(&request.context)(home.as_deref()).into_iter();
    match folders.any(|folder| folder.join(&name).exists()) {
        true => Err(Error::Invalid {
            what: "session id",
            value: id.to_owned(),
            reason: "gemini would overwrite a session of this minute; load it in the next one",
        }),
        false => Ok(()),
    }
}

/// `2026-11-17T15-22`, in the Gregorian calendar: days are counted from 1 March of year 0, so that the
/// leap day is the last of a year.
fn utc_minute(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let minutes = seconds.as_secs() / 60;
    let days = minutes / 1440 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = (shifted_month + 2) % 12 + 1;
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute) = (minutes / 60 % 24, minutes % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}-{minute:02}")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00-00"),
            (951_782_399, "2000-02-28T23-59"),
            (951_782_400, "2000-02-29T00-00"),
            (951_868_800, "2000-03-01T00-00"),
            (1_794_928_926, "2026-11-17T15-22"),
            (4_107_542_399, "2100-02-28T23-59"),
            (4_107_542_400, "2100-03-01T00-00"),
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(utc_minute(time), expected);
        }
    }
}
