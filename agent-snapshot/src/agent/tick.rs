use std::fmt;
use std::time::SystemTime;

use serde_json::{Map, Value};

use super::agent_state::{AgentState, PendingCommit, SaveMode, is_queued, with_id};
use crate::{AgentSnapshot, Error, Event, History, Reply, Status, ToolIntent};

/// One run of the agent's loop: its changes are committed together or not at all.
///
/// A tick borrows the agent exclusively. Dropping it rolls back all changes except tool intents,
/// which are saved at once because the tool may have run.
///
/// ```
/// use std::sync::Arc;
/// use agent_snapshot::conversation::Message;
/// use agent_snapshot::{AgentId, AgentState, Event, MemoryStorage};
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
/// let storage = Arc::new(MemoryStorage::new());
/// let (mut agent, _) = AgentState::hydrate(storage, AgentId::new("worker_007")?).await?;
/// agent.enqueue(Event::new("mcp", "task", json!("count the files"))).await?;
///
/// let mut tick = agent.begin_tick()?;
/// let event = tick.next_event().expect("one event is queued");
/// tick.history().push(Message::user(event.payload.to_string()));
/// tick.variables().insert("files".into(), json!(3));
/// tick.reply("There are 3 files.");
/// let replies = tick.commit().await?;
/// assert_eq!(replies.len(), 1);
/// assert!(agent.events().is_empty());
/// # Ok(())
/// # }
/// ```
pub struct Tick<'a> {
    agent: &'a mut AgentState,
    working: AgentSnapshot,
    replies: usize,
}

impl<'a> Tick<'a> {
    pub(super) fn new(agent: &'a mut AgentState) -> Self {
        let mut working = agent.committed.clone();
        // `intend_tool` saves through the agent, and the commit must know that save.
        working.lineage = agent.committed.lineage.share();
        working.tick_index = working.tick_index.saturating_add(1);
        working.revision = 0;
        Self {
            agent,
            working,
            replies: 0,
        }
    }

    /// The number of this tick.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.working.tick_index
    }

    /// The history of this tick.
    pub fn history(&mut self) -> &mut History {
        &mut self.working.memory.short_term_history
    }

    /// The variables of this tick.
    pub fn variables(&mut self) -> &mut Map<String, Value> {
        &mut self.working.memory.working_variables
    }

    /// Fields of the snapshot beyond the specified ones.
    pub fn extra(&mut self) -> &mut Map<String, Value> {
        &mut self.working.extra
    }

    /// Sets the status after this tick.
    pub fn set_status(&mut self, status: Status) {
        self.working.status = status;
    }

    /// Takes the oldest event. The commit removes it from the stored queue.
    pub fn next_event(&mut self) -> Option<Event> {
        let queue = &mut self.working.event_queue_backup;
        (!queue.is_empty()).then(|| queue.remove(0))
    }

    /// Puts an event at the end of the queue. The commit stores it with the rest of the tick, so
    /// that the work that follows from an event is not lost with it. An event without an id gets
    /// one. An event with the id of a queued event is not queued again.
    pub fn push_event(&mut self, event: Event) {
        let event = with_id(event);
        if !is_queued(&self.working, &event) {
            self.working.event_queue_backup.push(event);
        }
    }

    /// Prepares a reply, which [`commit`](Self::commit) hands out.
    pub fn reply(&mut self, payload: impl Into<Value>) {
        let key = self.key(&self.replies.to_string());
        self.replies += 1;
        self.working.outbox.push(Reply {
            key,
            payload: payload.into(),
            extra: Map::new(),
        });
    }

    /// Saves that a tool is about to run. Run the tool after this has returned.
    ///
    /// After a crash, hydration reports the intent. The commit clears all intents of the tick, so
    /// commit only after the tools have finished. Keep the state of a longer tool in
    /// [`variables`](Self::variables).
    ///
    /// No other change of this tick is saved.
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit). The tool must not run then.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the intent is saved or not, as after a crash. The tool must not run.
    pub async fn intend_tool(
        &mut self,
        name: impl Into<String>,
        args: Value,
    ) -> Result<ToolIntent, Error> {
        let number = self.agent.committed.tool_intents.len();
        let intent = ToolIntent {
            key: self.key(&format!("tool/{number}")),
            name: name.into(),
            args,
            extra: Map::new(),
        };
        let saved = intent.clone();
        self.agent
            .revise(|snapshot| snapshot.tool_intents.push(saved))
            .await?;
        Ok(intent)
    }

    /// A key that is never used twice: the hydration id (`holder`) is unique for each hydration,
    /// the tick within the hydration, and `rest` within the tick.
    fn key(&self, rest: &str) -> String {
        let holder = self.working.holder.as_deref().unwrap_or_default();
        format!("{holder}/{}/{rest}", self.working.tick_index)
    }

    /// Saves the tick and then hands out its replies.
    ///
    /// Send each reply, then call [`confirm_sent`](AgentState::confirm_sent) with its key.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`] if another writer has saved the agent; this holder keeps its last
    /// committed state. On the first attempt the tick is not stored. On a repeated attempt it may be
    /// stored: hydrate to find out. Do not send its replies. [`is_fenced`](Error::is_fenced) is
    /// `true` if another holder has taken over.
    ///
    /// [`Error::Rewound`] if the storage went back in time. The tick is not stored; the agent keeps it
    /// until [`overwrite_stored`](AgentState::overwrite_stored) or
    /// [`adopt_stored`](AgentState::adopt_stored).
    ///
    /// After any other error the outcome is unknown;
    /// [`retry_commit`](AgentState::retry_commit) repeats the same commit.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the outcome is unknown, as after an error; call
    /// [`retry_commit`](AgentState::retry_commit). That holds from this call on, also for a future
    /// that was never polled.
    pub fn commit(mut self) -> impl Future<Output = Result<Vec<Reply>, Error>> {
        self.working.set_timestamp(SystemTime::now());
        self.working.tool_intents.clear();
        let Self {
            agent,
            working,
            replies,
        } = self;
        // Before the first poll: `select!` may drop the future without one, and `retry_commit` must not
        // report success then.
        agent.in_doubt = Some(PendingCommit::new(working, replies));
        agent.save_pending(SaveMode::Continue)
    }
}

impl fmt::Debug for Tick<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tick")
            .field("working", &self.working)
            .finish_non_exhaustive()
    }
}
