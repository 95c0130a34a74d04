//! Opening live sessions, and follow-ups to them.

use std::sync::Arc;
use std::time::Duration;

use super::execution_service::{ExecutionService, Purpose};
use super::stop_on_drop::StopOnDrop;
use crate::live::{LiveLink, SessionChain};
use crate::process::deadline_after;
use crate::run::{LiveStart, StopManner};
use crate::{
    Error, ExecutionContext, ExecutionKind, ExecutionResult, ExitReport, Failure, FailureKind,
    FollowUpRequest, LiveRequest, LiveSession, SessionId, StoppedBy,
};

impl ExecutionService {
    /// Starts an agent for many turns, and waits until it is ready for prompts.
    ///
    /// The context and the profile are those of every launch. A resumed session is opened by the
    /// agent's own means; it may have been started by [`start_new_chat`](Self::start_new_chat), and it
    /// can be continued by [`send_follow_up`](Self::send_follow_up).
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_folder, service) = doctest::live_service();
    /// # let context = doctest::request("").context;
    /// use exec_core::LiveRequest;
    ///
    /// let session = service.open_live(LiveRequest::new(context)).await?;
    /// let turn = session.prompt("hello")?;
    /// println!("{}", turn.ended().await?.text);
    /// session.close().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - As [`launch`](Self::launch), except that there is no prompt.
    /// - [`Error::NoLiveProtocol`] if the profile has none.
    /// - [`Error::NotOpened`] if the agent ends, refuses, or is not ready in time. Its process was
    ///   stopped.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped, a process that was started is stopped.
    pub async fn open_live(&self, request: LiveRequest) -> Result<LiveSession, Error> {
        let session = self.open_process(request, None).await?;
        session.supervise();
        Ok(session)
    }

    /// As [`open_live`](Self::open_live) without a restart. `ended`: the process that this one
    /// continues.
    pub(crate) async fn open_process(
        &self,
        request: LiveRequest,
        ended: Option<&LiveLink>,
    ) -> Result<LiveSession, Error> {
        let options = request.options.clone();
        let limit = options.open_limit;
        let mut launch = request.launch_request()?;
        if launch.kind == ExecutionKind::FollowUp {
            self.inner().recall(&mut launch).await;
        }
        let mut checked = self.inner().check(launch, Purpose::Live)?;
        let admission = self.inner().admit(&mut checked, Purpose::Live).await?;
        let deadline = deadline_after(limit);
        let parameters = checked.live_parameters()?;
        if parameters.sandbox.is_some() {
            self.inner().try_bubblewrap().await?;
        }
        let live = LiveStart {
            options,
            last_message: ended.map_or(0, LiveLink::last_message),
            chain: ended.map_or_else(SessionChain::new, |ended| Arc::clone(&ended.chain)),
        };
        let execution = self
            .inner()
            .start(checked, parameters, None, admission, Some(live))?;
        let guard = StopOnDrop::new(&execution);
        let opened = match execution.live.control() {
            Some(control) => tokio::time::timeout_at(deadline, control.opened()).await,
            None => Ok(Err(None)),
        };
        let failure = match opened {
            Ok(Ok(())) => {
                guard.disarm();
                return LiveSession::new(self.clone(), execution).ok_or(Error::ShuttingDown);
            }
            Ok(Err(failure)) => failure,
            Err(_) => {
                let control = execution.live.control();
                let reported = control.and_then(|control| control.open_failure());
                reported.or_else(|| Some(timed_out(limit)))
            }
        };
        let live = &execution.live;
        live.ask_to_stop(StoppedBy::Disconnected, StopManner::Ladder);
        execution.stopped().await?;
        let exit = execution.wait().await?;
        Err(Error::NotOpened {
            label: execution.context().profile_label.clone(),
            failure: open_failure(failure, &exit),
            exit,
        })
    }

    /// A handle of a session that is live in this service.
    pub fn live_session(&self, session_id: &SessionId) -> Option<LiveSession> {
        LiveSession::new(self.clone(), self.execution(session_id)?)
    }

    /// Gives the message to the live process of the session; `None` if there is none.
    pub(super) fn follow_up_live(
        &self,
        request: &FollowUpRequest,
    ) -> Result<Option<ExecutionResult>, Error> {
        let Some(session) = self.live_session(&request.session_id) else {
            return Ok(None);
        };
        if let Some(what) = difference(session.execution().context(), &request.context) {
            return Err(Error::LiveElsewhere {
                session: session.session_id(),
                what,
            });
        }
        match session.prompt(&request.message) {
            Ok(_) => Ok(Some(ExecutionResult {
                kind: ExecutionKind::FollowUp,
                ..session.execution().result()
            })),
            // It was not delivered: a new process may take it.
            Err(Error::SessionEnded { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn difference(live: &ExecutionContext, asked: &ExecutionContext) -> Option<&'static str> {
    let same_folder = live.workspace_path == asked.workspace_path
        || std::path::absolute(&asked.workspace_path).ok().as_deref() == Some(&live.workspace_path);
    if live.profile_label != asked.profile_label {
        Some("profile")
    } else if live.variant_label != asked.variant_label {
        Some("variant")
    } else if !same_folder {
        Some("workspace")
    } else {
        None
    }
}

/// Why the session was not opened. A failure with a class, from standard error, says more than one
/// without, such as a timeout.
fn open_failure(reported: Option<Failure>, exit: &ExitReport) -> Failure {
    let has_class = |failure: &&Failure| failure.kind != FailureKind::Agent;
    let found = [reported.as_ref(), exit.failure.as_ref()];
    let mut found = found.into_iter().flatten();
    let classed = found.clone().find(has_class);
    if let Some(failure) = classed.or_else(|| found.next()) {
        return failure.clone();
    }
    let message = match (exit.code, exit.signal) {
        (Some(code), _) => format!("it ended with exit code {code}"),
        (None, Some(signal)) => format!("it was ended by signal {signal}"),
        (None, None) => "it ended".to_owned(),
    };
    Failure::new(FailureKind::Agent, message)
}

fn timed_out(limit: Duration) -> Failure {
    let message = format!("it was not ready within {limit:?}");
    Failure::new(FailureKind::Agent, message)
}
