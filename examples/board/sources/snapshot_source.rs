//! Saved states of agents.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_snapshot::{AgentInfo, SnapshotStorage};
use async_trait::async_trait;

use super::super::change::Change;
use super::super::entities::{Snapshot, milliseconds};
use super::super::hub::Feed;
use super::super::source::Source;
use crate::Result;

/// The time between two looks while a client is there: a storage reports no change.
const LOOK: Duration = Duration::from_secs(1);
/// Agents that are read at a time.
const PAGE: usize = 200;
/// Most agents that are shown.
const MAX_AGENTS: usize = 1_000;

/// Shows the ticks of the agents in a storage as they are saved.
pub struct SnapshotSource {
    label: String,
    storage: Arc<dyn SnapshotStorage>,
    prefix: String,
}

impl SnapshotSource {
    /// A source for a storage. The label names it in failures.
    #[must_use]
    pub fn new(label: impl Into<String>, storage: Arc<dyn SnapshotStorage>) -> Self {
        Self {
            label: label.into(),
            storage,
            prefix: String::new(),
        }
    }

    /// Shows only the agents whose id begins so, without that beginning.
    #[must_use]
    pub fn only(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    async fn look(&self, feed: &Feed, seen: &mut BTreeMap<String, AgentInfo>) -> Result<()> {
        let mut after = None;
        loop {
            let page = self.storage.page(after.as_ref(), PAGE).await?;
            let is_last = page.len() < PAGE;
            after = page.last().map(|info| info.agent.clone());
            for info in page {
                let Some(agent) = info.agent.as_str().strip_prefix(&self.prefix) else {
                    continue;
                };
                let known = seen.get(agent);
                if known == Some(&info) || known.is_none() && seen.len() >= MAX_AGENTS {
                    continue;
                }
                if let Some(position) = info.position {
                    feed.push(Change::Snapshot(Snapshot {
                        agent: agent.to_owned(),
                        tick: position.tick,
                        epoch: position.epoch,
                        messages: info.messages,
                        bytes: info.bytes,
                        at: milliseconds(info.changed),
                    }));
                }
                seen.insert(agent.to_owned(), info);
            }
            if is_last {
                return Ok(());
            }
        }
    }
}

#[async_trait]
impl Source for SnapshotSource {
    fn name(&self) -> String {
        format!("snapshots {}", self.label)
    }

    async fn follow(&self, feed: Feed) -> Result<()> {
        let mut seen = BTreeMap::new();
        loop {
            self.look(&feed, &mut seen).await?;
            tokio::time::sleep(LOOK).await;
            feed.audience().await;
        }
    }
}
