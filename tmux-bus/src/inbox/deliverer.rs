//! Delivers the messages of an inbox to idle agents.
//!
//! # Theory
//!
//! One process at a time has the right to deliver, by a kernel lock. It has one task for each agent
//! with a waiting message; the task works on the first one:
//!
//! 1. Wait until the agent is idle and its input line is empty, without the lock of the pane:
//!    others may ask it.
//! 2. Take the path of every message (`cluster/ask.rs`, `pane/typist.rs`): lock the pane, wait for
//!    owed answers, look at the screen again.
//! 3. Record `sending`, on disk. From here on the message is never typed by another attempt.
//! 4. Type and submit.
//! 5. Record the outcome: `delivered`, `not_sent` (proof that nothing was submitted), or
//!    `uncertain`.
//!
//! **Invariant.** The text is typed only between a `sending` that is on disk and the outcome of
//! that attempt. A message in the state sending is never typed, so no message is typed twice unless
//! a person says so.
//!
//! **Order.** An agent has one attempt at a time and the first waiting message is always the oldest
//! one, so the messages of a receiver arrive in the order in which they were left. A message that
//! is uncertain does not hold up those behind it: it may have arrived.
//!
//! **Crash points.** The process dies:
//!
//! | at | the file has | state afterwards |
//! |---|---|---|
//! | 1, 2 | nothing | waiting |
//! | 3, torn or not synced | nothing | waiting; nothing was typed |
//! | between 3 and 4 | `sending` | uncertain, although nothing was typed |
//! | in 4 | `sending` | uncertain; a text without Enter is removed by the next sender, see `pane/typed_text.rs`, unless the agent shows it as a placeholder: then a person has to |
//! | between 4 and 5 | `sending` | uncertain, although it was submitted |
//! | after 5 | the outcome | that outcome |
//!
//! The next holder of the lock lists what it finds in the state sending as uncertain, before it
//! starts its first attempt. The agent or the tmux server dies: before the Enter of step 4 the
//! message waits again or is uncertain; after it, it is uncertain unless it was seen to leave the
//! input line.
//!
//! **Races.**
//! - A sender takes a message back while it is delivered: step 3 and `take_back` are decided under
//!   the lock of the file, and the later one finds that the message does not wait any more.
//! - The future is dropped in step 4: typing goes on in a task of its own, which holds the right to
//!   deliver until the outcome is recorded.
//! - A message is left between a look at the file and the wait: the watch is armed before the look.
//! - The deliverer attaches while another process still creates the panes of the agents, or an
//!   agent is added later: while a message waits for an agent without a pane, its pane is looked
//!   for.
//! - The pane of an agent is closed, and another process makes a new one: while a message waits for the agent, its
//!   new pane is looked for.
//! - A refusal that will not change (a newline for a program without bracketed paste) makes a dead
//!   letter, because the messages behind it could not be delivered either. Every other refusal is
//!   tried again.
//!
//! **Example.** The deliverer is killed while it types message 2 of 3. The kernel releases its
//! lock, a waiting deliverer gets it and finds 2 in the state sending: uncertain. It removes the
//! text from the input line if Enter was not sent, and delivers 3.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::delivery::{Delivery, on_a_thread};
use super::inbox::{Inbox, is_for_good};
use super::message_id::MessageId;
use crate::Error;
use crate::cluster::agent_monitor::{Observation, until};
use crate::cluster::{ClusterManager, SendToOptions};
use crate::log::FileWatch;
use crate::pane::PaneId;
use crate::shared::kernel_lock::LockedFile;
use crate::state::AgentState;
use crate::timing::{ABSENT_AGENT_LOOK, DEAD_AGENT_LOOK, DELIVERY_RETRY};

/// When a deliverer returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeliveryEnd {
    Never,
    /// When no message waits.
    Empty,
}

/// Delivers for one cluster.
pub(crate) struct Deliverer {
    pub(crate) cluster: ClusterManager,
    pub(crate) inbox: Inbox,
    pub(crate) end: DeliveryEnd,
}

impl Deliverer {
    pub(crate) async fn run(self) -> Result<(), Error> {
        let right = Arc::new(self.inbox.lock_delivery().await?);
        let inbox = self.inbox.clone();
        on_a_thread(move || inbox.take_over()).await?;
        let mut watch = FileWatch::new();
        let mut attempts = JoinSet::new();
        let mut busy = HashSet::new();
        let mut next_look = Instant::now();
        loop {
            watch.arm(self.inbox.path());
            let inbox = self.inbox.clone();
            let plan = on_a_thread(move || inbox.plan()).await?;
            if self.end == DeliveryEnd::Empty && plan.heads.is_empty() && attempts.is_empty() {
                return Ok(());
            }
            let is_absent = |agent: &str| self.cluster.monitor(agent).is_err();
            let mut is_one_absent = plan.heads.iter().any(|(_, agent)| is_absent(agent));
            if is_one_absent && Instant::now() >= next_look {
                self.cluster.find_panes().await?;
                next_look = Instant::now() + ABSENT_AGENT_LOOK;
                is_one_absent = plan.heads.iter().any(|(_, agent)| is_absent(agent));
            }
            for (id, agent) in plan.heads {
                if is_absent(&agent) || !busy.insert(agent.clone()) {
                    continue;
                }
                let attempt = Attempt {
                    cluster: self.cluster.clone(),
                    inbox: self.inbox.clone(),
                    right: Arc::clone(&right),
                    agent,
                };
                attempts.spawn(attempt.run(id));
            }
            let expiry = async {
                match plan.next_expiry {
                    Some(at) => sleep_until(instant(at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = watch.changed() => {}
                () = expiry => {}
                () = sleep_until(next_look), if is_one_absent => {}
                Some(done) = attempts.join_next() => {
                    let agent = done.map_err(|error| Error::unfinished("inbox", &error))??;
                    busy.remove(&agent);
                }
            }
        }
    }
}

/// The delivery of the first message of an agent.
struct Attempt {
    cluster: ClusterManager,
    inbox: Inbox,
    right: Arc<LockedFile>,
    agent: String,
}

impl Attempt {
    /// Returns the agent when the message does not wait any more.
    async fn run(self, id: MessageId) -> Result<String, Error> {
        loop {
            // The agent may stay busy, or have ended for good.
            tokio::select! {
                idle = self.wait_until_idle() => idle?,
                gone = self.wait_until_gone(&id) => {
                    gone?;
                    return Ok(self.agent);
                }
            }
            let (inbox, reading) = (self.inbox.clone(), id.clone());
            let waiting = on_a_thread(move || inbox.waiting(&reading)).await?;
            let Some((letter, text)) = waiting else {
                return Ok(self.agent);
            };
            let sender = self.cluster.sender(&letter.from, letter.is_agent);
            let options = SendToOptions::default().framed();
            let mut post = sender.message(&self.agent, &text, &options, false)?;
            post.delivery = Some(Delivery {
                inbox: self.inbox.clone(),
                id: id.clone(),
                right: Arc::clone(&self.right),
            });
            match post.run().await {
                Ok(_) | Err(Error::UnknownMessage { .. }) => return Ok(self.agent),
                // The outcome is recorded: waiting, dead or uncertain.
                Err(error @ (Error::SubmitUnknown { .. } | Error::NotSubmitted { .. })) => {
                    tracing::warn!(%error, agent = %self.agent, %id, "a message is uncertain");
                    return Ok(self.agent);
                }
                // Refused before the first record, so without an outcome: a frame that makes the
                // text too long.
                Err(Error::Refused { reason, .. }) if is_for_good(reason) => {
                    let (inbox, id) = (self.inbox.clone(), id.clone());
                    on_a_thread(move || inbox.refuse(&id, reason)).await?;
                    return Ok(self.agent);
                }
                // Also for a failure of tmux: the outcome is recorded, and the next look at the
                // file tells it.
                Err(error) if error.is_not_sent() || is_about_a_pane(&error) => {
                    tracing::debug!(%error, agent = %self.agent, %id, "a message was not delivered");
                    sleep(DELIVERY_RETRY).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until the message is taken back or has expired. The deliverer records an expiry, so each
    /// of them changes the file.
    async fn wait_until_gone(&self, id: &MessageId) -> Result<(), Error> {
        let mut watch = FileWatch::new();
        loop {
            watch.arm(self.inbox.path());
            let (inbox, id) = (self.inbox.clone(), id.clone());
            if !on_a_thread(move || inbox.is_waiting(&id)).await? {
                return Ok(());
            }
            watch.changed().await;
        }
    }

    /// Waits until a message may be typed. A text of this crate in the input line is left to the
    /// sender, which removes it.
    async fn wait_until_idle(&self) -> Result<(), Error> {
        let io = self.cluster.pane_io();
        loop {
            // The agent can have another pane than before.
            let monitor = self.cluster.monitor(&self.agent)?;
            let (pane, is_plain) = (monitor.pane(), monitor.definition().is_plain());
            let admits = |seen: &Observation| match is_plain {
                true => seen.state == AgentState::Idle && !seen.in_copy_mode,
                false => seen.admits_a_message() || io.has_own_draft(pane, seen),
            };
            match monitor.wait_until(until(Duration::MAX), admits).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(_)) => self.wait_for_restart(pane).await?,
                Err(error) if is_about_a_pane(&error) => {
                    tracing::debug!(%error, agent = %self.agent, "cannot look at an agent");
                    sleep(DELIVERY_RETRY).await;
                    self.wait_for_restart(pane).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until the program of the agent runs again: its first output ends the wait. Or until the agent has another
    /// pane than this one, which was closed.
    async fn wait_for_restart(&self, pane: PaneId) -> Result<(), Error> {
        let io = self.cluster.pane_io();
        loop {
            let output = io.watch_output(pane);
            // The end of the old program.
            output.changed(Instant::now()).await;
            if io.is_alive(pane).await? {
                return Ok(());
            }
            if !io.panes().contains(pane) {
                self.cluster.find_panes().await?;
                if self.cluster.get_pane(&self.agent)? != pane {
                    return Ok(());
                }
            }
            output.changed(Instant::now() + DEAD_AGENT_LOOK).await;
        }
    }
}

/// Whether tmux refused a command, such as one for a pane that was removed: the other agents are
/// not affected.
fn is_about_a_pane(error: &Error) -> bool {
    matches!(error, Error::TmuxFailed { .. } | Error::TmuxTimeout { .. })
}

/// A point in time of the system clock, as far as it can be waited for.
fn instant(at: SystemTime) -> Instant {
    until(at.duration_since(SystemTime::now()).unwrap_or_default())
}
