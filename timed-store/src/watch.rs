use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::store::{Changes, Core, EXPIRED, LONGEST_PAUSE, Runtime, RuntimeContext, Value};
use crate::{Entry, Error, SessionId};

/// A change of a store, from [`TimedStorage::watch`](crate::blocking::TimedStorage::watch).
///
/// The id of a named slot is `session#slot`.
///
/// ```
/// use timed_store::{Change, SessionId, blocking::TimedStorage};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let store = TimedStorage::<String>::builder(folder.path().join("operators.json"))
///     .session(SessionId::new("terminal-1")?)
///     .open()?;
/// store.store(&"tsukuyomi".to_owned())?;
/// match store.watch().next() {
///     Some(Ok(Change::Set { session, entry })) => {
///         assert_eq!((session.as_str(), entry.value().as_str()), ("terminal-1", "tsukuyomi"));
///     }
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), timed_store::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change<T> {
    /// The session has a new entry, another value or another token. A refresh is not a change.
    Set {
        /// The session.
        session: SessionId,
        /// The entry.
        entry: Entry<T>,
    },
    /// The entry was removed or has expired, or its owner process has ended.
    Removed {
        /// The session.
        session: SessionId,
    },
}

impl<T> fmt::Debug for Change<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set { session, entry } => f
                .debug_struct("Set")
                .field("session", session)
                .field("entry", entry)
                .finish(),
            Self::Removed { session } => {
                f.debug_struct("Removed").field("session", session).finish()
            }
        }
    }
}

/// How long a watcher waits after an error before it checks the store again, unless it is
/// notified of a change. A caller that goes on after each error would otherwise be a busy loop.
const AFTER_ERROR: Duration = Duration::from_secs(1);

/// The entries that a watcher has reported, and the changes that it has to report.
pub(crate) struct WatchState<T> {
    core: Arc<Core>,
    changes: Changes,
    /// Value and token of each entry.
    reported: BTreeMap<SessionId, (String, Option<u64>)>,
    to_report: VecDeque<Change<T>>,
    has_failed: bool,
}

impl<T> WatchState<T> {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self {
            changes: core.changes(),
            core,
            reported: BTreeMap::new(),
            to_report: VecDeque::new(),
            has_failed: false,
        }
    }

    pub(crate) fn context(&self) -> RuntimeContext {
        self.core.context.clone()
    }
}

impl<T: Value> WatchState<T> {
    /// Compares the entries with what was reported, and waits for a change if they are the same.
    pub(crate) async fn next<R: Runtime>(&mut self) -> Result<Change<T>, Error> {
        if self.has_failed {
            R::at_most(AFTER_ERROR, self.changes.changed()).await;
        }
        let change = self.look::<R>().await;
        self.has_failed = change.is_err();
        change
    }

    async fn look<R: Runtime>(&mut self) -> Result<Change<T>, Error> {
        loop {
            if let Some(change) = self.to_report.pop_front() {
                return Ok(change);
            }
            self.changes.mark();
            let entries = self.core.entries::<R, T>(Some(&self.changes)).await?;
            let expiries = entries
                .iter()
                .map(|(_, entry)| entry.expires_in() + EXPIRED);
            let pause = expiries.min().unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE);
            self.compare(entries.all)?;
            if self.to_report.is_empty() {
                let pause = self.changes.limit(pause);
                self.core.pause::<R>(&self.changes, pause).await;
            }
        }
    }

    fn compare(&mut self, now: BTreeMap<SessionId, Entry<T>>) -> Result<(), Error> {
        let removed: Vec<SessionId> = self
            .reported
            .keys()
            .filter(|session| !now.contains_key(*session))
            .cloned()
            .collect();
        for session in removed {
            self.reported.remove(&session);
            self.to_report.push_back(Change::Removed { session });
        }
        for (session, entry) in now {
            let json = serde_json::to_string(&entry.value).map_err(|source| Error::Encode {
                source: source.into(),
            })?;
            let seen = (json, entry.token);
            if self.reported.get(&session) != Some(&seen) {
                self.reported.insert(session.clone(), seen);
                self.to_report.push_back(Change::Set { session, entry });
            }
        }
        Ok(())
    }
}
