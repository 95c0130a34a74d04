//! Opening live sessions, and follow-ups to them.

use std::time::Duration;

use super::execution_service::{ExecutionService, Purpose};
use crate::live::LiveLink;
use crate::process::deadline_after;
use crate::run::{LiveStart, StopManner};
use crate::{
    Error, Execution, ExecutionContext, ExecutionKind, ExecutionResult, Failure, FailureKind,
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
        self.open_numbered(request, 0).await
    }

    /// As [`open_live`](Self::open_live), for a session that continues another one.
    pub(crate) async fn open_live_after(
        &self,
        request: LiveRequest,
        ended: &LiveLink,
    ) -> Result<LiveSession, Error> {
        self.open_numbered(request, ended.last_message()).await
    }

    async fn open_numbered(
        &self,
        request: LiveRequest,
        last_message: u64,
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
            last_message,
        };
        let execution = self
            .inner()
            .start(checked, parameters, None, admission, Some(live))?;
        let guard = StopOnDrop(Some(execution.clone()));
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
            Err(_) => Some(timed_out(limit)),
        };
        let live = &execution.live;
        live.ask_to_stop(StoppedBy::Disconnected, StopManner::Ladder);
        execution.stopped().await?;
        let exit = execution.wait().await?;
        // A failure with a class, from standard error, says more than a timeout.
        let known = exit.failure.clone();
        let classed = known.as_ref().filter(|f| f.kind != FailureKind::Agent);
        let failure = match (failure, classed) {
            (Some(failure), None) => failure,
            (Some(failure), Some(_)) if failure.kind != FailureKind::Agent => failure,
            (_, Some(classed)) => classed.clone(),
            (None, None) => known.unwrap_or_else(|| {
                let message = match (exit.code, exit.signal) {
                    (Some(code), _) => format!("it ended with exit code {code}"),
                    (None, Some(signal)) => format!("it was ended by signal {signal}"),
                    (None, None) => "it ended".to_owned(),
                };
                Failure::new(FailureKind::Agent, message)
            }),
        };
        Err(Error::NotOpened {
            label: execution.context().profile_label.clone(),
            failure,
            stderr_tail: exit.stderr_tail.clone(),
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

fn timed_out(limit: Duration) -> Failure {
    let message = format!("it was not ready within {limit:?}");
    Failure::new(FailureKind::Agent, message)
}

/// Stops the execution of a session whose opening was cancelled.
struct StopOnDrop(Option<Execution>);

impl StopOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some(execution) = &self.0 {
            let live = &execution.live;
            live.ask_to_stop(StoppedBy::Caller, StopManner::Ladder);
        }
    }
}
