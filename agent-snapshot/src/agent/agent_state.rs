//! # Theory: hydration
//!
//! The epoch is a fencing token.
//!
//! **Invariant.** Of all holders of an agent, only the one with the highest stored epoch can save
//! (rule 7). Hydration saves the loaded state with an epoch one higher, so the save itself is
//! the moment at which the earlier holder loses the agent.
//!
//! **Races.**
//! - Two hydrations load epoch 4, and both save epoch 5 with the same contents. The `holder`,
//!   a random id, makes the saves different: the second is a conflict instead of a repeat. It
//!   loads again and saves epoch 6, so the first one is fenced off. Last hydration wins.
//! - The earlier holder commits between our load and our save: our tick is then lower than the
//!   stored one, a conflict. We load again and get the new tick.
//! - The agent is deleted, or a failover brings back an older state, between our load and our save:
//!   the save is `Rewound`. We hold nothing that the caller has seen, so we load again.
//! - The agent was deleted. The storage still knows its epoch (rule 7), but `load` returns
//!   `None`. Hydration therefore saves a blank state with epoch 0: if an epoch is stored, the
//!   save is a conflict that names it, and the next attempt saves the blank state with that epoch.
//! - Another process makes the first save between our load and our save of a blank state. The blank
//!   state is not newer at the same epoch, so its save is a conflict. We load again.
//!
//! **Example.** Worker A holds epoch 1 at tick 10 and hangs. Worker B hydrates: loads tick 10, saves
//! tick 10 with epoch 2. A wakes up and commits tick 11 with epoch 1: `Conflict` with
//! `is_fenced()`, so A must stop.
//!
//! # Theory: a commit in doubt
//!
//! A save can be stored although its answer is lost, so a commit is in doubt from the
//! moment before its save until the storage has answered.
//!
//! | event | `in_doubt` | `committed` |
//! |---|---|---|
//! | `Tick::commit` begins | the new snapshot | unchanged |
//! | the save succeeds | none | the new snapshot |
//! | the save is a conflict | kept, as refused | unchanged |
//! | another error (also `Rewound`), or the future is dropped | kept | unchanged |
//!
//! **Invariants.** Replies are handed out only after a successful save. While a commit is in doubt, no
//! other save starts: it could be built on a state that the storage does not have. A retry saves
//! the same snapshot, so the storage recognises it as a repeat (rule 6) if it is already stored. A
//! refused commit is not in doubt. It is kept so that a retry is refused again: `Ok` without replies
//! would look like a commit without replies.
//!
//! **Race.** A commits tick 8, and the answer is lost. B hydrates: it loads tick 8 and saves it with
//! epoch 2. A retries: another digest and a lower epoch, `Conflict`. A's tick 8 *is* stored. So a
//! conflict ends the doubt only for this holder: it can never store the commit now. Whether an
//! earlier attempt was stored is not known. If it was, the other holder has the replies in its
//! outbox, and the events are handled.
//!
//! **Example.** Tick 8 has one reply. The save fails after it was stored; `begin_tick` is `InDoubt`.
//! `retry_commit` saves tick 8 again, the storage finds the same digest and answers `Ok`, and the
//! reply is handed out, once.
//!
//! Replies of earlier commits can be confirmed as sent during the doubt. The snapshot in doubt still
//! has them, and must keep them for a retry: with another outbox it would be another save. So they are
//! removed after the save has succeeded.
//!
//! # Theory: a storage that went back in time
//!
//! After a failover or a restored backup the storage may have an older state than the one that this
//! holder committed. The next save is `Rewound`, and nothing is changed on either side: the holder
//! keeps its committed state and the commit in doubt, the storage keeps what survived. The caller
//! decides: `adopt_stored` drops the holder's state, `overwrite_stored` replaces the stored one. Both
//! raise the epoch above the epochs of both sides. That matters if the lost saves included a
//! hydration: another process that hydrated the older state then holds the same epoch number.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};
use uuid::Uuid;

use super::Tick;
use crate::{
    AgentId, AgentSnapshot, Error, Event, History, Reply, SnapshotStorage, Status, ToolIntent,
};

/// A running agent: its last committed state, and the right to commit the next tick.
///
/// [`hydrate`](Self::hydrate) restores the agent and fences off the earlier holder: the next save
/// of that holder is a conflict. All changes are made in a [`Tick`]. Its commit saves first, and
/// hands out the replies only then.
///
/// Dropping it loses nothing that was committed. The storage keeps the epoch, so no other holder
/// can be mistaken for this one.
///
/// ```
/// use std::sync::Arc;
/// use agent_snapshot::{AgentId, AgentState, MemoryStorage, conversation::Message};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
/// let storage = Arc::new(MemoryStorage::new());
/// let (mut agent, recovery) = AgentState::hydrate(storage, AgentId::new("worker_007")?).await?;
/// for reply in recovery.unsent {
///     // Saved before a crash, and perhaps sent: the receiver drops a key that it has seen.
///     agent.confirm_sent(&reply.key);
/// }
/// let mut tick = agent.begin_tick()?;
/// tick.history().push(Message::user("hello"));
/// tick.reply("hi");
/// for reply in tick.commit().await? {
///     // Send the reply, then:
///     agent.confirm_sent(&reply.key);
/// }
/// # Ok(())
/// # }
/// ```
pub struct AgentState {
    storage: Arc<dyn SnapshotStorage>,
    pub(super) committed: AgentSnapshot,
    /// The commit whose outcome is unknown: see [`save_pending`](Self::save_pending).
    pub(super) in_doubt: Option<PendingCommit>,
}

pub(super) struct PendingCommit {
    snapshot: AgentSnapshot,
    /// How many replies at the end of the outbox belong to this commit.
    replies: usize,
    /// The keys of earlier replies that were confirmed since the commit began.
    confirmed: Vec<String>,
    /// The storage has answered with a conflict.
    is_refused: bool,
}

impl PendingCommit {
    pub(super) fn new(snapshot: AgentSnapshot, replies: usize) -> Self {
        Self {
            snapshot,
            replies,
            confirmed: Vec::new(),
            is_refused: false,
        }
    }
}

/// How to save a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SaveMode {
    Continue,
    Overwrite,
}

/// The work that an earlier holder of the agent left open.
///
/// ```
/// use std::sync::Arc;
/// use agent_snapshot::{AgentId, AgentState, MemoryStorage};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
/// let storage = Arc::new(MemoryStorage::new());
/// let id = AgentId::new("worker_007")?;
/// let (mut agent, _) = AgentState::hydrate(storage.clone(), id.clone()).await?;
/// let mut tick = agent.begin_tick()?;
/// tick.reply("done");
/// let replies = tick.commit().await?;
/// drop(agent); // A crash, before the reply was sent.
///
/// let (_, recovery) = AgentState::hydrate(storage, id).await?;
/// assert_eq!(recovery.unsent, replies);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Recovery {
    /// Replies that were saved but not confirmed as sent, oldest first. Send them again.
    pub unsent: Vec<Reply>,
    /// Tool calls whose tick was not committed: it is unknown whether the tools have run. Each
    /// hydration reports them until a tick is committed.
    pub uncertain_tools: Vec<ToolIntent>,
}

/// Each conflict means that another holder hydrated or saved at the same time, so one of them
/// succeeds in each round. With the delays below, 50 simultaneous hydrations take 20 attempts at
/// most.
const MAX_ATTEMPTS: u32 = 64;
const FIRST_DELAY: Duration = Duration::from_millis(2);
const MAX_DELAY: Duration = Duration::from_millis(250);

/// Exponential back-off with full jitter: without the jitter, holders that collided once would
/// collide again.
async fn back_off(attempt: u32) {
    let limit = FIRST_DELAY
        .saturating_mul(1 << attempt.min(10))
        .min(MAX_DELAY);
    let random = u32::from_le_bytes(*Uuid::new_v4().as_bytes().first_chunk().unwrap_or(&[0; 4]));
    tokio::time::sleep(limit.mul_f64(f64::from(random) / f64::from(u32::MAX))).await;
}

impl AgentState {
    /// Restores an agent, or starts a blank one at tick 0, and fences off every earlier holder.
    ///
    /// Simultaneous hydrations of one agent back off and try again, so the runtime needs its timer.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] if the stored snapshot cannot be read, [`Error::Conflict`] if other
    /// holders keep saving at the same time, [`Error::Rewound`] if the storage keeps going back in
    /// time, [`Error::Io`] or [`Error::Storage`] if the backend fails.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is lost. The earlier holder may already be fenced off.
    pub async fn hydrate(
        storage: Arc<dyn SnapshotStorage>,
        agent: AgentId,
    ) -> Result<(Self, Recovery), Error> {
        let committed = take_over(&*storage, &agent, 0).await?;
        let state = Self {
            storage,
            committed,
            in_doubt: None,
        };
        let recovery = state.recovery();
        Ok((state, recovery))
    }

    /// After [`Error::Rewound`]: drops the state of this holder, including a commit in doubt, and
    /// continues from the stored one, or from a blank one if nothing is stored. The replies of the
    /// dropped commit are not handed out.
    ///
    /// [`snapshot`](Self::snapshot) has the dropped state until then.
    ///
    /// # Errors
    ///
    /// As [`hydrate`](Self::hydrate).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is lost; call it again.
    pub async fn adopt_stored(&mut self) -> Result<Recovery, Error> {
        let Self { committed, .. } = self;
        let adopted = take_over(&*self.storage, &committed.agent_id, committed.epoch).await?;
        self.committed = adopted;
        self.in_doubt = None;
        Ok(self.recovery())
    }

    /// After [`Error::Rewound`]: saves the state of this holder over the stored one, with the
    /// commit that was refused, and hands out its replies.
    ///
    /// The stored stream is kept as far as the history in memory continues it. Otherwise it is
    /// replaced: copy it before if it is needed.
    ///
    /// # Errors
    ///
    /// As [`Tick::commit`], without [`Error::Rewound`]; [`Error::Unsupported`] if the storage cannot
    /// overwrite.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the outcome is unknown; call it again.
    pub async fn overwrite_stored(&mut self) -> Result<Vec<Reply>, Error> {
        // See the theory above: the epoch of the storage may be that of another holder.
        let stored = self.storage.load(self.agent_id()).await?;
        let stored = stored.map_or(0, |stored| stored.epoch);
        // No `await` until `in_doubt` is set again: a dropped future would lose the commit.
        let mut pending = self
            .in_doubt
            .take()
            .filter(|pending| !pending.is_refused)
            .unwrap_or_else(|| PendingCommit::new(self.committed.clone(), 0));
        pending.snapshot.epoch = pending.snapshot.epoch.max(stored).saturating_add(1);
        pending.snapshot.revision = pending.snapshot.revision.saturating_add(1);
        pending.snapshot.set_timestamp(SystemTime::now());
        self.in_doubt = Some(pending);
        self.save_pending(SaveMode::Overwrite).await
    }

    fn recovery(&self) -> Recovery {
        Recovery {
            unsent: self.committed.outbox.clone(),
            uncertain_tools: self.committed.tool_intents.clone(),
        }
    }

    /// Starts a tick. Its changes are not visible here before it is committed.
    ///
    /// # Errors
    ///
    /// [`Error::InDoubt`] after a commit that failed or was cancelled: call
    /// [`retry_commit`](Self::retry_commit) first, or hydrate again. After [`Error::Conflict`] a tick can
    /// be started, but its commit conflicts, too. Hydrate again, or stop.
    pub fn begin_tick(&mut self) -> Result<Tick<'_>, Error> {
        self.check_no_doubt()?;
        Ok(Tick::new(self))
    }

    /// Repeats a commit that failed or was cancelled, and hands out its replies. A commit that ended
    /// in [`Error::Conflict`] is refused again. If the last commit succeeded, or there was none, this
    /// does nothing and returns no replies.
    ///
    /// # Errors
    ///
    /// As [`Tick::commit`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the outcome of the commit stays unknown; call it again.
    pub async fn retry_commit(&mut self) -> Result<Vec<Reply>, Error> {
        self.save_pending(SaveMode::Continue).await
    }

    /// Saves the commit in doubt, if there is one, and hands out its replies. See the theory above.
    pub(super) async fn save_pending(&mut self, mode: SaveMode) -> Result<Vec<Reply>, Error> {
        let Some(pending) = &mut self.in_doubt else {
            return Ok(Vec::new());
        };
        pending.is_refused = false;
        let saved = match mode {
            SaveMode::Continue => self.storage.save(&pending.snapshot).await,
            SaveMode::Overwrite => self.storage.overwrite(&pending.snapshot).await,
        };
        if let Err(error) = saved {
            pending.is_refused = error.is_conflict();
            return Err(error);
        }
        let Some(pending) = self.in_doubt.take() else {
            return Ok(Vec::new());
        };
        self.committed = pending.snapshot;
        self.committed.memory.short_term_history.release_hidden();
        let outbox = &mut self.committed.outbox;
        let replies = outbox[outbox.len() - pending.replies..].to_vec();
        outbox.retain(|reply| !pending.confirmed.contains(&reply.key));
        Ok(replies)
    }

    /// Puts an event at the end of the queue and saves: the event is durable when this returns.
    /// An event without an id gets one. An event with the id of a queued event is not queued
    /// again.
    ///
    /// # Errors
    ///
    /// As [`Tick::commit`], and [`Error::InDoubt`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the event is stored or not. An event with an id can be queued again.
    pub async fn enqueue(&mut self, event: Event) -> Result<(), Error> {
        let event = with_id(event);
        if is_queued(&self.committed, &event) {
            return Ok(());
        }
        self.revise(|snapshot| snapshot.event_queue_backup.push(event))
            .await
    }

    /// Confirms that a reply was sent, so that it is not handed out again. The next commit or
    /// [`flush`](Self::flush) saves this; after a crash before that, hydration reports the reply
    /// again.
    pub fn confirm_sent(&mut self, key: &str) {
        self.committed.outbox.retain(|reply| reply.key != key);
        if let Some(pending) = &mut self.in_doubt {
            pending.confirmed.push(key.to_owned());
        }
    }

    /// Saves the confirmations of [`confirm_sent`](Self::confirm_sent) without a tick.
    ///
    /// # Errors
    ///
    /// As [`Tick::commit`], and [`Error::InDoubt`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the confirmations are saved or not; call it again.
    pub async fn flush(&mut self) -> Result<(), Error> {
        self.revise(|_| ()).await
    }

    /// The id of the agent.
    #[must_use]
    pub fn agent_id(&self) -> &AgentId {
        &self.committed.agent_id
    }

    /// The last committed tick.
    #[must_use]
    pub fn tick_index(&self) -> u64 {
        self.committed.tick_index
    }

    /// The committed status.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.committed.status
    }

    /// The committed history.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.committed.memory.short_term_history
    }

    /// The committed variables.
    #[must_use]
    pub fn variables(&self) -> &Map<String, Value> {
        &self.committed.memory.working_variables
    }

    /// The queued events, oldest first.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.committed.event_queue_backup
    }

    /// The whole committed state.
    #[must_use]
    pub fn snapshot(&self) -> &AgentSnapshot {
        &self.committed
    }

    /// Saves a change between two ticks.
    ///
    /// Each attempt uses a new revision, so a retry after an unknown outcome never conflicts with
    /// the earlier attempt; both carry the same change.
    pub(super) async fn revise(
        &mut self,
        change: impl FnOnce(&mut AgentSnapshot),
    ) -> Result<(), Error> {
        self.check_no_doubt()?;
        self.committed.revision = self.committed.revision.saturating_add(1);
        let mut revised = self.committed.clone();
        // A save whose answer is lost must be known to the next one.
        revised.lineage = self.committed.lineage.share();
        change(&mut revised);
        revised.set_timestamp(SystemTime::now());
        self.storage.save(&revised).await?;
        self.committed = revised;
        // A refused commit was built on the state before.
        self.in_doubt = None;
        Ok(())
    }

    fn check_no_doubt(&self) -> Result<(), Error> {
        match &self.in_doubt {
            Some(pending) if !pending.is_refused => Err(Error::InDoubt {
                agent: self.committed.agent_id.clone(),
            }),
            _ => Ok(()),
        }
    }
}

/// Raises the epoch of the stored state, or of a blank one, above `epoch`, and saves it. See the
/// theory of hydration.
async fn take_over(
    storage: &dyn SnapshotStorage,
    agent: &AgentId,
    epoch: u64,
) -> Result<AgentSnapshot, Error> {
    let mut known_epoch = epoch;
    // The epoch of a deleted agent, which only a refused save names.
    let mut epoch_floor = 0;
    let mut attempt = 0;
    loop {
        attempt += 1;
        let mut snapshot = match storage.load(agent).await? {
            Some(stored) => stored,
            None => {
                // At the epoch of the deleted agent, not above it: the save passes only if nothing
                // is stored. A higher epoch would win over a first save of another process.
                let mut blank = AgentSnapshot::new(agent.clone());
                blank.epoch = epoch_floor;
                match storage.save(&blank).await {
                    Err(Error::Conflict { stored_epoch, .. }) if attempt < MAX_ATTEMPTS => {
                        epoch_floor = stored_epoch;
                        back_off(attempt).await;
                        continue;
                    }
                    result => result?,
                }
                blank
            }
        };
        snapshot.epoch = snapshot.epoch.max(known_epoch).saturating_add(1);
        snapshot.holder = Some(Uuid::new_v4().to_string());
        snapshot.set_timestamp(SystemTime::now());
        match storage.save(&snapshot).await {
            Err(Error::Conflict { stored_epoch, .. }) if attempt < MAX_ATTEMPTS => {
                known_epoch = known_epoch.max(stored_epoch);
                back_off(attempt).await;
            }
            Err(Error::Rewound { .. }) if attempt < MAX_ATTEMPTS => back_off(attempt).await,
            result => return result.map(|()| snapshot),
        }
    }
}

impl fmt::Debug for AgentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentState")
            .field("committed", &self.committed)
            .field("in_doubt", &self.check_no_doubt().is_err())
            .finish_non_exhaustive()
    }
}

/// Whether the queue has an event with the id of this one.
pub(super) fn is_queued(snapshot: &AgentSnapshot, event: &Event) -> bool {
    let mut queue = snapshot.event_queue_backup.iter();
    queue.any(|queued| queued.id == event.id)
}

pub(super) fn with_id(mut event: Event) -> Event {
    event.id.get_or_insert_with(|| Uuid::new_v4().to_string());
    event
}
