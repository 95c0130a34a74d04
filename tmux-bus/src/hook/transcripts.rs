//! The transcripts that an agent writes, for turns whose end no hook reports.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::hook_turn::TurnEnd;
use super::{codex_rollout, gemini_chat, injection, time_stamp};
use crate::definition::hook_rules::TranscriptFormat;

/// Number of transcripts that are read at most. Each agent that works at the moment changes one.
const MAX_FILES: usize = 32;

/// The longest transcript. A longer one has no answer for us.
const MAX_SIZE: u64 = 256 << 20;

/// How the turn of a prompt that was submitted at `since` ended; `None` if no transcript has its end. `env` are the variables
/// that the configuration sets for the agent.
pub(crate) fn turn_end(
    format: TranscriptFormat,
    env: &BTreeMap<String, String>,
    prompt: &str,
    since: SystemTime,
) -> Option<TurnEnd> {
    let stamp = time_stamp(since);
    let read = |path: &PathBuf| {
        let bytes = fs::read(path).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    match format {
        // sessions/<year>/<month>/<day>/rollout-*.jsonl
        TranscriptFormat::CodexRollout => {
            let folder = injection::codex_home(env).join("sessions");
            changed_since(&folder, 3, since)
                .iter()
                .find_map(|path| codex_rollout::turn_end(&read(path)?, prompt, &stamp))
        }
        // tmp/<project>/chats/session-*.jsonl
        TranscriptFormat::GeminiChat => {
            let folder = injection::gemini_home(env).join("tmp");
            changed_since(&folder, 2, since)
                .iter()
                .find_map(|path| gemini_chat::answer(&read(path)?, prompt, &stamp))
                .map(TurnEnd::Answer)
        }
    }
}

/// The transcripts that changed, the newest first. They are in folders of this depth.
fn changed_since(folder: &Path, depth: usize, since: SystemTime) -> Vec<PathBuf> {
    let mut folders = vec![folder.to_owned()];
    for _ in 0..depth {
        folders = folders.iter().flat_map(|folder| entries(folder)).collect();
    }
    let mut files: Vec<_> = folders
        .iter()
        .flat_map(|folder| entries(folder))
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "jsonl")
        })
        .filter_map(|path| Some((path.metadata().ok()?, path)))
        .filter(|(metadata, _)| metadata.len() <= MAX_SIZE)
        .filter_map(|(metadata, path)| Some((metadata.modified().ok()?, path)))
        .filter(|(changed, _)| *changed >= since)
        .collect();
    files.sort();
    files
        .into_iter()
        .rev()
        .map(|(_, path)| path)
        .take(MAX_FILES)
        .collect()
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(
        format: TranscriptFormat,
        variable: &str,
        folder: &str,
        lines: fn(&str, &str) -> String,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(folder);
        let home = dir.path().to_str().unwrap().to_owned();
        let env = BTreeMap::from([(variable.to_owned(), home)]);
        let since = SystemTime::now() - Duration::from_secs(60);
        let end = || turn_end(format, &env, "hi", since);
        assert_eq!(end(), None);
        fs::create_dir_all(&folder).unwrap();
        let now = time_stamp(SystemTime::now());
        let old = folder.join("session-old.jsonl");
        fs::write(&old, lines(&now, "old")).unwrap();
        let file = fs::File::options().write(true).open(&old).unwrap();
        file.set_modified(since - Duration::from_secs(1)).unwrap();
        assert_eq!(end(), None);
        fs::write(folder.join("session-new.jsonl"), lines(&now, "new")).unwrap();
        assert_eq!(end(), Some(TurnEnd::Answer("new".to_owned())));
    }

    #[test]
    fn only_transcripts_that_changed_are_read() {
        check(
            TranscriptFormat::CodexRollout,
            "CODEX_HOME",
            "sessions/2026/11/17",
            |now, answer| {
                let prompt = json!({"timestamp": now, "payload": {"type": "item_completed", "turn_id": "t", "item": {"type": "UserMessage", "content": [{"text": "hi"}]}}});
                let end = json!({"payload": {"type": "task_complete", "turn_id": "t", "last_agent_message": answer}});
                format!("{prompt}\n{end}\n")
            },
        );
        check(
            TranscriptFormat::GeminiChat,
            "GEMINI_CLI_HOME",
            ".gemini/tmp/project/chats",
            |now, answer| {
                let prompt = json!({"id": "1", "timestamp": now, "type": "user", "content": "hi"});
                let end = json!({"id": "2", "timestamp": now, "type": "gemini", "content": answer});
                format!("{prompt}\n{end}\n")
            },
        );
    }
}
