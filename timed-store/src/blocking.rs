//! The same store without a runtime: every method of [`TimedStorage`] blocks the calling thread.
//! With `default-features = false` this is the only store.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::store::{Blocking, Core, block_on};
use crate::timed_storage_macro::timed_storage;
use crate::{Claim, Entries, Error, SessionId, TimedStorageBuilder, Transaction};

macro_rules! blocked {
    ($operation:expr) => {
        block_on($operation)
    };
}

timed_storage! {
    runtime: Blocking,
    complete: blocked,
    keyword: [],
    cancel_safety: [],
    cancel_safety_of_claims: [],
    /// A JSON file that maps sessions to values with a timestamp, shared by processes.
    ///
    /// Every operation takes the file's lock, drops expired entries, does its work and unlocks: one
    /// atomic step. The [crate's page](crate) lists the guarantees.
    ///
    /// A handle is cheap to clone and to share between threads; clones belong to the same session.
    /// Dropping a handle changes nothing in the file.
    ///
    /// ```
    /// use timed_store::{Claim, SessionId, blocking::TimedStorage};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// let store = TimedStorage::<String>::builder(folder.path().join("operators.json"))
    ///     .session(SessionId::new("terminal-1")?)
    ///     .open()?;
    /// assert!(matches!(store.claim("tsukuyomi".to_owned())?, Claim::Granted(_)));
    /// assert_eq!(store.restore()?.as_deref(), Some("tsukuyomi"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The example program [`status`] prints the live entries of a store.
    ///
    /// [`status`]: https://docs.rs/crate/timed-store/latest/source/examples/status.rs
    pub struct TimedStorage;
}
