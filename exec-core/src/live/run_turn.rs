//! A turn that waits for usage limits.

use std::future::pending;
use std::sync::Arc;
use std::time::SystemTime;

use super::live_session::LiveSession;
use super::live_state::LiveStatus;
use super::protocol_driver::TurnOutcome;
use super::turn::TurnReport;
use crate::limits::HoldPass;
use crate::supervision::{Attempt, AttemptEnd, Attempts, ResumeLoop};
use crate::{AgentEventKind, Error, Execution, FailureKind, LimitPolicy};

impl LiveSession {
    /// Gives the agent a prompt and waits for the end of the turn. If the turn fails because of a
    /// usage limit, waits for the reset and prompts again with the message of the policy, as
    /// [`Run::wait_for_limits`](crate::Run::wait_for_limits) does for a run. Both share the
    /// hold of their credential.
    ///
    /// Returns the report of the last turn. A turn whose end is [uncertain](TurnOutcome::Uncertain)
    /// is returned: nothing is sent again.
    ///
    /// # Errors
    ///
    /// As [`prompt`](Self::prompt) and [`Turn::ended`](crate::Turn::ended), for the first prompt;
    /// [`Error::Cancelled`] and [`Error::ShuttingDown`] if the wait before it was ended.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: if the future is dropped, a prompt that was given stays given. A wait ends.
    pub async fn run_turn(
        &self,
        text: impl Into<String>,
        policy: &LimitPolicy,
    ) -> Result<Arc<TurnReport>, Error> {
        let text = text.into();
        let context = self.execution().context();
        let service = self.service().inner();
        let resume_loop = ResumeLoop {
            limits: Some(policy),
            restart: None,
            holds: &service.holds,
            waits: &service.waits,
            credential: policy
                .credential
                .as_deref()
                .unwrap_or(&context.executor_type),
            profile_label: &context.profile_label,
        };
        let mut turns = LiveTurns {
            session: self,
            text: &text,
        };
        let mut reports = resume_loop.run(&self.session_id(), &mut turns).await?;
        reports.pop().ok_or(Error::ShuttingDown)
    }
}

struct LiveTurns<'a> {
    session: &'a LiveSession,
    text: &'a str,
}

impl Attempts for LiveTurns<'_> {
    type Result = Arc<TurnReport>;

    async fn attempt(
        &mut self,
        message: Option<&str>,
        pass: &mut Option<HoldPass>,
    ) -> Result<Attempt<Arc<TurnReport>>, Error> {
        let begin = SystemTime::now();
        let turn = self.session.prompt(message.unwrap_or(self.text))?;
        let execution = self.session.execution();
        let is_probe = pass.as_ref().is_some_and(HoldPass::is_probe);
        let report = tokio::select! {
            report = turn.ended() => report?,
            // The others need not wait for the end of a turn that makes progress.
            () = progress(execution, begin), if is_probe => {
                if let Some(pass) = pass {
                    pass.progress();
                }
                turn.ended().await?
            }
        };
        let end = match &report.outcome {
            TurnOutcome::Failed { failure } => {
                let mut kind = failure.kind.clone();
                if let FailureKind::Limited { resets_at, .. } = &mut kind
                    && let LiveStatus::Limited { resets_at: known } = self.session.state().status
                {
                    *resets_at = resets_at.or(known);
                }
                AttemptEnd::Failed {
                    kind,
                    has_progressed: true,
                }
            }
            _ => AttemptEnd::Done,
        };
        Ok(Attempt {
            result: report,
            end,
            is_resumable: true,
            session_id: self.session.session_id(),
        })
    }
}

/// Returns when the agent makes progress.
async fn progress(execution: &Execution, since: SystemTime) {
    let mut events = execution.events();
    while let Some(event) = events.next().await {
        let is_progress = event.agent_events().iter().any(|event| {
            matches!(
                event.kind,
                AgentEventKind::Text { .. }
                    | AgentEventKind::Thinking { .. }
                    | AgentEventKind::ToolCall { .. }
            )
        });
        if is_progress && event.at >= since {
            return;
        }
    }
    pending::<()>().await;
}
