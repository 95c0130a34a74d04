use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::claim::{self, Claim};
use crate::core::{Commit, Core};
use crate::entries::{Entries, Transaction};
use crate::lock::{Access, Held};
use crate::state::{Scope, State};
use crate::{Builder, Error, SessionId};

/// One JSON file: session -> value with a time stamp, shared by processes.
///
/// Every operation takes the file's lock, drops what has expired, does its work and lets go:
/// one step that no other operation comes between. See the [crate's page](crate) for what that
/// guarantees, and [`blocking::TimedStorage`](crate::blocking::TimedStorage) for the same without a runtime.
///
/// A handle is cheap to clone and to share between tasks; clones are the same session.
/// Dropping one changes nothing in the file.
///
/// # Runtime
///
/// The work is done in place, because it takes less time than handing it to another thread
/// would: about ten microseconds for a read of a small file. Only waiting goes to Tokio's
/// blocking threads, for a lock ([`LockPolicy::Wait`](crate::LockPolicy::Wait)) or for the disk
/// ([`Durability::Power`](crate::Durability::Power)); with one of these set, the methods need a
/// Tokio runtime.
///
/// # Cancel safety
///
/// All methods are cancel safe: a future that is dropped before it is ready has done all or
/// nothing. While it waits for the lock, that is nothing; while it waits for the disk, the
/// write goes on behind it.
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
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: all or nothing is done.
    pub async fn store(&self, value: &T) -> Result<(), Error> {
        self.change(Scope::ChangeMine, |state| state.store(value))
            .await
    }

    /// Removes the own session's entry, and says whether there was one.
    ///
    /// # Errors
    ///
    /// See [`Error`]; nothing has changed.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: all or nothing is done.
    pub async fn remove(&self) -> Result<bool, Error> {
        self.change(Scope::ChangeMine, |state| Ok(state.remove()))
            .await
    }

    /// The values of all other sessions.
    ///
    /// To take something that none of them has, use [`claim`](Self::claim): between this call
    /// and the next one, anybody can take it.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn get_other_entries(&self) -> Result<BTreeMap<SessionId, T>, Error> {
        self.read(Scope::ReadAll, |state| state.other_values())
            .await
    }

    /// The own session's value.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn restore(&self) -> Result<Option<T>, Error> {
        self.read(Scope::ReadMine, |state| state.restore()).await
    }

    /// Starts the own entry's time anew, and says whether there is one.
    ///
    /// # Errors
    ///
    /// See [`Error`]; nothing has changed.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: all or nothing is done.
    pub async fn refresh(&self) -> Result<bool, Error> {
        self.change(Scope::ChangeMine, |state| Ok(state.refresh()))
            .await
    }

    /// All live entries at one moment.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn entries(&self) -> Result<Entries<T>, Error> {
        self.read(Scope::ReadAll, |state| state.entries()).await
    }

    /// Takes `value` if no other live session holds an equal one, in one step; a value that
    /// the own session held before is given up by that, and only then. Claiming what one holds
    /// already refreshes it and keeps its token.
    ///
    /// # Errors
    ///
    /// See [`Error`]; nothing has changed.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: all or nothing is done. A claim that was cancelled while it waited for the
    /// disk may have been granted; claim again, or ask [`restore`](Self::restore).
    pub async fn claim(&self, value: T) -> Result<Claim<T>, Error>
    where
        T: PartialEq,
    {
        self.claim_any([value]).await
    }

    /// Takes the candidate that the own session holds already, else the first one that is free.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there are no candidates; else see [`Error`]. Nothing has changed.
    ///
    /// # Cancel safety
    ///
    /// As [`claim`](Self::claim).
    pub async fn claim_any(
        &self,
        candidates: impl IntoIterator<Item = T>,
    ) -> Result<Claim<T>, Error>
    where
        T: PartialEq,
    {
        let candidates: Vec<T> = candidates.into_iter().collect();
        self.change(Scope::ChangeAll, |state| {
            claim::claim_any(state, candidates)
        })
        .await
    }

    /// Runs `body` under one lock: it sees all entries, and what it does to its own session's
    /// is written when it returns. If it panics, nothing is. Keep it short, and do not use the
    /// store inside: everybody waits.
    ///
    /// ```
    /// # async fn example(store: timed_store::TimedStorage<String>) -> Result<(), timed_store::Error> {
    /// // At most two sessions may hold a seat.
    /// let seated = store
    ///     .transaction(|entries| {
    ///         let free = entries.others().count() < 2;
    ///         if free {
    ///             entries.store("seat".to_owned());
    ///         }
    ///         free
    ///     })
    ///     .await?;
    /// # let _ = seated; Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`Error`]; nothing has changed.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: all or nothing is done.
    pub async fn transaction<R>(
        &self,
        body: impl FnOnce(&mut Transaction<T>) -> R,
    ) -> Result<R, Error> {
        self.change(Scope::ChangeAll, |state| state.transaction(body))
            .await
    }

    async fn read<R>(
        &self,
        scope: Scope,
        answer: impl FnOnce(&State<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let held = self.lock(Access::Shared).await?;
        let (answer, unclean) = self.core.read::<T, R>(held, scope, answer)?;
        if unclean {
            self.core.after_read(self.clean().await);
        }
        Ok(answer)
    }

    async fn change<R>(
        &self,
        scope: Scope,
        change: impl FnOnce(&mut State<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let held = self.lock(Access::Exclusive).await?;
        let (answer, commit) = self.core.change::<T, R>(held, scope, change)?;
        run(commit).await?;
        Ok(answer)
    }

    async fn lock(&self, access: Access) -> Result<Held, Error> {
        match self.core.try_lock(access)? {
            Some(held) => Ok(held),
            None if self.core.waits() => {
                let core = Arc::clone(&self.core);
                off_thread(move || core.wait_lock(access)).await
            }
            None => self.core.wait_lock(access),
        }
    }

    async fn clean(&self) -> Result<(), Error> {
        match self.core.try_lock(Access::Exclusive)? {
            Some(held) => {
                run(self
                    .core
                    .change::<T, ()>(held, Scope::ChangeMine, |_| Ok(()))?
                    .1)
                .await
            }
            None => Ok(()),
        }
    }
}

async fn run(commit: Commit) -> Result<(), Error> {
    if commit.waits() {
        off_thread(move || commit.run()).await
    } else {
        commit.run()
    }
}

async fn off_thread<R: Send + 'static>(
    work: impl FnOnce() -> Result<R, Error> + Send + 'static,
) -> Result<R, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Error::ShuttingDown),
        },
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
