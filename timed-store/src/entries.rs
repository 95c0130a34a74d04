use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::{Incident, SessionId};

/// One live entry.
///
/// ```
/// use timed_store::{SessionId, blocking::TimedStorage};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let store = TimedStorage::<String>::open(folder.path().join("operators.json"))?;
/// store.store(&"tsukuyomi".to_owned())?;
/// let entries = store.entries()?;
/// let entry = entries.mine().expect("it was stored");
/// assert_eq!(entry.value(), "tsukuyomi");
/// assert_eq!(entry.token(), None);
/// # Ok::<(), timed_store::Error>(())
/// ```
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

    /// The fencing token of a claimed value; `None` if the value was only stored.
    pub fn token(&self) -> Option<u64> {
        self.token
    }

    /// The time until the entry expires, unless its session refreshes it.
    pub fn expires_in(&self) -> Duration {
        self.expires_in
    }
}

/// All live entries at one moment, sorted by session.
///
/// ```
/// use timed_store::{SessionId, blocking::TimedStorage};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("operators.json");
/// let open = |session: &str| {
///     TimedStorage::<String>::builder(&path)
///         .session(SessionId::new(session)?)
///         .open()
/// };
/// open("terminal-1")?.store(&"tsukuyomi".to_owned())?;
/// let entries = open("terminal-2")?.entries()?;
/// assert!(entries.mine().is_none());
/// for (session, entry) in entries.others() {
///     assert_eq!((session.as_str(), entry.value().as_str()), ("terminal-1", "tsukuyomi"));
/// }
/// # Ok::<(), timed_store::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Entries<T> {
    /// The key of this handle's entry.
    pub(crate) own: SessionId,
    /// The keys of other sessions.
    pub(crate) others: BTreeSet<SessionId>,
    pub(crate) all: BTreeMap<SessionId, Entry<T>>,
    pub(crate) incidents: Vec<Incident>,
}

impl<T> Entries<T> {
    /// The entry of this session, in the slot of the handle.
    pub fn mine(&self) -> Option<&Entry<T>> {
        self.all.get(&self.own)
    }

    /// The entries of all other sessions. The id of a named slot is `session#slot`; the slots of
    /// this session are not among them.
    pub fn others(&self) -> impl Iterator<Item = (&SessionId, &Entry<T>)> {
        self.all
            .iter()
            .filter(|(session, _)| self.others.contains(*session))
    }

    /// The entries of all sessions, in all slots.
    pub fn iter(&self) -> impl Iterator<Item = (&SessionId, &Entry<T>)> {
        self.all.iter()
    }

    /// Damage that the operation found, such as a corrupt file that has cost entries.
    pub fn incidents(&self) -> &[Incident] {
        &self.incidents
    }
}

// Values belong to the caller and may be secret: `Debug` shows sessions, tokens and times only.

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
