//! Live sessions whose process dies.
//!
//! # Theory
//!
//! A task for each supervised session waits for the end of the process, looks at the reason, waits for
//! the back-off, and opens the session again by the agent's own means. The queue moves to the new
//! process; the turn that ran is uncertain and is not sent again.
//!
//! **Invariants.**
//! - The queue is moved only when the agent has opened the same session. An agent that continues
//!   another session gets no message; [`LiveSession::resume`] has the same rule.
//! - Of a caller's [`LiveSession::resume`] and the task only one opens the session: the registry of
//!   executions refuses the other one.
//! - The task holds a handle, so what waits is not dropped during the back-off.
//! - A launch that is refused does not end the restarts: the session may be busy, or the profile may
//!   refuse it for a while. It counts as a restart, so the attempts are bounded.
//!
//! **Races.**
//! - A caller closes the session, or resumes it, during the back-off or during the opening: the chain
//!   tells the task, which ends the process that it has started. A close waits for that.
//! - A caller's resume, or a follow-up, has a process of the session when the back-off is over: the task
//!   waits for its end. A resume that succeeds takes the session from the task, one that fails does
//!   not.
//! - The service shuts down: the wait list ends the back-off, and a launch after it is refused.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::Instant;

use super::live_session::LiveSession;
use crate::process::LONGEST_LIMIT;
use crate::run::LiveExecution;
use crate::supervision::{AttemptEnd, is_restartable, next_restart, until_ended};
use crate::{
    Error, Execution, ExitReport, FailureKind, RestartPolicy, StoppedBy, WaitReason, Watchdog,
};

impl LiveSession {
    /// Waits until the session has got another process, by its
    /// [restart policy](crate::LiveRequest::restart) or by [`resume`](Self::resume), and returns its
    /// handle. `None` if none follows: the session has no policy, was closed or stopped, or the policy
    /// has given up.
    ///
    /// Turns of messages that wait go on by themselves. Events and new prompts need the new handle.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future has no effect.
    pub async fn restarted(&self) -> Option<Self> {
        let chain = &self.link().chain;
        let live = chain.next_after(&self.execution().live).await?;
        Self::new(self.service().clone(), Execution { live })
    }

    /// Makes this the latest process of its session, and replaces it when it dies if there is a policy.
    pub(crate) fn supervise(&self) {
        let link = self.link();
        let policy = link.options.restart.clone();
        let live = &self.execution().live;
        link.chain.set_latest(live, policy.is_some());
        self.keep();
        if let Some(policy) = policy {
            tokio::spawn(keep_alive(self.clone(), policy));
        }
    }
}

async fn keep_alive(mut session: LiveSession, policy: RestartPolicy) {
    let mut restarts = VecDeque::new();
    while let Some(next) = next_session(&session, &policy, &mut restarts).await {
        session = next;
    }
    let chain = Arc::clone(&session.link().chain);
    chain.end_with(&session.execution().live);
}

/// Waits for the end of the process and opens the session again; `None` if the session must not be
/// opened again.
async fn next_session(
    session: &LiveSession,
    policy: &RestartPolicy,
    restarts: &mut VecDeque<Instant>,
) -> Option<LiveSession> {
    let live = &session.execution().live;
    let chain = &session.link().chain;
    let exit = session.execution().wait().await.ok()?;
    let session_id = session.session_id();
    let mut end = end_of(live, &exit);
    // The agent must know the session, and it must be the one that was asked for.
    if !live.is_session_known() || live.continues_another_session() {
        return None;
    }
    let mut is_refused = false;
    loop {
        if !is_restartable(&end) {
            return None;
        }
        let Some(delay) = next_restart(policy, restarts) else {
            tracing::warn!(%session_id, "too many restarts, giving up");
            return None;
        };
        let delay = match is_refused {
            true => policy.longest_delay(),
            false => delay,
        };
        let waits = &session.service().inner().waits;
        let ticket = waits.ticket(&session_id, &live.context.profile_label);
        let at = SystemTime::now() + delay.min(LONGEST_LIMIT);
        ticket.wait_because(WaitReason::Restart { at });
        let sleeping = tokio::time::sleep(delay.min(LONGEST_LIMIT));
        tokio::select! {
            slept = until_ended(&ticket, sleeping) => slept.ok()?,
            () = chain.ended_with(live) => return None,
        }
        if let Some(other) = session.service().execution(&session_id) {
            tokio::select! {
                ended = until_ended(&ticket, other.wait()) => drop(ended.ok()?),
                () = chain.ended_with(live) => return None,
            }
        }
        drop(ticket);
        let opening = chain.begin_opening(live)?;
        let opened = tokio::select! {
            biased;
            () = chain.ended_with(live) => None,
            opened = session.open_again() => Some(opened),
        };
        let Some(opened) = opened else {
            // The dropped opening has asked its process to end. Of a session that a caller has
            // resumed, there is none: the registry has refused it.
            if chain.is_latest(live)
                && let Some(left) = session.service().execution(&session_id)
            {
                end_process(&left).await;
            }
            return None;
        };
        match opened {
            Ok(next) => {
                // First: a caller that sees the end of a waiting turn finds the new handle.
                if !opening.succeed(&next.execution().live) {
                    end_process(next.execution()).await;
                    return None;
                }
                next.keep();
                next.take_over(session);
                return Some(next);
            }
            Err(Error::NotOpened { failure, .. }) => {
                // Not its message: output of the agent does not go into the trace.
                let class = failure.kind.name();
                tracing::warn!(%session_id, class, "cannot restart the agent");
                end = AttemptEnd::Failed {
                    kind: failure.kind,
                    has_progressed: false,
                };
                is_refused = false;
            }
            Err(error) => {
                tracing::warn!(%session_id, %error, "cannot restart the agent");
                if is_final(&error) {
                    return None;
                }
                is_refused = true;
            }
        }
    }
}

/// Whether a later launch would be refused, too.
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::Cancelled { .. }
            | Error::ShuttingDown
            | Error::BudgetExhausted { .. }
            | Error::StillAlive { .. }
    )
}

async fn end_process(execution: &Execution) {
    if let Err(error) = execution.stop().await {
        let session_id = execution.session_id();
        tracing::warn!(%session_id, %error, "cannot end the agent of a restart that was given up");
    }
}

/// How the process ended, as far as it decides about the next one.
///
/// A live agent has no reason to end by itself, so an exit with code 0 that was not asked for is a
/// failure, too.
fn end_of(live: &LiveExecution, exit: &ExitReport) -> AttemptEnd {
    let asked = live.stop_asked.borrow().map(|request| request.by);
    match asked {
        Some(StoppedBy::Watchdog(Watchdog::NoOutput)) => return AttemptEnd::Silent,
        None | Some(StoppedBy::Disconnected) => {}
        Some(_) => return AttemptEnd::Done,
    }
    let class = |kind: &FailureKind| *kind != FailureKind::Agent;
    let known = exit.failure.as_ref().map(|failure| failure.kind.clone());
    let in_turn = || live.control()?.turn_failure();
    let kind = known.filter(class).or_else(in_turn);
    AttemptEnd::Failed {
        kind: kind.unwrap_or(FailureKind::Agent),
        // A signal of the stop says nothing about the agent.
        has_progressed: (asked.is_none() && exit.signal.is_some()) || live.run().has_answered(),
    }
}
