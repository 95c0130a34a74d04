//! The same store without a runtime: every method of [`TimedStorage`] waits on the calling
//! thread. This is all there is with `default-features = false`.
//!
//! ```
//! use timed_store::{Claim, SessionId, blocking::TimedStorage};
//!
//! # let folder = tempfile::tempdir()?;
//! let store = TimedStorage::<String>::builder_at(folder.path().join("operators.json"))
//!     .session(SessionId::new("terminal-1")?)
//!     .open()?;
//! assert!(matches!(store.claim("tsukuyomi".to_owned())?, Claim::Granted(_)));
//! assert_eq!(store.restore()?.as_deref(), Some("tsukuyomi"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::claim::{self, Claim};
use crate::core::Core;
use crate::entries::{Entries, Transaction};
use crate::lock::{Access, Held};
use crate::state::{Scope, State};
use crate::{Builder, Error, SessionId};

/// One JSON file: session -> value with a time stamp, shared by processes.
///
/// A handle is cheap to clone and to share between threads; clones are the same session.
/// Dropping one changes nothing in the file.
pub struct TimedStorage<T> {
    core: Arc<Core>,
    values: PhantomData<fn() -> T>,
}

impl<T> TimedStorage<T> {
    /// A store in `{temp}/{name}-{hostname}.json`, the place that the specification names.
    pub fn builder(name: &str) -> Builder<Self> {
        Builder::in_temp(name)
    }

    /// A store in the file `path`. A folder of the user's own is a better place than one that
    /// everybody can write to.
    pub fn builder_at(path: impl Into<PathBuf>) -> Builder<Self> {
        Builder::at(path)
    }

    /// The store in the file `path`, with the defaults of everything else.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if `path` cannot be one of a file.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        Self::builder_at(path).open()
    }

    /// The session whose entry this handle changes.
    pub fn session(&self) -> &SessionId {
        &self.core.settings.session
    }

    /// The data file.
    pub fn path(&self) -> &Path {
        &self.core.settings.location.file
    }

    pub(crate) fn of_core(core: Arc<Core>) -> Self {
        Self {
            core,
            values: PhantomData,
        }
    }
}

impl<T: Serialize + DeserializeOwned> TimedStorage<T> {
    /// Stores `value` for the own session, whoever else holds an equal one; see
    /// [`claim`](Self::claim) for values that only one may hold.
    ///
    /// # Errors
    ///
    /// See [`Error`]; nothing has changed.
    pub fn store(&self, value: &T) -> Result<(), Error> {
        self.change(Scope::ChangeMine, |state| state.store(value))
    }

    /// Removes the own session's entry, and says whether there was one.
    ///
    /// # Errors
    ///
    /// See [`Error`]; nothing has changed.
    pub fn remove(&self) -> Result<bool, Error> {
        self.change(Scope::ChangeMine, |state| Ok(state.remove()))
    }

    /// The values of all other sessions.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn get_other_entries(&self) -> Result<BTreeMap<SessionId, T>, Error> {
        self.read(Scope::ReadAll, |state| state.other_values())
    }

    /// The own session's value.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn restore(&self) -> Result<Option<T>, Error> {
        self.read(Scope::ReadMine, |state| state.restore())
    }

    /// Starts the own entry's time anew, and says whether there is one.
    ///
    /// # Errors
    ///
    /// See [`Error`]; nothing has changed.
    pub fn refresh(&self) -> Result<bool, Error> {
        self.change(Scope::ChangeMine, |state| Ok(state.refresh()))
    }

    /// All live entries at one moment.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn entries(&self) -> Result<Entries<T>, Error> {
        self.read(Scope::ReadAll, |state| state.entries())
    }

    /// Takes `value` if no other live session holds an equal one, in one step; a value that
    /// the own session held before is given up by that, and only then. Claiming what one holds
    /// already refreshes it and keeps its token.
    ///
    /// # Errors
    ///
    /// See [`Error`]; nothing has changed.
    pub fn claim(&self, value: T) -> Result<Claim<T>, Error>
    where
        T: PartialEq,
    {
        self.claim_any([value])
    }

    /// Takes the candidate that the own session holds already, else the first one that is free.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there are no candidates; else see [`Error`]. Nothing has changed.
    pub fn claim_any(&self, candidates: impl IntoIterator<Item = T>) -> Result<Claim<T>, Error>
    where
        T: PartialEq,
    {
        let candidates = candidates.into_iter().collect();
        self.change(Scope::ChangeAll, |state| {
            claim::claim_any(state, candidates)
        })
    }

    /// Runs `body` under one lock: it sees all entries, and what it does to its own session's
    /// is written when it returns. If it panics, nothing is. Keep it short, and do not use the
    /// store inside: everybody waits.
    ///
    /// # Errors
    ///
    /// See [`Error`]; nothing has changed.
    pub fn transaction<R>(&self, body: impl FnOnce(&mut Transaction<T>) -> R) -> Result<R, Error> {
        self.change(Scope::ChangeAll, |state| state.transaction(body))
    }

    fn read<R>(
        &self,
        scope: Scope,
        answer: impl FnOnce(&State<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let held = self.lock(Access::Shared)?;
        let (answer, unclean) = self.core.read::<T, R>(held, scope, answer)?;
        if unclean {
            self.core.after_read(self.clean());
        }
        Ok(answer)
    }

    fn change<R>(
        &self,
        scope: Scope,
        change: impl FnOnce(&mut State<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let held = self.lock(Access::Exclusive)?;
        let (answer, commit) = self.core.change::<T, R>(held, scope, change)?;
        commit.run()?;
        Ok(answer)
    }

    fn lock(&self, access: Access) -> Result<Held, Error> {
        match self.core.try_lock(access)? {
            Some(held) => Ok(held),
            None => self.core.wait_lock(access),
        }
    }

    fn clean(&self) -> Result<(), Error> {
        match self.core.try_lock(Access::Exclusive)? {
            Some(held) => self
                .core
                .change::<T, ()>(held, Scope::ChangeMine, |_| Ok(()))?
                .1
                .run(),
            None => Ok(()),
        }
    }
}

impl<T> Clone for TimedStorage<T> {
    fn clone(&self) -> Self {
        Self::of_core(Arc::clone(&self.core))
    }
}

impl<T> fmt::Debug for TimedStorage<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}
