use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::{Error, SessionId};

/// Who runs where: the part that every request has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutionContext {
    /// The profile, such as `claude-code`.
    pub profile_label: String,
    /// The variant of the profile, such as `plan`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant_label: Option<String>,
    /// The first part of the session ids, such as `CLAUDE_CODE`.
    pub executor_type: String,
    /// The compound project id: `{executor_type}:{actual_project_id}`.
    pub project_id: String,
    /// The second part of the session ids.
    pub actual_project_id: String,
    /// The agent's working directory.
    pub workspace_path: PathBuf,
}

impl ExecutionContext {
    /// Fills in the ids: the type is the label in upper snake case, the actual project id is the
    /// base64url of the absolute path, the project id is both.
    ///
    /// ```
    /// use exec_core::ExecutionContext;
    ///
    /// let context = ExecutionContext::for_workspace("claude-code", "/Users/nogataka/dev/project")?;
    /// assert_eq!(context.executor_type, "CLAUDE_CODE");
    /// assert_eq!(context.actual_project_id, "L1VzZXJzL25vZ2F0YWthL2Rldi9wcm9qZWN0");
    /// assert_eq!(context.project_id, "CLAUDE_CODE:L1VzZXJzL25vZ2F0YWthL2Rldi9wcm9qZWN0");
    /// # Ok::<(), exec_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Workspace`] if a relative path cannot be made absolute. Whether the folder exists
    /// is asked at the launch.
    pub fn for_workspace(profile_label: &str, workspace_path: impl AsRef<Path>) -> Result<Self> {
        let given = workspace_path.as_ref();
        let absolute = std::path::absolute(given).map_err(|source| Error::Workspace {
            path: given.to_owned(),
            source,
        })?;
        // Drops a slash at the end, so that `/a/b` and `/a/b/` are one project.
        let workspace_path: PathBuf = absolute.components().collect();
        let executor_type: String = profile_label
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() {
                    c.to_ascii_uppercase()
                } else {
                    '_'
                }
            })
            .collect();
        let actual_project_id = URL_SAFE_NO_PAD.encode(workspace_path.as_os_str().as_bytes());
        Ok(Self {
            profile_label: profile_label.to_owned(),
            variant_label: None,
            project_id: format!("{executor_type}:{actual_project_id}"),
            executor_type,
            actual_project_id,
            workspace_path,
        })
    }

    /// The same context with a variant of the profile.
    #[must_use]
    pub fn with_variant(mut self, variant_label: impl Into<String>) -> Self {
        self.variant_label = Some(variant_label.into());
        self
    }
}

/// Starts a new session.
#[derive(Clone, PartialEq, Eq)]
pub struct NewChatRequest {
    /// Who runs where.
    pub context: ExecutionContext,
    /// The first prompt.
    pub prompt: String,
}

/// Sends a message to a session that exists.
#[derive(Clone, PartialEq, Eq)]
pub struct FollowUpRequest {
    /// Who runs where: the workspace must be the one of the first prompt.
    pub context: ExecutionContext,
    /// The session.
    pub session_id: SessionId,
    /// The message.
    pub message: String,
}

/// Whether an execution begins a session or continues one.
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
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaunchRequest {
    /// New or follow-up.
    pub kind: ExecutionKind,
    /// Who runs where.
    pub context: ExecutionContext,
    /// Minted for a new chat; the session's own for a follow-up.
    pub session_id: SessionId,
    /// The prompt or the message.
    pub text: String,
}

impl TryFrom<NewChatRequest> for LaunchRequest {
    type Error = Error;

    /// Mints the session id.
    fn try_from(request: NewChatRequest) -> Result<Self> {
        let NewChatRequest { context, prompt } = request;
        Ok(Self {
            kind: ExecutionKind::New,
            session_id: SessionId::mint(&context.executor_type, &context.actual_project_id)?,
            context,
            text: prompt,
        })
    }
}

impl TryFrom<FollowUpRequest> for LaunchRequest {
    type Error = Error;

    /// Refuses a session of another kind of agent or of another project.
    fn try_from(request: FollowUpRequest) -> Result<Self> {
        let FollowUpRequest {
            context,
            session_id,
            message,
        } = request;
        if session_id.executor_type() != context.executor_type
            || session_id.actual_project_id() != context.actual_project_id
        {
            return Err(Error::ForeignSession {
                session_id,
                executor_type: context.executor_type,
                actual_project_id: context.actual_project_id,
            });
        }
        Ok(Self {
            kind: ExecutionKind::FollowUp,
            context,
            session_id,
            text: message,
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

/// An execution that was started.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExecutionResult {
    /// The session, as finally resolved.
    pub session_id: SessionId,
    /// The process that was started; `None` if it has already ended.
    pub process_id: Option<u32>,
    /// When the process was started.
    pub started_at: SystemTime,
    /// The compound project id of the request.
    pub project_id: String,
    /// New or follow-up.
    pub kind: ExecutionKind,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_folder_is_the_same_project() {
        let plain = ExecutionContext::for_workspace("a", "/tmp/x").unwrap();
        assert_eq!(
            ExecutionContext::for_workspace("a", "/tmp/x/").unwrap(),
            plain
        );
        assert_eq!(
            ExecutionContext::for_workspace("a", "/tmp/./x").unwrap(),
            plain
        );
    }

    #[test]
    fn a_label_cannot_smuggle_a_colon_into_the_type() {
        let context = ExecutionContext::for_workspace("my:agent 2", "/tmp").unwrap();
        assert_eq!(context.executor_type, "MY_AGENT_2");
    }

    #[test]
    fn follow_up_of_another_project_is_refused() {
        let context = ExecutionContext::for_workspace("a", "/tmp").unwrap();
        let session_id = SessionId::new("A", "b3RoZXI", "1").unwrap();
        let refused = LaunchRequest::try_from(FollowUpRequest {
            context,
            session_id,
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
