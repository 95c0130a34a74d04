//! The wait for one answer: by the hooks of the agent, or by the marker in its output.

use std::pin::pin;
use std::time::SystemTime;

use tokio::time::{Instant, sleep_until};

use super::agent_monitor::Observation;
use super::ask::Ask;
use super::owed_answer::OwedAnswer;
use crate::Error;
use crate::answer::answer_reader::{AnswerReader, NO_BEGINNING};
use crate::control::tap::{OutputEnd, deadline};
use crate::hook::{self, EventFolder, HookTurn, TurnEnd};
use crate::log::FileWatch;
use crate::pane::Sent;
use crate::state::AgentState;
use crate::timing::{HOOK_GRACE, TRANSCRIPT_GRACE};

/// The wait for one answer. It can be continued after its time limit.
pub(super) enum AnswerWait<'a> {
    Hook(Box<HookWait<'a>>),
    Marker(Box<AnswerReader<'a>>),
}

/// The wait for an answer that hooks report.
pub(super) struct HookWait<'a> {
    pub(super) ask: &'a Ask,
    pub(super) sent: &'a Sent,
    pub(super) turn: HookTurn<'a>,
    pub(super) events: EventFolder,
    /// No event will come.
    pub(super) is_silent: bool,
    /// When the message was typed.
    pub(super) since: SystemTime,
}

/// The text of an answer, and the message that the agent got if the agent has changed it.
pub(super) type AnswerText = (String, Option<String>);

impl AnswerWait<'_> {
    pub(super) async fn run(&mut self, limit: Instant) -> Result<AnswerText, Error> {
        match self {
            Self::Marker(reader) => {
                reader.extend_until(limit);
                Ok((reader.run().await?, None))
            }
            Self::Hook(wait) => {
                let end = wait.for_end(limit).await?;
                let ask = wait.ask;
                let text = ask.text_of(end, &ask.text, wait.since, limit).await?;
                Ok((text, wait.turn.altered().map(str::to_owned)))
            }
        }
    }
}

impl AnswerWait<'_> {
    /// Whether a result proves that the agent has ended its turn. Every other error is one of the wait alone: the
    /// agent works on, and its answer would be taken for that of the next message.
    pub(super) fn has_ended(&self, read: &Result<AnswerText, Error>) -> bool {
        match read {
            Ok(_) | Err(Error::NoAnswer { .. } | Error::PaneDied { .. }) => true,
            Err(Error::AnswerIncomplete { reason, .. }) => *reason == NO_BEGINNING,
            // The pane prints more than is kept; a hook reports the end of the turn.
            Err(Error::AnswerTooLong { .. }) => matches!(self, Self::Hook(_)),
            // Also for `ServerGone`: the client is gone, and the server may live.
            Err(_) => false,
        }
    }

    /// Continues the wait after it has failed, until the answer comes, another process settles the record, or its
    /// bound is reached. Settles the record, unless a failure does not prove the end of the turn: the next sender
    /// decides then. Returns the text if this process is the one that logs it.
    pub(super) async fn late_answer(&mut self, owed: &OwedAnswer) -> Option<String> {
        let limit = deadline(Instant::now(), owed.record.left());
        let mut watch = FileWatch::new();
        let settled_elsewhere = async {
            loop {
                watch.arm(owed.path());
                if !owed.is_open() {
                    return;
                }
                watch.changed().await;
            }
        };
        let read = tokio::select! {
            read = self.run(limit) => read,
            () = settled_elsewhere => return None,
        };
        let is_over = self.has_ended(&read) || Instant::now() >= limit;
        let is_ours = is_over && owed.settle();
        read.ok().filter(|_| is_ours).map(|(text, _)| text)
    }
}

impl HookWait<'_> {
    /// Waits for the end of the turn.
    async fn for_end(&mut self, limit: Instant) -> Result<TurnEnd, Error> {
        let (ask, output) = (self.ask, &self.sent.submitted.tap);
        let rules = self.turn.rules();
        let is_silent = self.is_silent || rules.interrupt_is_silent;
        let mut silent = pin!(async {
            match is_silent {
                true => ask.silent_end(self.since, limit).await,
                // Hooks report every end.
                false => std::future::pending().await,
            }
        });
        loop {
            tokio::select! {
                stored = self.events.next() => {
                    let mut stored = stored?.into_iter();
                    if let Some(end) = stored.find_map(|event| self.turn.observe(event)) {
                        return Ok(end);
                    }
                }
                end = &mut silent => return end,
                () = output.changed(limit) => {
                    // The output itself does not matter.
                    if let Some(end) = output.take().end {
                        // Race: the agent reports its answer and ends, and both are there now.
                        let mut stored = self.events.read_new()?.into_iter();
                        if let Some(end) = stored.find_map(|event| self.turn.observe(event)) {
                            return Ok(end);
                        }
                        if let Some(end) = ask.transcribed_end(&ask.text, self.since) {
                            return Ok(end);
                        }
                        return Err(match end {
                            OutputEnd::Exited(exit) => {
                                let partial = ask.screen().await;
                                Error::PaneDied { pane: ask.pane, exit, partial }
                            }
                            OutputEnd::ServerGone => ask.cluster.pane_io().gone(),
                        });
                    }
                }
            }
            if Instant::now() >= limit {
                return Err(ask.timed_out().await);
            }
        }
    }
}

impl Ask {
    /// The text at the end of a turn.
    pub(super) async fn text_of(
        &self,
        end: TurnEnd,
        prompt: &str,
        since: SystemTime,
        limit: Instant,
    ) -> Result<String, Error> {
        match end {
            TurnEnd::Answer(text) => Ok(text),
            TurnEnd::Transcript(path) => {
                let limit = limit.min(Instant::now() + TRANSCRIPT_GRACE);
                let found = hook::read_gemini_chat(&path, prompt, since, limit).await;
                match found {
                    Some(text) => Ok(text),
                    None => Err(self.no_answer().await),
                }
            }
            TurnEnd::NoAnswer => Err(self.no_answer().await),
            TurnEnd::TooLong => Err(Error::AnswerTooLong {
                pane: self.pane,
                limit: hook::MAX_PAYLOAD,
                partial: self.screen().await,
            }),
        }
    }

    /// Waits until the screen shows the end of a turn that no hook reports: an interrupt by a person, a payload that
    /// Codex cannot pass on, or an agent without hooks. The transcript has the answer, if there is one.
    ///
    /// - **Race.** The screen is idle until the agent shows that it works. So an idle screen counts only after a
    ///   working one, or if the transcript has the end of the turn.
    /// - **Race.** The hook may come after the screen. It has [`HOOK_GRACE`] to come; then the agent must still be
    ///   idle.
    async fn silent_end(&self, since: SystemTime, limit: Instant) -> Result<TurnEnd, Error> {
        let monitor = self.cluster.monitor(&self.message.to_agent)?;
        let transcribed = || self.transcribed_end(&self.text, since);
        let mut has_worked = false;
        loop {
            let is_idle = |seen: &Observation| {
                has_worked |= seen.state == AgentState::Working;
                seen.state == AgentState::Idle
            };
            if monitor.wait_until(limit, is_idle).await?.is_err() {
                return std::future::pending().await;
            }
            if let Some(end) = transcribed() {
                return Ok(end);
            }
            sleep_until(Instant::now() + HOOK_GRACE).await;
            let is_idle = monitor.observe().await?.state == AgentState::Idle;
            if is_idle && has_worked {
                return Ok(transcribed().unwrap_or(TurnEnd::NoAnswer));
            }
        }
    }

    /// How the turn of a prompt ended, by the transcripts of the agent.
    pub(super) fn transcribed_end(&self, prompt: &str, since: SystemTime) -> Option<TurnEnd> {
        let format = self.definition()?.hook.as_ref()?.transcript?;
        let receiver = self.cluster.agent_config(&self.message.to_agent).ok()?;
        hook::turn_end(format, &receiver.env, prompt, since)
    }

    /// Waits until the agent is idle and stays so for [`HOOK_GRACE`]. Does not return after `limit`, or for a program
    /// that has no rules.
    pub(super) async fn wait_for_idle(&self, limit: Instant) -> Result<(), Error> {
        let monitor = self.cluster.monitor(&self.message.to_agent)?;
        let is_idle = |seen: &Observation| seen.state == AgentState::Idle;
        while !monitor.definition().is_plain() {
            if monitor.wait_until(limit, is_idle).await?.is_err() {
                break;
            }
            sleep_until(Instant::now() + HOOK_GRACE).await;
            if is_idle(&monitor.observe().await?) {
                return Ok(());
            }
        }
        std::future::pending().await
    }
}
