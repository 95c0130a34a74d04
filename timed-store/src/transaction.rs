use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use crate::{Entries, Entry};

/// The view of a [transaction](crate::blocking::TimedStorage::transaction): all entries to read,
/// this session's entry to change.
///
/// ```
/// use timed_store::blocking::TimedStorage;
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let store = TimedStorage::<String>::open(folder.path().join("seats.json"))?;
/// // At most two sessions may hold a seat.
/// let is_seated = store.transaction(|entries| {
///     let is_free = entries.others().count() < 2;
///     if is_free {
///         entries.store("seat".to_owned());
///     }
///     is_free
/// })?;
/// assert!(is_seated);
/// # Ok::<(), timed_store::Error>(())
/// ```
pub struct Transaction<T> {
    pub(crate) entries: Entries<T>,
    pub(crate) ttl: Duration,
    pub(crate) change: OwnChange,
}

/// The change of this session's entry; the value to store is in `entries`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnChange {
    None,
    Store,
    Remove,
    Refresh,
}

impl<T> Transaction<T> {
    /// Stores `value` for this session.
    pub fn store(&mut self, value: T) {
        let entry = Entry {
            value,
            token: None,
            expires_in: self.ttl,
        };
        self.entries.all.insert(self.entries.own.clone(), entry);
        self.change = OwnChange::Store;
    }

    /// Removes this session's entry, and returns whether there was one.
    pub fn remove(&mut self) -> bool {
        self.change = OwnChange::Remove;
        self.entries.all.remove(&self.entries.own).is_some()
    }

    /// Restarts the time of this session's entry, and returns whether there is one.
    pub fn refresh(&mut self) -> bool {
        let is_there = self.entries.mine().is_some();
        if is_there && self.change == OwnChange::None {
            self.change = OwnChange::Refresh;
        }
        is_there
    }
}

impl<T> Deref for Transaction<T> {
    type Target = Entries<T>;

    fn deref(&self) -> &Entries<T> {
        &self.entries
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
