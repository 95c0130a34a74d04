use std::fmt;

use super::backend::Stamp;
use crate::AgentSnapshot;

/// The place of a save in the life of an agent.
///
/// ```
/// use agent_snapshot::{AgentId, AgentSnapshot, Position};
///
/// let mut snapshot = AgentSnapshot::new(AgentId::new("worker_007")?);
/// snapshot.tick_index = 3;
/// assert_eq!(Position::of(&snapshot).to_string(), "tick 3 (revision 0, epoch 0, 0 messages)");
/// # Ok::<(), agent_snapshot::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Position {
    /// `AgentSnapshot::tick_index`.
    pub tick: u64,
    /// `AgentSnapshot::revision`.
    pub revision: u64,
    /// `AgentSnapshot::epoch`.
    pub epoch: u64,
    /// The number after the last message.
    pub messages: u64,
}

impl Position {
    /// The position of a snapshot.
    #[must_use]
    pub fn of(snapshot: &AgentSnapshot) -> Self {
        Self {
            tick: snapshot.tick_index,
            revision: snapshot.revision,
            epoch: snapshot.epoch,
            messages: snapshot.memory.short_term_history.next_seq(),
        }
    }

    /// Whether the rules of the contract exclude that a storage goes from `other` to this
    /// position: ticks and epochs never fall.
    pub(crate) fn is_before(&self, other: &Self) -> bool {
        (self.tick, self.revision) < (other.tick, other.revision) || self.epoch < other.epoch
    }
}

impl From<&Stamp> for Position {
    fn from(stamp: &Stamp) -> Self {
        Self {
            tick: stamp.tick,
            revision: stamp.revision,
            epoch: stamp.epoch,
            messages: stamp.next,
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            tick,
            revision,
            epoch,
            messages,
        } = self;
        write!(
            f,
            "tick {tick} (revision {revision}, epoch {epoch}, {messages} messages)"
        )
    }
}
