use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use async_trait::async_trait;

use crate::SessionId;

/// Reads the agent's own session id from its standard output.
///
/// It gets every whole line of standard output, without the line end, until it answers once.
/// It does not block and does not panic.
pub trait SessionIdResolver: Send {
    /// The id, if this line tells it.
    fn handle_line(&mut self, line: &str) -> Option<String>;
}

impl<F: FnMut(&str) -> Option<String> + Send> SessionIdResolver for F {
    fn handle_line(&mut self, line: &str) -> Option<String> {
        self(line)
    }
}

/// Finds the agent's own session id outside of its output: in practice, in a file it writes.
///
/// 1. One value serves one launch. It is made before the process is started, so it can note what
///    was there before.
/// 2. `resolve_session_id` runs until it answers, until another strategy answers first, until the
///    child ends, or until the timeout: then its future is dropped. `None` means that it gave up.
/// 3. When the child ends without an id known, [`last_look`](Self::last_look) is asked once.
/// 4. While one launch of a profile in a workspace is unresolved, no other launch of the same
///    profile in the same workspace looks at the file system: the service keeps them apart, so
///    that whatever appears belongs to this launch.
#[async_trait]
pub trait SessionIdLookup: Send {
    /// Waits for the id.
    ///
    /// # Cancel safety
    /// The future is dropped whenever the answer is no longer needed.
    async fn resolve_session_id(&mut self, context: &SessionResolutionContext) -> Option<String>;

    /// One look without waiting, for a child that ended before the next turn of the scan.
    fn last_look(&mut self, _context: &SessionResolutionContext) -> Option<String> {
        None
    }
}

/// What a [`SessionIdLookup`] may know about the launch.
#[derive(Clone)]
#[non_exhaustive]
pub struct SessionResolutionContext {
    /// The id in use until another one is found.
    pub session_id: SessionId,
    /// Where the agent runs.
    pub workspace_path: PathBuf,
    /// Taken right before the process was started.
    pub started_at: SystemTime,
    /// The child's process id.
    pub process_id: u32,
    /// The child's environment (a profile may give its agent another `HOME`).
    pub env: BTreeMap<OsString, OsString>,
}

impl SessionResolutionContext {
    /// A context for a launch that is about to happen, with an empty environment.
    pub fn new(
        session_id: SessionId,
        workspace_path: impl Into<PathBuf>,
        started_at: SystemTime,
        process_id: u32,
    ) -> Self {
        Self {
            session_id,
            workspace_path: workspace_path.into(),
            started_at,
            process_id,
            env: BTreeMap::new(),
        }
    }

    /// A variable of the child's environment.
    pub fn env(&self, name: &str) -> Option<&OsStr> {
        self.env.get(OsStr::new(name)).map(OsString::as_os_str)
    }
}

impl fmt::Debug for SessionResolutionContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionResolutionContext")
            .field("session_id", &self.session_id)
            .field("workspace_path", &self.workspace_path)
            .field("started_at", &self.started_at)
            .field("process_id", &self.process_id)
            .finish_non_exhaustive()
    }
}
