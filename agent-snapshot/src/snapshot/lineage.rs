//! # Theory: lineage
//!
//! A storage can go back in time: a failover to a replica that lags, a restored backup, a flush.
//! The stored data alone does not show it. The writer knows: its snapshot object was loaded from
//! the storage or saved to it. So each snapshot object carries its *ancestor*, the stored state that
//! it descends from, and a save compares the two.
//!
//! The ancestor belongs to one opened storage (`handle`) and to one agent. A snapshot that is saved
//! to another storage, or under another id, has no ancestor there. It is not part of the JSON and
//! does not count when snapshots are compared.
//!
//! `planned` is the digest of the last save that was judged for this object, stored or not. If the
//! stored digest equals it, this object wrote the stored state itself, whatever the handle.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Position;

/// The stored state that a snapshot object descends from.
#[derive(Default)]
pub(crate) struct Lineage(Mutex<Known>);

#[derive(Clone, Default)]
struct Known {
    ancestor: Option<Ancestor>,
    planned: Option<u128>,
}

/// A state that a storage had.
#[derive(Clone, Debug)]
pub(crate) struct Ancestor {
    /// The opened storage, and how often the agent was deleted through it.
    pub(crate) handle: (u64, u64),
    pub(crate) agent: crate::AgentId,
    pub(crate) position: Position,
    pub(crate) digest: u128,
}

impl Lineage {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn ancestor(&self) -> Option<Ancestor> {
        self.lock().ancestor.clone()
    }

    pub(crate) fn set_ancestor(&self, ancestor: Ancestor) {
        let mut known = self.lock();
        known.planned = Some(ancestor.digest);
        known.ancestor = Some(ancestor);
    }

    /// Notes a save that is about to be made.
    pub(crate) fn plan(&self, digest: u128) {
        self.lock().planned = Some(digest);
    }

    pub(crate) fn planned(&self) -> Option<u128> {
        self.lock().planned
    }
}

impl Clone for Lineage {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.lock().clone()))
    }
}

/// Not a part of the state.
impl PartialEq for Lineage {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
