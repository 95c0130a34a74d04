//! The hooks of agents: what an agent itself reports about its prompts, answers and state.
//!
//! # Theory
//!
//! An agent is started with hooks that exist for this launch only. They run [`hook.sh`](hook.sh), or a plugin,
//! which stores each event as a file in a private folder of the launch. Nothing of the user's own
//! configuration is written; where an injected value would replace one of the user's, both are merged.
//!
//! - **Invariant.** A file without a dot is complete, because it was renamed.
//! - **Invariant.** An answer belongs to a message only if the agent says so: by the text of the prompt and by the
//!   ids of session and turn.
//! - Files are not deleted by a reader, because several processes may read them. Old ones are removed when there
//!   are many; a new launch has a new folder.

mod codex_notify;
mod codex_rollout;
mod event_folder;
mod gemini_chat;
mod hook_event;
mod hook_turn;
mod injection;
mod json_merge;
mod launch_folder;
mod shell_words;
mod transcripts;

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use time::OffsetDateTime;
use tokio::time::Instant;

use crate::log::FileWatch;

pub(crate) use event_folder::EventFolder;
pub(crate) use hook_event::MAX_PAYLOAD;
pub(crate) use hook_turn::{HookTurn, TurnEnd};
pub(crate) use launch_folder::LaunchFolder;
pub(crate) use transcripts::turn_end;

/// Reads the answer to a prompt that was submitted at `since` from a transcript of Gemini CLI; waits for it until
/// `limit`.
pub(crate) async fn read_gemini_chat(
    path: &Path,
    prompt: &str,
    since: SystemTime,
    limit: Instant,
) -> Option<String> {
    let since = time_stamp(since);
    let mut watch = FileWatch::new();
    loop {
        watch.arm(path);
        // A file that does not exist yet has no answer.
        let transcript = fs::read(path).unwrap_or_default();
        let answer = gemini_chat::answer(&String::from_utf8_lossy(&transcript), prompt, &since);
        if answer.is_some() || Instant::now() >= limit {
            return answer;
        }
        let _ = tokio::time::timeout_at(limit, watch.changed()).await;
    }
}

/// A time as the transcripts of agents write it, to the millisecond, so that texts can be compared.
fn time_stamp(time: SystemTime) -> String {
    let time = OffsetDateTime::from(time);
    let (year, month, day) = (time.year(), u8::from(time.month()), time.day());
    let (hour, minute, second) = (time.hour(), time.minute(), time.second());
    let millisecond = time.millisecond();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn time_stamps_have_the_form_of_the_transcripts() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_794_916_915_337);
        assert_eq!(time_stamp(time), "2026-11-17T12:01:55.337Z");
    }
}
