use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use crate::SessionId;

/// One live entry.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry<T> {
    pub(crate) value: T,
    pub(crate) token: Option<u64>,
    pub(crate) expires_in: Duration,
}

impl<T> Entry<T> {
    /// The value.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// The fencing token, if the value was claimed and not just stored.
    pub fn token(&self) -> Option<u64> {
        self.token
    }

    /// How much longer it lives if its session does not refresh it.
    pub fn expires_in(&self) -> Duration {
        self.expires_in
    }
}

/// All live entries at one moment, in the order of their sessions.
#[derive(Clone, PartialEq, Eq)]
pub struct Entries<T> {
    pub(crate) session: SessionId,
    pub(crate) all: BTreeMap<SessionId, Entry<T>>,
}

impl<T> Entries<T> {
    /// The entry of the store's own session.
    pub fn mine(&self) -> Option<&Entry<T>> {
        self.all.get(&self.session)
    }

    /// The entries of all other sessions.
    pub fn others(&self) -> impl Iterator<Item = (&SessionId, &Entry<T>)> {
        self.all
            .iter()
            .filter(|(session, _)| **session != self.session)
    }

    /// The entries of all sessions.
    pub fn iter(&self) -> impl Iterator<Item = (&SessionId, &Entry<T>)> {
        self.all.iter()
    }
}

/// What a [transaction](crate::TimedStorage::transaction) sees and does: all entries to read,
/// its own session's to change.
pub struct Transaction<T> {
    pub(crate) entries: Entries<T>,
    pub(crate) ttl: Duration,
    pub(crate) change: Change,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    Store,
    Remove,
    Refresh,
}

impl<T> Transaction<T> {
    /// Stores `value` for the own session.
    pub fn store(&mut self, value: T) {
        let entry = Entry {
            value,
            token: None,
            expires_in: self.ttl,
        };
        self.entries.all.insert(self.entries.session.clone(), entry);
        self.change = Change::Store;
    }

    /// Removes the own session's entry, and says whether there was one.
    pub fn remove(&mut self) -> bool {
        self.change = Change::Remove;
        self.entries.all.remove(&self.entries.session).is_some()
    }

    /// Starts the own entry's time anew, and says whether there is one.
    pub fn refresh(&mut self) -> bool {
        let found = self.entries.mine().is_some();
        if found && self.change == Change::None {
            self.change = Change::Refresh;
        }
        found
    }
}

impl<T> Deref for Transaction<T> {
    type Target = Entries<T>;

    fn deref(&self) -> &Entries<T> {
        &self.entries
    }
}

// Values are the caller's and may be private: sessions are all that is shown.

impl<T> fmt::Debug for Entry<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("token", &self.token)
            .field("expires_in", &self.expires_in)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Entries<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<T> fmt::Debug for Transaction<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction")
            .field("entries", &self.entries)
            .field("change", &self.change)
            .finish_non_exhaustive()
    }
}
