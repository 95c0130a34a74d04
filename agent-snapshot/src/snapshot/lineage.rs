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
//! `planned` are the digests of the saves that were judged for this object since its ancestor, stored
//! or not. If the stored digest is one of them, this object wrote the stored state itself, whatever
//! the handle. A failed or cancelled save may still be stored, even after the next save was judged.
//! `planned` is the only record of it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Position;

/// The stored state that a snapshot object descends from.
#[derive(Default)]
pub(crate) struct Lineage(Arc<Mutex<Known>>);

#[derive(Clone, Default)]
struct Known {
    ancestor: Option<Ancestor>,
    planned: VecDeque<u128>,
}

/// Upper bound of saves that fail in a row while an earlier one still runs.
const MAX_PLANNED: usize = 16;

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

    /// The same lineage, for a copy that stands for the object itself: for example on another thread.
    pub(crate) fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    pub(crate) fn ancestor(&self) -> Option<Ancestor> {
        self.lock().ancestor.clone()
    }

    pub(crate) fn set_ancestor(&self, ancestor: Ancestor) {
        let mut known = self.lock();
        known.planned = VecDeque::from([ancestor.digest]);
        known.ancestor = Some(ancestor);
    }

    /// Notes a save that is about to be made.
    pub(crate) fn plan(&self, digest: u128) {
        let mut known = self.lock();
        if known.planned.contains(&digest) {
            return;
        }
        if known.planned.len() == MAX_PLANNED {
            known.planned.pop_front();
        }
        known.planned.push_back(digest);
    }

    /// Whether this object planned the save with this digest.
    pub(crate) fn has_planned(&self, digest: u128) -> bool {
        self.lock().planned.contains(&digest)
    }
}

/// A clone of a snapshot is another object: what it saves later does not concern the original.
impl Clone for Lineage {
    fn clone(&self) -> Self {
        Self(Arc::new(Mutex::new(self.lock().clone())))
    }
}

/// Not a part of the state.
impl PartialEq for Lineage {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
