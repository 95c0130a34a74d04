use std::{
    fmt,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Map, Value};
use uuid::Uuid;

use crate::{
    AgentId, AgentSnapshot, Error, Event, History, Reply, SnapshotStorage, Status, Tick, ToolIntent,
};

/// A living agent: what was committed last, and the right to commit the next tick.
///
/// [`hydrate`](Self::hydrate) brings an agent back and fences off whoever held it before:
/// their next save is a conflict. All changes are made in a [`Tick`], whose commit saves first
/// and only then hands out the replies.
///
/// Dropping it loses nothing that was committed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
/// use std::sync::Arc;
/// use agent_snapshot::{AgentId, AgentState, MemoryStorage, conversation::Message};
///
/// let storage = Arc::new(MemoryStorage::new());
/// let (mut agent, recovery) = AgentState::hydrate(storage, AgentId::new("worker_007")?).await?;
/// for reply in recovery.unsent {
///     // Saved before a crash, perhaps sent: the receiver drops a key that it knows.
///     agent.confirm_sent(&reply.key);
/// }
/// let mut tick = agent.begin_tick()?;
/// tick.history().push(Message::user("hello"));
/// tick.reply("hi");
/// for reply in tick.commit().await? {
///     // Send it, then:
///     agent.confirm_sent(&reply.key);
/// }
/// # Ok(())
/// # }
/// ```
pub struct AgentState {
    pub(crate) storage: Arc<dyn SnapshotStorage>,
    pub(crate) committed: AgentSnapshot,
    /// A commit whose outcome is not known, with the number of its replies.
    pub(crate) in_doubt: Option<(AgentSnapshot, usize)>,
}

/// What was left open when the agent was last alive.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Recovery {
    /// Replies that were saved but never confirmed as sent, oldest first: send them (again).
    pub unsent: Vec<Reply>,
    /// Tools that were about to run: nobody knows whether they did. They are reported by each
    /// hydration until a tick is committed.
    pub uncertain_tools: Vec<ToolIntent>,
}

/// Each conflict means that somebody else hydrated or saved meanwhile.
const HYDRATIONS: usize = 16;

impl AgentState {
    /// Brings an agent back to life, or starts a blank one at tick 0, and fences off every
    /// earlier holder.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] when there is a snapshot that cannot be read, [`Error::Conflict`]
    /// when others keep saving at the same time, [`Error::Storage`] when the backend fails.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost; the earlier holder may be fenced off already.
    pub async fn hydrate(
        storage: Arc<dyn SnapshotStorage>,
        agent: AgentId,
    ) -> Result<(Self, Recovery), Error> {
        let mut floor = None;
        let mut attempt = 0;
        loop {
            let stored = storage.load(&agent).await?;
            let mut snapshot = match (stored, floor) {
                (Some(stored), _) => stored,
                (None, Some(_)) => AgentSnapshot::new(agent.clone()),
                (None, None) => {
                    // A deleted agent has an epoch to go on from; only a save learns of it.
                    let blank = AgentSnapshot::new(agent.clone());
                    match storage.save(&blank).await {
                        Err(Error::Conflict { stored_epoch, .. }) => floor = Some(stored_epoch),
                        result => result?,
                    }
                    blank
                }
            };
            let epoch = snapshot.epoch.max(floor.unwrap_or(0));
            snapshot.epoch = epoch.saturating_add(1);
            snapshot.holder = Some(Uuid::new_v4().to_string());
            snapshot.timestamp = now();
            attempt += 1;
            match storage.save(&snapshot).await {
                Ok(()) => {
                    let recovery = Recovery {
                        unsent: snapshot.outbox.clone(),
                        uncertain_tools: snapshot.tool_intents.clone(),
                    };
                    let state = Self {
                        storage,
                        committed: snapshot,
                        in_doubt: None,
                    };
                    return Ok((state, recovery));
                }
                // Raised by another one, or kept since a delete.
                Err(Error::Conflict { stored_epoch, .. }) if attempt < HYDRATIONS => {
                    floor = Some(stored_epoch);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Starts a tick. Until it is committed, nothing of it is visible here.
    ///
    /// # Errors
    ///
    /// [`Error::InDoubt`] after a commit that failed or was cancelled:
    /// [`retry_commit`](Self::retry_commit) first, or hydrate again.
    pub fn begin_tick(&mut self) -> Result<Tick<'_>, Error> {
        self.certain()?;
        Ok(Tick::new(self))
    }

    /// Repeats a commit that failed or was cancelled, and hands out its replies. Without one
    /// there is nothing to hand out.
    ///
    /// # Errors
    ///
    /// As [`Tick::commit`].
    ///
    /// # Cancel safety
    ///
    /// It can be called again.
    pub async fn retry_commit(&mut self) -> Result<Vec<Reply>, Error> {
        let Some((snapshot, replies)) = &self.in_doubt else {
            return Ok(Vec::new());
        };
        match self.storage.save(snapshot).await {
            Ok(()) => {}
            Err(error) => {
                if error.is_conflict() {
                    // Certain now: it is not stored, and never will be.
                    self.in_doubt = None;
                }
                return Err(error);
            }
        }
        let replies = *replies;
        if let Some((snapshot, _)) = self.in_doubt.take() {
            self.committed = snapshot;
        }
        self.committed.memory.short_term_history.release_hidden();
        let outbox = &self.committed.outbox;
        Ok(outbox[outbox.len() - replies..].to_vec())
    }

    /// Puts an event at the end of the queue, and saves: when it returns, the event survives.
    /// An event without an id gets one; one whose id is already queued is not queued twice.
    ///
    /// # Errors
    ///
    /// As [`Tick::commit`], and [`Error::InDoubt`].
    ///
    /// # Cancel safety
    ///
    /// The event may be stored; the same one with an id can be queued again.
    pub async fn enqueue(&mut self, event: Event) -> Result<(), Error> {
        let event = with_id(event);
        let queue = &self.committed.event_queue_backup;
        if queue.iter().any(|queued| queued.id == event.id) {
            return Ok(());
        }
        self.revise(|snapshot| snapshot.event_queue_backup.push(event))
            .await
    }

    /// Notes that a reply has left: it will not be handed out again. Saved with the next tick
    /// or by [`flush`](Self::flush); until then a crash brings the reply back.
    pub fn confirm_sent(&mut self, key: &str) {
        let keep = |reply: &Reply| reply.key != key;
        self.committed.outbox.retain(keep);
    }

    /// Saves what [`confirm_sent`](Self::confirm_sent) noted, without a tick.
    ///
    /// # Errors
    ///
    /// As [`Tick::commit`], and [`Error::InDoubt`].
    ///
    /// # Cancel safety
    ///
    /// It can be called again.
    pub async fn flush(&mut self) -> Result<(), Error> {
        self.revise(|_| ()).await
    }

    /// Whose state this is.
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

    /// The events that wait, oldest first.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.committed.event_queue_backup
    }

    /// Everything that is committed.
    #[must_use]
    pub fn snapshot(&self) -> &AgentSnapshot {
        &self.committed
    }

    /// Saves a change between two ticks.
    ///
    /// The revision goes up with each attempt, so an attempt whose outcome is unknown does
    /// not stand in the way of the next: it has changed nothing but what the next one holds.
    pub(crate) async fn revise(
        &mut self,
        change: impl FnOnce(&mut AgentSnapshot),
    ) -> Result<(), Error> {
        self.certain()?;
        self.committed.revision += 1;
        let mut revised = self.committed.clone();
        change(&mut revised);
        revised.timestamp = now();
        self.storage.save(&revised).await?;
        self.committed = revised;
        Ok(())
    }

    fn certain(&self) -> Result<(), Error> {
        match self.in_doubt {
            None => Ok(()),
            Some(_) => Err(Error::InDoubt {
                agent: self.committed.agent_id.clone(),
            }),
        }
    }
}

impl fmt::Debug for AgentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentState")
            .field("committed", &self.committed)
            .field("in_doubt", &self.in_doubt.is_some())
            .finish_non_exhaustive()
    }
}

pub(crate) fn with_id(mut event: Event) -> Event {
    event.id.get_or_insert_with(|| Uuid::new_v4().to_string());
    event
}

/// Milliseconds since 1970.
pub(crate) fn now() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    elapsed.map_or(0, |elapsed| {
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    })
}
