//! How a profile finds the agent's own session id: in the output or in a file.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use async_trait::async_trait;

use crate::SessionId;

/// Reads the agent's own session id from its standard output.
///
/// 1. It gets every complete line of standard output, without the line end, until it returns an
///    id.
/// 2. It does not block and does not panic.
///
/// A closure is a resolver:
///
/// ```
/// use exec_core::SessionIdResolver;
///
/// let mut resolver = |line: &str| line.strip_prefix("session: ").map(str::to_owned);
/// assert_eq!(resolver.handle_line("working"), None);
/// assert_eq!(resolver.handle_line("session: ses_4f").as_deref(), Some("ses_4f"));
/// ```
pub trait SessionIdResolver: Send {
    /// The id, if this line contains it.
    fn handle_line(&mut self, line: &str) -> Option<String>;
}

impl<F: FnMut(&str) -> Option<String> + Send> SessionIdResolver for F {
    fn handle_line(&mut self, line: &str) -> Option<String> {
        self(line)
    }
}

/// Finds the agent's own session id outside its output: in practice, in a file that it writes.
///
/// 1. One value serves one launch. The profile makes it before the process is started, so that it
///    can note which files exist.
/// 2. `resolve_session_id` runs until it returns an id, another source has found one, the child
///    has ended, or the timeout has passed; then its future is dropped. `None` means that it has
///    given up.
/// 3. If the child ends without a known id, [`last_look`](Self::last_look) is called once.
/// 4. Until the id of a launch is known, no other launch of the same profile looks for its id in
///    the same workspace. A new file therefore belongs to this launch.
///
/// ```
/// use async_trait::async_trait;
/// use exec_core::{SessionIdLookup, SessionResolutionContext};
///
/// /// The agent writes its id to `session.txt`.
/// struct SessionFile;
///
/// #[async_trait]
/// impl SessionIdLookup for SessionFile {
///     async fn resolve_session_id(&mut self, context: &SessionResolutionContext) -> Option<String> {
///         loop {
///             if let Some(id) = self.last_look(context) {
///                 return Some(id);
///             }
///             tokio::time::sleep(std::time::Duration::from_millis(100)).await;
///         }
///     }
///
///     fn last_look(&mut self, context: &SessionResolutionContext) -> Option<String> {
///         let text = std::fs::read_to_string(context.workspace_path.join("session.txt")).ok()?;
///         Some(text.trim().to_owned())
///     }
/// }
/// ```
#[async_trait]
pub trait SessionIdLookup: Send {
    /// Waits for the id.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the service drops the future when the id is no longer needed. An implementation
    /// must not depend on being polled to the end.
    async fn resolve_session_id(&mut self, context: &SessionResolutionContext) -> Option<String>;

    /// Looks once, without waiting, after the child has ended.
    fn last_look(&mut self, _context: &SessionResolutionContext) -> Option<String> {
        None
    }
}

/// The data of a launch for a [`SessionIdLookup`].
///
/// ```
/// use std::time::SystemTime;
/// use exec_core::{SessionId, SessionResolutionContext};
///
/// let minted = SessionId::mint("GEMINI", "L3RtcA")?;
/// let mut context = SessionResolutionContext::new(minted, "/tmp", SystemTime::now(), 4711);
/// context.env.insert("HOME".into(), "/home/agent".into());
/// assert_eq!(context.env("HOME"), Some("/home/agent".as_ref()));
/// # Ok::<(), exec_core::Error>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct SessionResolutionContext {
    /// The minted id.
    pub session_id: SessionId,
    /// The agent's working directory.
    pub workspace_path: PathBuf,
    /// The time right before the process was started.
    pub started_at: SystemTime,
    /// The child's process id.
    pub process_id: u32,
    /// The child's environment. A profile may give its agent another `HOME`.
    pub env: BTreeMap<OsString, OsString>,
}

impl SessionResolutionContext {
    /// A context with an empty environment.
    #[must_use]
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

/// Leaves out the environment.
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
