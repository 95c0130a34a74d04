//! What a source reports.

use std::collections::BTreeSet;

use super::entities::{
    Ability, AgentState, Budget, Claim, Decision, Evidence, Permission, QueueItem, Snapshot, Usage,
};

/// A change that a source has seen. Texts are raw: the model neutralises them.
#[derive(Clone, Debug)]
pub enum Change {
    /// An agent is there, or something about it is new.
    Agent(AgentChange),
    /// An agent is gone for good.
    AgentGone {
        /// Its id.
        agent: String,
    },
    /// A message was sent.
    Message {
        /// Its id at the source.
        id: String,
        /// The name of the sender.
        from: String,
        /// The name of the receiver.
        to: String,
        /// `task`, `info`, `result`, `error`, …
        kind: String,
        /// The text.
        text: String,
        /// When, in milliseconds; `None` for now.
        at: Option<u64>,
        /// The id of the message that it answers.
        reply_to: Option<String>,
    },
    /// An agent has printed a line.
    Output {
        /// The agent.
        agent: String,
        /// `out`, `err`, `tool`, `text`, `think` or `note`.
        stream: &'static str,
        /// The line, or several.
        text: String,
    },
    /// The screen of an agent with a terminal, as a whole.
    Screen {
        /// The agent.
        agent: String,
        /// The screen.
        text: String,
    },
    /// An agent asks for a permission. `asked` and `settled` are set by the model.
    Permission(Permission),
    /// A permission request has ended.
    PermissionSettled {
        /// Its id.
        id: String,
        /// `None` if it became void.
        decision: Option<Decision>,
        /// `policy`, `deadline`, `cancel`, …
        by: String,
    },
    /// A message waits. An `at` of zero is set by the model.
    Queued(QueueItem),
    /// A message waits no more.
    QueuedGone {
        /// Its id.
        id: String,
        /// `delivered`, `taken_back`, `dropped` or `uncertain`.
        outcome: &'static str,
    },
    /// All claims of a store at this moment.
    Claims {
        /// The store.
        store: String,
        /// Its claims.
        claims: Vec<Claim>,
    },
    /// A state was saved.
    Snapshot(Snapshot),
    /// Something went wrong.
    Failure {
        /// The agent, or the source.
        agent: String,
        /// The class; see [`Failure`](super::Failure).
        class: String,
        /// What happened.
        message: String,
        /// When a limit ends.
        resets: Option<u64>,
        /// When, in milliseconds; `None` for now.
        at: Option<u64>,
    },
    /// A budget was set.
    Budget(Budget),
}

/// What is new about an agent; `None` leaves a field as it is.
#[derive(Clone, Debug, Default)]
pub struct AgentChange {
    /// The agent.
    pub id: String,
    /// The name to show; default: the id.
    pub name: Option<String>,
    /// Its role.
    pub role: Option<String>,
    /// The program.
    pub kind: Option<String>,
    /// Where it runs.
    pub place: Option<String>,
    /// The state with its proof.
    pub state: Option<(AgentState, Evidence)>,
    /// One more start.
    pub restarted: bool,
    /// What it has used in all.
    pub usage: Option<Usage>,
    /// Which commands it takes.
    pub can: Option<BTreeSet<Ability>>,
}

impl AgentChange {
    /// Changes of one agent.
    #[must_use]
    pub fn new(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            ..Self::default()
        }
    }

    /// The agent is in this state; `source` and `detail` prove it.
    #[must_use]
    pub fn state(mut self, state: AgentState, source: &str, detail: impl Into<String>) -> Self {
        let (source, detail) = (source.to_owned(), detail.into());
        self.state = Some((state, Evidence { source, detail }));
        self
    }

    /// The program and the place of the agent.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>, place: impl Into<String>) -> Self {
        (self.kind, self.place) = (Some(kind.into()), Some(place.into()));
        self
    }

    /// The role of the agent.
    #[must_use]
    pub fn role(mut self, role: impl Into<String>) -> Self {
        self.role = Some(role.into());
        self
    }

    /// What the agent has used in all.
    #[must_use]
    pub fn usage(mut self, usage: Usage) -> Self {
        self.usage = Some(usage);
        self
    }

    /// The agent was started once more.
    #[must_use]
    pub fn restarted(mut self) -> Self {
        self.restarted = true;
        self
    }

    /// The commands that the agent takes.
    #[must_use]
    pub fn can(mut self, abilities: impl IntoIterator<Item = Ability>) -> Self {
        self.can = Some(abilities.into_iter().collect());
        self
    }
}

impl From<AgentChange> for Change {
    fn from(change: AgentChange) -> Self {
        Self::Agent(change)
    }
}
