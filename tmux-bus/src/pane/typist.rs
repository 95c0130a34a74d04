//! Types a message into an agent whose screen is known.
//!
//! # Theory
//!
//! An agent takes keys for more than messages: Enter approves a tool, answers a dialog, or submits the
//! draft of a person. So each key is sent only if the screen says what it will do:
//!
//! 1. **Admit.** The agent is idle and its input line is recognised and empty. A working agent is waited
//!    for. An approval or a dialog is refused with the text of the screen, or waited for by option. A
//!    draft is waited for up to [`DRAFT_WAIT`], then refused. Only text that this crate typed last and
//!    that was not submitted (see [`TypedText`]) is removed.
//! 2. **Paste**, and wait until the input line shows the message.
//! 3. **Enter**, after the submit delay of the agent.
//! 4. **Verify** that the message left the input line.
//!
//! - **Invariant.** Enter is sent once. If the message stays in the input line, it is removed. A second
//!   Enter could answer a dialog that has just opened.
//! - **Invariant.** After Enter no error says that the message was not sent. A program that was stopped
//!   for seconds reads the Enter before the keys that remove the text, and its input line is empty either
//!   way: [`Error::SubmitUnknown`].
//! - **Race.** The screen changes between a look and the key that depends on it. tmux itself compares the
//!   cursor with that of the look, in the same step as the paste: a dialog, a draft and a new frame move
//!   it. On a difference nothing is pasted, and the screen is read again.
//! - **Race.** The program ends after Enter. Whether it has read the message is not known:
//!   [`Error::SubmitUnknown`].
//! - **Race.** A person types while the message is pasted. The input line then shows another text than
//!   the message, and Enter is not sent: [`Error::NotSubmitted`].
//! - **Limit.** A sender that is killed while it removes a text of several lines leaves a rest, which counts
//!   as the draft of a person.
//!
//! **Example.** Gemini shows `Type your message`, cursor at 3,30. The message is pasted if the cursor is
//! still there; the input line shows it after 20 ms; Enter follows 400 ms after the paste, if the cursor
//! is still at the end of the message; the input line shows the placeholder again: submitted.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::sender::{Bracket, PasteReport, Sender};
use super::typed_text::TypedText;
use crate::answer::marker;
use crate::cluster::agent_monitor::{AgentMonitor, Observation};
use crate::control::tap::Tap;
use crate::definition::pattern::Pattern;
use crate::state::AgentState;
use crate::state::input_line::InputLine;
use crate::timing::{
    DIALOG_SETTLE, DRAFT_WAIT, FRAME_QUIET, LEAVE_LIMIT, SUBMIT_QUIET, TYPE_LIMIT,
};
use crate::{Error, PartialAnswer, Refusal};

/// An agent to type into, and how long it may take to become idle.
#[derive(Clone, Debug)]
pub(crate) struct Typist {
    pub(crate) monitor: AgentMonitor,
    pub(crate) limit: Instant,
    /// Whether the message waits while the agent asks a person.
    pub(crate) waits_for_person: bool,
    /// Whether the message may switch the input line to another mode, such as a shell mode.
    pub(crate) is_command: bool,
}

/// What becomes of a text in the input line that this crate typed and did not submit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnText {
    /// For a task that no caller ends: the rest of a text that is removed in part would be a draft.
    Remove,
    /// The sender removes it.
    Leave,
}

impl Sender {
    /// Waits until a message may be typed. Changes nothing, except that it may remove a text that this
    /// crate typed.
    pub(crate) async fn admit(&self, typist: &Typist, own: OwnText) -> Result<Observation, Error> {
        let (monitor, limit) = (&typist.monitor, typist.limit);
        let draft_limit = limit.min(Instant::now() + DRAFT_WAIT);
        loop {
            let is_news = |seen: &Observation| {
                seen.admits_a_message() || seen.state.needs_a_person() || is_draft(seen)
            };
            let seen = match monitor.wait_until(limit, is_news).await? {
                Ok(seen) if seen.admits_a_message() => return Ok(seen),
                Ok(seen) => seen,
                Err(seen) => return Err(self.not_admitted(&seen)),
            };
            // No pattern: the placeholder of a paste says too little about an older text.
            let is_own = !seen.state.needs_a_person() && self.is_own(&seen, None)?;
            if is_own && own == OwnText::Leave {
                return Ok(seen);
            }
            let changed = if seen.state.needs_a_person() {
                self.question_ends(typist).await?
            } else if is_own && self.clear(typist, None).await? {
                continue;
            } else {
                monitor
                    .wait_until(draft_limit, |seen| !is_draft(seen))
                    .await?
            };
            if let Err(seen) = changed {
                return Err(self.not_admitted(&seen));
            }
        }
    }

    /// Refuses a message if the agent asks a person something, unless the message waits for that.
    pub(crate) async fn refuse_question(&self, typist: &Typist) -> Result<(), Error> {
        let seen = typist.monitor.look().await?;
        if !seen.state.needs_a_person() || typist.waits_for_person {
            return Ok(());
        }
        let ended = self.question_ends(typist).await?;
        ended.map(drop).map_err(|seen| self.not_admitted(&seen))
    }

    /// Waits until the agent asks nothing any more: for as long as the message waits for that, or else
    /// for a moment, because a screen that is being drawn can look like a dialog.
    async fn question_ends(
        &self,
        typist: &Typist,
    ) -> Result<Result<Observation, Observation>, Error> {
        let until = match typist.waits_for_person {
            true => typist.limit,
            false => typist.limit.min(Instant::now() + DIALOG_SETTLE),
        };
        let is_over = |seen: &Observation| !seen.state.needs_a_person();
        typist.monitor.wait_until(until, is_over).await
    }

    /// Steps 2 to 4 of the theory; `None` if the screen has changed since it was `seen`.
    pub(super) async fn type_and_submit(
        &self,
        typist: &Typist,
        seen: &Observation,
        message: &str,
        (pid, submit_byte): (u32, u8),
        tap: &Arc<Tap>,
    ) -> Result<Option<PasteReport>, Error> {
        let submit = &typist.monitor.definition().submit;
        let typed = self.typed_text();
        typed.record(message)?;
        let output = Arc::new(Tap::new(0));
        let at = Some(seen.screen.cursor);
        let pasted = self
            .paste(pid, message.as_bytes(), Bracket::IfEnabled, at, &output)
            .await;
        let pasted = pasted.map_err(|error| self.not_submitted(error));
        if !matches!(pasted, Ok(Some(_))) {
            // After `NotSubmitted` the text may be in the input line, and the next sender must know it.
            if !matches!(pasted, Err(Error::NotSubmitted { .. })) {
                typed.remove();
            }
            return pasted;
        }
        let wanted = visible(message);
        let pattern = self.pasted_pattern(typist);
        let holds = |seen: &Observation| shows(seen, &wanted, pattern);
        let is_fit = |seen: &Observation| typist.is_command || seen.input != InputLine::OtherMode;
        let left_in_input = |error| self.left_in_input(error);
        let look = async || {
            let looked = self.look(typist, pid, &output, TYPE_LIMIT, holds).await;
            match looked.map_err(left_in_input)? {
                Ok(seen) if is_fit(&seen) => Ok(seen),
                Ok(seen) | Err(seen) => {
                    let removed = self.not_taken(typist, pid, seen).await;
                    Err(removed.map_err(left_in_input)?)
                }
            }
        };
        let mut shown = look().await?;
        sleep_until(Instant::now() + submit.delay).await;
        let report = loop {
            let at = Some(shown.screen.cursor);
            let entered = self.submit(pid, submit_byte, at, tap).await?;
            if let Some(report) = entered {
                break report;
            }
            shown = look().await?;
        };
        let left = |seen: &Observation| {
            !holds(seen) && (seen.input != InputLine::Missing || seen.state != AgentState::Unknown)
        };
        let unknown = |error| Error::SubmitUnknown {
            pane: self.pane,
            source: Box::new(error),
        };
        let looked = self.look(typist, pid, &output, LEAVE_LIMIT, left).await;
        match looked.map_err(unknown)? {
            Ok(_) => {
                typed.remove();
                Ok(Some(report))
            }
            // It may have read the Enter before it ended.
            Err(seen) if seen.exit.is_some() || seen.pid != pid => {
                Err(unknown(self.refused_with(Refusal::Dead, &seen)))
            }
            Err(seen) if holds(&seen) => {
                let (Ok(error) | Err(error)) = self.not_taken(typist, pid, seen).await;
                Err(unknown(error))
            }
            Err(seen) => Err(unknown(self.refused_with(Refusal::Busy, &seen))),
        }
    }

    /// Looks at the screen after each frame, for at most `limit`, until `accept` holds, or the process `pid` has ended. A
    /// program that was started again shows an empty input line, too.
    async fn look(
        &self,
        typist: &Typist,
        pid: u32,
        output: &Tap,
        limit: Duration,
        accept: impl Fn(&Observation) -> bool,
    ) -> Result<Result<Observation, Observation>, Error> {
        let limit = Instant::now() + limit;
        loop {
            output
                .quiet(SUBMIT_QUIET, (Instant::now() + FRAME_QUIET).min(limit))
                .await;
            let seen = typist.monitor.look().await?;
            let has_ended = seen.pid != pid || seen.exit.is_some();
            // A command such as `/exit` ends the program.
            if has_ended && !(typist.is_command && accept(&seen)) {
                return Ok(Err(seen));
            }
            if accept(&seen) {
                return Ok(Ok(seen));
            }
            if Instant::now() >= limit {
                return Ok(Err(seen));
            }
            output.changed(limit).await;
        }
    }

    /// Whether the input line has the text that this crate typed last.
    fn is_own(&self, seen: &Observation, pattern: Option<&Pattern>) -> Result<bool, Error> {
        let typed = self.typed_text().read()?;
        Ok(typed.is_some_and(|typed| shows(seen, &visible(&typed), pattern)))
    }

    /// As `is_own`; a record that cannot be read is none.
    pub(super) fn has_own_draft(&self, seen: &Observation) -> bool {
        self.is_own(seen, None).unwrap_or(false)
    }

    /// Removes a message that the agent did not take; the error says whether it is gone.
    async fn not_taken(
        &self,
        typist: &Typist,
        pid: u32,
        seen: Observation,
    ) -> Result<Error, Error> {
        // The text has ended with the program. The input line of the next one is empty, too.
        if seen.pid != pid || seen.exit.is_some() {
            return Ok(self.refused_with(Refusal::Dead, &seen));
        }
        let pattern = self.pasted_pattern(typist);
        if self.is_own(&seen, pattern)? && self.clear(typist, pattern).await? {
            return Ok(self.refused_with(Refusal::NotTaken, &seen));
        }
        Ok(match self.not_admitted(&seen) {
            // The text has ended with the program that had it.
            error @ Error::Refused {
                reason: Refusal::Dead,
                ..
            } => error,
            error => Error::NotSubmitted {
                pane: self.pane,
                source: Box::new(error),
            },
        })
    }

    /// Removes the text that this crate typed from the input line; `false` if a part of it stays.
    async fn clear(&self, typist: &Typist, pattern: Option<&Pattern>) -> Result<bool, Error> {
        /// A key removes a line at most.
        const MAX_KEYS: usize = 500;
        const BACKSPACE: [u8; 1] = [0x7f];
        let definition = typist.monitor.definition();
        let keys: Option<Vec<u8>> = definition
            .submit
            .clear_keys
            .iter()
            .map(|key| byte(key))
            .collect();
        let Some(keys) = keys.filter(|keys| !keys.is_empty()) else {
            return Ok(false);
        };
        let typed = self.typed_text();
        let Some(text) = typed.read()? else {
            return Ok(false);
        };
        let wanted = visible(&text);
        let output = Arc::new(Tap::new(0));
        let (mut last, mut unchanged) = (None, 0);
        for _ in 0..MAX_KEYS {
            let seen = typist.monitor.look().await?;
            if seen.input == InputLine::Empty {
                typed.remove();
                return Ok(true);
            }
            let shown = shown_text(&seen);
            let is_rest = shows(&seen, &wanted, pattern)
                || shown
                    .as_ref()
                    .is_some_and(|shown| wanted.starts_with(shown));
            let state = (seen.screen.cursor, seen.input.clone());
            unchanged = match &last {
                Some(last) if *last == state => unchanged + 1,
                _ => 0,
            };
            // The key that removes a line does nothing on an empty line and does not leave a mode.
            let keys = match unchanged {
                0 => &keys[..],
                1 => &BACKSPACE,
                _ => return Ok(false),
            };
            if !is_rest {
                return Ok(false);
            }
            let (target, _) = self.target().await?;
            let at = Some(seen.screen.cursor);
            let pasted = self
                .paste(target.pid, keys, Bracket::Never, at, &output)
                .await?;
            if pasted.is_some() {
                last = Some(state);
            }
            // The program shows the change within a frame; a slow one is looked at again.
            let limit = Instant::now() + DIALOG_SETTLE;
            output.changed(limit).await;
            output.quiet(FRAME_QUIET, limit).await;
        }
        Ok(false)
    }

    fn typed_text(&self) -> TypedText {
        let launch = self.control.panes().launch(self.pane);
        TypedText::of(&self.folder, self.pane, launch)
    }

    fn pasted_pattern<'a>(&self, typist: &'a Typist) -> Option<&'a Pattern> {
        typist.monitor.definition().input.as_ref()?.pasted.as_ref()
    }

    fn not_admitted(&self, seen: &Observation) -> Error {
        let reason = match &seen.state {
            _ if seen.exit.is_some() => Refusal::Dead,
            AgentState::WaitingForApproval => Refusal::Approval,
            AgentState::Dialog { .. } => Refusal::Dialog,
            _ if matches!(seen.input, InputLine::Text(_) | InputLine::OtherMode) => Refusal::Draft,
            AgentState::Idle if seen.in_copy_mode => Refusal::CopyMode,
            _ => Refusal::Busy,
        };
        self.refused_with(reason, seen)
    }

    fn refused_with(&self, reason: Refusal, seen: &Observation) -> Error {
        Error::Refused {
            pane: self.pane,
            reason,
            screen: PartialAnswer::new(seen.screen.text()),
        }
    }
}

fn is_draft(seen: &Observation) -> bool {
    seen.state == AgentState::Idle
        && matches!(seen.input, InputLine::Text(_) | InputLine::OtherMode)
}

/// The visible characters: agents wrap and indent a message, and replace tabs.
fn visible(text: &str) -> Vec<char> {
    marker::fold(text).iter().map(|folded| folded.c).collect()
}

/// The visible characters of the input line; in another mode, of its row with the sign of the mode.
fn shown_text(seen: &Observation) -> Option<Vec<char>> {
    match &seen.input {
        InputLine::Text(text) => Some(visible(text)),
        InputLine::OtherMode => seen
            .screen
            .lines
            .get(seen.screen.cursor.row)
            .map(|row| visible(row)),
        InputLine::Missing | InputLine::Empty => None,
    }
}

/// Whether the input line shows a text: whole, in part if the line scrolls, or as a placeholder.
fn shows(seen: &Observation, wanted: &[char], pasted: Option<&Pattern>) -> bool {
    if let InputLine::Text(text) = &seen.input
        && let Some(found) = pasted.and_then(|pattern| pattern.found(text))
        && let Some((before, after)) = text.split_once(found)
    {
        return wanted.starts_with(&visible(before)) && wanted.ends_with(&visible(after));
    }
    shown_text(seen).is_some_and(|shown| is_part(&shown, wanted))
}

/// Whether a shown text is the wanted one, or so long a part of it that it is no other.
fn is_part(shown: &[char], wanted: &[char]) -> bool {
    const PROOF: usize = 40;
    shown == wanted
        || (shown.len() >= PROOF && (wanted.ends_with(shown) || wanted.starts_with(shown)))
}

/// The byte of a key such as `C-u`.
fn byte(key: &str) -> Option<u8> {
    match key.strip_prefix("C-").unwrap_or(key).as_bytes() {
        [letter @ b'a'..=b'z'] if key.starts_with("C-") => Some(letter & 0x1f),
        _ if key == "BSpace" => Some(0x7f),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::agent_definitions::AgentDefinitions;

    #[test]
    fn a_message_is_recognised_in_the_input_line() {
        let definitions = AgentDefinitions::builtin().unwrap();
        let claude = definitions.get("claude").unwrap();
        let pattern = claude.input.as_ref().unwrap().pasted.as_ref();
        let check = |shown: &str, message: &str, expected| {
            let seen = Observation::of_screen(claude, &format!("❯\u{a0}{shown}"));
            assert_eq!(
                shows(&seen, &visible(message), pattern),
                expected,
                "{shown:?}"
            );
        };
        check("two\n  lines", "two\nlines", true);
        check("a    b", "a\tb", true);
        check(
            "a long\n  line that the agent wraps",
            "a long line that the agent wraps",
            true,
        );
        check("[Pasted text #3 +20 lines]", "anything", true);
        let placeholder = Observation::of_screen(claude, "❯\u{a0}[Pasted text #3 +20 lines]");
        assert!(
            !shows(&placeholder, &visible("anything"), None),
            "not for an older text"
        );
        check("begin [Pasted text #3]", "begin and so on", true);
        check("a draft [Pasted text #3]", "anything", false);
        check("hello a draft", "hello", false);
        check("a drafthello", "hello", false);
        check("hell", "hello", false);
        let long = "word ".repeat(40);
        check(&long[100..], &long, true);
        check("", "hello", false);
    }

    #[test]
    fn keys_have_bytes() {
        assert_eq!(byte("C-u"), Some(0x15));
        assert_eq!(byte("BSpace"), Some(0x7f));
        assert_eq!((byte("Enter"), byte("u"), byte("C-")), (None, None, None));
    }
}
