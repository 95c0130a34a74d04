//! What clients are told.

use serde::Serialize;

use super::entities::{Agent, Budget, Claim, Failure, Message, Permission, QueueItem, Snapshot};

/// A change of the board. Each event carries the whole new object, so that an event that is applied
/// twice does no harm.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum BoardEvent {
    /// An agent is new or different.
    Agent {
        /// The agent.
        agent: Agent,
    },
    /// An agent is gone.
    AgentGone {
        /// Its id.
        id: String,
    },
    /// A message was sent.
    Message {
        /// The message.
        message: Message,
    },
    /// A permission request is new or settled.
    Permission {
        /// The request.
        permission: Permission,
    },
    /// A message waits.
    Queued {
        /// The message.
        item: QueueItem,
    },
    /// A message waits no more.
    QueuedGone {
        /// Its id.
        id: String,
        /// `delivered`, `taken_back`, `dropped` or `uncertain`.
        outcome: &'static str,
    },
    /// The claims of a store have changed.
    Claims {
        /// The store.
        store: String,
        /// All its claims.
        claims: Vec<Claim>,
    },
    /// A state was saved.
    Snapshot {
        /// The saved state.
        snapshot: Snapshot,
    },
    /// Something went wrong.
    Failure {
        /// The failure.
        failure: Failure,
    },
    /// A budget was set.
    Budget {
        /// The budget.
        budget: Budget,
    },
}
