use crate::AgentId;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text cannot be an agent's name.
    #[error("invalid agent id {id:?}: {reason}")]
    InvalidAgentId {
        /// The text, cut to 64 characters.
        id: String,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// Somebody else has saved this agent: load it again, or stop.
    #[error(
        "agent {agent}: tick {tick} (revision {revision}, epoch {epoch}) is not newer than what is stored: tick {stored_tick} (revision {stored_revision}, epoch {stored_epoch})"
    )]
    Conflict {
        /// Whose save it was.
        agent: AgentId,
        /// The refused tick.
        tick: u64,
        /// The refused revision within the tick.
        revision: u64,
        /// The refused epoch.
        epoch: u64,
        /// The tick in the storage.
        stored_tick: u64,
        /// The revision in the storage.
        stored_revision: u64,
        /// The epoch in the storage.
        stored_epoch: u64,
    },

    /// There is data, but it cannot be read. It was left as it is or kept aside, never
    /// overwritten.
    #[error("agent {agent}: {place} is damaged: {reason}")]
    Damaged {
        /// Whose data it is.
        agent: AgentId,
        /// The file, row or key.
        place: String,
        /// What does not hold.
        reason: String,
    },

    /// The data was written by a newer version of this crate.
    #[error("{what} has schema version {found}, but this version reads up to {supported}")]
    UnsupportedVersion {
        /// The snapshot or file.
        what: String,
        /// The version found.
        found: u64,
        /// The newest version that is understood.
        supported: u64,
    },

    /// A value cannot be written as JSON.
    #[error("cannot encode {what}")]
    Encode {
        /// The value.
        what: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },

    /// A text is not the JSON that it should be.
    #[error("cannot read {what}")]
    Decode {
        /// The value.
        what: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },

    /// The backend failed. Whether a save took place is unknown: repeating the very same
    /// save is always right.
    #[error("{operation} failed at {place}")]
    Storage {
        /// What was being done.
        operation: &'static str,
        /// The file, database or server.
        place: String,
        /// The backend's own error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// The address of a storage is not understood.
    #[error("invalid storage address {url:?}: {reason}")]
    InvalidUrl {
        /// The address, without its password.
        url: String,
        /// What is wrong with it.
        reason: String,
    },

    /// The storage was closed.
    #[error("the storage at {place} is closed")]
    Closed {
        /// The file, database or server.
        place: String,
    },

    /// An earlier commit failed or was cancelled, and it is not known whether it is stored:
    /// call [`retry_commit`](crate::AgentState::retry_commit), or hydrate again.
    #[error("agent {agent}: the outcome of an earlier commit is unknown")]
    InDoubt {
        /// The agent.
        agent: AgentId,
    },
}

impl Error {
    /// Whether somebody else has saved the agent in the meantime.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }

    /// Whether a later hydration owns the agent now: this holder must stop.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Conflict { epoch, stored_epoch, .. } if epoch < stored_epoch)
    }

    /// Whether stored data cannot be read.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::UnsupportedVersion { .. })
    }
}
