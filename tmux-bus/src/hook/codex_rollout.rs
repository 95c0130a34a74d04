//! The transcripts ("rollouts") of Codex.
//!
//! Codex passes the payload of its `notify` program as one argument. Linux refuses arguments of more than 128 KiB;
//! Codex then runs nothing and says nothing. The answer is in the transcript: a line `item_completed` has the prompt
//! and the id of its turn, a line `task_complete` the answer of the turn, a line `turn_aborted` its interruption.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value;

use super::hook_turn::{TurnEnd, is_same_prompt};

/// Number of transcripts that are read at most. Each agent that works at the moment changes one.
const MAX_FILES: usize = 32;

/// How the turn of a prompt that was submitted at `since` ended; `None` if no transcript has its end. `stamp` is
/// `since` as [`super::time_stamp`] writes it.
pub(super) fn turn_end(
    codex_home: &Path,
    prompt: &str,
    since: SystemTime,
    stamp: &str,
) -> Option<TurnEnd> {
    let files = changed_since(&codex_home.join("sessions"), since);
    files.iter().take(MAX_FILES).find_map(|path| {
        let text = fs::read_to_string(path).ok()?;
        end_in(&text, prompt, stamp)
    })
}

/// The transcripts `sessions/<year>/<month>/<day>/rollout-*.jsonl` that changed, the newest first.
fn changed_since(sessions: &Path, since: SystemTime) -> Vec<PathBuf> {
    let mut folders = vec![sessions.to_owned()];
    for _ in 0..3 {
        folders = folders.iter().flat_map(|folder| entries(folder)).collect();
    }
    let mut files: Vec<_> = folders
        .iter()
        .flat_map(|folder| entries(folder))
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "jsonl")
        })
        .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
        .filter(|(changed, _)| *changed >= since)
        .collect();
    files.sort();
    files.into_iter().rev().map(|(_, path)| path).collect()
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path()))
}

fn end_in(transcript: &str, prompt: &str, since: &str) -> Option<TurnEnd> {
    let text = |value: &Value, pointer: &str| {
        let text = value.pointer(pointer).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let mut turn = None;
    for line in transcript.lines() {
        let Ok(line) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let kind = text(&line, "/payload/type");
        let id = text(&line, "/payload/turn_id");
        match &turn {
            None if kind == "item_completed"
                && text(&line, "/payload/item/type") == "UserMessage"
                && text(&line, "/timestamp").as_str() >= since
                && is_same_prompt(prompt, &text(&line, "/payload/item/content/0/text")) =>
            {
                turn = Some(id);
            }
            Some(ours) if *ours == id && kind == "task_complete" => {
                let answer = text(&line, "/payload/last_agent_message");
                return Some(match answer.trim().is_empty() {
                    true => TurnEnd::NoAnswer,
                    false => TurnEnd::Answer(answer),
                });
            }
            Some(ours) if *ours == id && kind == "turn_aborted" => return Some(TurnEnd::NoAnswer),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const SINCE: &str = "2026-11-17T12:00:05.000Z";

    fn prompt(second: u32, turn: &str, text: &str) -> String {
        format!(
            r#"{{"timestamp":"2026-11-17T12:00:{second:02}.000Z","payload":{{"type":"item_completed","turn_id":"{turn}","item":{{"type":"UserMessage","content":[{{"text":"{text}"}}]}}}}}}"#
        )
    }

    fn complete(turn: &str, text: &str) -> String {
        format!(
            r#"{{"payload":{{"type":"task_complete","turn_id":"{turn}","last_agent_message":"{text}"}}}}"#
        )
    }

    #[track_caller]
    fn check(lines: &[String], expected: Option<TurnEnd>) {
        assert_eq!(end_in(&lines.join("\n"), "hi", SINCE), expected);
    }

    #[test]
    fn the_answer_is_found_by_prompt_time_and_turn() {
        let answer = |text: &str| Some(TurnEnd::Answer(text.to_owned()));
        let aborted =
            |turn: &str| format!(r#"{{"payload":{{"type":"turn_aborted","turn_id":"{turn}"}}}}"#);
        check(
            &[prompt(6, "t1", "hi"), complete("t1", "yes")],
            answer("yes"),
        );
        check(&[prompt(4, "t0", "hi"), complete("t0", "old")], None);
        check(&[prompt(6, "t1", "hi"), complete("t0", "other")], None);
        check(&[prompt(6, "t1", "other"), complete("t1", "other")], None);
        check(&["torn {".into(), prompt(6, "t1", "hi")], None);
        check(
            &[prompt(6, "t1", "hi"), aborted("t1")],
            Some(TurnEnd::NoAnswer),
        );
        check(
            &[prompt(6, "t1", "hi"), complete("t1", "")],
            Some(TurnEnd::NoAnswer),
        );
    }

    #[test]
    fn only_transcripts_that_changed_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("sessions/2026/11/17");
        fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, answer: &str| {
            let text = [prompt(6, "t1", "hi"), complete("t1", answer)].join("\n");
            fs::write(folder.join(name), text).unwrap();
        };
        write("rollout-a-old.jsonl", "old");
        let old = fs::File::options()
            .write(true)
            .open(folder.join("rollout-a-old.jsonl"));
        let since = SystemTime::now() - std::time::Duration::from_secs(60);
        old.unwrap()
            .set_modified(since - std::time::Duration::from_secs(1))
            .unwrap();
        assert_eq!(turn_end(dir.path(), "hi", since, SINCE), None);
        write("rollout-b-new.jsonl", "new");
        let expected = Some(TurnEnd::Answer("new".to_owned()));
        assert_eq!(turn_end(dir.path(), "hi", since, SINCE), expected);
        assert_eq!(
            turn_end(&dir.path().join("missing"), "hi", since, SINCE),
            None
        );
    }
}
