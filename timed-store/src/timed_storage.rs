use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::store::{Core, Tokio};
use crate::timed_storage_macro::timed_storage;
use crate::{Claim, Entries, Error, SessionId, TimedStorageBuilder, Transaction};

macro_rules! awaited {
    ($operation:expr) => {
        $operation.await
    };
}

timed_storage! {
    runtime: Tokio,
    complete: awaited,
    keyword: [async],
    cancel_safety: [
        ///
        /// # Cancel safety
        ///
        /// Cancel safe: the operation is done as a whole or not at all.
    ],
    cancel_safety_of_claims: [
        ///
        /// # Cancel safety
        ///
        /// Cancel safe: the claim is done as a whole or not at all. A claim that is cancelled while
        /// it waits for the disk may be granted; claim again, or call [`restore`](Self::restore).
    ],
    /// A JSON file that maps sessions to values with a timestamp, shared by processes.
    ///
    /// Every operation takes the file's lock, drops expired entries, does its work and unlocks: one
    /// atomic step. The [crate's page](crate) lists the guarantees;
    /// [`blocking::TimedStorage`](crate::blocking::TimedStorage) is the same without a runtime.
    ///
    /// A handle is cheap to clone and to share between tasks; clones belong to the same session.
    /// Dropping a handle changes nothing in the file.
    ///
    /// ```
    /// use timed_store::{SessionId, TimedStorage};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), timed_store::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// let store = TimedStorage::<String>::builder(folder.path().join("operators.json"))
    ///     .session(SessionId::new("terminal-1")?)
    ///     .open()?;
    /// store.store(&"tsukuyomi".to_owned()).await?;
    /// assert_eq!(store.restore().await?.as_deref(), Some("tsukuyomi"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Example programs: [`claim`] takes a value that only one session may hold, [`seats`] limits
    /// the number of sessions by a transaction.
    ///
    /// [`claim`]: https://docs.rs/crate/timed-store/latest/source/examples/claim.rs
    /// [`seats`]: https://docs.rs/crate/timed-store/latest/source/examples/seats.rs
    ///
    /// # Runtime
    ///
    /// Operations run in place, because that takes less time than handing them to another thread:
    /// about ten microseconds for a read of a small file. Only waits need a Tokio runtime: for the
    /// lock ([`LockPolicy::Wait`](crate::LockPolicy::Wait), with the runtime's timer enabled) and
    /// for the disk ([`Durability::Power`](crate::Durability::Power), on a blocking thread).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: all methods. A future that is dropped while it waits for the lock has done
    /// nothing; one that is dropped while it waits for the disk completes in the background.
    #[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
    pub struct TimedStorage;
}
