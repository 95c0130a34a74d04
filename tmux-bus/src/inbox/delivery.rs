//! The records before and after one submit.

use std::sync::Arc;

use super::inbox::Inbox;
use super::message_id::MessageId;
use crate::Error;
use crate::shared::kernel_lock::LockedFile;

/// The delivery of one message. It goes with the task that types the message, so that the outcome
/// is recorded although the caller has given up; until then no other process can deliver.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(super) inbox: Inbox,
    pub(super) id: MessageId,
    /// The right to deliver.
    pub(super) right: Arc<LockedFile>,
}

impl Delivery {
    /// Records that the message is about to be typed. [`Error::UnknownMessage`] if it does not wait
    /// any more.
    pub(crate) async fn begin(&self) -> Result<(), Error> {
        let (inbox, id, right) = (self.inbox.clone(), self.id.clone(), Arc::clone(&self.right));
        let begun = on_a_thread(move || {
            let begun = inbox.begin(&id);
            drop(right);
            begun
        });
        match begun.await? {
            true => Ok(()),
            false => Err(Error::UnknownMessage {
                id: self.id.clone(),
            }),
        }
    }

    /// Records what has become of it.
    pub(crate) async fn end(self, sent: Result<(), &Error>) -> Result<(), Error> {
        let record = Inbox::outcome(&self.id, sent);
        on_a_thread(move || self.inbox.end(record)).await
    }
}

/// Runs file operations outside of the runtime's threads.
pub(super) async fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(Error::unfinished("inbox", &error)))
}
