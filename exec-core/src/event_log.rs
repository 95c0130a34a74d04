//! The events of one execution: one writer, any number of readers, bounded memory.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::SystemTime;

use futures_core::Stream;
use tokio::sync::Notify;

use crate::{Event, EventKind};

/// How the memory for events that are kept stays bounded.
///
/// Events are kept for subscribers that are behind and for those that have not come yet. The
/// bound counts the lines with what was read from them; a single event that is larger than the
/// bound is kept alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryPolicy {
    /// When it is full, the oldest events go. A subscriber that had not read them gets one
    /// [`EventKind::Gap`] in their place. The process never waits. On top of the bound comes what
    /// each subscriber has taken to hand on: 256 KB or one event.
    DropOldest {
        /// The bound.
        max_bytes: usize,
    },
    /// When it is full, the process waits: its output is not read until there is room. There is
    /// room once every subscriber has read the oldest events; with no subscriber at all, what the
    /// former ones have not read is kept. So no subscriber loses an event while it exists, nor
    /// does the first one, however late; one that joins after others may begin with a gap.
    ///
    /// On top of the bound come what was read in one go (at most 256 KB) and, when the process
    /// has ended, what its pipes still hold (as much again): that is added without waiting.
    BlockChild {
        /// The bound.
        max_bytes: usize,
    },
}

impl Default for MemoryPolicy {
    /// [`DropOldest`](Self::DropOldest) with 16 MiB.
    fn default() -> Self {
        Self::DropOldest {
            max_bytes: 16 << 20,
        }
    }
}

impl MemoryPolicy {
    fn max_bytes(self) -> usize {
        match self {
            Self::DropOldest { max_bytes } | Self::BlockChild { max_bytes } => max_bytes,
        }
    }
}

/// The writer's side.
#[derive(Clone)]
pub(crate) struct EventLog {
    shared: Arc<Shared>,
}

/// The events of one execution, from the first one on.
///
/// It is a [`Stream`], and [`next`](Self::next) does without a trait. Every event comes once and in
/// order; it ends after [`EventKind::Exited`]. Dropping it lets go of the events it held back.
#[must_use = "a stream that is kept but not read may hold the agent back"]
pub struct EventStream {
    shared: Arc<Shared>,
    reader: u64,
    /// Taken from the log in one go: a lock for each event would be most of the cost of a line.
    /// They stay in the log, too, until they are handed on.
    batch: VecDeque<Arc<Event>>,
    /// The sequence number of the event that is handed on next.
    next: u64,
}

/// How much a stream takes at once: events, and bytes of events (but one at least).
const BATCH: usize = 256;
const BATCH_BYTES: usize = 256 << 10;

struct Shared {
    state: Mutex<State>,
    /// Told whenever a reader has moved on or gone.
    room: Notify,
    policy: MemoryPolicy,
}

struct State {
    events: VecDeque<Arc<Event>>,
    /// The sequence number of `events[0]`, or of the next event if there is none.
    first: u64,
    bytes: usize,
    closed: bool,
    readers: HashMap<u64, Reader>,
    next_reader: u64,
    /// The furthest that any reader has ever read: what may go when no reader is left.
    read_by_some: u64,
}

struct Reader {
    /// Events from here on have not been handed on. It lags behind by a batch at most.
    next: u64,
    waker: Option<Waker>,
}

impl EventLog {
    pub(crate) fn new(policy: MemoryPolicy) -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    events: VecDeque::new(),
                    first: 0,
                    bytes: 0,
                    closed: false,
                    readers: HashMap::new(),
                    next_reader: 0,
                    read_by_some: 0,
                }),
                room: Notify::new(),
                policy,
            }),
        }
    }

    /// Adds an event without waiting, whatever the policy: for the few that are not output.
    pub(crate) fn push(&self, kind: EventKind) {
        let mut state = self.shared.lock();
        state.make_room(self.shared.policy, kind.cost());
        state.append(kind, SystemTime::now());
        state.wake_readers();
    }

    /// Moves events from the front of `pending` into the log, as many as there is room for.
    ///
    /// Cancel safe: what is not in the log is still in `pending`.
    pub(crate) async fn push_output(&self, pending: &mut VecDeque<EventKind>) {
        loop {
            let room = self.shared.room.notified();
            let mut room = std::pin::pin!(room);
            // Before the look, or a reader that moves on in between would not be heard.
            room.as_mut().enable();
            if self.try_push_output(pending) {
                return;
            }
            room.await;
        }
    }

    /// As [`push_output`](Self::push_output), but without waiting; tells whether all were taken.
    pub(crate) fn try_push_output(&self, pending: &mut VecDeque<EventKind>) -> bool {
        if pending.is_empty() {
            return true;
        }
        let at = SystemTime::now();
        let mut state = self.shared.lock();
        while let Some(kind) = pending.front() {
            if !state.make_room(self.shared.policy, kind.cost()) {
                break;
            }
            if let Some(kind) = pending.pop_front() {
                state.append(kind, at);
            }
        }
        state.wake_readers();
        pending.is_empty()
    }

    /// Adds all of `pending`, above the bound if it must be.
    pub(crate) fn force_output(&self, pending: &mut VecDeque<EventKind>) {
        let at = SystemTime::now();
        let mut state = self.shared.lock();
        for kind in pending.drain(..) {
            state.make_room(self.shared.policy, kind.cost());
            state.append(kind, at);
        }
        state.wake_readers();
    }

    /// Ends every stream once it has delivered what there is.
    pub(crate) fn close(&self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.wake_readers();
    }

    pub(crate) fn subscribe(&self) -> EventStream {
        let mut state = self.shared.lock();
        let reader = state.next_reader;
        state.next_reader += 1;
        state.readers.insert(
            reader,
            Reader {
                next: 0,
                waker: None,
            },
        );
        EventStream {
            shared: Arc::clone(&self.shared),
            reader,
            batch: VecDeque::new(),
            next: 0,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock, so the state is whole even then.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn next_sequence(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    fn append(&mut self, kind: EventKind, at: SystemTime) {
        self.bytes += kind.cost();
        self.events.push_back(Arc::new(Event {
            sequence: self.next_sequence(),
            at,
            kind,
        }));
    }

    /// Evicts until `cost` fits, as far as the policy lets it; tells whether it fits.
    fn make_room(&mut self, policy: MemoryPolicy, cost: usize) -> bool {
        let keep_from = match policy {
            MemoryPolicy::DropOldest { .. } => u64::MAX,
            MemoryPolicy::BlockChild { .. } => self
                .readers
                .values()
                .map(|reader| reader.next)
                .min()
                .unwrap_or(self.read_by_some),
        };
        while self.bytes + cost > policy.max_bytes() {
            if self.first >= keep_from {
                // A reader that has the oldest event still ahead holds it back.
                return self.events.is_empty();
            }
            let Some(event) = self.events.pop_front() else {
                return true;
            };
            self.first += 1;
            self.bytes -= event.kind.cost();
        }
        true
    }

    fn wake_readers(&mut self) {
        for reader in self.readers.values_mut() {
            if let Some(waker) = reader.waker.take() {
                waker.wake();
            }
        }
    }
}

impl EventStream {
    /// The next event; `None` after the last one.
    ///
    /// # Cancel safety
    /// An event is taken only when the future is ready.
    pub async fn next(&mut self) -> Option<Arc<Event>> {
        std::future::poll_fn(|cx| self.poll_event(cx)).await
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Arc<Event>>> {
        if self.batch.is_empty() {
            std::task::ready!(self.poll_batch(cx));
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
            self.all_handed_on();
        }
        Poll::Ready(event)
    }

    /// Lets go of the batch in the log.
    fn all_handed_on(&self) {
        {
            let mut state = self.shared.lock();
            state.read_by_some = state.read_by_some.max(self.next);
            if let Some(reader) = state.readers.get_mut(&self.reader) {
                reader.next = self.next;
            }
        }
        self.shared.tell_room();
    }

    /// Fills the batch; ready with an empty one at the end.
    fn poll_batch(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        if self.next == state.next_sequence() && !state.closed {
            if let Some(reader) = state.readers.get_mut(&self.reader) {
                reader.waker = Some(cx.waker().clone());
            }
            return Poll::Pending;
        }
        let mut from = self.next;
        if from < state.first {
            self.batch.push_back(Arc::new(Event {
                sequence: from,
                at: SystemTime::now(),
                kind: EventKind::Gap {
                    missed: state.first - from,
                },
            }));
            from = state.first;
        }
        let skip = usize::try_from(from - state.first).unwrap_or(usize::MAX);
        let mut bytes = 0;
        for event in state.events.iter().skip(skip).take(BATCH) {
            self.batch.push_back(Arc::clone(event));
            bytes += event.kind.cost();
            if bytes > BATCH_BYTES {
                break;
            }
        }
        Poll::Ready(())
    }
}

impl Shared {
    fn tell_room(&self) {
        if matches!(self.policy, MemoryPolicy::BlockChild { .. }) {
            self.room.notify_waiters();
        }
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
        {
            let mut state = self.shared.lock();
            state.readers.remove(&self.reader);
            state.read_by_some = state.read_by_some.max(self.next);
        }
        self.shared.tell_room();
    }
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventStream").finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "event_log_tests.rs"]
mod tests;
