//! Joins sources and clients around the model.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::action::{Action, ActionError};
use super::board_event::BoardEvent;
use super::board_model::{BoardModel, Limits};
use super::change::Change;
use super::command::Command;
use super::entities::milliseconds;
use super::event_ring::EventRing;
use super::source::Source;

/// The last events that are kept for clients that come back.
const RING_EVENTS: usize = 16_384;
/// And their bytes.
const RING_BYTES: usize = 24 * 1024 * 1024;

/// The pause before a source that has failed is followed again.
const AGAIN: Duration = Duration::from_secs(2);

/// The board of one program. A clone is a handle to the same board. The sources end with the last
/// handle.
#[derive(Clone)]
pub struct Hub {
    shared: Arc<Shared>,
    following: Arc<Following>,
}

struct Shared {
    title: String,
    /// Tells clients whether a sequence number is one of this board.
    stream: String,
    sources: Mutex<Vec<Arc<dyn Source>>>,
    board: Mutex<Board>,
    /// Grows with every change, output included.
    version: watch::Sender<u64>,
    /// The agents whose output a client shows, and how many clients are there.
    audience: watch::Sender<Audience>,
}

struct Board {
    model: BoardModel,
    ring: EventRing,
}

/// The clients of the board.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Audience {
    pub(super) clients: usize,
    pub(super) watched: BTreeMap<String, usize>,
}

#[derive(Default)]
struct Following(Mutex<Vec<JoinHandle<()>>>);

impl Drop for Following {
    fn drop(&mut self) {
        for task in lock(&self.0).drain(..) {
            task.abort();
        }
    }
}

impl Hub {
    /// An empty board.
    #[must_use]
    pub fn new(title: impl Into<String>) -> Self {
        let shared = Shared {
            title: title.into(),
            stream: uuid::Uuid::new_v4().simple().to_string(),
            sources: Mutex::default(),
            board: Mutex::new(Board {
                model: BoardModel::new(Limits::default()),
                ring: EventRing::new(RING_EVENTS, RING_BYTES),
            }),
            version: watch::Sender::new(0),
            audience: watch::Sender::default(),
        };
        Self {
            shared: Arc::new(shared),
            following: Arc::default(),
        }
    }

    /// Follows a source until the last handle of the board is dropped. A failure is shown, and the source
    /// is followed again after a pause. Its changes can also be fed through the result.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn follow(&self, source: Arc<dyn Source>) -> Feed {
        let feed = {
            let mut sources = lock(&self.shared.sources);
            sources.push(source.clone());
            Feed {
                shared: self.shared.clone(),
                source: sources.len() - 1,
            }
        };
        let (ours, theirs) = (feed.clone(), feed.clone());
        let task = tokio::spawn(async move {
            let mut told = String::new();
            // A source that fails is followed again: its server may be away for a moment only.
            while let Err(error) = source.follow(theirs.clone()).await {
                let message = crate::with_causes(&*error);
                if message != told {
                    ours.push(Change::Failure {
                        agent: source.name(),
                        class: "source".to_owned(),
                        message: message.clone(),
                        resets: None,
                        at: None,
                    });
                }
                told = message;
                tokio::time::sleep(AGAIN).await;
            }
        });
        lock(&self.following.0).push(task);
        feed
    }

    /// The number of connected clients.
    pub fn clients(&self) -> usize {
        self.shared.audience.borrow().clients
    }

    /// Carries out a command of a client.
    ///
    /// # Errors
    ///
    /// See [`ActionError`].
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: an answer that is dropped stays reserved, and no other answer is accepted.
    pub async fn perform(&self, command: &Command) -> Result<(), ActionError> {
        let (owner, action) = lock(&self.shared.board).model.begin(command)?;
        let source = lock(&self.shared.sources).get(owner).cloned();
        let Some(source) = source else {
            return Err(ActionError::new("unknown", "the source is gone"));
        };
        let permission = match &action {
            Action::Answer { permission, .. } => Some(permission.clone()),
            _ => None,
        };
        let done = source.perform(action).await;
        if let Some(permission) = permission {
            let mut board = lock(&self.shared.board);
            let event = board.model.answered(&permission, done.is_ok(), now());
            board.publish(event);
            drop(board);
            self.shared.changed();
        }
        done
    }

    pub(super) fn version(&self) -> watch::Receiver<u64> {
        self.shared.version.subscribe()
    }

    /// The first frames for a client, and the number of the last event in them. A client that has
    /// all events up to `after` of this stream gets only those behind it.
    pub(super) fn welcome(&self, stream: &str, after: Option<u64>) -> (Vec<String>, u64) {
        let board = lock(&self.shared.board);
        let last = board.ring.last();
        let after = after.filter(|_| stream == self.shared.stream);
        let after = after.filter(|&after| board.ring.after(after, 0).is_ok());
        let hello = json!({
            "type": "hello", "protocol": super::client::PROTOCOL, "title": self.shared.title,
            "stream": self.shared.stream, "now": now(), "resumed": after.is_some(),
        });
        let mut frames = vec![hello.to_string()];
        if let Some(after) = after {
            return (frames, after);
        }
        let mut state = board.model.state();
        state["type"] = json!("state");
        state["seq"] = json!(last);
        frames.push(state.to_string());
        (frames, last)
    }

    /// The events after a number as one frame, and the number of the last one. `None` if the client
    /// is too far behind.
    pub(super) fn events_after(
        &self,
        number: u64,
        max_bytes: usize,
    ) -> Option<Option<(String, u64)>> {
        let board = lock(&self.shared.board);
        let events = board.ring.after(number, max_bytes).ok()?;
        drop(board);
        let count = u64::try_from(events.len()).ok()?;
        if count == 0 {
            return Some(None);
        }
        let frame = format!("{{\"type\":\"events\",\"events\":[{}]}}", events.join(","));
        Some(Some((frame, number + count)))
    }

    /// How many bytes of events a client is behind; `None` if some are no longer there.
    pub(super) fn lag(&self, number: u64) -> Option<usize> {
        lock(&self.shared.board).ring.bytes_after(number)
    }

    /// The output of an agent after a line and a screen, as a frame, with the new numbers.
    pub(super) fn output_after(
        &self,
        agent: &str,
        line: u64,
        screen: u64,
    ) -> Option<(String, u64, u64)> {
        const LINES: usize = 500;
        let board = lock(&self.shared.board);
        let output = board.model.output(agent)?;
        let lines = output.after(line, LINES);
        let new_screen = output.screen_after(screen);
        if lines.is_empty() && new_screen.is_none() {
            return None;
        }
        let last = lines.last().map_or(line, |line| line.number);
        let number = new_screen.map_or(screen, |(number, _)| number);
        let mut frame = json!({"type": "output", "agent": agent, "lines": lines});
        if let Some((_, text)) = new_screen {
            frame["screen"] = json!(text);
        }
        Some((frame.to_string(), last, number))
    }

    pub(super) fn messages_before(&self, before: u64, limit: usize) -> Value {
        let board = lock(&self.shared.board);
        json!(board.model.messages_before(before, limit))
    }

    pub(super) fn change_audience(&self, change: impl FnOnce(&mut Audience)) {
        self.shared.audience.send_modify(change);
    }
}

impl Board {
    fn publish(&mut self, events: impl IntoIterator<Item = BoardEvent>) {
        for event in events {
            // Every event is plain data: it always has a JSON form.
            if let Ok(json) = serde_json::to_string(&event) {
                self.ring.push(&json);
            }
        }
    }
}

impl Shared {
    fn changed(&self) {
        self.version.send_modify(|version| *version += 1);
    }
}

/// The way of a source's changes to the board.
#[derive(Clone)]
pub struct Feed {
    shared: Arc<Shared>,
    source: usize,
}

impl Feed {
    /// Reports a change.
    pub fn push(&self, change: impl Into<Change>) {
        let mut board = lock(&self.shared.board);
        let events = board.model.apply(self.source, change.into(), now());
        board.publish(events);
        drop(board);
        self.shared.changed();
    }

    /// Waits until a client is there: a source that must poll does it only then.
    pub async fn audience(&self) {
        let mut audience = self.shared.audience.subscribe();
        // The sender is part of this feed, so the wait cannot fail.
        let _ = audience.wait_for(|audience| audience.clients > 0).await;
    }

    /// Whether a client shows the output of this agent.
    pub fn is_watched(&self, agent: &str) -> bool {
        let audience = self.shared.audience.borrow();
        audience.watched.contains_key(agent)
    }

    /// Waits until the set of watched agents changes, or a client comes or goes.
    pub async fn audience_changed(&self) {
        let _ = self.shared.audience.subscribe().changed().await;
    }
}

pub(super) fn now() -> u64 {
    milliseconds(SystemTime::now())
}

/// A panic of another holder leaves no half-made change: every change is one call of the model.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
