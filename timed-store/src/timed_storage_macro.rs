//! The public methods of the async and the blocking `TimedStorage`, written once.

/// Defines `TimedStorage<T>` with all its methods.
///
/// Every method is one call of [`Core`](crate::store::Core), whose operations are async functions
/// that are generic over a [`Runtime`](crate::store::Runtime). The async and the blocking type
/// differ in four parameters:
///
/// | parameter | async | blocking |
/// |---|---|---|
/// | `runtime`: how the operation waits | `Tokio` | `Blocking`, which waits inside `poll` |
/// | `complete`: how the method gets the result | `.await` | `block_on`, one poll |
/// | `keyword` | `async` | none |
/// | `cancel_safety`: the section of the docs | text | none |
macro_rules! timed_storage {
    (
        runtime: $runtime:ident,
        complete: $complete:ident,
        keyword: [$($async:tt)?],
        cancel_safety: [$(#[$cancel_safety:meta])*],
        cancel_safety_of_claims: [$(#[$cancel_safety_of_claims:meta])*],
        $(#[$attribute:meta])*
        pub struct TimedStorage;
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

            /// The session whose entry this handle changes.
            pub fn session(&self) -> &SessionId {
                &self.core.settings.session
            }

            /// The data file.
            pub fn path(&self) -> &Path {
                &self.core.settings.location.data
            }
        }

        impl<T: Serialize + DeserializeOwned> TimedStorage<T> {
            /// Stores `value` for this session, even if another session holds an equal value.
            /// [`claim`](Self::claim) stores a value that only one session may hold.
            ///
            /// # Errors
            ///
            /// Any [`Error`]; nothing has changed.
            $(#[$cancel_safety])*
            pub $($async)? fn store(&self, value: &T) -> Result<(), Error> {
                $complete!(self.core.store::<$runtime, T>(value))
            }

            /// Removes this session's entry, and returns whether there was one. Idempotent.
            ///
            /// # Errors
            ///
            /// Any [`Error`]; nothing has changed.
            $(#[$cancel_safety])*
            pub $($async)? fn remove(&self) -> Result<bool, Error> {
                $complete!(self.core.remove::<$runtime, T>())
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
                $complete!(self.core.get_other_entries::<$runtime, T>())
            }

            /// This session's value.
            ///
            /// # Errors
            ///
            /// Any [`Error`].
            $(#[$cancel_safety])*
            pub $($async)? fn restore(&self) -> Result<Option<T>, Error> {
                $complete!(self.core.restore::<$runtime, T>())
            }

            /// Restarts the time of this session's entry, and returns whether there is one.
            ///
            /// # Errors
            ///
            /// Any [`Error`]; nothing has changed.
            $(#[$cancel_safety])*
            pub $($async)? fn refresh(&self) -> Result<bool, Error> {
                $complete!(self.core.refresh::<$runtime, T>())
            }

            /// All live entries at one moment.
            ///
            /// # Errors
            ///
            /// Any [`Error`].
            $(#[$cancel_safety])*
            pub $($async)? fn entries(&self) -> Result<Entries<T>, Error> {
                $complete!(self.core.entries::<$runtime, T>())
            }

            /// Takes `value` if no other live session holds an equal one, in one atomic step.
            ///
            /// A granted claim replaces the value that this session held before; a refused one
            /// changes nothing. A claim of the value that the session already holds refreshes it
            /// and keeps its token.
            ///
            /// # Errors
            ///
            /// Any [`Error`]; nothing has changed.
            $(#[$cancel_safety_of_claims])*
            pub $($async)? fn claim(&self, value: T) -> Result<Claim<T>, Error>
            where
                T: PartialEq,
            {
                $complete!(self.core.claim_any::<$runtime, T>(vec![value]))
            }

            /// Takes the candidate that this session already holds, else the first free one.
            ///
            /// # Errors
            ///
            /// [`Error::Invalid`] if there are no candidates; otherwise any [`Error`]. Nothing
            /// has changed.
            $(#[$cancel_safety_of_claims])*
            pub $($async)? fn claim_any(
                &self,
                candidates: impl IntoIterator<Item = T>,
            ) -> Result<Claim<T>, Error>
            where
                T: PartialEq,
            {
                let candidates = candidates.into_iter().collect();
                $complete!(self.core.claim_any::<$runtime, T>(candidates))
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
            /// Any [`Error`]; nothing has changed.
            $(#[$cancel_safety])*
            pub $($async)? fn transaction<R>(
                &self,
                body: impl FnMut(&mut Transaction<T>) -> R,
            ) -> Result<R, Error> {
                $complete!(self.core.transaction::<$runtime, T, R>(body))
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
