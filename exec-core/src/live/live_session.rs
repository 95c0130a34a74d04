//! The handle of a live session.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::interrupt_report::InterruptReport;
use super::live_control::LiveControl;
use super::live_engine::WaitingMessage;
use super::live_event::{MessageId, TurnId};
use super::live_link::LiveLink;
use super::live_request::LiveRequest;
use super::live_state::{LiveState, LiveStatus};
use super::protocol_driver::{Decision, PermissionRequest};
use super::session_chain::ChainHandle;
use super::turn::Turn;
use crate::run::{LiveExecution, StopManner};
use crate::{
    Error, Execution, ExecutionService, ExitReport, Failure, FailureKind, SessionId, StoppedBy,
};

/// A handle of a live session: one process of an agent for many turns.
///
/// The session is an [`Execution`]: it has the same events with replay, bounds, log files, history,
/// stop and guarantees, and it is in the same registry. Prompts wait in a bounded queue of the
/// host, in the order of their calls; the agent never has two of them at once.
///
/// Cheap to clone. Dropping it, even the last clone, does not end the session: messages that wait
/// are still delivered, and [`ExecutionService::live_session`] gives a new handle. Messages that
/// wait when the process ends stay for [`resume`](Self::resume) as long as there is a handle of the
/// session, or for the [restart](LiveRequest::restart).
///
/// A session that was restarted or resumed has another process, and a handle stays with the process
/// that it was made for: [`restarted`](Self::restarted) returns the handle of the latest one. Only
/// [`close`](Self::close) and [`resume`](Self::resume) act on the latest process from every handle.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, service) = doctest::live_service();
/// # let context = doctest::request("").context;
/// use exec_core::{LiveRequest, LiveStatus};
///
/// let session = service.open_live(LiveRequest::new(context)).await?;
/// assert_eq!(session.state().status, LiveStatus::Idle);
///
/// let report = session.prompt("hello")?.ended().await?;
/// assert_eq!(report.text, "HELLO");
///
/// let exit = session.close().await?;
/// assert!(exit.is_success());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LiveSession {
    service: ExecutionService,
    execution: Execution,
    handle: Arc<SessionHandle>,
    chain_handle: Arc<ChainHandle>,
}

/// Exists as long as there is a [`LiveSession`] of this process, or of an earlier one if this is the
/// latest. Its drop gives up the messages that wait for a resumed session.
pub(crate) struct SessionHandle {
    pub(super) execution: Arc<LiveExecution>,
}

impl Drop for SessionHandle {
    fn drop(&mut self) {
        if let Some(control) = self.execution.control() {
            control.handle_dropped();
        }
    }
}

/// A message that waits for its turn; see [`LiveSession::queued`]. `Debug` shows the size of the
/// text.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, session) = doctest::open_live().await;
/// session.prompt("first")?;
/// let second = session.prompt("second")?;
/// assert_eq!(session.queued()[0].text, "second");
///
/// let taken = session.take_back(second.message()).expect("it waits");
/// assert_eq!(taken.text, "second");
/// assert!(session.queued().is_empty());
/// # session.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuedMessage {
    /// The number of the message.
    pub id: MessageId,
    /// The text.
    pub text: String,
}

impl From<WaitingMessage> for QueuedMessage {
    fn from(WaitingMessage { id, text }: WaitingMessage) -> Self {
        Self { id, text }
    }
}

impl fmt::Debug for QueuedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuedMessage")
            .field("id", &self.id)
            .field("len", &self.text.len())
            .finish()
    }
}

/// What became of a text that was given to [`LiveSession::steer`].
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, session) = doctest::open_live().await;
/// use exec_core::Steered;
///
/// session.prompt("hello")?;
/// // This agent cannot be steered.
/// let Steered::Queued(turn) = session.steer("louder").await? else { unreachable!() };
/// assert_eq!(turn.ended().await?.text, "LOUDER");
/// # session.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub enum Steered {
    /// The agent has put it into this turn.
    Injected(TurnId),
    /// It waits as the next prompt: no turn runs, or the agent cannot be steered.
    Queued(Turn),
}

impl LiveSession {
    pub(crate) fn new(service: ExecutionService, execution: Execution) -> Option<Self> {
        let link = execution.live.link.as_ref()?;
        let session = Self {
            service,
            handle: link.handle(&execution.live),
            chain_handle: link.chain.handle(),
            execution,
        };
        session.keep();
        Some(session)
    }

    /// Lets all handles of the session keep the messages of this process, if it is the latest.
    pub(super) fn keep(&self) {
        self.chain_handle.keep(&self.link().chain, &self.handle);
    }

    /// The handle of the session's latest process. A process that is opening the session is later than
    /// the latest one of the chain.
    fn latest(&self) -> Self {
        let started = |live: &LiveExecution| live.start_instant;
        let latest = self.link().chain.latest();
        latest
            .filter(|live| started(live) > started(&self.execution.live))
            .and_then(|live| Self::new(self.service.clone(), Execution { live }))
            .unwrap_or_else(|| self.clone())
    }

    pub(super) fn service(&self) -> &ExecutionService {
        &self.service
    }

    /// The execution: events, usage of the process tree, stop, log files.
    pub fn execution(&self) -> &Execution {
        &self.execution
    }

    /// The session: the minted id until the agent's own id is known.
    pub fn session_id(&self) -> SessionId {
        self.execution.session_id()
    }

    /// The file with everything that was written to the agent, if the service has a
    /// [`log_dir`](crate::ExecutionServiceBuilder::log_dir).
    pub fn input_log_path(&self) -> Option<&Path> {
        self.execution.live.input_log_path.as_deref()
    }

    /// What the session is doing now.
    pub fn state(&self) -> LiveState {
        self.link().state()
    }

    /// Waits until the state of the session is one that `reached` accepts. States that are shorter
    /// than a poll can be missed; [`events`](Execution::events) has all of them.
    ///
    /// # Errors
    ///
    /// [`Error::SessionEnded`] if the process ends before that.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future has no effect.
    pub async fn wait_for(
        &self,
        mut reached: impl FnMut(&LiveStatus) -> bool,
    ) -> Result<LiveState, Error> {
        let mut states = self.link().watch_state();
        loop {
            // Not under the lock of the state: `reached` may use the session.
            let state = states.borrow_and_update().clone();
            if reached(&state.status) {
                return Ok(state);
            }
            if state.status == LiveStatus::Ended || states.changed().await.is_err() {
                return Err(self.control().ended());
            }
        }
    }

    /// Starts a turn with this text, or puts it into the queue if a turn runs.
    ///
    /// # Errors
    ///
    /// - [`Error::EmptyPrompt`] if the text is blank.
    /// - [`Error::QueueFull`] if too many messages wait, or if the agent does not read its input.
    /// - [`Error::SessionEnded`] if the session has ended or is about to.
    /// - [`Error::BudgetExhausted`] if a budget has no turn left, [`Error::Io`] or
    ///   [`Error::NotPrivate`] if what was used of it cannot be read.
    ///
    /// The text was not given to the agent then.
    pub fn prompt(&self, text: impl Into<String>) -> Result<Turn, Error> {
        self.control().prompt(text.into())
    }

    /// Puts a text into the running turn, if the agent can do that, or else into the queue.
    ///
    /// # Errors
    ///
    /// - As [`prompt`](Self::prompt).
    /// - [`Error::NotDelivered`] if the agent does not report whether it took the text, until its
    ///   process ends or for ten seconds after the end of the turn. It may have; the text is not
    ///   sent again. Also if the agent refuses the text after a [`close`](Self::close).
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: once the future was polled, the text is injected or queued even if the
    /// future is dropped. The events say which.
    pub async fn steer(&self, text: impl Into<String>) -> Result<Steered, Error> {
        self.control().steer(text.into()).await
    }

    /// Cancels a running turn and waits for its end. The session stays open, and the next message
    /// of the queue is delivered. Open permission requests are settled.
    ///
    /// Processes that were started during the turn and are still alive are reported, and not ended:
    /// they may be servers that the agent needs. [`end_processes`](Self::end_processes) ends them.
    /// The start of a process is known to a hundredth of a second, so one that was started right
    /// before the turn may be among them.
    ///
    /// # Errors
    ///
    /// - [`Error::TurnNotRunning`] if the turn has ended, or waits in the queue. Nothing was sent.
    /// - [`Error::Refused`] if the agent cannot be interrupted.
    /// - [`Error::QueueFull`] if the agent does not read its input, [`Error::SessionEnded`].
    /// - [`Error::Io`] if the processes of the machine cannot be listed.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: once the future was polled, the turn is cancelled even if the future is
    /// dropped. A second call waits for the end, too, and sends no second cancel.
    pub async fn interrupt(&self, turn: TurnId) -> Result<InterruptReport, Error> {
        let (running, started) = self.control().interrupt(turn)?;
        let report = running.ended().await?;
        let processes = self.execution.live.tool_processes(started).await?;
        Ok(InterruptReport { report, processes })
    }

    /// Ends processes that have outlived an interrupted turn, with everything that they have
    /// started: `TERM`, and `KILL` after five seconds. The agent itself goes on.
    ///
    /// # Errors
    ///
    /// [`Error::StillAlive`] if processes could not be ended; [`Error::Io`] if the processes of the
    /// machine cannot be listed.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: if the future is dropped, some of the processes may be alive. Call it
    /// again.
    pub async fn end_processes(&self, report: &InterruptReport) -> Result<(), Error> {
        self.execution.live.end_processes(&report.processes).await
    }

    /// Answers a permission request. The first answer wins.
    ///
    /// # Errors
    ///
    /// - [`Error::AlreadySettled`] if the request was answered, denied at its deadline, or became
    ///   void, and if there was no such request.
    /// - [`Error::QueueFull`] if the agent does not read its input; the request stays open.
    /// - [`Error::SessionEnded`] if the agent has closed its input.
    /// - [`Error::Refused`] if the protocol cannot pass the answer on, such as an agent that can only
    ///   allow all later calls, too. The agent was told that the request is cancelled.
    pub fn answer(&self, permission: &str, decision: Decision) -> Result<(), Error> {
        self.control().answer(permission, decision)
    }

    /// The permission requests that wait for an answer, oldest first.
    pub fn permissions(&self) -> Vec<PermissionRequest> {
        self.link().permissions()
    }

    /// Selects a mode of the agent, such as `plan`. If the agent refuses it later, there is a
    /// [`CommandRefused`](crate::LiveEvent::CommandRefused) event.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the protocol has no modes; [`Error::QueueFull`] if the agent does not
    /// read its input; [`Error::SessionEnded`].
    pub fn set_mode(&self, mode: &str) -> Result<(), Error> {
        self.control().set_mode(mode)
    }

    /// Selects a model. As [`set_mode`](Self::set_mode).
    ///
    /// # Errors
    ///
    /// As [`set_mode`](Self::set_mode).
    pub fn set_model(&self, model: &str) -> Result<(), Error> {
        self.control().set_model(model)
    }

    /// The messages that wait, in the order of their delivery.
    pub fn queued(&self) -> Vec<QueuedMessage> {
        self.link().queued()
    }

    /// Takes a message out of the queue; `None` if it does not wait there any more.
    pub fn take_back(&self, message: MessageId) -> Option<QueuedMessage> {
        self.control().take_back(message)
    }

    /// Ends the session: drops the messages that wait, cancels a running turn or a restart, closes the
    /// agent's standard input, and waits until no process is left. An agent that does not end by
    /// itself is stopped by its ladder. If the session has been restarted or resumed since, its latest
    /// process is ended.
    ///
    /// Returns the report of the latest process; [`ExitReport::stopped_by`] is `None` if the agent
    /// ended by itself with its input.
    /// [`Execution::stop`] is the same, except that it keeps the messages for
    /// [`resume`](Self::resume).
    ///
    /// # Errors
    ///
    /// As [`Execution::stop`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once the future was polled, the session ends even if the future is dropped.
    pub async fn close(&self) -> Result<Arc<ExitReport>, Error> {
        let chain = &self.link().chain;
        // First: no process becomes the latest by a restart from here on.
        chain.end();
        let latest = self.latest();
        latest.control().close();
        let live = &latest.execution.live;
        live.ask_to_stop(StoppedBy::Caller, StopManner::Close);
        latest.execution.stopped().await?;
        // A restart that was opening the session ends its process.
        chain.no_restart_opens().await;
        latest.execution.wait().await
    }

    /// Opens the session again after the end of its process, by the agent's own means, and
    /// continues with the messages that wait. The new handle has an execution of its own; [`Turn`]s
    /// of waiting messages go on.
    ///
    /// A prompt whose outcome is uncertain is not sent again.
    ///
    /// # Errors
    ///
    /// - [`Error::SessionBusy`] while the process runs, or one that has followed it.
    /// - [`Error::NotOpened`] if the agent opens another session, with
    ///   [`FailureKind::SessionGone`]. Its process was stopped.
    /// - As [`ExecutionService::open_live`].
    ///
    /// The messages go on waiting then.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped, a process that was started is stopped, and the
    /// messages go on waiting.
    pub async fn resume(&self) -> Result<Self, Error> {
        let ended = self.latest();
        let resumed = ended.open_again().await?;
        resumed.supervise();
        resumed.take_over(&ended);
        Ok(resumed)
    }

    /// Opens the session again, without the messages that wait. Invariant: the agent continues this
    /// session, so the messages can be given to it.
    pub(super) async fn open_again(&self) -> Result<Self, Error> {
        if self.state().status != LiveStatus::Ended {
            return Err(Error::SessionBusy {
                session: self.session_id(),
            });
        }
        self.execution.wait().await?;
        let link = self.link();
        let request = LiveRequest {
            context: self.execution.context().clone(),
            session_id: Some(self.session_id()),
            options: link.options.clone(),
        };
        let opened = self.service.open_process(request, Some(link)).await?;
        let execution = &opened.execution;
        if !execution.live.continues_another_session() {
            return Ok(opened);
        }
        execution.stop().await?;
        let message = "the agent has opened another session";
        Err(Error::NotOpened {
            label: execution.context().profile_label.clone(),
            failure: Failure::new(FailureKind::SessionGone, message),
            exit: execution.wait().await?,
        })
    }

    /// Continues with the messages of a session whose process has ended.
    pub(super) fn take_over(&self, ended: &Self) {
        self.control().adopt(ended.link());
    }

    pub(super) fn link(&self) -> &LiveLink {
        self.control().link
    }

    pub(crate) fn control(&self) -> LiveControl<'_> {
        // Checked by `new`.
        match self.execution.live.control() {
            Some(control) => control,
            None => unreachable!("a live session has a link"),
        }
    }
}

impl fmt::Debug for LiveSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveSession")
            .field("execution", &self.execution)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
