use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::SystemTime;

use futures_core::Stream;

use super::event_log::SharedLog;
use crate::{Event, EventKind};

/// The limits of a batch: events, and bytes of events (at least one event).
const BATCH: usize = 256;
const BATCH_BYTES: usize = 256 << 10;

/// The events of one execution, from the first one on.
///
/// It is a [`Stream`]; [`next`](Self::next) needs no trait. Every event comes once and in order.
/// The stream ends after [`EventKind::Exited`]. Dropping it unsubscribes: events that were kept
/// only for this stream may be dropped.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// # let (_folder, execution) = doctest::launch("echo one; echo two").await;
/// use exec_core::EventKind;
///
/// let mut lines = Vec::new();
/// let mut events = execution.events();
/// while let Some(event) = events.next().await {
///     if let EventKind::Output(output) = &event.kind {
///         lines.push(output.line.text().into_owned());
///     }
/// }
/// assert_eq!(lines, ["one", "two"]);
/// # }
/// ```
#[must_use = "with `MemoryPolicy::BlockChild`, a stream that is not read blocks the agent"]
pub struct EventStream {
    log: Arc<SharedLog>,
    subscriber: u64,
    batch: VecDeque<Arc<Event>>,
    /// The sequence number of the next delivery.
    next: u64,
}

impl EventStream {
    pub(super) fn new(log: Arc<SharedLog>, subscriber: u64) -> Self {
        Self {
            log,
            subscriber,
            batch: VecDeque::new(),
            next: 0,
        }
    }

    /// The next event; `None` after the last one.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future loses no event.
    pub async fn next(&mut self) -> Option<Arc<Event>> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    pub(super) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Arc<Event>>> {
        if self.batch.is_empty() {
            ready!(self.poll_batch(cx));
        }
        let event = self.batch.pop_front();
        match event.as_deref() {
            Some(Event {
                kind: EventKind::Gap { missed },
                ..
            }) => self.next += missed,
            Some(_) => self.next += 1,
            None => return Poll::Ready(None),
        }
        if self.batch.is_empty() {
            self.release_batch();
        }
        Poll::Ready(event)
    }

    /// Fills the batch; ready with an empty one after the last event.
    fn poll_batch(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut window = self.log.lock();
        if self.next == window.next_sequence() && !window.closed {
            if let Some(subscriber) = window.subscribers.get_mut(&self.subscriber) {
                subscriber.waker = Some(cx.waker().clone());
            }
            return Poll::Pending;
        }
        let mut from = self.next;
        if from < window.first {
            self.batch.push_back(Arc::new(Event {
                sequence: from,
                at: SystemTime::now(),
                kind: EventKind::Gap {
                    missed: window.first - from,
                },
            }));
            from = window.first;
        }
        let skip = usize::try_from(from - window.first).unwrap_or(usize::MAX);
        let mut bytes = 0;
        for event in window.events.iter().skip(skip).take(BATCH) {
            self.batch.push_back(Arc::clone(event));
            bytes += event.kind.cost();
            if bytes > BATCH_BYTES {
                break;
            }
        }
        Poll::Ready(())
    }

    /// Moves the position in the log, so that the batch may be evicted.
    fn release_batch(&self) {
        let mut window = self.log.lock();
        window.read_by_some = window.read_by_some.max(self.next);
        if let Some(subscriber) = window.subscribers.get_mut(&self.subscriber) {
            subscriber.next = self.next;
        }
        drop(window);
        self.log.notify_room();
    }
}

impl Stream for EventStream {
    type Item = Arc<Event>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_event(cx)
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.release_batch();
        self.log.lock().subscribers.remove(&self.subscriber);
        self.log.notify_room();
    }
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventStream").finish_non_exhaustive()
    }
}
