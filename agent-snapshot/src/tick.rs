use std::fmt;

use serde_json::{Map, Value};

use crate::{
    AgentSnapshot, AgentState, Error, Event, History, Reply, Status, ToolIntent,
    agent_state::{now, with_id},
};

/// One turn of an agent's loop: changes that are committed together or not at all.
///
/// A tick has the agent to itself. Dropping it rolls everything back, but for tool intents,
/// which have been saved because the tool may have run.
pub struct Tick<'a> {
    agent: &'a mut AgentState,
    working: AgentSnapshot,
    replies: usize,
}

impl<'a> Tick<'a> {
    pub(crate) fn new(agent: &'a mut AgentState) -> Self {
        let mut working = agent.committed.clone();
        working.tick_index += 1;
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

    /// The conversation.
    pub fn history(&mut self) -> &mut History {
        &mut self.working.memory.short_term_history
    }

    /// The agent's variables.
    pub fn variables(&mut self) -> &mut Map<String, Value> {
        &mut self.working.memory.working_variables
    }

    /// Fields of the snapshot beyond the specified ones.
    pub fn extra(&mut self) -> &mut Map<String, Value> {
        &mut self.working.extra
    }

    /// What the state machine does after this tick.
    pub fn set_status(&mut self, status: Status) {
        self.working.status = status;
    }

    /// Takes the oldest event. It is gone from the queue once the tick is committed.
    pub fn next_event(&mut self) -> Option<Event> {
        let queue = &mut self.working.event_queue_backup;
        (!queue.is_empty()).then(|| queue.remove(0))
    }

    /// Puts an event at the end of the queue, with an id if it has none.
    pub fn push_event(&mut self, event: Event) {
        self.working.event_queue_backup.push(with_id(event));
    }

    /// Prepares a reply. It can be had only from [`commit`](Self::commit).
    pub fn reply(&mut self, payload: impl Into<Value>) {
        let key = self.key(&self.replies.to_string());
        self.replies += 1;
        self.working.outbox.push(Reply {
            key,
            payload: payload.into(),
            extra: Map::new(),
        });
    }

    /// Saves that a tool is about to run: call it before, and run the tool when it returns.
    /// After a crash, hydration reports the intent; the commit of this tick clears it, whether
    /// the tool has ended or not, so commit when it has. (What a tool that outlives its tick is
    /// doing belongs into [`variables`](Self::variables).)
    ///
    /// Nothing else of this tick is saved by it.
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit); the tool must not run then.
    ///
    /// # Cancel safety
    ///
    /// The intent may be saved, though the tool has not run: as uncertain as after a crash.
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

    /// No other reply or tool ever has the same: each hydration is a holder of its own.
    fn key(&self, rest: &str) -> String {
        let holder = self.working.holder.as_deref().unwrap_or_default();
        format!("{holder}/{}/{rest}", self.working.tick_index)
    }

    /// Saves the tick, and only then hands out its replies.
    ///
    /// Send them, then [`confirm_sent`](AgentState::confirm_sent) each.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`] when somebody else has saved the agent (the tick is rolled back;
    /// [`is_fenced`](Error::is_fenced) when another holder has taken over). Any other error
    /// leaves the outcome open: [`retry_commit`](AgentState::retry_commit) repeats this very
    /// commit.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the outcome is open as after an error.
    pub async fn commit(mut self) -> Result<Vec<Reply>, Error> {
        self.working.timestamp = now();
        self.working.tool_intents.clear();
        let Self {
            agent,
            working,
            replies,
        } = self;
        agent.in_doubt = Some((working, replies));
        agent.retry_commit().await
    }
}

impl fmt::Debug for Tick<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tick")
            .field("working", &self.working)
            .finish_non_exhaustive()
    }
}
