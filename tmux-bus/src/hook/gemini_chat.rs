//! The transcript of Gemini CLI.
//!
//! # Theory
//!
//! A transcript has JSON lines. A line with an `id` adds a message or replaces the one with that id. A line
//! `{"$set":{"messages":[...]}}` replaces the whole list; other lines do not matter.
//!
//! The file is read as a log, not as the list that it stands for. After a turn was cancelled, Gemini writes older
//! messages again, with new ids and new times, and leaves the cancelled prompt out. In the list, an older turn with
//! the same prompt would then look like ours.
//!
//! Our turn begins with the first line after the submit that has our prompt. It ends before the next prompt, or where
//! the list is replaced. The answer is its last message, if that is one of the model with a text and without a call
//! of a tool; otherwise the turn was cancelled, has failed, or is not written yet.

use serde::Deserialize;
use serde_json::Value;

use super::hook_turn::is_same_prompt;

#[derive(Deserialize)]
struct ChatLine {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    timestamp: String,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    content: Value,
    #[serde(default, rename = "toolCalls")]
    tool_calls: Option<Vec<Value>>,
    #[serde(default, rename = "$set")]
    set: Option<Value>,
}

/// The answer to a prompt that was submitted at `since`, a time as [`super::time_stamp`] writes it.
pub(super) fn answer(transcript: &str, prompt: &str, since: &str) -> Option<String> {
    let lines = transcript
        .lines()
        .filter_map(|line| serde_json::from_str::<ChatLine>(line).ok());
    let mut lines = lines.skip_while(|line| {
        let is_ours = line.kind == "user"
            && line.timestamp.as_str() >= since
            && is_same_prompt(prompt, &text_of(&line.content));
        !is_ours
    });
    lines.next()?;
    let mut last: Option<ChatLine> = None;
    for line in lines {
        let is_replaced = line.set.is_some_and(|set| set.get("messages").is_some());
        if is_replaced || (line.kind == "user" && !text_of(&line.content).is_empty()) {
            break;
        }
        // Results of tools are messages of the user.
        if line.id.is_some() && (line.kind == "gemini" || line.kind == "user") {
            last = Some(ChatLine { set: None, ..line });
        }
    }
    let last = last.filter(|last| {
        last.kind == "gemini" && last.tool_calls.as_ref().is_none_or(Vec::is_empty)
    })?;
    Some(text_of(&last.content)).filter(|text| !text.trim().is_empty())
}

/// The content is a text or a list of parts.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part.get("text")?.as_str())
            .collect(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SINCE: &str = "2026-11-17T12:00:05.000Z";

    fn line(second: u32, kind: &str, content: &str) -> String {
        format!(
            r#"{{"id":"{second}{kind}{}","timestamp":"2026-11-17T12:00:{second:02}.500Z","type":"{kind}","content":{content}}}"#,
            content.len()
        )
    }

    #[track_caller]
    fn check(lines: &[String], expected: Option<&str>) {
        let text = lines.join("\n");
        assert_eq!(answer(&text, "hi", SINCE).as_deref(), expected);
    }

    #[test]
    fn the_answer_is_the_last_text_of_our_turn() {
        let hi = || line(6, "user", r#"[{"text":"hi"}]"#);
        let replaced = || r#"{"$set":{"messages":[]}}"#.to_owned();
        let updated = || r#"{"$set":{"lastUpdated":"x"}}"#.to_owned();
        check(&[hi(), line(7, "gemini", r#""yes""#)], Some("yes"));
        check(
            &[
                hi(),
                updated(),
                line(7, "gemini", r#"[{"text":"a"},{"text":"b"}]"#),
                updated(),
            ],
            Some("ab"),
        );
        check(&[hi()], None);
        check(&[], None);
        // An older turn with the same prompt.
        let older = [line(3, "user", r#""hi""#), line(4, "gemini", r#""old""#)];
        check(&older, None);
        check(
            &[older.as_slice(), &[hi(), line(7, "gemini", r#""new""#)]].concat(),
            Some("new"),
        );
        // The turn of a person after ours.
        let person = [line(8, "user", r#""other""#), line(9, "gemini", r#""no""#)];
        check(
            &[[hi(), line(7, "gemini", r#""yes""#)].as_slice(), &person].concat(),
            Some("yes"),
        );
        check(&[[hi()].as_slice(), &person].concat(), None);
        // Cancelled: older messages are written again, with new times.
        let again = [line(8, "user", r#""hi""#), line(9, "gemini", r#""old""#)];
        let info = line(7, "info", r#""Request cancelled.""#);
        check(
            &[[hi(), info.clone(), replaced()].as_slice(), &again].concat(),
            None,
        );
        check(
            &[
                [hi(), info, line(7, "user", r#""<session_context>""#)].as_slice(),
                &again,
            ]
            .concat(),
            None,
        );
    }

    #[test]
    fn a_text_before_a_tool_is_not_the_answer() {
        let hi = line(6, "user", r#""hi""#);
        let call = r#"{"id":"1","timestamp":"2026-11-17T12:00:07.000Z","type":"gemini","content":"I look","toolCalls":[{"id":"x"}]}"#;
        let result = line(8, "user", r#"[{"functionResponse":{"id":"x"}}]"#);
        let said = line(9, "gemini", r#""done""#);
        let call = || call.to_owned();
        check(&[hi.clone(), call()], None);
        check(
            &[hi.clone(), line(7, "gemini", r#""I look""#), result.clone()],
            None,
        );
        check(&[hi.clone(), call(), result.clone()], None);
        check(&[hi, call(), result, said], Some("done"));
    }

    #[test]
    fn damage_is_passed_over() {
        check(
            &[
                "no json".into(),
                "{}".into(),
                line(6, "user", r#""hi""#),
                "[".into(),
                line(7, "gemini", r#""yes""#),
            ],
            Some("yes"),
        );
        check(&[line(6, "user", r#""hi""#), line(7, "gemini", "7")], None);
    }
}
