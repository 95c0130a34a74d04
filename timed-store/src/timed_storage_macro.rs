//! The public methods of the async and the blocking `TimedStorage`, written once.

/// Defines `TimedStorage<T>` with all its methods.
///
/// Every method is one call of [`Core`](crate::store::Core), whose operations are async functions
/// that are generic over a [`Runtime`](crate::store::Runtime). The async and the blocking type
/// differ in eight parameters:
///
/// | parameter | async | blocking |
/// |---|---|---|
/// | `runtime`: how the operation waits | `Tokio` | `Blocking`, which waits inside `poll` |
/// | `complete`: how the method gets the result | `.await` | `block_on` |
/// | `connect`: how it connects to a server | on the current runtime | on a runtime of its own |
/// | `keyword` | `async` | none |
/// | `cancel_safety`: the section of the docs | text | none |
/// | `cancel_safety_of_claims`: the same for claims | text | none |
/// | `release`: how a dropped guard releases | in place, on a server on a thread | in place |
/// | the attributes of both types | text | text |
macro_rules! timed_storage {
    (
        runtime: $runtime:ident,
        complete: $complete:ident,
        connect: $connect:ident,
        release: $release:ident,
        keyword: [$($async:tt)?],
        cancel_safety: [$(#[$cancel_safety:meta])*],
        cancel_safety_of_claims: [$(#[$cancel_safety_of_claims:meta])*],
        $(#[$attribute:meta])*
        pub struct TimedStorage;
        $(#[$guard_attribute:meta])*
        pub struct KeepAlive;
    ) => {
        $(#[$attribute])*
        pub struct TimedStorage<T> {
            core: Arc<Core>,
            values: PhantomData<fn() -> T>,
        }

        impl<T> TimedStorage<T> {
            /// Starts to open the store in the file `path`. A folder that only the user can write
            /// to is a better place than a shared one.
            pub fn builder(path: impl Into<PathBuf>) -> TimedStorageBuilder<Self> {
                TimedStorageBuilder::at(path)
            }

            /// Starts to open the store in `{temp}/{name}-{hostname}.json`, the specified place.
            pub fn builder_in_temp(name: &str) -> TimedStorageBuilder<Self> {
                TimedStorageBuilder::in_temp(name)
            }

            /// Opens the store in the file `path`, with the defaults of [`TimedStorageBuilder`]. No
            /// file is read or created yet: the first operation does that.
            ///
            /// # Errors
            ///
            /// [`Error::Invalid`] if `path` names no file.
            pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
                Self::builder(path).open()
            }

            /// Starts to connect to the store `name` on a Redis or Valkey server, for several
            /// machines.
            #[cfg(feature = "redis")]
            #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
            pub fn redis_builder(url: &str, name: &str) -> RedisBuilder<Self> {
                RedisBuilder::new(url, name)
            }

            /// Connects to the store `name` on a Redis or Valkey server (`redis://host:port/db`,
            /// `redis+unix:///path`, with the feature `redis-tls` also `rediss://host:port/db`), or
            /// on the cluster of the server, with the defaults of [`RedisBuilder`].
            ///
            /// The operations and guarantees are those of a file, on the clock of the server. Two
            /// values are equal if their JSON is, up to the order of keys.
            ///
            /// # Errors
            ///
            /// [`Error::Invalid`] if the address or the name is not valid, [`Error::Server`] if the
            /// server cannot be reached.
            $(#[$cancel_safety])*
            #[cfg(feature = "redis")]
            #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
            pub $($async)? fn connect(url: &str, name: &str) -> Result<Self, Error> {
                let builder: RedisBuilder<Self> = Self::redis_builder(url, name);
                Ok(Self {
                    core: $connect!(builder)?,
                    values: PhantomData,
                })
            }

            /// The session whose entry this handle changes.
            pub fn session(&self) -> &SessionId {
                &self.core.settings.session
            }

            /// The data file; on a server, its address and the key.
            pub fn path(&self) -> &Path {
                &self.core.settings.path
            }

            /// Takes the damage that operations of this handle, its clones and its slots have found
            /// since the last call, oldest first; at most the last 64.
            ///
            /// A program without a `tracing` subscriber calls it after its work, so that no damage
            /// goes unnoticed: [`restore`](Self::restore), [`store`](Self::store) and the other
            /// operations continue with the whole entries, and their results have no room for it.
            /// It is empty on a server, which repairs nothing.
            pub fn take_incidents(&self) -> Vec<Incident> {
                self.core.settings.take_incidents()
            }

            /// A handle of the same session for a named slot, so that the session can hold several
            /// values.
            ///
            /// Each slot has an entry of its own. Slots are kept in `<file>.slots`, beside the
            /// specified file, which keeps the entry without a slot. A claim in any slot is refused
            /// if another session holds the value in any slot; the slots of one session do not
            /// exclude each other.
            ///
            /// # Errors
            ///
            /// [`Error::Invalid`] if the name is not made of 1 to 64 letters, digits, dots,
            /// underscores or hyphens.
            pub fn slot(&self, name: &str) -> Result<Self, Error> {
                Ok(Self {
                    core: Arc::new(self.core.with_slot(name)?),
                    values: PhantomData,
                })
            }
        }

        impl<T: Serialize + DeserializeOwned> TimedStorage<T> {
            /// Stores `value` for this session, even if another session holds an equal value.
            /// [`claim`](Self::claim) stores a value that only one session may hold.
            ///
            /// # Errors
            ///
            /// Any [`Error`]; nothing has changed, apart from the exceptions that [`Error`]
            /// names.
            $(#[$cancel_safety])*
            pub $($async)? fn store(&self, value: &T) -> Result<(), Error> {
                $complete!(self.core, self.core.store::<$runtime, T>(value))
            }

            /// Removes this session's entry, and returns whether there was one. Idempotent.
            ///
            /// # Errors
            ///
            /// Any [`Error`]; nothing has changed, apart from the exceptions that [`Error`]
            /// names.
            $(#[$cancel_safety])*
            pub $($async)? fn remove(&self) -> Result<bool, Error> {
                $complete!(self.core, self.core.remove::<$runtime, T>())
            }

            /// The values of all other sessions.
            ///
            /// To take a value that no other session has, use [`claim`](Self::claim): another
            /// session can take it between this call and the next one.
            ///
            /// # Errors
            ///
            /// Any [`Error`].
            $(#[$cancel_safety])*
            pub $($async)? fn get_other_entries(&self) -> Result<BTreeMap<SessionId, T>, Error> {
                $complete!(self.core, self.core.get_other_entries::<$runtime, T>())
            }

            /// This session's value.
            ///
            /// # Errors
            ///
            /// Any [`Error`].
            $(#[$cancel_safety])*
            pub $($async)? fn restore(&self) -> Result<Option<T>, Error> {
                $complete!(self.core, self.core.restore::<$runtime, T>())
            }

            /// Restarts the time of this session's entry, and returns whether there is one.
            ///
            /// # Errors
            ///
            /// Any [`Error`]; nothing has changed, apart from the exceptions that [`Error`]
            /// names.
            $(#[$cancel_safety])*
            pub $($async)? fn refresh(&self) -> Result<bool, Error> {
                $complete!(self.core, self.core.refresh::<$runtime, T>())
            }

            /// All live entries at one moment.
            ///
            /// # Errors
            ///
            /// Any [`Error`].
            $(#[$cancel_safety])*
            pub $($async)? fn entries(&self) -> Result<Entries<T>, Error> {
                $complete!(self.core, self.core.entries::<$runtime, T>(None))
            }

            /// Takes `value` if no other live session holds an equal one, in one atomic step.
            ///
            /// A granted claim replaces the value that this session held before; a refused one
            /// changes nothing. A claim of the value that the session already holds refreshes it
            /// and keeps its token. It never shortens the lease, which another process of the session
            /// may keep: the longer timeout counts, and the owner process stays only if both claims
            /// name it.
            ///
            /// # Errors
            ///
            /// Any [`Error`]; nothing has changed, apart from the exceptions that [`Error`]
            /// names.
            $(#[$cancel_safety_of_claims])*
            pub $($async)? fn claim(&self, value: T) -> Result<Claim<T>, Error>
            where
                T: PartialEq,
            {
                $complete!(self.core, self.core.claim_any::<$runtime, T>(vec![value]))
            }

            /// Takes the candidate that this session already holds, else the first free one.
            ///
            /// # Errors
            ///
            /// [`Error::Invalid`] if there are no candidates; otherwise any [`Error`]. Nothing
            /// has changed, apart from the exceptions that [`Error`] names.
            $(#[$cancel_safety_of_claims])*
            pub $($async)? fn claim_any(
                &self,
                candidates: impl IntoIterator<Item = T>,
            ) -> Result<Claim<T>, Error>
            where
                T: PartialEq,
            {
                let candidates = candidates.into_iter().collect();
                $complete!(self.core, self.core.claim_any::<$runtime, T>(candidates))
            }

            /// Claims `value`, and waits until it is free if another session holds it.
            ///
            /// The answer is [`Claim::Busy`] if it was not granted within `limit`. Waiters for a
            /// value are served first come, first served, across processes; a waiter that dies
            /// loses its place. [`claim`](Self::claim) does not queue: it takes a free value ahead
            /// of the waiters. A waiter that does not take a free value within a second, for
            /// example because it was stopped (SIGSTOP), is overtaken.
            ///
            /// A waiter wakes up when the store changes, when the holder's entry expires (while the
            /// machine sleeps: within ten seconds after that) and when its owner process ends. On
            /// Linux it does not poll a local file; elsewhere and on network file systems it checks
            /// the store every 250 ms, and on a server at least once a second.
            ///
            /// The call takes at most a second longer than `limit`, whatever the handle's policy for
            /// the lock is: for a last attempt, which may wait for the lock or for a server that does
            /// not answer.
            ///
            /// # Errors
            ///
            /// Any [`Error`], also [`Error::Locked`] if the lock was held for the whole time; nothing
            /// has changed, apart from the exceptions that [`Error`] names. A server whose answer did
            /// not arrive in time may have granted the claim (`may_be_done`): claim again, or call
            /// [`restore`](Self::restore).
            $(#[$cancel_safety_of_claims])*
            pub $($async)? fn claim_within(
                &self,
                value: T,
                limit: Duration,
            ) -> Result<Claim<T>, Error>
            where
                T: PartialEq,
            {
                $complete!(
                    self.core,
                    self.core.claim_any_within::<$runtime, T>(vec![value], limit)
                )
            }

            /// [`claim_any`](Self::claim_any) that waits like [`claim_within`](Self::claim_within)
            /// until one of the candidates is free.
            ///
            /// # Errors
            ///
            /// [`Error::Invalid`] if there are no candidates; otherwise any [`Error`]. Nothing
            /// has changed, apart from the exceptions that [`Error`] names.
            $(#[$cancel_safety_of_claims])*
            pub $($async)? fn claim_any_within(
                &self,
                candidates: impl IntoIterator<Item = T>,
                limit: Duration,
            ) -> Result<Claim<T>, Error>
            where
                T: PartialEq,
            {
                let candidates = candidates.into_iter().collect();
                $complete!(
                    self.core,
                    self.core.claim_any_within::<$runtime, T>(candidates, limit)
                )
            }

            /// Whether `token` is still current: a live entry of any session has it. A shared
            /// resource that cannot remember the largest token asks this instead.
            ///
            /// # Errors
            ///
            /// Any [`Error`].
            $(#[$cancel_safety])*
            pub $($async)? fn validate(&self, token: u64) -> Result<bool, Error> {
                $complete!(self.core, self.core.validate::<$runtime, T>(token))
            }

            /// Refreshes the lease in the background until the guard is dropped or the lease is
            /// lost. See [`KeepAlive`].
            ///
            /// # Errors
            ///
            /// [`Error::Thread`] or [`Error::ShuttingDown`] if the background work cannot start.
            pub fn keep_alive(&self, lease: Lease<T>) -> Result<KeepAlive<T>, Error>
            where
                T: 'static,
            {
                Ok(KeepAlive {
                    keeper: Keeper::start::<$runtime, T>(&self.core, &lease)?,
                    core: Arc::clone(&self.core),
                    lease,
                    release: None,
                })
            }

            /// The changes of the store from now on; first, each live entry as
            /// [`Change::Set`](crate::Change::Set). See [`Watch`].
            pub fn watch(&self) -> Watch<T> {
                Watch::new(WatchState::new(Arc::clone(&self.core)))
            }

            /// Runs `body` as one atomic step: it sees all entries, and its change of this
            /// session's entry is written when it returns. If it panics, nothing is written. See
            /// [`Transaction`] for an example.
            ///
            /// `body` may be called more than once, each time with fresh entries, and only the
            /// last call counts: a store without a lock detects conflicts by compare-and-swap and
            /// repeats the transaction. So `body` must have no effect outside the transaction
            /// except by its result: a counter that it increments would count twice. The file
            /// store calls it once, under the lock. Keep it short, and do not use the store
            /// inside it.
            ///
            /// # Errors
            ///
            /// Any [`Error`]; nothing has changed, apart from the exceptions that [`Error`]
            /// names.
            $(#[$cancel_safety])*
            pub $($async)? fn transaction<R>(
                &self,
                body: impl FnMut(&mut Transaction<T>) -> R,
            ) -> Result<R, Error> {
                $complete!(self.core, self.core.transaction::<$runtime, T, R>(body))
            }
        }

        impl<T> TimedStorageBuilder<TimedStorage<T>> {
            /// Opens the store. No file is read or created yet.
            ///
            /// # Errors
            ///
            /// [`Error::Invalid`] if the name or the path names no file.
            pub fn open(self) -> Result<TimedStorage<T>, Error> {
                Ok(TimedStorage {
                    core: self.into_core()?,
                    values: PhantomData,
                })
            }
        }

        #[cfg(feature = "redis")]
        impl<T> RedisBuilder<TimedStorage<T>> {
            /// Connects.
            ///
            /// # Errors
            ///
            /// [`Error::Invalid`] if the address or the name is not valid, [`Error::Server`] if the
            /// server cannot be reached.
            $(#[$cancel_safety])*
            pub $($async)? fn connect(self) -> Result<TimedStorage<T>, Error> {
                Ok(TimedStorage {
                    core: $connect!(self)?,
                    values: PhantomData,
                })
            }
        }

        $(#[$guard_attribute])*
        pub struct KeepAlive<T> {
            core: Arc<Core>,
            lease: Lease<T>,
            keeper: Keeper,
            /// Set if a drop releases the value.
            release: Option<fn(&Arc<Core>, u64)>,
        }

        impl<T> KeepAlive<T> {
            /// The lease that is kept.
            pub fn lease(&self) -> &Lease<T> {
                &self.lease
            }

            /// Whether the lease was lost: its entry is gone, no refresh has succeeded for the whole
            /// time of the lease, or the refresher has ended. The value may have another holder. The
            /// call reads the clock, so it is right even if the refresher could not run. The system's
            /// clock counts too, because timers stand still while the machine sleeps: a clock that is
            /// set forward past the time of the lease ends it. A lease that was kept after its time
            /// counts as held until its first refresh, at most a second: the holder may have
            /// refreshed it by hand.
            ///
            /// The call does not ask the store. An entry that another process of the session removed
            /// is noticed by the next refresh, at most a third of the lease's time later;
            /// [`validate`](TimedStorage::validate) asks the store.
            pub fn is_lost(&self) -> bool {
                self.keeper.is_lost()
            }

            /// Waits until the lease is lost.
            $(#[$cancel_safety])*
            pub $($async)? fn lost(&self) {
                $complete!(self.core, self.keeper.lost());
            }
        }

        impl<T: Serialize + DeserializeOwned + 'static> KeepAlive<T> {
            /// Releases the value when the guard is dropped.
            #[must_use]
            pub fn release_on_drop(mut self) -> Self {
                self.release = Some($release::<T>);
                self
            }

            /// Stops the refreshes and releases the value. Returns whether the lease was still
            /// held.
            ///
            /// The guard is gone afterwards, so the release waits for the lock of a file with any
            /// policy: two seconds, or as long as the policy says.
            ///
            /// # Errors
            ///
            /// Any [`Error`]; the value then stays busy until it expires.
            $(#[$cancel_safety])*
            pub $($async)? fn release(mut self) -> Result<bool, Error> {
                self.keeper.stop();
                let token = self.lease.token();
                let released = $complete!(self.core, self.core.release::<$runtime, T>(token));
                // Not before: if the future is dropped, the drop of the guard releases.
                self.release = None;
                released
            }
        }

        impl<T> Drop for KeepAlive<T> {
            fn drop(&mut self) {
                self.keeper.stop();
                if let Some(release) = self.release {
                    release(&self.core, self.lease.token());
                }
            }
        }

        impl<T> fmt::Debug for KeepAlive<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct("KeepAlive")
                    .field("lease", &self.lease)
                    .field("is_lost", &self.is_lost())
                    .finish_non_exhaustive()
            }
        }

        impl<T> Clone for TimedStorage<T> {
            fn clone(&self) -> Self {
                Self {
                    core: Arc::clone(&self.core),
                    values: PhantomData,
                }
            }
        }

        impl<T> fmt::Debug for TimedStorage<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.core.fmt(f)
            }
        }
    };
}

pub(crate) use timed_storage;
