//! Whether a message may be typed: the agent owes no answer, is idle, and its input line is empty.

use std::pin::pin;

use tokio::time::{Instant, sleep_until};

use super::agent_monitor::Observation;
use super::ask::Ask;
use super::owed_answer::OwedAnswer;
use crate::control::tap::deadline;
use crate::hook::{HookTurn, TurnEnd};
use crate::log::FileWatch;
use crate::pane::PaneIo;
use crate::timing::{PROMPT_GRACE, PROMPT_QUIET, SPINNER_LIMIT};
use crate::{Error, Refusal};

impl Ask {
    /// Waits until the pane owes no answer.
    pub(super) async fn wait_until_settled(&self, limit: Instant) -> Result<(), Error> {
        let io = self.cluster.pane_io();
        for owed in OwedAnswer::of_pane(io.folder(), self.pane)? {
            let settled = tokio::time::timeout_at(limit, self.settle(&io, &owed)).await;
            if settled.is_err() {
                return Err(Error::Refused {
                    pane: self.pane,
                    reason: Refusal::OwesAnswer,
                    screen: self.screen().await,
                });
            }
            settled.unwrap_or(Ok(()))?;
        }
        Ok(())
    }

    /// Waits for the end of a turn that an earlier sender gave up.
    async fn settle(&self, io: &PaneIo, owed: &OwedAnswer) -> Result<(), Error> {
        let record = &owed.record;
        let bound = deadline(Instant::now(), record.left());
        let mut hook = self.hook(&record.launch).await;
        let mut turn = hook
            .as_ref()
            .map(|hook| HookTurn::new(hook.rules, record.text.clone()));
        let monitor = self.cluster.monitor(&self.message.to_agent)?;
        let is_plain = monitor.definition().is_plain();
        let began = Instant::now();
        let mut watch = FileWatch::new();
        let output = io.watch_output(self.pane);
        let mut idle = pin!(self.wait_for_idle(bound));
        loop {
            watch.arm(owed.path());
            if !owed.is_open() {
                return Ok(());
            }
            if Instant::now() >= bound || self.launch() != record.launch {
                owed.settle();
                return Ok(());
            }
            let mut wake = bound;
            if let (Some(hook), Some(turn)) = (&mut hook, &mut turn) {
                hook.events.arm();
                let events = hook.events.read_new()?;
                let mut events = events
                    .into_iter()
                    .filter(|event| event.at >= record.since());
                if let Some(end) = events.find_map(|event| turn.observe(event)) {
                    let text = self.text_of(end, &record.text, record.since(), bound).await;
                    if owed.settle()
                        && let Ok(text) = text
                    {
                        self.log_late(owed, &text);
                    }
                    return Ok(());
                }
            } else if (is_plain || !record.wants_answer) && io.shows_prompt(self.pane).await? {
                let counts_at = match record.wants_answer {
                    // The reader of the sender that gave up logs the answer first.
                    true => monitor.known_quiet().unwrap_or(began) + PROMPT_GRACE,
                    false => began,
                };
                if Instant::now() >= counts_at {
                    owed.settle();
                    return Ok(());
                }
                wake = wake.min(counts_at);
            }
            let stored = async {
                match &mut hook {
                    Some(hook) => hook.events.changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = watch.changed() => {}
                () = stored => {}
                // Its turn has ended, and no hook has reported an answer.
                idle = &mut idle => {
                    // A look that failed proves no end of the turn: the answer is still owed.
                    idle?;
                    let end = self.transcribed_end(&record.text, record.since());
                    if owed.settle() && let Some(TurnEnd::Answer(text)) = end {
                        self.log_late(owed, &text);
                    }
                    return Ok(());
                }
                () = output.changed(wake) => {}
                () = sleep_until(bound) => {}
            }
            let limit = bound.min(Instant::now() + SPINNER_LIMIT);
            output.quiet(PROMPT_QUIET, limit).await;
        }
    }

    /// Waits until no person reads the scroll-back of a program without rules. The other agents are
    /// waited for by `typist.rs`.
    pub(super) async fn wait_while_in_copy_mode(&self, limit: Instant) -> Result<(), Error> {
        let monitor = self.cluster.monitor(&self.message.to_agent)?;
        if !monitor.look().await?.in_copy_mode {
            return Ok(());
        }
        let is_left = |seen: &Observation| !seen.in_copy_mode;
        let left = monitor.wait_until(limit, is_left).await?;
        left.map(drop)
            .map_err(|_| Error::refused(self.pane, Refusal::CopyMode))
    }
}
