//! Claims of a timed store.

use std::path::Path;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use serde_json::Value;
use timed_store::{LockPolicy, TimedStorage};

use super::super::change::Change;
use super::super::entities::{Claim, milliseconds};
use super::super::hub::Feed;
use super::super::source::Source;
use crate::Result;

/// The longest time between two looks: an entry that expires is no change of the file.
const LOOK: Duration = Duration::from_secs(5);
/// The longest wait for the lock of a file.
const LOCK_LIMIT: Duration = Duration::from_secs(10);
/// Two computed ends of one entry differ by rounding.
const ROUNDING_MS: u64 = 1_000;

/// Shows the entries of a timed store with their sessions and the time that is left.
pub struct ClaimsSource {
    label: String,
    store: TimedStorage<Value>,
}

impl ClaimsSource {
    /// A source for a store. The label is shown.
    #[must_use]
    pub fn new(label: impl Into<String>, store: TimedStorage<Value>) -> Self {
        Self {
            label: label.into(),
            store,
        }
    }

    /// A source for a store in a file. A read waits for the lock of a writer.
    pub fn of_file(label: impl Into<String>, file: impl AsRef<Path>) -> Result<Self> {
        let store = TimedStorage::builder(file.as_ref());
        let store = store.lock(LockPolicy::Wait(LOCK_LIMIT)).open()?;
        Ok(Self::new(label, store))
    }

    async fn claims(&self, before: &[Claim]) -> Result<Vec<Claim>> {
        let entries = self.store.entries().await?;
        let claims = entries.iter().map(|(session, entry)| {
            let value = match entry.value() {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let expires = milliseconds(SystemTime::now() + entry.expires_in());
            let mut claim = Claim {
                store: self.label.clone(),
                session: session.as_str().to_owned(),
                value,
                token: entry.token(),
                expires,
            };
            let same = before.iter().find(|old| {
                old.session == claim.session && old.expires.abs_diff(expires) < ROUNDING_MS
            });
            if let Some(same) = same {
                claim.expires = same.expires;
            }
            claim
        });
        Ok(claims.collect())
    }
}

#[async_trait]
impl Source for ClaimsSource {
    fn name(&self) -> String {
        format!("claims {}", self.label)
    }

    async fn follow(&self, feed: Feed) -> Result<()> {
        let mut claims = Vec::new();
        let mut changes = self.store.watch();
        loop {
            claims = self.claims(&claims).await?;
            feed.push(Change::Claims {
                store: self.label.clone(),
                claims: claims.clone(),
            });
            feed.audience().await;
            // The change itself does not matter: all entries are read again.
            if let Ok(Err(error)) = tokio::time::timeout(LOOK, changes.next()).await {
                return Err(error.into());
            }
        }
    }
}
