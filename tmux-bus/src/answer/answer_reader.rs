//! The wait for one answer. See `docs/answer-life.md`, steps 7 to 10.
//!
//! # Theory
//!
//! An answer is read in two steps that repeat: wait for a marker, then take in the rest. Before: the
//! tap is open at the submit offset. After: the answer, or an error with the output so far.
//!
//! There are two states: *lines* until the program draws, *screen* from then on, and never back.
//!
//! | state | a marker counts | the next check is made |
//! |---|---|---|
//! | lines | at the first hit in the stream that is newer than the message | at each output; `WORD_QUIET` after the last output if a candidate is undecided |
//! | screen | if a captured screen has a new marker, or a hit scrolled off the screen | after a new hit in the stream; `FRAME_QUIET` after the last output |
//!
//! - **Invariant.** Every byte of the tap is fed to the line reader, also in the state *screen*.
//!   Its transcript is the partial answer of an error.
//! - **Bound.** Output past the limit ends the wait with [`Error::AnswerTooLong`].
//! - **Race.** A candidate at the end of the output may become a longer word. It is decided after
//!   `WORD_QUIET`.
//! - **Race.** Output arrives during a capture. `mark_captured` is called before the capture, so
//!   this output makes the capture stale and causes another one.
//! - **Race.** The program ends during a check. The rest of the tap is taken in, and
//!   `check_after_exit` checks once more before the wait fails.
//! - **Race.** The marker becomes a part of a longer word after it was found. `finish` then returns
//!   `None`, and the wait continues.
//!
//! **Example.** A full-screen program, marker `X OK`: it draws (state *screen*) and prints `X OK`.
//! The hit in the stream causes a capture, which has a new marker. 300 ms of quiet follow. The
//! screen is captured again, with the lines that scrolled off since the submit, and the answer is
//! extracted. If the program has completed the word to `X OKAY` by then, the marker is rejected and
//! the wait continues.

use std::time::Duration;

use tokio::time::Instant;

use super::answer_target::AnswerTarget;
use super::extract::{self, ScreenAnswer};
use super::line_reader::LineReader;
use super::marker::Marker;
use super::screen_reader::ScreenReader;
use crate::cluster::agent_monitor::{AgentMonitor, Observation};
use crate::control::control_client::ControlClient;
use crate::control::tap::{OutputEnd, TapOutput, deadline};
use crate::pane::{AnswerEnd, ResponseOptions, Sent};
use crate::state::{AgentState, decoration};
use crate::timing::{FRAME_QUIET, LONGEST_WAIT, NO_PROMPT_FACTOR, SETTLE_LIMIT, WORD_QUIET};
use crate::{Error, PartialAnswer};

/// Waits for the answer to a message, with the line reader until the program draws and with the
/// screen reader from then on.
pub(crate) struct AnswerReader<'a> {
    control: &'a ControlClient,
    sent: &'a Sent,
    options: &'a ResponseOptions,
    target: AnswerTarget,
    deadline: Instant,
    limit: usize,
    lines: LineReader,
    /// Present since the first drawing.
    screen: Option<ScreenReader>,
    /// Present if the screen of the agent is known.
    monitor: Option<AgentMonitor>,
}

/// The answer has ended, but cannot be read as a whole.
pub(crate) const NO_BEGINNING: &str = "its beginning is not on the screen any more";
const STILL_WORKS: &str = "the agent still works after the time limit";
const STILL_PRINTS: &str = "the program still prints after the time limit";

/// Where the marker was found.
enum Found {
    /// On a line of the transcript.
    Line(usize),
    Screen,
}

impl<'a> AnswerReader<'a> {
    pub(crate) fn new(
        control: &'a ControlClient,
        sent: &'a Sent,
        marker: Marker,
        options: &'a ResponseOptions,
        limit: usize,
    ) -> Self {
        let submitted = &sent.submitted;
        let target = AnswerTarget::new(marker, &submitted.folded);
        Self {
            control,
            sent,
            options,
            deadline: deadline(submitted.at, options.timeout),
            limit,
            lines: LineReader::new(&target, submitted),
            screen: None,
            monitor: None,
            target,
        }
    }

    /// The agent must be idle again, and what its TUI adds to the answer is removed.
    #[must_use]
    pub(crate) fn observed_by(mut self, monitor: &AgentMonitor) -> Self {
        self.monitor = Some(monitor.clone()).filter(|known| !known.definition().is_plain());
        self
    }

    /// Sets a new time limit, for an answer that is late.
    pub(crate) fn extend_until(&mut self, limit: Instant) {
        self.deadline = limit;
    }

    pub(crate) async fn run(&mut self) -> Result<String, Error> {
        loop {
            let found = self.wait_for_marker().await?;
            if let Some(answer) = self.finish(found).await? {
                return Ok(answer);
            }
        }
    }

    async fn wait_for_marker(&mut self) -> Result<Found, Error> {
        let tap = &self.sent.submitted.tap;
        loop {
            let output = tap.take();
            self.feed(&output);
            if let Some(found) = self.check_output().await? {
                return Ok(found);
            }
            if output.overflow || self.lines.len() > self.limit {
                return Err(self.too_long().await);
            }
            if let Some(end) = output.end {
                // Output that arrived during the check.
                self.feed(&tap.take());
                self.lines.quiet();
                return match self.check_after_exit().await {
                    Some(found) => Ok(found),
                    None => Err(self.ended(end).await),
                };
            }
            let now = Instant::now();
            if now >= self.deadline {
                return Err(self.timed_out().await);
            }
            let until = match &self.screen {
                Some(screen) if screen.is_stale() => output.last + FRAME_QUIET,
                _ if self.lines.is_undecided() => output.last + WORD_QUIET,
                _ => self.deadline,
            };
            if now < until {
                tap.changed(until.min(self.deadline)).await;
                continue;
            }
            if now >= output.last + WORD_QUIET {
                self.lines.quiet();
            }
            if let Some(found) = self.check_when_quiet().await? {
                return Ok(found);
            }
        }
    }

    fn feed(&mut self, output: &TapOutput) {
        self.lines.feed(output);
        if output.bytes.is_empty() {
            return;
        }
        match &mut self.screen {
            Some(screen) => screen.output_arrived(),
            None if self.lines.draws() => {
                let before = &self.sent.submitted.screen;
                self.screen = Some(ScreenReader::new(before, &self.target));
            }
            None => {}
        }
    }

    /// Decides by the output so far.
    async fn check_output(&mut self) -> Result<Option<Found>, Error> {
        match &self.screen {
            None => Ok(self.lines.first_hit().map(Found::Line)),
            Some(screen) if screen.is_due(self.lines.hit_count()) => self.check_screen().await,
            Some(_) => Ok(None),
        }
    }

    /// Decides when the pane is quiet.
    async fn check_when_quiet(&mut self) -> Result<Option<Found>, Error> {
        if self.screen.is_none() {
            return self.check_output().await;
        }
        if let Some(found) = self.check_screen().await? {
            return Ok(Some(found));
        }
        Ok(self.lines.hit_scrolled_off().then_some(Found::Screen))
    }

    /// Decides when the program has ended. It may have restored the screen on exit: then its last
    /// lines are only in the stream.
    async fn check_after_exit(&mut self) -> Option<Found> {
        if self.screen.is_some()
            && let Ok(Some(found)) = self.check_when_quiet().await
        {
            return Some(found);
        }
        self.lines.first_hit().map(Found::Line)
    }

    async fn check_screen(&mut self) -> Result<Option<Found>, Error> {
        let Some(screen) = &mut self.screen else {
            return Ok(None);
        };
        screen.mark_captured(self.lines.hit_count());
        let captured = match self.control.capture(self.sent.pane).await {
            Ok(captured) => captured,
            // The tap reports the end of the pane or the server.
            Err(Error::ServerGone { .. } | Error::TmuxFailed { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let is_new = screen.has_new_marker(&captured, &self.target);
        Ok(is_new.then_some(Found::Screen))
    }

    /// Takes in the rest of the answer and extracts it; `None` if the marker has become a
    /// part of a longer word, or is not below the message.
    async fn finish(&mut self, found: Found) -> Result<Option<String>, Error> {
        match self.options.end {
            AnswerEnd::Quiet(quiet) => {
                let longest = LONGEST_WAIT / NO_PROMPT_FACTOR;
                self.wait_for_quiet(quiet.min(longest)).await?;
            }
            AnswerEnd::AtMarker => self.finish_line(&found).await,
        }
        self.wait_for_idle().await?;
        let output = self.sent.submitted.tap.take();
        self.feed(&output);
        let is_long = self.screen.is_none() && self.lines.len() > self.limit;
        if output.overflow || is_long {
            return Err(self.too_long().await);
        }
        let answer = match &mut self.screen {
            None => self.lines.answer(&self.sent.submitted),
            Some(_) => match self.screen_answer().await? {
                ScreenAnswer::Whole(answer) => answer,
                ScreenAnswer::NoMarker => {
                    if let Some(screen) = &mut self.screen {
                        screen.reject();
                    }
                    return match output.end {
                        Some(end) => Err(self.ended(end).await),
                        None => Ok(None),
                    };
                }
                ScreenAnswer::NoBeginning => return Err(self.incomplete(NO_BEGINNING).await),
            },
        };
        Ok(Some(match self.options.end {
            AnswerEnd::AtMarker => extract::until_marker(&answer, self.target.marker()),
            AnswerEnd::Quiet(_) => answer,
        }))
    }

    /// Waits until the pane has been quiet for `quiet`. A program that showed a prompt before the
    /// message shows one again when it has answered. Without it the program may pause in the middle
    /// of its answer, and a longer quiet time decides.
    async fn wait_for_quiet(&mut self, quiet: Duration) -> Result<(), Error> {
        let tap = &self.sent.submitted.tap;
        let limit = self.deadline.max(Instant::now() + quiet);
        loop {
            tap.quiet(quiet, limit).await;
            let output = tap.take();
            self.feed(&output);
            let now = Instant::now();
            if output.end.is_some() || output.overflow {
                return Ok(());
            }
            if now < output.last + quiet {
                if now >= limit {
                    return Err(self.incomplete(STILL_PRINTS).await);
                }
                // Race: output between the end of the wait and this look.
                continue;
            }
            let needs_prompt = self.screen.is_none() && self.sent.submitted.has_prompt;
            let long_quiet = output.last + quiet * NO_PROMPT_FACTOR;
            if !needs_prompt || self.lines.ends_with_prompt() || now >= long_quiet.min(limit) {
                return Ok(());
            }
            tap.changed(long_quiet.min(limit)).await;
        }
    }

    /// Waits until an agent whose screen is known has ended its turn.
    async fn wait_for_idle(&mut self) -> Result<(), Error> {
        let Some(monitor) = &self.monitor else {
            return Ok(());
        };
        let limit = self.deadline.max(Instant::now() + SETTLE_LIMIT);
        let is_idle = |seen: &Observation| seen.state == AgentState::Idle;
        match monitor.wait_until(limit, is_idle).await? {
            Err(seen) if seen.exit.is_none() => Err(self.incomplete(STILL_WORKS).await),
            _ => Ok(()),
        }
    }

    /// Waits for the rest of the marker's line.
    async fn finish_line(&mut self, found: &Found) {
        let tap = &self.sent.submitted.tap;
        loop {
            let output = tap.take();
            self.feed(&output);
            let is_complete = match found {
                Found::Line(line) => self.lines.is_line_complete(*line),
                Found::Screen => true,
            };
            let until = output.last + FRAME_QUIET;
            if is_complete || output.end.is_some() || Instant::now() >= until {
                return;
            }
            tap.changed(until).await;
        }
    }

    /// The answer on the screen, with the lines that scrolled off since the submit.
    async fn screen_answer(&self) -> Result<ScreenAnswer, Error> {
        let submitted = &self.sent.submitted;
        let since = match self.lines.is_history_cleared() {
            true => 0,
            false => submitted.scrolled_lines,
        };
        let capture = match self.control.capture_since(self.sent.pane, since).await {
            Ok(capture) => capture,
            Err(Error::TmuxOutputTooLong { .. }) => return Err(self.too_long().await),
            Err(Error::ServerGone { .. } | Error::TmuxFailed { .. }) => {
                return Ok(ScreenAnswer::NoBeginning);
            }
            Err(error) => return Err(error),
        };
        // The screen at the submit is above a clear; below it only the answer follows.
        let before = match self.lines.is_history_cleared() {
            true => "",
            false => &submitted.screen,
        };
        let is_whole = capture.begins_at_since && !self.lines.has_lost_text();
        let definition = self.monitor.as_ref().map(|monitor| monitor.definition());
        let text = match definition {
            Some(definition) => decoration::without_side_bar(definition, &capture.text),
            None => trim_lines(&capture.text),
        };
        let clean = |text: &str| match definition {
            Some(definition) => decoration::remove(&definition.decoration, text),
            None => extract::remove_prompts(text),
        };
        Ok(extract::from_screen(
            &text,
            is_whole.then_some(before),
            &submitted.folded,
            self.target.marker(),
            clean,
        ))
    }

    /// The output so far: the text of the screen if the program draws.
    async fn partial(&self) -> PartialAnswer {
        if self.screen.is_some()
            && let Ok(screen) = self.control.capture(self.sent.pane).await
        {
            return PartialAnswer::new(trim_lines(&screen).trim_end().to_owned());
        }
        PartialAnswer::new(self.lines.answer(&self.sent.submitted))
    }

    async fn ended(&self, end: OutputEnd) -> Error {
        let partial = self.partial().await;
        match end {
            OutputEnd::Exited(exit) => Error::PaneDied {
                pane: self.sent.pane,
                exit,
                partial,
            },
            OutputEnd::ServerGone => self.control.gone(partial),
        }
    }

    async fn timed_out(&self) -> Error {
        Error::ResponseTimeout {
            marker: self.target.marker().as_str().to_owned(),
            pane: self.sent.pane,
            after: self.options.timeout,
            partial: self.partial().await,
        }
    }

    async fn incomplete(&self, reason: &'static str) -> Error {
        Error::AnswerIncomplete {
            pane: self.sent.pane,
            reason,
            partial: self.partial().await,
        }
    }

    async fn too_long(&self) -> Error {
        Error::AnswerTooLong {
            pane: self.sent.pane,
            limit: self.limit,
            partial: self.partial().await,
        }
    }
}

/// Removes the spaces that fill the rows of a screen.
fn trim_lines(screen: &str) -> String {
    screen
        .lines()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect()
}
