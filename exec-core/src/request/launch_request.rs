//! The requests of a launch: new chat, follow-up, and the checked form of both.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Budget, Error, ExecutionContext, SessionId};

/// Starts a new session.
///
/// ```
/// use exec_core::{ExecutionContext, NewChatRequest};
///
/// let request = NewChatRequest {
///     context: ExecutionContext::for_workspace("claude-code", "/tmp")?,
///     prompt: "Fix the failing test".to_owned(),
/// };
/// # Ok::<(), exec_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct NewChatRequest {
    /// The profile, project and workspace.
    pub context: ExecutionContext,
    /// The first prompt.
    pub prompt: String,
}

/// Sends a message to an existing session.
///
/// ```
/// use exec_core::{ExecutionContext, FollowUpRequest, SessionId};
///
/// # let session_id = SessionId::mint("CLAUDE_CODE", "L3RtcA")?;
/// let request = FollowUpRequest {
///     context: ExecutionContext::for_workspace("claude-code", "/tmp")?,
///     session_id, // of the result of the first request
///     message: "Now the other one".to_owned(),
/// };
/// # Ok::<(), exec_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct FollowUpRequest {
    /// The same profile, project and workspace as in the first request.
    pub context: ExecutionContext,
    /// The session.
    pub session_id: SessionId,
    /// The message.
    pub message: String,
}

/// Whether an execution begins a session or continues one.
///
/// ```
/// use exec_core::ExecutionKind;
///
/// assert_eq!(ExecutionKind::FollowUp.to_string(), "follow-up");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExecutionKind {
    /// The first prompt of a session.
    New,
    /// A further message.
    FollowUp,
}

impl ExecutionKind {
    /// `new` or `follow-up`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::FollowUp => "follow-up",
        }
    }
}

impl fmt::Display for ExecutionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A request with its session id: what a profile turns into process parameters.
///
/// [`ExecutionService::launch`](crate::ExecutionService::launch) converts requests by itself. The
/// conversion is for [budgets](Self::budget) and for tests of profiles:
///
/// ```
/// use exec_core::{ExecutionContext, LaunchRequest, NewChatRequest};
///
/// let request = LaunchRequest::try_from(NewChatRequest {
///     context: ExecutionContext::for_workspace("codex", "/tmp")?,
///     prompt: "hello".to_owned(),
/// })?;
/// assert_eq!(request.session_id.executor_type(), "CODEX");
/// assert_eq!(request.text, "hello");
/// # Ok::<(), exec_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaunchRequest {
    /// New or follow-up.
    pub kind: ExecutionKind,
    /// The profile, project and workspace.
    pub context: ExecutionContext,
    /// A minted id for a new chat; the id of the request for a follow-up.
    pub session_id: SessionId,
    /// The prompt or the message.
    pub text: String,
    pub(crate) budgets: Vec<Budget>,
}

impl LaunchRequest {
    /// Adds a budget. All budgets of a request hold; of two limits of the same scope, the lower one.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budgets.push(budget);
        self
    }
}

impl TryFrom<NewChatRequest> for LaunchRequest {
    type Error = Error;

    /// Mints the session id.
    fn try_from(request: NewChatRequest) -> Result<Self, Error> {
        let NewChatRequest { context, prompt } = request;
        Ok(Self {
            kind: ExecutionKind::New,
            session_id: SessionId::mint(&context.executor_type, &context.actual_project_id)?,
            context,
            text: prompt,
            budgets: Vec::new(),
        })
    }
}

impl TryFrom<FollowUpRequest> for LaunchRequest {
    type Error = Error;

    /// Refuses a session of another executor type or project.
    fn try_from(request: FollowUpRequest) -> Result<Self, Error> {
        let FollowUpRequest {
            context,
            session_id,
            message,
        } = request;
        if session_id.executor_type() != context.executor_type
            || session_id.actual_project_id() != context.actual_project_id
        {
            return Err(Error::ForeignSession {
                session: session_id,
                executor_type: context.executor_type,
                actual_project_id: context.actual_project_id,
            });
        }
        Ok(Self {
            kind: ExecutionKind::FollowUp,
            context,
            session_id,
            text: message,
            budgets: Vec::new(),
        })
    }
}

/// Leaves out the prompt.
impl fmt::Debug for NewChatRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewChatRequest")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

/// Leaves out the message.
impl fmt::Debug for FollowUpRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FollowUpRequest")
            .field("context", &self.context)
            .field("session_id", &self.session_id)
            .finish_non_exhaustive()
    }
}

/// Leaves out the text.
impl fmt::Debug for LaunchRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchRequest")
            .field("kind", &self.kind)
            .field("context", &self.context)
            .field("session_id", &self.session_id)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follow_up_to_another_project_is_refused() {
        let refused = LaunchRequest::try_from(FollowUpRequest {
            context: ExecutionContext::for_workspace("a", "/tmp").unwrap(),
            session_id: SessionId::new("A", "b3RoZXI", "1").unwrap(),
            message: "hi".into(),
        });
        assert!(
            matches!(refused, Err(Error::ForeignSession { .. })),
            "{refused:?}"
        );
    }

    #[test]
    fn debug_shows_no_prompt() {
        let request = NewChatRequest {
            context: ExecutionContext::for_workspace("a", "/tmp").unwrap(),
            prompt: "very private".into(),
        };
        let launch = LaunchRequest::try_from(request.clone()).unwrap();
        let shown = format!("{request:?} {launch:?}");
        assert!(!shown.contains("very private"), "{shown}");
    }
}
