//! Everything that changes the state of a live session.
//!
//! # Theory
//!
//! Three parties give inputs to the [`LiveEngine`]: the reader of standard output (lines), the
//! callers (commands), and the supervisor (deadlines, stop, end of the process). One mutex
//! serialises them. The step that an input results in is carried out before the mutex is released:
//! its events are appended to the log, its reports are given to the waiters, its lines are appended
//! to the input queue.
//!
//! **Invariants.**
//! - The order of the events in the log is the order of the steps. That is why the lines of a live
//!   agent go into the log at once, and not through the batch of the reader: an event of a caller
//!   must not overtake the events that made it possible.
//! - An event is in the log before the line that it announces can be written: the writer takes
//!   lines from the queue, which is filled last. After a crash of the host, a message without a
//!   `MessageDelivered` event has not been written.
//! - [`LiveState`] changes in the same step as its proof, so a caller that sees the state finds the
//!   event in the log.
//! - A message that waits, or whose turn runs, has exactly one sender in `turns`.
//! - Nothing waits for the agent while the mutex is held. History lines are written after it is
//!   released.
//!
//! Lock order: the link, then the run tracker, or the registry and the session, or the log.
//!
//! **Races.**
//! - An agent closes its input, and a caller gives a message before the process has ended: the
//!   message is refused. A line that is not the result of a command is lost; the process is
//!   stopped, or has ended.
//! - An agent that does not read: the input queue is bounded. A command that finds it full is
//!   refused before it reaches the engine. An answer without a caller (policy, deadline, cancel)
//!   cannot be refused: the session is stopped with [`StoppedBy::Disconnected`].
//! - The last handle is dropped while the process ends: each of the two checks under the mutex
//!   whether the other has happened; the later one drops the queue.

use std::pin::pin;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::live_engine::{CommandError, LiveEngine, LiveStep, SteerStart};
use super::live_event::{DropReason, LiveEvent, MessageId, TurnId};
use super::live_link::{LinkInner, LiveLink};
use super::live_session::{QueuedMessage, Steered};
use super::live_state::{LiveState, LiveStatus};
use super::protocol_driver::Decision;
use super::turn::{Turn, TurnReport};
use crate::budget::BudgetMeter;
use crate::records::HistoryEvent;
use crate::run::{LiveExecution, StopManner};
use crate::{
    AgentEvent, AgentEventKind, Error, EventKind, Failure, FailureKind, Line, Output, OutputStream,
    StoppedBy,
};

/// How long a turn may take to end after it was cancelled, when the session is stopped.
const CANCEL_GRACE: Duration = Duration::from_secs(2);
/// How long a process may live after it has closed its input or its output: most of them are about
/// to end by themselves.
const CLOSED_PIPE_GRACE: Duration = Duration::from_secs(1);

/// A live session with the execution that it is a part of: everything that changes its state.
#[derive(Clone, Copy)]
pub(crate) struct LiveControl<'a> {
    pub(crate) execution: &'a LiveExecution,
    pub(crate) link: &'a LiveLink,
}

impl LiveControl<'_> {
    pub(crate) fn status(&self) -> LiveStatus {
        self.link.state().status
    }

    /// The driver opens the session.
    pub(crate) fn open(&self) {
        self.apply(|engine| engine.open(now()));
    }

    /// A line of standard output.
    pub(crate) fn line(&self, line: Line) {
        let mut inner = self.link.lock();
        let step = match line.is_truncated() {
            // Half a message cannot be read.
            true => {
                inner.engine.missed_line();
                LiveStep::default()
            }
            false => inner.engine.line(&line.text(), now()),
        };
        let records = self.publish(&mut inner, step, Some(line));
        drop(inner);
        self.record(records);
    }

    pub(super) fn prompt(&self, text: String) -> Result<Turn, Error> {
        self.check_text(&text)?;
        let mut inner = self.link.lock();
        self.check_input(&inner)?;
        self.begin_turn()?;
        let prompted = inner.engine.prompt(text, now());
        let (turn, step) = prompted.map_err(|error| {
            self.drop_turns(1);
            self.error(error)
        })?;
        // Before the step is carried out: the turn may end in it.
        let handle = inner.add_turn(turn);
        self.carry_out(inner, step);
        Ok(handle)
    }

    /// A message counts as a turn when it is taken, so that a queue cannot pass the limit. A message
    /// that waits at the end of its process is counted by the process that gets it: otherwise a queue
    /// could use up the budget that the resumed session needs.
    fn begin_turn(&self) -> Result<(), Error> {
        let begun = self.execution.with_budget(BudgetMeter::begin_turn);
        begun.unwrap_or(Ok(()))
    }

    /// The messages were not delivered.
    fn drop_turns(&self, turns: usize) {
        let turns = u64::try_from(turns).unwrap_or(u64::MAX);
        self.execution
            .with_budget(|budget| budget.drop_turns(turns));
    }

    pub(super) async fn steer(&self, text: String) -> Result<Steered, Error> {
        // It may become the next prompt.
        self.check_text(&text)?;
        let outcome = {
            let mut inner = self.link.lock();
            self.check_input(&inner)?;
            self.begin_turn()?;
            let steered = inner.engine.steer(text, now());
            let (start, step) = steered.map_err(|error| {
                self.drop_turns(1);
                self.error(error)
            })?;
            let (sender, outcome) = oneshot::channel();
            match start {
                SteerStart::Offered(message) => {
                    inner.steers.insert(message, sender);
                }
                SteerStart::Queued(message) => {
                    let turn = inner.add_turn(TurnId::from(message));
                    let _ = sender.send(Ok(Steered::Queued(turn)));
                }
            }
            self.carry_out(inner, step);
            outcome
        };
        outcome.await.unwrap_or_else(|_| Err(self.ended()))
    }

    /// Sends the cancel. Returns what tells the end of the turn, and its start in clock ticks.
    pub(super) fn interrupt(&self, turn: TurnId) -> Result<(Turn, u64), Error> {
        let mut inner = self.link.lock();
        self.check_input(&inner)?;
        let interrupted = inner.engine.interrupt(turn, now());
        let mut step = interrupted.map_err(|error| self.error(error))?;
        let refused = step.refused.take();
        let running = inner.turn(turn);
        let started = inner.turn_started;
        self.carry_out(inner, step);
        match (refused, running) {
            (Some(reason), _) => Err(Error::Refused { reason }),
            (None, Some(running)) => Ok((running, started)),
            (None, None) => Err(Error::TurnNotRunning { turn }),
        }
    }

    pub(super) fn answer(&self, permission: &str, decision: Decision) -> Result<(), Error> {
        let mut inner = self.link.lock();
        // A request that is settled has a better reason than an input that is full or closed.
        if (inner.engine.open_requests()).any(|request| request.id == permission) {
            self.check_input(&inner)?;
        }
        let answered = inner.engine.answer(permission, decision, now());
        let mut step = answered.map_err(|error| match error {
            CommandError::Settled(by) => Error::AlreadySettled {
                permission: permission.to_owned(),
                by,
            },
            other => self.error(other),
        })?;
        let refused = step.refused.take();
        self.carry_out(inner, step);
        match refused {
            Some(reason) => Err(Error::Refused { reason }),
            None => Ok(()),
        }
    }

    pub(super) fn set_mode(&self, mode: &str) -> Result<(), Error> {
        self.set(|engine| engine.set_mode(mode, now()))
    }

    pub(super) fn set_model(&self, model: &str) -> Result<(), Error> {
        self.set(|engine| engine.set_model(model, now()))
    }

    fn set(
        &self,
        command: impl FnOnce(&mut LiveEngine) -> Result<LiveStep, CommandError>,
    ) -> Result<(), Error> {
        let mut inner = self.link.lock();
        self.check_input(&inner)?;
        let mut step = command(&mut inner.engine).map_err(|error| self.error(error))?;
        let refused = step.refused.take();
        self.carry_out(inner, step);
        match refused {
            Some(reason) => Err(Error::Refused { reason }),
            None => Ok(()),
        }
    }

    pub(super) fn take_back(&self, message: MessageId) -> Option<QueuedMessage> {
        let mut inner = self.link.lock();
        let (taken, step) = inner.engine.take_back(message)?;
        self.carry_out(inner, step);
        Some(taken.into())
    }

    /// Drops the queue and refuses messages from now on.
    pub(super) fn close(&self) {
        self.apply(|engine| engine.close(now()));
    }

    /// Continues with the queue of a session whose process has ended.
    pub(super) fn adopt(&self, ended: &LiveLink) {
        let (queue, senders) = ended.lock().take_queue();
        let mut inner = self.link.lock();
        inner.turns.extend(senders);
        let (queue, refused): (Vec<_>, Vec<_>) =
            queue.into_iter().partition(|_| self.begin_turn().is_ok());
        let mut step = inner.engine.adopt(queue, now());
        let refused = refused.iter().map(|message| LiveEvent::MessageDropped {
            message: message.id,
            reason: DropReason::BudgetExhausted,
        });
        step.events.extend(refused);
        self.carry_out(inner, step);
    }

    /// The last handle is gone.
    pub(super) fn handle_dropped(&self) {
        let mut inner = self.link.lock();
        // While the process lives, the messages that wait are delivered. A caller may have got a
        // new handle since this one was dropped.
        if inner.engine.has_ended() && !self.link.has_handle() {
            inner.take_queue();
        }
    }

    /// Waits until the session is open; the failure if the agent refuses, `None` if it ends.
    pub(crate) async fn opened(&self) -> Result<(), Option<Failure>> {
        let mut state = self.link.watch_state();
        let opening = |state: &LiveState| state.status == LiveStatus::Opening;
        let _ = state.wait_for(|state| !opening(state)).await;
        let failure = self.open_failure();
        let has_ended = self.link.state().status == LiveStatus::Ended;
        match (failure, has_ended) {
            (None, false) => Ok(()),
            (failure, _) => Err(failure),
        }
    }

    /// Why the agent refuses to open the session, as soon as it has said so: its process may still live.
    pub(crate) fn open_failure(&self) -> Option<Failure> {
        self.link.lock().open_failure.take()
    }

    /// The class of the last turn's failure, if no turn was completed since.
    pub(super) fn turn_failure(&self) -> Option<FailureKind> {
        self.link.lock().turn_failure.clone()
    }

    // The supervisor's side.

    /// Denies the requests whose deadline has passed. Does not return.
    pub(crate) async fn run_deadlines(&self) {
        loop {
            let mut moved = pin!(self.link.deadline_moved.notified());
            moved.as_mut().enable();
            let deadline = self.link.lock().engine.deadline();
            match deadline {
                None => moved.await,
                Some(at) => {
                    let at = tokio::time::Instant::from_std(at);
                    if tokio::time::timeout_at(at, moved).await.is_err() {
                        self.apply(|engine| engine.timer(now()));
                    }
                }
            }
        }
    }

    /// The next line for the agent; waits for one.
    pub(crate) async fn next_input(&self) -> String {
        loop {
            let mut ready = pin!(self.link.input_ready.notified());
            ready.as_mut().enable();
            if let Some(line) = self.link.lock().input.next() {
                return line;
            }
            ready.await;
        }
    }

    pub(crate) fn input_written(&self, line: &str) {
        self.link.lock().input.written(line);
    }

    pub(crate) fn input_closed(&self) {
        self.link.lock().input.close();
    }

    /// The agent has closed a pipe and lives: without it there is no protocol.
    pub(crate) async fn pipe_closed(&self) {
        tokio::time::sleep(CLOSED_PIPE_GRACE).await;
        self.disconnect("the agent has closed a pipe");
    }

    fn disconnect(&self, reason: &str) {
        tracing::warn!(reason, "the live session cannot go on");
        let execution = self.execution;
        execution.ask_to_stop(StoppedBy::Disconnected, StopManner::Ladder);
    }

    /// The first step of a stop: cancels the running turn and waits for its end, for a while.
    pub(crate) async fn cancel_turn(&self) {
        self.apply(|engine| engine.wind_down(now()));
        let running = {
            let inner = self.link.lock();
            let turn = inner.engine.turn_in_flight();
            turn.and_then(|turn| inner.turn(turn))
        };
        if let Some(turn) = running {
            let _ = tokio::time::timeout(CANCEL_GRACE, turn.ended()).await;
        }
    }

    /// The process has ended, and its output is read.
    pub(crate) fn process_ended(&self) {
        let mut inner = self.link.lock();
        self.drop_turns(inner.engine.waiting().count());
        let mut step = inner.engine.process_ended();
        if !self.link.has_handle() {
            let mut dropped = inner.engine.drop_queue();
            step.events.append(&mut dropped.events);
        }
        inner.input.close();
        let records = self.publish(&mut inner, step, None);
        // A steer whose outcome is unknown was reported as dropped; none is left.
        inner.steers.clear();
        drop(inner);
        self.record(records);
    }

    // Carrying out a step.

    fn carry_out(&self, mut inner: MutexGuard<'_, LinkInner>, step: LiveStep) {
        let records = self.publish(&mut inner, step, None);
        drop(inner);
        self.record(records);
    }

    fn apply(&self, input: impl FnOnce(&mut LiveEngine) -> LiveStep) {
        let mut inner = self.link.lock();
        let step = input(&mut inner.engine);
        self.carry_out(inner, step);
    }

    /// Events, then reports, then lines. See the invariants above. Returns the lines of the
    /// history.
    fn publish(
        &self,
        inner: &mut LinkInner,
        step: LiveStep,
        line: Option<Line>,
    ) -> Vec<HistoryEvent> {
        let log = &self.execution.log;
        let mut proof = None;
        let mut records = Vec::new();

        let native_ids: Vec<String> = reported_sessions(&step.agent_events).collect();
        let limit_changed = inner.observe_limit(&step.agent_events);
        let events = step.agent_events;
        let notices = self.execution.count(&events);
        let output = match line {
            // The reader of the output wakes the subscribers.
            Some(line) => Some(log.push_asleep(EventKind::Output(Output {
                stream: OutputStream::Stdout,
                line,
                events,
            }))),
            None if events.is_empty() => None,
            None => Some(log.push(EventKind::Agent(events))),
        };
        if limit_changed {
            proof = output;
        }
        for notice in notices {
            log.push(notice);
        }
        for native_id in native_ids {
            if let Some(event) = self.execution.agent_reported(&native_id) {
                log.push(event);
            }
        }
        if let Some(reason) = step.refused {
            log.push(EventKind::Live(LiveEvent::CommandRefused { reason }));
        }
        if let Some(failure) = step.open_failed {
            inner.open_failure = Some(failure);
            self.execution
                .ask_to_stop(StoppedBy::Disconnected, StopManner::Ladder);
        }

        let mut ended_turns = step.ended_turns.into_iter();
        for event in step.events {
            if matches!(event, LiveEvent::Opened) {
                let reported = match &step.native_id {
                    Some(native_id) => self.execution.agent_reported(native_id),
                    None => self.execution.resolve(None),
                };
                if let Some(event) = reported {
                    log.push(event);
                }
            }
            // A question can be large, and means nothing to the callers that wait.
            if matches!(event, LiveEvent::PermissionAsked(_)) {
                proof = Some(log.push(EventKind::Live(event)));
                continue;
            }
            let sequence = log.push(EventKind::Live(event.clone()));
            if is_proof(&event) {
                proof = Some(sequence);
            }
            if let LiveEvent::TurnEnded { .. } = &event
                && let Some(end) = ended_turns.next()
            {
                let report = TurnReport {
                    turn: end.turn,
                    outcome: end.outcome,
                    text: end.text,
                    is_whole: end.is_whole,
                    usage: end.usage,
                    sequence,
                };
                inner.finish_turn(end.turn.into(), Ok(Arc::new(report)));
            }
            // A message whose outcome is uncertain may have been delivered: it counts. Messages that
            // waited at the end of the process do not count any more.
            if let LiveEvent::MessageDropped { reason, .. } = &event
                && matches!(reason, DropReason::TakenBack | DropReason::SessionEnded)
                && !inner.engine.has_ended()
            {
                self.drop_turns(1);
            }
            records.extend(inner.follow(event));
        }

        let has_lines = !step.lines.is_empty();
        for line in step.lines {
            if !inner.input.push(line) {
                self.disconnect("the agent does not read its input");
                break;
            }
        }
        if has_lines {
            self.link.input_ready.notify_one();
        }
        let deadline = inner.engine.deadline();
        if deadline != inner.deadline {
            inner.deadline = deadline;
            self.link.deadline_moved.notify_one();
        }
        self.set_state(inner, proof);
        records
    }

    fn set_state(&self, inner: &LinkInner, proof: Option<u64>) {
        let status = inner.status();
        self.link.state.send_if_modified(|state| {
            if state.status == status {
                return false;
            }
            let is_talking = matches!(status, LiveStatus::Opening | LiveStatus::Working { .. });
            self.link.activity.expect_output(is_talking);
            state.status = status;
            state.proof = proof.unwrap_or(state.proof);
            true
        });
    }

    fn record(&self, records: Vec<HistoryEvent>) {
        for record in records {
            self.execution.history.write(&self.execution.id, record);
        }
    }

    fn check_text(&self, text: &str) -> Result<(), Error> {
        match text.trim().is_empty() {
            true => Err(Error::EmptyPrompt {
                label: self.execution.context.profile_label.clone(),
            }),
            false => Ok(()),
        }
    }

    fn check_input(&self, inner: &LinkInner) -> Result<(), Error> {
        let session = || self.execution.session_id();
        if inner.input.is_closed() {
            return Err(Error::SessionEnded { session: session() });
        }
        match inner.input.is_full() {
            true => Err(Error::QueueFull {
                session: session(),
                reason: "the agent does not read its input",
            }),
            false => Ok(()),
        }
    }

    fn error(&self, error: CommandError) -> Error {
        let session = self.execution.session_id();
        match error {
            CommandError::Ended => Error::SessionEnded { session },
            CommandError::QueueFull => Error::QueueFull {
                session,
                reason: "too many messages wait",
            },
            CommandError::NotInFlight(turn) => Error::TurnNotRunning { turn },
            CommandError::Settled(by) => Error::AlreadySettled {
                permission: String::new(),
                by,
            },
            CommandError::Opening => Error::Refused {
                reason: "the session is not open yet".to_owned(),
            },
        }
    }

    pub(super) fn ended(&self) -> Error {
        Error::SessionEnded {
            session: self.execution.session_id(),
        }
    }
}

/// Whether the event decides about the state of the session, as a question does, too.
fn is_proof(event: &LiveEvent) -> bool {
    matches!(
        event,
        LiveEvent::Opened
            | LiveEvent::Ended
            | LiveEvent::TurnStarted { .. }
            | LiveEvent::TurnEnded { .. }
            | LiveEvent::PermissionSettled { .. }
    )
}

/// The sessions that the agent itself reports; those of sub-agents are others.
fn reported_sessions(events: &[AgentEvent]) -> impl Iterator<Item = String> {
    let own = events.iter().filter(|event| event.parent.is_none());
    own.filter_map(|event| match &event.kind {
        AgentEventKind::SessionStarted { session_id, .. } => Some(session_id.clone()),
        _ => None,
    })
}

/// Through tokio's clock, which tests can pause.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
