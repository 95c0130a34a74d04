//! From one attempt to the next: restarts, and waits for limits.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::restart_policy::RestartPolicy;
use crate::admission::{WaitList, WaitTicket};
use crate::limits::{CredentialHolds, HoldPass};
use crate::process::LONGEST_LIMIT;
use crate::{Error, FailureKind, LimitPolicy, SessionId, WaitReason};

/// What the loop runs: executions, or turns of a live session.
pub(crate) trait Attempts: Send {
    type Result: Send;

    /// Sends the prompt (`None`) or a message to the session, and waits for the end.
    fn attempt(
        &mut self,
        message: Option<&str>,
        pass: &mut Option<HoldPass>,
    ) -> impl Future<Output = Result<Attempt<Self::Result>, Error>> + Send;
}

/// An attempt that has ended.
pub(crate) struct Attempt<R> {
    pub(crate) result: R,
    pub(crate) end: AttemptEnd,
    /// Whether a message can continue it.
    pub(crate) is_resumable: bool,
    pub(crate) session_id: SessionId,
}

/// How an attempt ended, as far as it decides about the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttemptEnd {
    /// Successful, or stopped on purpose.
    Done,
    /// Stopped because it was silent.
    Silent,
    Failed {
        kind: FailureKind,
        /// The model has answered, or a signal has ended the process.
        has_progressed: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum NextStep {
    Return,
    WaitForLimit { resets_at: Option<SystemTime> },
    Restart,
}

pub(crate) struct ResumeLoop<'a> {
    pub(crate) limits: Option<&'a LimitPolicy>,
    pub(crate) restart: Option<&'a RestartPolicy>,
    pub(crate) holds: &'a CredentialHolds,
    pub(crate) waits: &'a std::sync::Arc<WaitList>,
    pub(crate) credential: &'a str,
    pub(crate) profile_label: &'a str,
}

impl ResumeLoop<'_> {
    /// Runs attempts until one is final. Returns the results of all, the final one last.
    pub(crate) async fn run<A: Attempts>(
        &self,
        session_id: &SessionId,
        attempts: &mut A,
    ) -> Result<Vec<A::Result>, Error> {
        let mut results = Vec::new();
        let mut message: Option<&str> = None;
        let mut session_id = session_id.clone();
        let mut restarts: VecDeque<Instant> = VecDeque::new();
        let mut waited = Duration::ZERO;
        loop {
            let ticket = self.waits.ticket(&session_id, self.profile_label);
            let mut pass = None;
            if let Some(policy) = self.limits {
                let begin = Instant::now();
                let left = policy.max_wait.saturating_sub(waited).min(LONGEST_LIMIT);
                let passing = self.holds.pass(self.credential, &ticket, begin + left);
                match until_ended(&ticket, passing).await {
                    Ok(Some(passed)) => pass = Some(passed),
                    // The first attempt is made anyway: its result tells the limit.
                    Ok(None) if results.is_empty() => {}
                    Ok(None) => return Ok(results),
                    Err(error) if results.is_empty() => return Err(error),
                    Err(_) => return Ok(results),
                }
                waited += begin.elapsed();
            }
            drop(ticket);
            let attempted = attempts.attempt(message, &mut pass).await;
            let Attempt {
                result,
                end,
                is_resumable,
                session_id: current,
            } = match attempted {
                Ok(attempt) => attempt,
                // Not a launch that was refused: processes of this attempt are left.
                Err(error @ Error::StillAlive { .. }) => return Err(error),
                // The refused attempt has not changed the session, so the last result still has the
                // reason of the failure.
                Err(error) if results.is_empty() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "cannot resume the session");
                    return Ok(results);
                }
            };
            results.push(result);
            session_id = current;
            match self.next_step(&end, is_resumable) {
                NextStep::Return => {
                    if let Some(pass) = &mut pass
                        && matches!(end, AttemptEnd::Done)
                    {
                        pass.progress();
                    }
                    return Ok(results);
                }
                NextStep::WaitForLimit { resets_at } => {
                    let Some(policy) = self.limits else {
                        return Ok(results);
                    };
                    if let Some(pass) = &mut pass {
                        pass.limited(policy, resets_at);
                    }
                    message = Some(&policy.message);
                    if !is_resumable {
                        return Ok(results);
                    }
                }
                NextStep::Restart => {
                    let Some(policy) = self.restart else {
                        return Ok(results);
                    };
                    drop(pass);
                    let Some(delay) = next_restart(policy, &mut restarts) else {
                        tracing::warn!(%session_id, "too many restarts, giving up");
                        return Ok(results);
                    };
                    let ticket = self.waits.ticket(&session_id, self.profile_label);
                    let at = SystemTime::now() + delay.min(LONGEST_LIMIT);
                    ticket.wait_because(WaitReason::Restart { at });
                    let sleeping = tokio::time::sleep(delay);
                    if until_ended(&ticket, sleeping).await.is_err() {
                        return Ok(results);
                    }
                    message = Some(&policy.message);
                }
            }
        }
    }

    /// The table of [`RestartPolicy`] and [`LimitPolicy`].
    fn next_step(&self, end: &AttemptEnd, is_resumable: bool) -> NextStep {
        if self.limits.is_some()
            && let AttemptEnd::Failed { kind, .. } = end
        {
            // The hold of the credential is closed even if this session cannot be resumed.
            match kind {
                FailureKind::Limited { resets_at, .. } => {
                    return NextStep::WaitForLimit {
                        resets_at: *resets_at,
                    };
                }
                FailureKind::Overloaded => return NextStep::WaitForLimit { resets_at: None },
                _ => {}
            }
        }
        match self.restart.is_some() && is_resumable && is_restartable(end) {
            true => NextStep::Restart,
            false => NextStep::Return,
        }
    }
}

/// The table of [`RestartPolicy`].
pub(crate) fn is_restartable(end: &AttemptEnd) -> bool {
    match end {
        AttemptEnd::Done => false,
        AttemptEnd::Silent => true,
        AttemptEnd::Failed {
            kind,
            has_progressed,
        } => match kind {
            FailureKind::Overloaded | FailureKind::Network => true,
            FailureKind::Agent => *has_progressed,
            FailureKind::Limited { .. }
            | FailureKind::Authentication
            | FailureKind::ContextFull
            | FailureKind::SessionGone => false,
        },
    }
}

/// The delay of the next restart; `None` after too many.
pub(crate) fn next_restart(
    policy: &RestartPolicy,
    restarts: &mut VecDeque<Instant>,
) -> Option<Duration> {
    let now = Instant::now();
    while let Some(first) = restarts.front()
        && now.duration_since(*first) >= policy.window
    {
        restarts.pop_front();
    }
    if restarts.len() >= policy.max_restarts {
        return None;
    }
    let earlier = u32::try_from(restarts.len()).unwrap_or(u32::MAX);
    restarts.push_back(now);
    Some(policy.backoff.delay(earlier))
}

/// The error if the wait is cancelled or the service shuts down.
pub(crate) async fn until_ended<T>(
    ticket: &WaitTicket,
    waiting: impl Future<Output = T>,
) -> Result<T, Error> {
    tokio::select! {
        reached = waiting => Ok(reached),
        error = ticket.ended() => Err(error),
    }
}

#[cfg(test)]
#[path = "resume_loop_tests.rs"]
mod tests;
