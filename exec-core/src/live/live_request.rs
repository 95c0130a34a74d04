//! The request of a live session.

use std::time::Duration;

use super::live_engine::QueueLimits;
use super::permission_policy::PermissionPolicy;
use crate::{
    Budget, Error, ExecutionContext, FollowUpRequest, LaunchRequest, NewChatRequest, RestartPolicy,
    SessionId,
};

/// How long an agent may take to open a session, if nothing else is set. The slowest of them need
/// ten seconds on a busy machine.
const OPEN_LIMIT: Duration = Duration::from_secs(60);

/// Opens a live session: one process for many turns; see
/// [`ExecutionService::open_live`](crate::ExecutionService::open_live).
///
/// ```
/// use std::time::Duration;
/// use exec_core::{ExecutionContext, LiveRequest, PermissionPolicy};
///
/// let context = ExecutionContext::for_workspace("claude-code", "/tmp")?;
/// let request = LiveRequest::new(context)
///     .policy(PermissionPolicy::default().deadline(Duration::from_secs(60)))
///     .queue_messages(10);
/// # Ok::<(), exec_core::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is opened until `open_live`"]
pub struct LiveRequest {
    pub(crate) context: ExecutionContext,
    pub(crate) session_id: Option<SessionId>,
    pub(crate) options: LiveOptions,
}

/// The options that a resumed session inherits.
#[derive(Clone, Debug)]
pub(crate) struct LiveOptions {
    pub(crate) policy: Option<PermissionPolicy>,
    pub(crate) queue: QueueLimits,
    pub(crate) open_limit: Duration,
    pub(crate) budgets: Vec<Budget>,
    pub(crate) restart: Option<RestartPolicy>,
}

impl LiveRequest {
    /// A new session.
    pub fn new(context: ExecutionContext) -> Self {
        Self {
            context,
            session_id: None,
            options: LiveOptions {
                policy: None,
                queue: QueueLimits::default(),
                open_limit: OPEN_LIMIT,
                budgets: Vec::new(),
                restart: None,
            },
        }
    }

    /// A session that exists, by the agent's own means. It may have been started by
    /// [`start_new_chat`](crate::ExecutionService::start_new_chat).
    pub fn resume(context: ExecutionContext, session_id: SessionId) -> Self {
        Self {
            session_id: Some(session_id),
            ..Self::new(context)
        }
    }

    /// Sets which permission requests are allowed, asked or denied; the default is the policy of
    /// the profile, or else every request is asked.
    pub fn policy(mut self, policy: PermissionPolicy) -> Self {
        self.options.policy = Some(policy);
        self
    }

    /// Sets how many messages may wait; the default is 64.
    pub fn queue_messages(mut self, messages: usize) -> Self {
        self.options.queue.messages = messages;
        self
    }

    /// Sets how many bytes the waiting messages may have; the default is 1 MiB.
    pub fn queue_bytes(mut self, bytes: usize) -> Self {
        self.options.queue.bytes = bytes;
        self
    }

    /// Sets how long the agent may take to open the session; the default is one minute.
    pub fn open_limit(mut self, limit: Duration) -> Self {
        self.options.open_limit = limit;
        self
    }

    /// Adds a budget. All budgets of a request hold; a prompt is a turn. A prompt for which nothing
    /// is left is refused with [`Error::BudgetExhausted`].
    pub fn budget(mut self, budget: Budget) -> Self {
        self.options.budgets.push(budget);
        self
    }

    /// Opens the session again when its process dies; the default is not to. See [`RestartPolicy`] for
    /// the failures that are restarted; [`LiveSession::restarted`](crate::LiveSession::restarted) gives
    /// the handle of the new process.
    ///
    /// Messages that wait are delivered to the new process, even if the last handle of the session was
    /// dropped meanwhile. Nothing else is sent: the turn that ran is
    /// [uncertain](crate::TurnOutcome::Uncertain), and the caller decides how to go on.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_folder, service) = doctest::live_service();
    /// # let context = doctest::request("").context;
    /// use exec_core::{LiveRequest, RestartPolicy};
    ///
    /// let request = LiveRequest::new(context).restart(RestartPolicy::new());
    /// let session = service.open_live(request).await?;
    /// // … in the loop that shows the events, after the last one:
    /// session.close().await?;
    /// assert!(session.restarted().await.is_none(), "it was closed");
    /// # Ok(())
    /// # }
    /// ```
    pub fn restart(mut self, policy: RestartPolicy) -> Self {
        self.options.restart = Some(policy);
        self
    }

    /// A request without a text: the prompts follow.
    pub(crate) fn launch_request(self) -> Result<LaunchRequest, Error> {
        let Self {
            context,
            session_id,
            options,
        } = self;
        let mut request = match session_id {
            None => LaunchRequest::try_from(NewChatRequest {
                context,
                prompt: String::new(),
            }),
            Some(session_id) => LaunchRequest::try_from(FollowUpRequest {
                context,
                session_id,
                message: String::new(),
            }),
        }?;
        request.budgets = options.budgets;
        Ok(request)
    }
}
