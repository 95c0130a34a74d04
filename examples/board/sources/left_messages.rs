//! Messages that agents have left for each other.

use std::collections::{BTreeMap, BTreeSet};

use tmux_bus::{MessageId, MessageState};

use super::super::action::ActionError;
use super::super::change::Change;
use super::super::entities::{QueueItem, milliseconds};
use super::super::hub::Feed;
use super::cluster_source::{ClusterSource, LOOK};
use crate::Result;

/// The ids of messages in the inbox of the cluster begin so on the board.
const LEFT: &str = "left-";

/// Whether an item of the queue is a message in the inbox.
pub(super) fn is_left(item: &str) -> bool {
    item.starts_with(LEFT)
}

impl ClusterSource {
    /// Shows the messages that agents have left for each other.
    pub(super) async fn follow_inbox(&self, feed: &Feed) -> Result<()> {
        let (mut waiting, mut told) = (BTreeSet::new(), BTreeSet::new());
        let mut failure = String::new();
        loop {
            let inbox = self.cluster().inbox().clone();
            let entries = tokio::task::spawn_blocking(move || inbox.all_entries()).await?;
            let entries = match entries {
                Ok(entries) => entries,
                // The next look may succeed; the messages that were shown stay until then.
                Err(error) => {
                    self.fail_once(feed, &mut failure, &error);
                    tokio::time::sleep(LOOK).await;
                    feed.audience().await;
                    continue;
                }
            };
            failure.clear();
            let mut ended: BTreeMap<MessageId, &'static str> = BTreeMap::new();
            let mut now_waiting = BTreeSet::new();
            for entry in entries {
                let problem = match &entry.state {
                    MessageState::Waiting | MessageState::Sending => {
                        now_waiting.insert(entry.id.clone());
                        if !waiting.contains(&entry.id) {
                            feed.push(Change::Queued(QueueItem {
                                id: format!("{LEFT}{}", entry.id),
                                agent: entry.to,
                                from: entry.from,
                                text: entry.text,
                                at: milliseconds(entry.left_at),
                            }));
                        }
                        continue;
                    }
                    MessageState::Uncertain { .. } => Some("uncertain"),
                    MessageState::Dead { .. } => Some("not_sent"),
                    _ => None,
                };
                let outcome = match problem {
                    Some("uncertain") => "uncertain",
                    Some(_) => "dropped",
                    None => "delivered",
                };
                ended.insert(entry.id.clone(), outcome);
                if let Some(class) = problem
                    && told.insert(entry.id)
                {
                    let message = format!("message from {}: {}", entry.from, entry.state);
                    self.fail(feed, &entry.to, class, &message);
                }
            }
            for id in waiting.difference(&now_waiting) {
                let outcome = ended.get(id).copied().unwrap_or("taken_back");
                let id = format!("{LEFT}{id}");
                feed.push(Change::QueuedGone { id, outcome });
            }
            waiting = now_waiting;
            told.retain(|id| ended.contains_key(id));
            tokio::time::sleep(LOOK).await;
            feed.audience().await;
        }
    }

    /// Takes back a message that was left for an agent.
    pub(super) async fn take_back_left(&self, item: &str) -> std::result::Result<(), ActionError> {
        let inbox = self.cluster().inbox().clone();
        let id = item.strip_prefix(LEFT).unwrap_or(item);
        let id = MessageId::new(id).map_err(|error| ActionError::failed(&error))?;
        let done = tokio::task::spawn_blocking(move || inbox.take_back(&id)).await;
        match done.map_err(|error| ActionError::failed(&error))? {
            Ok(()) => Ok(()),
            Err(tmux_bus::Error::UnknownMessage { .. } | tmux_bus::Error::MessageState { .. }) => {
                Err(ActionError::new("gone", "the message no longer waits"))
            }
            Err(error) => Err(ActionError::failed(&error)),
        }
    }
}
