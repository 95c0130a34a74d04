//! The transcripts ("rollouts") of Codex.
//!
//! Codex passes the payload of its `notify` program as one argument. Linux refuses arguments of more than 128 KiB;
//! Codex then runs nothing and says nothing. The answer is in the transcript: a line `item_completed` has the prompt
//! and the id of its turn, a line `task_complete` the answer of the turn, a line `turn_aborted` its interruption.

use serde_json::Value;

use super::hook_turn::{TurnEnd, is_same_prompt};

/// How the turn of a prompt that was submitted at `since` ended; `None` if the transcript has no end of it. The time is
/// written as by [`super::time_stamp`].
pub(super) fn turn_end(transcript: &str, prompt: &str, since: &str) -> Option<TurnEnd> {
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
        assert_eq!(turn_end(&lines.join("\n"), "hi", SINCE), expected);
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
}
