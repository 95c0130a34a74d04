//! The state of a live session that its handles, its output and its supervisor share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Instant, SystemTime};

use tokio::sync::{Notify, oneshot, watch};

use super::input_queue::InputQueue;
use super::live_engine::{LiveEngine, WaitingMessage};
use super::live_event::{LiveEvent, MessageId, TurnId};
use super::live_request::LiveOptions;
use super::live_session::{QueuedMessage, SessionHandle, Steered};
use super::live_state::{LiveState, LiveStatus};
use super::protocol_driver::{PermissionRequest, TurnOutcome};
use super::session_chain::SessionChain;
use super::turn::{Turn, TurnResult};
use crate::output::cut_at;
use crate::records::HistoryEvent;
use crate::run::{Activity, LiveExecution};
use crate::shared::process_tree;
use crate::{AgentEvent, AgentEventKind, Error, Failure, FailureKind, RateLimitStatus};

/// The longest id of a request and the longest name of a tool in the history.
const MAX_RECORDED: usize = 256;

/// The part of an execution that only live sessions have.
pub(crate) struct LiveLink {
    inner: Mutex<LinkInner>,
    pub(crate) options: LiveOptions,
    pub(crate) chain: Arc<SessionChain>,
    pub(super) state: watch::Sender<LiveState>,
    pub(super) input_ready: Notify,
    pub(super) deadline_moved: Notify,
    pub(super) activity: Arc<Activity>,
    handle: Mutex<Weak<SessionHandle>>,
}

pub(super) struct LinkInner {
    pub(super) engine: LiveEngine,
    pub(super) input: InputQueue,
    pub(super) turns: HashMap<MessageId, watch::Sender<Option<TurnResult>>>,
    pub(super) steers: HashMap<MessageId, oneshot::Sender<Result<Steered, Error>>>,
    /// A usage limit that was reached, with its reset.
    pub(super) limited: Option<Option<SystemTime>>,
    /// The class of the last turn's failure, until a turn is completed.
    pub(super) turn_failure: Option<FailureKind>,
    /// When the last turn has started, in clock ticks since boot: the unit of the process table.
    pub(super) turn_started: u64,
    pub(super) open_failure: Option<Failure>,
    /// The deadline that the supervisor waits for.
    pub(super) deadline: Option<Instant>,
}

impl LiveLink {
    pub(crate) fn new(
        engine: LiveEngine,
        options: LiveOptions,
        chain: Arc<SessionChain>,
        activity: Arc<Activity>,
    ) -> Self {
        Self {
            inner: Mutex::new(LinkInner {
                engine,
                input: InputQueue::default(),
                turns: HashMap::new(),
                steers: HashMap::new(),
                limited: None,
                turn_failure: None,
                turn_started: 0,
                open_failure: None,
                deadline: None,
            }),
            options,
            chain,
            state: watch::Sender::new(LiveState {
                status: LiveStatus::Opening,
                proof: 0,
            }),
            input_ready: Notify::new(),
            deadline_moved: Notify::new(),
            activity,
            handle: Mutex::new(Weak::new()),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LinkInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> LiveState {
        self.state.borrow().clone()
    }

    pub(super) fn watch_state(&self) -> watch::Receiver<LiveState> {
        self.state.subscribe()
    }

    pub(super) fn permissions(&self) -> Vec<PermissionRequest> {
        self.lock().engine.open_requests().cloned().collect()
    }

    pub(super) fn queued(&self) -> Vec<QueuedMessage> {
        let inner = self.lock();
        let waiting = inner.engine.waiting();
        waiting.cloned().map(QueuedMessage::from).collect()
    }

    /// The number of the last message, for the session that continues this one.
    pub(crate) fn last_message(&self) -> u64 {
        self.lock().engine.last_message()
    }

    /// All callers share one handle. Its drop means that no `LiveSession` needs the messages of this
    /// process any more.
    pub(super) fn handle(&self, execution: &Arc<LiveExecution>) -> Arc<SessionHandle> {
        let mut handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        handle.upgrade().unwrap_or_else(|| {
            let new = Arc::new(SessionHandle {
                execution: Arc::clone(execution),
            });
            *handle = Arc::downgrade(&new);
            new
        })
    }

    pub(super) fn has_handle(&self) -> bool {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        handle.strong_count() > 0
    }
}

impl LinkInner {
    pub(super) fn add_turn(&mut self, id: TurnId) -> Turn {
        let (sender, end) = watch::channel(None);
        self.turns.insert(id.into(), sender);
        Turn { id, end }
    }

    /// Another handle of a turn that has not ended.
    pub(super) fn turn(&self, id: TurnId) -> Option<Turn> {
        let end = self.turns.get(&id.into())?.subscribe();
        Some(Turn { id, end })
    }

    pub(super) fn finish_turn(&mut self, message: MessageId, result: TurnResult) {
        if let Some(sender) = self.turns.remove(&message) {
            sender.send_replace(Some(result));
        }
    }

    /// What an event means for the callers that wait; a line of the history for a decision.
    pub(super) fn follow(&mut self, event: LiveEvent) -> Option<HistoryEvent> {
        match event {
            LiveEvent::TurnStarted { .. } => {
                self.limited = None;
                self.turn_started = process_tree::start_time_now();
            }
            LiveEvent::TurnEnded { outcome, .. } => match outcome {
                TurnOutcome::Completed => {
                    self.limited = None;
                    self.turn_failure = None;
                }
                TurnOutcome::Failed { failure } => {
                    self.observe_failure(&failure);
                    self.turn_failure = Some(failure.kind);
                }
                _ => {}
            },
            LiveEvent::MessageDelivered { message, turn } => {
                if let Some(steer) = self.steers.remove(&message) {
                    let _ = steer.send(Ok(Steered::Injected(turn)));
                }
            }
            LiveEvent::MessageQueued { message } => {
                if let Some(steer) = self.steers.remove(&message) {
                    let turn = self.add_turn(TurnId::from(message));
                    let _ = steer.send(Ok(Steered::Queued(turn)));
                }
            }
            LiveEvent::MessageDropped { message, reason } => {
                if let Some(steer) = self.steers.remove(&message) {
                    let _ = steer.send(Err(Error::NotDelivered { message, reason }));
                }
                self.finish_turn(message, Err(reason));
            }
            LiveEvent::PermissionSettled {
                permission,
                tool,
                decision,
                by,
            } => {
                return Some(HistoryEvent::Permission {
                    permission: short(permission),
                    tool: short(tool),
                    decision,
                    by,
                });
            }
            _ => {}
        }
        None
    }

    /// Whether a limit begins or ends with these events.
    pub(super) fn observe_limit(&mut self, events: &[AgentEvent]) -> bool {
        let before = self.limited;
        for event in events {
            match &event.kind {
                AgentEventKind::RateLimit(notice) => match notice.status {
                    RateLimitStatus::Rejected => self.limit_until(notice.resets_at),
                    _ => self.limited = None,
                },
                AgentEventKind::Retry { failure, .. } | AgentEventKind::Error(failure) => {
                    self.observe_failure(failure);
                }
                AgentEventKind::Text { .. }
                | AgentEventKind::Thinking { .. }
                | AgentEventKind::ToolCall { .. }
                | AgentEventKind::ToolResult { .. }
                    if event.parent.is_none() =>
                {
                    self.limited = None;
                }
                _ => {}
            }
        }
        self.limited != before
    }

    fn observe_failure(&mut self, failure: &Failure) {
        if let FailureKind::Limited { resets_at, .. } = failure.kind {
            self.limit_until(resets_at);
        }
    }

    /// Agents often tell the reset once, and later only that there is a limit.
    fn limit_until(&mut self, resets_at: Option<SystemTime>) {
        let known = self.limited.flatten();
        self.limited = Some(resets_at.or(known));
    }

    pub(super) fn status(&self) -> LiveStatus {
        if self.engine.has_ended() {
            LiveStatus::Ended
        } else if self.engine.is_opening() {
            LiveStatus::Opening
        } else if self.engine.has_open_requests() {
            LiveStatus::WaitingForPermission
        } else if let Some(resets_at) = self.limited {
            LiveStatus::Limited { resets_at }
        } else if let Some(turn) = self.engine.turn_in_flight() {
            LiveStatus::Working { turn }
        } else {
            LiveStatus::Idle
        }
    }

    #[expect(clippy::type_complexity, reason = "the two halves of the queue")]
    pub(super) fn take_queue(
        &mut self,
    ) -> (
        Vec<WaitingMessage>,
        Vec<(MessageId, watch::Sender<Option<TurnResult>>)>,
    ) {
        let queue = self.engine.take_queue();
        let senders = queue
            .iter()
            .filter_map(|message| self.turns.remove_entry(&message.id))
            .collect();
        (queue, senders)
    }
}

/// An agent chooses the length of its ids.
fn short(mut text: String) -> String {
    text.truncate(cut_at(&text, MAX_RECORDED));
    text
}
