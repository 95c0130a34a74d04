use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::Error;

/// The profile, project and workspace of a request.
///
/// ```
/// use exec_core::ExecutionContext;
///
/// let context = ExecutionContext::for_workspace("claude-code", "/Users/nogataka/dev/project")?
///     .with_variant("plan");
/// assert_eq!(context.executor_type, "CLAUDE_CODE");
/// assert_eq!(context.actual_project_id, "L1VzZXJzL25vZ2F0YWthL2Rldi9wcm9qZWN0");
/// assert_eq!(context.project_id, "CLAUDE_CODE:L1VzZXJzL25vZ2F0YWthL2Rldi9wcm9qZWN0");
/// # Ok::<(), exec_core::Error>(())
/// ```
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
    /// The trace that the execution belongs to, in the form of W3C Trace Context. The agent gets it
    /// as `TRACEPARENT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

impl ExecutionContext {
    /// Derives the ids: the executor type is the label in upper snake case, the actual project id
    /// is the base64url of the absolute path.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a relative path cannot be made absolute. The launch checks whether the
    /// folder exists.
    pub fn for_workspace(
        profile_label: &str,
        workspace_path: impl AsRef<Path>,
    ) -> Result<Self, Error> {
        let given = workspace_path.as_ref();
        let absolute = std::path::absolute(given).map_err(Error::io("use the workspace", given))?;
        // Drops a slash at the end: `/a/b` and `/a/b/` are one project.
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
            traceparent: None,
        })
    }

    /// The same context with a variant of the profile.
    #[must_use]
    pub fn with_variant(mut self, variant_label: impl Into<String>) -> Self {
        self.variant_label = Some(variant_label.into());
        self
    }

    /// The same context as a part of a trace. The launch checks the form.
    #[must_use]
    pub fn with_traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.traceparent = Some(traceparent.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_folder_are_one_project() {
        let context = |path| ExecutionContext::for_workspace("a", path).unwrap();
        assert_eq!(context("/tmp/x/"), context("/tmp/x"));
        assert_eq!(context("/tmp/./x"), context("/tmp/x"));
    }

    #[test]
    fn the_executor_type_has_no_colon() {
        let context = ExecutionContext::for_workspace("my:agent 2", "/tmp").unwrap();
        assert_eq!(context.executor_type, "MY_AGENT_2");
    }
}
