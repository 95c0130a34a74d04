//! The events of one execution: one writer, any number of subscribers, bounded memory.
//!
//! # Theory
//!
//! The log is a window on the sequence of all events: `events[i]` has the sequence number
//! `first + i`. Writing appends at the end; eviction removes from the front. Each subscriber has
//! a position `next`: it has delivered every event before it, or a gap in its place.
//!
//! **Invariants.**
//! - A subscriber delivers the sequence numbers 0, 1, 2, … in order, each once, either as an event
//!   or as part of a gap. If `next < first`, the next delivery is the gap `first - next`.
//! - `bytes` is the sum of the costs of `events`, and at most the bound of the policy, except for
//!   a single larger event and for events that were forced.
//! - With `BlockChild`, an event is evicted only if its number is below every subscriber's `next`;
//!   without subscribers, only if it is below `read_by_some`.
//!
//! **Batches.** A stream takes up to 256 events under one lock and delivers them without it: a
//! lock for each event would be most of the cost of a line. The position in the log moves only
//! when the batch is delivered. Until then the log keeps the events (`BlockChild`), or the batch
//! does (`DropOldest`).
//!
//! **Races.**
//! - The writer finds no room, a subscriber makes room, the writer starts to wait: it would sleep
//!   for ever. So the writer registers for the notification before it looks (`push_output`).
//! - A subscriber finds no event, the writer appends one, the subscriber stores its waker: the same.
//!   Both sides hold the lock while they do so (`poll_batch`, `wake_subscribers`).
//!
//! **Example.** Bound: three events. A writer, and a subscriber A that has delivered 0 and 1:
//!
//! | step | `first` | events | A |
//! |---|---|---|---|
//! | start | 0 | 0 1 2 | `next` = 2 |
//! | write 3, `DropOldest` | 1 | 1 2 3 | 2 |
//! | write 4, 5, `DropOldest` | 3 | 3 4 5 | 2: the next delivery is a gap of 1, then 3 |
//! | instead, `BlockChild`: write 3, 4 | 2 | 2 3 4 | 2 |
//! | write 5 | 2 | 2 3 4 | 2: the writer waits until A has delivered 2 |

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::SystemTime;

use tokio::sync::Notify;

use super::event_stream::EventStream;
use super::memory_policy::MemoryPolicy;
use crate::{Event, EventKind};

/// The writer's side of the log.
#[derive(Clone)]
pub(crate) struct EventLog {
    shared: Arc<SharedLog>,
}

/// The state that the writer and the streams share.
pub(super) struct SharedLog {
    window: Mutex<EventWindow>,
    /// Notified when a subscriber has moved on or gone.
    room: Notify,
    policy: MemoryPolicy,
}

pub(super) struct EventWindow {
    pub(super) events: VecDeque<Arc<Event>>,
    /// The sequence number of `events[0]`, or of the next event if there is none.
    pub(super) first: u64,
    bytes: usize,
    pub(super) closed: bool,
    pub(super) subscribers: HashMap<u64, Subscriber>,
    next_subscriber: u64,
    /// The highest position that any subscriber has ever had.
    pub(super) read_by_some: u64,
}

pub(super) struct Subscriber {
    /// The position: lags behind the stream by one batch at most.
    pub(super) next: u64,
    pub(super) waker: Option<Waker>,
}

impl EventLog {
    pub(crate) fn new(policy: MemoryPolicy) -> Self {
        Self {
            shared: Arc::new(SharedLog {
                window: Mutex::new(EventWindow {
                    events: VecDeque::new(),
                    first: 0,
                    bytes: 0,
                    closed: false,
                    subscribers: HashMap::new(),
                    next_subscriber: 0,
                    read_by_some: 0,
                }),
                room: Notify::new(),
                policy,
            }),
        }
    }

    /// Adds an event without waiting, whatever the policy: for the few that are not output, and for
    /// the output of live sessions, whose reader waits before it reads on ([`room`](Self::room)).
    /// Returns the sequence number. Nothing is added behind the last event: what happens to a message
    /// of an ended session is told to its caller only.
    pub(crate) fn push(&self, kind: EventKind) -> u64 {
        let sequence = self.push_asleep(kind);
        self.wake();
        sequence
    }

    /// As [`push`](Self::push) without waking a subscriber. A live session adds each line by itself,
    /// and a subscriber on another core would sleep and wake for each: a sixth of the time of a turn.
    /// The reader calls [`wake`](Self::wake) once for all lines of a read.
    pub(crate) fn push_asleep(&self, kind: EventKind) -> u64 {
        let at = SystemTime::now();
        let mut window = self.shared.lock();
        if window.closed {
            return window.next_sequence();
        }
        window.make_room(self.shared.policy, kind.cost());
        let sequence = window.next_sequence();
        window.append(kind, at);
        sequence
    }

    pub(crate) fn wake(&self) {
        self.shared.lock().wake_subscribers();
    }

    /// When the last event was added, if it is still in the log.
    pub(crate) fn last_event_at(&self) -> Option<SystemTime> {
        self.shared.lock().events.back().map(|event| event.at)
    }

    /// Waits until the log is not above its bound.
    pub(crate) async fn room(&self) {
        loop {
            let mut room = pin!(self.shared.room.notified());
            room.as_mut().enable();
            if self.has_room() {
                return;
            }
            room.await;
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.shared.lock().make_room(self.shared.policy, 0)
    }

    /// Moves all events of `pending` into the log; waits for room.
    ///
    /// Cancel safe: an event is either in the log or still in `pending`.
    pub(crate) async fn push_output(&self, pending: &mut VecDeque<EventKind>) {
        loop {
            let mut room = pin!(self.shared.room.notified());
            room.as_mut().enable();
            if self.try_push_output(pending) {
                return;
            }
            room.await;
        }
    }

    /// As [`push_output`](Self::push_output) without waiting; `true` if `pending` is empty.
    pub(crate) fn try_push_output(&self, pending: &mut VecDeque<EventKind>) -> bool {
        self.append(pending, |has_room| has_room)
    }

    /// As [`push_output`](Self::push_output), but above the bound instead of waiting.
    pub(crate) fn force_output(&self, pending: &mut VecDeque<EventKind>) {
        self.append(pending, |_has_room| true);
    }

    fn append(&self, pending: &mut VecDeque<EventKind>, accept: impl Fn(bool) -> bool) -> bool {
        if pending.is_empty() {
            return true;
        }
        let at = SystemTime::now();
        let mut window = self.shared.lock();
        while let Some(kind) = pending.pop_front() {
            if !accept(window.make_room(self.shared.policy, kind.cost())) {
                pending.push_front(kind);
                break;
            }
            window.append(kind, at);
        }
        window.wake_subscribers();
        pending.is_empty()
    }

    /// Evicts events for a large one that is about to be made, so that both are not in memory at
    /// the same time. With `BlockChild` nothing is evicted that a subscriber has not read.
    pub(crate) fn reserve(&self, cost: usize) {
        self.shared.lock().make_room(self.shared.policy, cost);
    }

    /// Ends every stream after the last event.
    pub(crate) fn close(&self) {
        let mut window = self.shared.lock();
        window.closed = true;
        window.wake_subscribers();
    }

    pub(crate) fn subscribe(&self) -> EventStream {
        let mut window = self.shared.lock();
        let id = window.next_subscriber;
        window.next_subscriber += 1;
        let subscriber = Subscriber {
            next: 0,
            waker: None,
        };
        window.subscribers.insert(id, subscriber);
        EventStream::new(Arc::clone(&self.shared), id)
    }
}

impl SharedLog {
    pub(super) fn lock(&self) -> MutexGuard<'_, EventWindow> {
        // No code that can panic runs under the lock, so a poisoned window is consistent.
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn notify_room(&self) {
        if matches!(self.policy, MemoryPolicy::BlockChild { .. }) {
            self.room.notify_waiters();
        }
    }
}

impl EventWindow {
    pub(super) fn next_sequence(&self) -> u64 {
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

    /// Evicts until `cost` fits, as far as the policy allows; `true` if it fits.
    fn make_room(&mut self, policy: MemoryPolicy, cost: usize) -> bool {
        let keep_from = match policy {
            MemoryPolicy::DropOldest { .. } => u64::MAX,
            MemoryPolicy::BlockChild { .. } => self
                .subscribers
                .values()
                .map(|subscriber| subscriber.next)
                .min()
                .unwrap_or(self.read_by_some),
        };
        while self.bytes + cost > policy.max_bytes() {
            if self.first >= keep_from {
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

    fn wake_subscribers(&mut self) {
        for subscriber in self.subscribers.values_mut() {
            if let Some(waker) = subscriber.waker.take() {
                waker.wake();
            }
        }
    }
}

#[cfg(test)]
#[path = "event_log_tests.rs"]
mod tests;
