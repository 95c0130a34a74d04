//! The state of a live session: what is in flight, what waits, what is asked.
//!
//! # Theory
//!
//! The engine stands between the callers and the driver. It is pure: every input (a line, a
//! command, a point in time, the end of the process) gives a [`LiveStep`], which the caller of the
//! engine carries out in order. One mutex serialises the inputs.
//!
//! **Invariants.**
//! - At most one turn is in flight. The next message of the queue is given to the driver only when
//!   the turn before it has ended.
//! - A message has exactly one of these ends: delivered, dropped, or still in the queue. It is
//!   removed from the queue in the same step that gives it to the driver, so it cannot be given
//!   twice.
//! - A permission request is settled once. The first of caller, policy, deadline and cancel wins; a
//!   later answer gets the origin of the first, as long as the request is remembered
//!   ([`MAX_SETTLED`]).
//! - The end of a turn, of whatever kind, settles all open requests.
//!
//! **Races.**
//! - An interrupt and the end of the turn cross: the agent reports the end first, and the cancel
//!   arrives when no turn is in flight. The engine has then already ended the turn, and the
//!   interrupt of a turn that is not in flight sends nothing, so that a cancel can never hit the
//!   next turn. If the cancel was sent before the end was read, agents ignore it, or end the turn
//!   as interrupted.
//! - A steer and the end of the turn cross: the agent refuses the text, and the message goes to the
//!   front of the queue. Until the agent has said so no other message is delivered, for at most
//!   [`OFFER_LIMIT`]; then the message is reported as uncertain.
//! - A stop and the end of the turn cross: after [`LiveEngine::wind_down`] no further message is
//!   delivered, so an agent that is about to be stopped does not begin new work.
//! - The process ends with a turn in flight: the outcome is [`TurnOutcome::Uncertain`], because the
//!   prompt may have had any effect. Messages of the queue stay for a resumed session.
//!
//! **Example.** `prompt(a)`, `prompt(b)`, the agent ends the first turn:
//!
//! | input | queue | in flight | step |
//! |---|---|---|---|
//! | prompt a | | 1 | delivered 1, turn 1 started, line |
//! | prompt b | 2 | 1 | queued 2 |
//! | turn ended | | 2 | turn 1 ended, delivered 2, turn 2 started, line |

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::live_event::{DropReason, LiveEvent, MessageId, SettledBy, TurnId};
use super::permission_policy::{PermissionAction, PermissionFacts, PermissionPolicy};
use super::protocol_driver::{
    Decision, DriverCommand, DriverOutput, DriverSignal, PermissionRequest, ProtocolDriver,
    TurnOutcome,
};
use crate::output::LastMessage;
use crate::process::LONGEST_LIMIT;
use crate::{AgentEvent, AgentEventKind, Failure, FailureKind, UsageTotals};

/// How many settled requests are remembered, so that a late answer gets the origin of the first,
/// and how many bytes their ids may have.
const MAX_SETTLED: usize = 256;
const MAX_SETTLED_BYTES: usize = 16 << 10;
/// How many requests may be open, and how many bytes their arguments may have if there is more than
/// one. An agent that asks for more is denied.
const MAX_OPEN: usize = 256;
const MAX_OPEN_BYTES: usize = 8 << 20;
/// How long after the end of a turn an agent may take to report whether it took a steered message.
const OFFER_LIMIT: Duration = Duration::from_secs(10);

/// The bounds of the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self {
            messages: 64,
            bytes: 1 << 20,
        }
    }
}

/// A message of the queue.
#[derive(Clone)]
pub(crate) struct WaitingMessage {
    pub(crate) id: MessageId,
    pub(crate) text: String,
}

/// The end of a turn, for the caller that waits for it.
pub(crate) struct TurnEnd {
    pub(crate) turn: TurnId,
    pub(crate) outcome: TurnOutcome,
    pub(crate) text: String,
    pub(crate) is_whole: bool,
    pub(crate) usage: Option<UsageTotals>,
}

/// What has to be done after an input, in this order: publish, then write.
#[derive(Default)]
pub(crate) struct LiveStep {
    /// The events of the line, for its output event.
    pub(crate) agent_events: Vec<AgentEvent>,
    /// The events behind it.
    pub(crate) events: Vec<LiveEvent>,
    /// The lines for the agent.
    pub(crate) lines: Vec<String>,
    pub(crate) ended_turns: Vec<TurnEnd>,
    /// The id that the agent has reported when it opened the session.
    pub(crate) native_id: Option<String>,
    /// The session cannot be opened: stop the process.
    pub(crate) open_failed: Option<Failure>,
    /// The driver has refused the command.
    pub(crate) refused: Option<String>,
}

/// What passes through the engine, for the tracker of totals and failure classes.
pub(crate) enum Observed<'a> {
    Event(&'a mut AgentEvent),
    /// The failure of a turn.
    Failure(&'a mut Failure),
}

type Observer = Box<dyn FnMut(Observed<'_>) + Send>;

/// Why the engine does not take a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CommandError {
    /// The session has ended.
    Ended,
    /// The queue has no room.
    QueueFull,
    /// The turn is not in flight.
    NotInFlight(TurnId),
    /// The request is settled, or was never asked.
    Settled(Option<SettledBy>),
    /// The session is not open yet.
    Opening,
}

enum Phase {
    Opening,
    Idle,
    Working(Box<RunningTurn>),
    Ended,
}

struct RunningTurn {
    id: TurnId,
    interrupted: bool,
    text: LastMessage,
    usage: Option<UsageTotals>,
}

struct OpenRequest {
    request: PermissionRequest,
    deadline: Instant,
}

/// How a steered message went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SteerStart {
    /// The driver reports the outcome.
    Offered(MessageId),
    Queued(MessageId),
}

pub(crate) struct LiveEngine {
    driver: Box<dyn ProtocolDriver>,
    phase: Phase,
    queue: VecDeque<WaitingMessage>,
    /// A message that was offered to a running turn, until the driver reports whether the agent
    /// took it. No other message is delivered before that, to keep the order.
    offered: Option<(WaitingMessage, TurnId)>,
    /// When an agent that has ended the turn must have reported what became of `offered`.
    offer_deadline: Option<Instant>,
    limits: QueueLimits,
    last_message: u64,
    open: Vec<OpenRequest>,
    settled: VecDeque<(String, SettledBy)>,
    policy: PermissionPolicy,
    workspace: PathBuf,
    /// No message is accepted or delivered any more.
    winding_down: bool,
    /// The session was closed: a message that comes back into the queue is dropped.
    is_closed: bool,
    observer: Observer,
}

impl LiveEngine {
    pub(crate) fn new(
        driver: Box<dyn ProtocolDriver>,
        policy: PermissionPolicy,
        workspace: PathBuf,
        limits: QueueLimits,
    ) -> Self {
        Self {
            driver,
            phase: Phase::Opening,
            queue: VecDeque::new(),
            offered: None,
            offer_deadline: None,
            limits,
            last_message: 0,
            open: Vec::new(),
            settled: VecDeque::new(),
            policy,
            workspace,
            winding_down: false,
            is_closed: false,
            observer: Box::new(|_| {}),
        }
    }

    /// Shows every event and failure to `observer`, which may complete them, before it is used.
    pub(crate) fn observed_by(
        mut self,
        observer: impl FnMut(Observed<'_>) + Send + 'static,
    ) -> Self {
        self.observer = Box::new(observer);
        self
    }

    /// Continues the numbers of a session whose process has ended.
    pub(crate) fn numbered_after(mut self, last_message: u64) -> Self {
        self.last_message = last_message;
        self
    }

    pub(crate) fn last_message(&self) -> u64 {
        self.last_message
    }

    /// Takes the queue over from a session whose process has ended. The messages come before those
    /// that this session already has.
    pub(crate) fn adopt(&mut self, queue: Vec<WaitingMessage>, now: Instant) -> LiveStep {
        if self.is_closed {
            self.queue.extend(queue);
            return self.drop_queue();
        }
        let mut step = LiveStep::default();
        for message in queue.into_iter().rev() {
            let event = LiveEvent::MessageQueued {
                message: message.id,
            };
            step.events.insert(0, event);
            self.queue.push_front(message);
        }
        self.deliver(&mut step, now);
        step
    }

    /// The messages that wait, for the session that continues this one.
    pub(crate) fn take_queue(&mut self) -> Vec<WaitingMessage> {
        self.queue.drain(..).collect()
    }

    /// The requests that wait for an answer, oldest first.
    pub(crate) fn open_requests(&self) -> impl Iterator<Item = &PermissionRequest> {
        self.open.iter().map(|open| &open.request)
    }

    /// The process is about to be stopped: refuses messages, cancels the running turn and settles
    /// all open requests. The queue stays for a resumed session.
    pub(crate) fn wind_down(&mut self, now: Instant) -> LiveStep {
        self.winding_down = true;
        let mut step = match self.turn_in_flight() {
            Some(turn) => self.interrupt(turn, now).unwrap_or_default(),
            None => LiveStep::default(),
        };
        self.void_open(&mut step, !matches!(self.phase, Phase::Ended));
        step
    }

    /// As [`wind_down`](Self::wind_down) for a session that goes on with nothing: also drops the queue.
    pub(crate) fn close(&mut self, now: Instant) -> LiveStep {
        self.is_closed = true;
        let dropped = self.drop_queue();
        let mut step = self.wind_down(now);
        step.events.splice(..0, dropped.events);
        // The stop that follows tries again, and reports it.
        step.refused = None;
        step
    }

    pub(crate) fn open(&mut self, now: Instant) -> LiveStep {
        self.drive(now, |driver, out| driver.open(out))
    }

    pub(crate) fn line(&mut self, line: &str, now: Instant) -> LiveStep {
        if matches!(self.phase, Phase::Ended) {
            return LiveStep::default();
        }
        self.drive(now, |driver, out| driver.line(line, out))
    }

    /// A line of the agent was too long to be read.
    pub(crate) fn missed_line(&mut self) {
        if let Phase::Working(turn) = &mut self.phase {
            turn.text.missed();
        }
    }

    /// Gives the message to the agent, or puts it into the queue.
    pub(crate) fn prompt(
        &mut self,
        text: String,
        now: Instant,
    ) -> Result<(TurnId, LiveStep), CommandError> {
        let id = self.enqueue(text)?;
        let mut step = LiveStep::default();
        if !self.can_deliver() {
            step.events.push(LiveEvent::MessageQueued { message: id });
        }
        self.deliver(&mut step, now);
        Ok((TurnId(id.0), step))
    }

    /// Puts the text into the running turn if the agent can do that, or else into the queue.
    pub(crate) fn steer(
        &mut self,
        text: String,
        now: Instant,
    ) -> Result<(SteerStart, LiveStep), CommandError> {
        if self.winding_down {
            return Err(CommandError::Ended);
        }
        let turn = match &self.phase {
            Phase::Working(turn) if !turn.interrupted => Some(turn.id),
            _ => None,
        };
        let can_offer = self.driver.can_steer() && self.offered.is_none();
        let Some(turn) = turn.filter(|_| can_offer) else {
            let (turn, step) = self.prompt(text, now)?;
            return Ok((SteerStart::Queued(turn.into()), step));
        };
        self.last_message += 1;
        let id = MessageId(self.last_message);
        let message = WaitingMessage {
            id,
            text: text.clone(),
        };
        self.offered = Some((message, turn));
        let command = DriverCommand::Steer(&text);
        let mut step = self.drive(now, |driver, out| driver.command(command, out));
        if step.refused.take().is_some() {
            self.steered(false, &mut step);
            self.deliver(&mut step, now);
        }
        Ok((SteerStart::Offered(id), step))
    }

    /// Cancels the turn, once.
    pub(crate) fn interrupt(
        &mut self,
        turn: TurnId,
        now: Instant,
    ) -> Result<LiveStep, CommandError> {
        match &mut self.phase {
            Phase::Working(running) if running.id == turn => {
                if running.interrupted {
                    return Ok(LiveStep::default());
                }
                running.interrupted = true;
            }
            Phase::Ended => return Err(CommandError::Ended),
            _ => return Err(CommandError::NotInFlight(turn)),
        }
        let mut step = self.drive(now, |driver, out| {
            driver.command(DriverCommand::Interrupt, out);
        });
        match &mut self.phase {
            // The turn goes on, and so do its questions.
            Phase::Working(running) if step.refused.is_some() => running.interrupted = false,
            _ => self.void_open(&mut step, true),
        }
        Ok(step)
    }

    pub(crate) fn answer(
        &mut self,
        permission: &str,
        decision: Decision,
        now: Instant,
    ) -> Result<LiveStep, CommandError> {
        let mut step = LiveStep::default();
        if self.settle(permission, decision, SettledBy::Caller, &mut step, now) {
            self.deliver(&mut step, now);
            return Ok(step);
        }
        let first = self.settled.iter().find(|(id, _)| id == permission);
        Err(CommandError::Settled(first.map(|(_, by)| *by)))
    }

    pub(crate) fn set_mode(&mut self, mode: &str, now: Instant) -> Result<LiveStep, CommandError> {
        self.option(DriverCommand::SetMode(mode), now)
    }

    pub(crate) fn set_model(
        &mut self,
        model: &str,
        now: Instant,
    ) -> Result<LiveStep, CommandError> {
        self.option(DriverCommand::SetModel(model), now)
    }

    fn option(
        &mut self,
        command: DriverCommand<'_>,
        now: Instant,
    ) -> Result<LiveStep, CommandError> {
        match self.phase {
            Phase::Ended => return Err(CommandError::Ended),
            Phase::Opening => return Err(CommandError::Opening),
            Phase::Idle | Phase::Working(_) => {}
        }
        Ok(self.drive(now, |driver, out| driver.command(command, out)))
    }

    /// Takes a message back that was not delivered yet.
    pub(crate) fn take_back(&mut self, message: MessageId) -> Option<(WaitingMessage, LiveStep)> {
        let at = self
            .queue
            .iter()
            .position(|waiting| waiting.id == message)?;
        let taken = self.queue.remove(at)?;
        let mut step = LiveStep::default();
        step.events.push(LiveEvent::MessageDropped {
            message,
            reason: DropReason::TakenBack,
        });
        Some((taken, step))
    }

    /// The messages that wait, in order.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &WaitingMessage> {
        self.queue.iter()
    }

    /// The next point in time at which [`timer`](Self::timer) has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let requests = self.open.iter().map(|request| request.deadline);
        requests.chain(self.offer_deadline).min()
    }

    /// Denies the requests whose deadline has passed, and drops a steered message if the agent has
    /// not reported in time whether it took the message.
    pub(crate) fn timer(&mut self, now: Instant) -> LiveStep {
        let mut step = LiveStep::default();
        let due = |request: &&OpenRequest| request.deadline <= now;
        let due = self.open.iter().filter(due);
        let due: Vec<String> = due.map(|open| open.request.id.clone()).collect();
        for id in due {
            self.settle(&id, Decision::Deny, SettledBy::Deadline, &mut step, now);
        }
        if self.offer_deadline.is_some_and(|deadline| deadline <= now) {
            self.give_up_offer(&mut step);
        }
        self.deliver(&mut step, now);
        step
    }

    /// The process has ended.
    pub(crate) fn process_ended(&mut self) -> LiveStep {
        let mut step = LiveStep::default();
        if matches!(self.phase, Phase::Ended) {
            return step;
        }
        self.give_up_offer(&mut step);
        self.void_open(&mut step, false);
        self.end_turn(TurnOutcome::Uncertain, None, &mut step);
        self.phase = Phase::Ended;
        step.events.push(LiveEvent::Ended);
        step
    }

    fn give_up_offer(&mut self, step: &mut LiveStep) {
        self.offer_deadline = None;
        if let Some((message, _)) = self.offered.take() {
            step.events.push(LiveEvent::MessageDropped {
                message: message.id,
                reason: DropReason::Uncertain,
            });
        }
    }

    /// Drops the queue: the session will not be resumed.
    pub(crate) fn drop_queue(&mut self) -> LiveStep {
        let mut step = LiveStep::default();
        let dropped = self
            .queue
            .drain(..)
            .map(|waiting| LiveEvent::MessageDropped {
                message: waiting.id,
                reason: DropReason::SessionEnded,
            });
        step.events.extend(dropped);
        step
    }

    pub(crate) fn turn_in_flight(&self) -> Option<TurnId> {
        match &self.phase {
            Phase::Working(turn) => Some(turn.id),
            _ => None,
        }
    }

    pub(crate) fn has_open_requests(&self) -> bool {
        !self.open.is_empty()
    }

    pub(crate) fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Opening)
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    fn enqueue(&mut self, text: String) -> Result<MessageId, CommandError> {
        if self.winding_down || matches!(self.phase, Phase::Ended) {
            return Err(CommandError::Ended);
        }
        let bytes: usize = self.queue.iter().map(|waiting| waiting.text.len()).sum();
        // A message for an idle agent does not wait, so it needs no room.
        if !self.can_deliver()
            && (self.queue.len() >= self.limits.messages || bytes + text.len() > self.limits.bytes)
        {
            return Err(CommandError::QueueFull);
        }
        self.last_message += 1;
        let id = MessageId(self.last_message);
        self.queue.push_back(WaitingMessage { id, text });
        Ok(id)
    }

    fn can_deliver(&self) -> bool {
        matches!(self.phase, Phase::Idle) && self.offered.is_none() && !self.winding_down
    }

    /// Gives the next message to the driver if no turn is in flight. A loop, because a driver may
    /// end a turn at once.
    fn deliver(&mut self, step: &mut LiveStep, now: Instant) {
        // Not a refusal of a message that is delivered here.
        let refused = step.refused.take();
        while self.can_deliver()
            && let Some(message) = self.queue.pop_front()
        {
            let turn = TurnId(message.id.0);
            self.phase = Phase::Working(Box::new(RunningTurn {
                id: turn,
                interrupted: false,
                text: LastMessage::default(),
                usage: None,
            }));
            step.events.push(LiveEvent::MessageDelivered {
                message: message.id,
                turn,
            });
            step.events.push(LiveEvent::TurnStarted { turn });
            let mut out = DriverOutput::default();
            self.driver
                .command(DriverCommand::Prompt(&message.text), &mut out);
            self.take(out, step, now);
            if let Some(reason) = step.refused.take() {
                let failure = Failure::new(FailureKind::Agent, reason);
                self.end_turn(TurnOutcome::Failed { failure }, None, step);
            }
        }
        step.refused = refused;
    }

    fn drive(
        &mut self,
        now: Instant,
        call: impl FnOnce(&mut dyn ProtocolDriver, &mut DriverOutput),
    ) -> LiveStep {
        let mut out = DriverOutput::default();
        call(self.driver.as_mut(), &mut out);
        let mut step = LiveStep::default();
        self.take(out, &mut step, now);
        self.deliver(&mut step, now);
        step
    }

    fn take(&mut self, out: DriverOutput, step: &mut LiveStep, now: Instant) {
        step.lines.extend(out.lines);
        for signal in out.signals {
            self.signal(signal, step, now);
        }
    }

    fn signal(&mut self, signal: DriverSignal, step: &mut LiveStep, now: Instant) {
        match signal {
            // The end of a turn is a signal of its own.
            DriverSignal::Event(event) if matches!(event.kind, AgentEventKind::Finished { .. }) => {
            }
            DriverSignal::Event(mut event) => {
                (self.observer)(Observed::Event(&mut event));
                if let Phase::Working(turn) = &mut self.phase {
                    turn.observe(&event);
                }
                step.agent_events.push(event);
            }
            DriverSignal::Opened { native_id } => {
                if matches!(self.phase, Phase::Opening) {
                    self.phase = Phase::Idle;
                    step.native_id = native_id;
                    step.events.push(LiveEvent::Opened);
                }
            }
            DriverSignal::OpenFailed(failure) => step.open_failed = Some(failure),
            // An agent may repeat the end of a turn.
            DriverSignal::TurnEnded { .. } if self.turn_in_flight().is_none() => {}
            DriverSignal::TurnEnded { mut outcome, text } => {
                if let TurnOutcome::Failed { failure } = &mut outcome {
                    (self.observer)(Observed::Failure(failure));
                }
                self.end_turn(outcome, text, step);
                let is_open = self.offered.is_some();
                self.offer_deadline = is_open.then(|| now + OFFER_LIMIT);
            }
            DriverSignal::Asked(request) => self.ask(request, step, now),
            DriverSignal::Withdrawn { permission } => {
                if let Some(request) = self.take_open(&permission) {
                    self.remember(request, None, SettledBy::Cancel, step);
                }
            }
            DriverSignal::Steered { injected } => self.steered(injected, step),
            DriverSignal::Refused { reason } => step.refused = Some(reason),
        }
    }

    fn steered(&mut self, injected: bool, step: &mut LiveStep) {
        let Some((message, turn)) = self.offered.take() else {
            return;
        };
        self.offer_deadline = None;
        let id = message.id;
        step.events.push(match injected {
            true => LiveEvent::MessageDelivered { message: id, turn },
            false if self.is_closed => LiveEvent::MessageDropped {
                message: id,
                reason: DropReason::SessionEnded,
            },
            false => {
                self.queue.push_front(message);
                LiveEvent::MessageQueued { message: id }
            }
        });
    }

    fn end_turn(&mut self, outcome: TurnOutcome, text: Option<String>, step: &mut LiveStep) {
        let Phase::Working(_) = &self.phase else {
            return;
        };
        self.void_open(step, true);
        let Phase::Working(turn) = std::mem::replace(&mut self.phase, Phase::Idle) else {
            return;
        };
        let turn = *turn;
        // A final text is a part of one line, which was read as a whole.
        let is_whole = text.is_some() || turn.text.is_whole();
        let text = text.unwrap_or_else(|| turn.text.into_text());
        step.events.push(LiveEvent::TurnEnded {
            turn: turn.id,
            outcome: outcome.clone(),
            usage: turn.usage,
        });
        step.ended_turns.push(TurnEnd {
            turn: turn.id,
            outcome,
            text,
            is_whole,
            usage: turn.usage,
        });
    }

    fn ask(&mut self, request: PermissionRequest, step: &mut LiveStep, now: Instant) {
        let facts = PermissionFacts {
            tool: &request.tool,
            command: request.command.as_deref(),
            paths: &request.paths,
        };
        let action = self.policy.decide(&facts, &self.workspace);
        let is_known = self.open.iter().any(|open| open.request.id == request.id);
        if is_known {
            // A repeated request: the answer to the first one is also the answer to this one.
            return;
        }
        let bytes = self.open.iter().map(|open| open.request.heap_bytes());
        let bytes = bytes.sum::<usize>() + request.heap_bytes();
        let is_full =
            self.open.len() >= MAX_OPEN || (!self.open.is_empty() && bytes > MAX_OPEN_BYTES);
        self.open.push(OpenRequest {
            request: request.clone(),
            deadline: now + self.policy.question_limit().min(LONGEST_LIMIT),
        });
        if self.is_cancelling() {
            // The request crossed the cancel. Some agents do not end the turn before it is
            // answered.
            return self.void_open(step, true);
        }
        match action {
            PermissionAction::Allow => {
                self.settle(&request.id, Decision::Allow, SettledBy::Policy, step, now);
            }
            PermissionAction::Deny => {
                self.settle(&request.id, Decision::Deny, SettledBy::Policy, step, now);
            }
            PermissionAction::Ask if is_full => {
                self.settle(&request.id, Decision::Deny, SettledBy::Policy, step, now);
            }
            PermissionAction::Ask => step.events.push(LiveEvent::PermissionAsked(request)),
        }
    }

    /// Whether the request was open.
    fn settle(
        &mut self,
        permission: &str,
        decision: Decision,
        by: SettledBy,
        step: &mut LiveStep,
        now: Instant,
    ) -> bool {
        let Some(request) = self.take_open(permission) else {
            return false;
        };
        let mut out = DriverOutput::default();
        let command = DriverCommand::Answer {
            permission: &request.id,
            decision,
        };
        self.driver.command(command, &mut out);
        let is_refusal = |signal: &DriverSignal| matches!(signal, DriverSignal::Refused { .. });
        let is_given = !out.signals.iter().any(is_refusal);
        self.remember(request, is_given.then_some(decision), by, step);
        self.take(out, step, now);
        true
    }

    fn is_cancelling(&self) -> bool {
        self.winding_down || matches!(&self.phase, Phase::Working(turn) if turn.interrupted)
    }

    fn take_open(&mut self, permission: &str) -> Option<PermissionRequest> {
        let mut open = self.open.iter();
        let at = open.position(|open| open.request.id == permission)?;
        Some(self.open.remove(at).request)
    }

    /// Settles all open requests without a decision. `tell`: the agent lives and may need an
    /// answer.
    fn void_open(&mut self, step: &mut LiveStep, tell: bool) {
        for OpenRequest { request, .. } in std::mem::take(&mut self.open) {
            if tell {
                let mut out = DriverOutput::default();
                let command = DriverCommand::Withdraw {
                    permission: &request.id,
                };
                self.driver.command(command, &mut out);
                step.lines.append(&mut out.lines);
            }
            self.remember(request, None, SettledBy::Cancel, step);
        }
    }

    fn remember(
        &mut self,
        request: PermissionRequest,
        decision: Option<Decision>,
        by: SettledBy,
        step: &mut LiveStep,
    ) {
        step.events.push(LiveEvent::PermissionSettled {
            permission: request.id.clone(),
            tool: request.tool,
            decision,
            by,
        });
        self.settled.push_back((request.id, by));
        let bytes = |settled: &VecDeque<(String, SettledBy)>| {
            settled.iter().map(|(id, _)| id.len()).sum::<usize>()
        };
        while self.settled.len() > MAX_SETTLED || bytes(&self.settled) > MAX_SETTLED_BYTES {
            self.settled.pop_front();
        }
    }
}

impl RunningTurn {
    fn observe(&mut self, event: &AgentEvent) {
        if event.parent.is_some() {
            return;
        }
        self.text.observe(&event.kind);
        if let AgentEventKind::Usage(usage) = &event.kind {
            self.usage = Some(*usage);
        }
    }
}

#[cfg(test)]
#[path = "live_engine_tests.rs"]
mod tests;
