//! The operations of a store, written once for the async and the blocking type.
//!
//! All knowledge of files is behind [`FileBackend`]. Another backend takes its place here: it
//! answers the same operations, and the public types do not change.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::decision::decide;
use super::file_backend::FileBackend;
use super::runtime::Runtime;
use super::settings::Settings;
use super::working_copy::Scope;
use crate::{Claim, Entries, Error, SessionId, Transaction};

/// A handle of a store. Each operation is an async function that is generic over the [`Runtime`] on
/// which it waits.
pub(crate) struct Core {
    pub(crate) settings: Arc<Settings>,
    backend: FileBackend,
}

impl Core {
    pub(crate) fn new(settings: Settings) -> Self {
        let settings = Arc::new(settings);
        Self {
            backend: FileBackend::new(Arc::clone(&settings)),
            settings,
        }
    }

    pub(crate) async fn store<R, T>(&self, value: &T) -> Result<(), Error>
    where
        R: Runtime,
        T: Serialize + DeserializeOwned,
    {
        let change = self
            .backend
            .change::<R, _>(Scope::Change, is_value::<T>, |copy| copy.store(value));
        change.await
    }

    pub(crate) async fn remove<R: Runtime, T: DeserializeOwned>(&self) -> Result<bool, Error> {
        let change = self
            .backend
            .change::<R, _>(Scope::Change, is_value::<T>, |copy| Ok(copy.remove()));
        change.await
    }

    pub(crate) async fn refresh<R: Runtime, T: DeserializeOwned>(&self) -> Result<bool, Error> {
        let change = self
            .backend
            .change::<R, _>(Scope::Change, is_value::<T>, |copy| Ok(copy.refresh()));
        change.await
    }

    pub(crate) async fn restore<R: Runtime, T: DeserializeOwned>(
        &self,
    ) -> Result<Option<T>, Error> {
        let read = self
            .backend
            .read::<R, _>(is_value::<T>, |copy| copy.restore());
        read.await
    }

    pub(crate) async fn get_other_entries<R: Runtime, T: DeserializeOwned>(
        &self,
    ) -> Result<BTreeMap<SessionId, T>, Error> {
        let read = self
            .backend
            .read::<R, _>(is_value::<T>, |copy| copy.other_values());
        read.await
    }

    pub(crate) async fn entries<R: Runtime, T: DeserializeOwned>(
        &self,
    ) -> Result<Entries<T>, Error> {
        let read = self
            .backend
            .read::<R, _>(is_value::<T>, |copy| copy.entries());
        read.await
    }

    pub(crate) async fn claim_any<R, T>(&self, candidates: Vec<T>) -> Result<Claim<T>, Error>
    where
        R: Runtime,
        T: Serialize + DeserializeOwned + PartialEq,
    {
        let change = self
            .backend
            .change::<R, _>(Scope::Claim, is_value::<T>, |copy| {
                decide(copy, &candidates)
            });
        let decision = change.await?;
        decision.into_claim(candidates)
    }

    pub(crate) async fn transaction<R, T, A>(
        &self,
        mut body: impl FnMut(&mut Transaction<T>) -> A,
    ) -> Result<A, Error>
    where
        R: Runtime,
        T: Serialize + DeserializeOwned,
    {
        let change = self
            .backend
            .change::<R, _>(Scope::Change, is_value::<T>, |copy| {
                copy.transaction(&mut body)
            });
        change.await
    }
}

fn is_value<T: DeserializeOwned>(json: &str) -> bool {
    serde_json::from_str::<T>(json).is_ok()
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimedStorage")
            .field("path", &self.settings.location.data)
            .field("session", &self.settings.session)
            .field("ttl_ms", &self.settings.ttl_ms)
            .field("policy", &self.settings.policy)
            .field("durability", &self.settings.durability)
            .finish_non_exhaustive()
    }
}
