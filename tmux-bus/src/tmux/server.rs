use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::launch::Launch;
use super::server_builder::{ServerBuilder, on_a_thread};
use super::session_folder::SessionFolder;
use super::tmux_program::TmuxProgram;
use crate::Error;
use crate::control::command_queue::Request;
use crate::control::control_client::ControlClient;
use crate::pane::PaneId;
use crate::pane::PaneIo;
use crate::pane::pane_info::PaneInfo;
use crate::pane::pane_processes;
use crate::timing::LONGEST_WAIT;

/// The program of a pane that waits for its program.
pub(super) const PLACEHOLDER: &str = "exec sleep 2147483647";

/// A private tmux server with one session and one control-mode client.
///
/// Clones share the client. Dropping the last one ends the client, not the session: the programs
/// in its panes continue, and [`Server::attach`] finds them again.
///
/// ```
/// use std::time::Duration;
/// use tmux_bus::{Launch, Server};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let server = Server::builder("example").runtime_dir(dir.path()).start().await?;
/// let first = server.open_pane(&Launch::new("exec cat")).await?;
/// let second = server.open_pane(&Launch::new("exec cat")).await?;
/// assert_ne!(first, second);
/// println!("watch: tmux -S {} attach", server.socket().display());
/// server.stop(Duration::ZERO).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Server {
    inner: Arc<ServerInner>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("session", &self.inner.session)
            .field("socket", &self.inner.tmux.socket)
            .finish_non_exhaustive()
    }
}

struct ServerInner {
    session: String,
    folder: SessionFolder,
    tmux: TmuxProgram,
    control: ControlClient,
    io: PaneIo,
}

impl Server {
    pub(super) fn new(
        session: String,
        folder: SessionFolder,
        tmux: TmuxProgram,
        control: ControlClient,
        max_answer: usize,
    ) -> Self {
        let io = PaneIo::new(control.clone(), folder.path().to_owned(), max_answer);
        Self {
            inner: Arc::new(ServerInner {
                session,
                folder,
                tmux,
                control,
                io,
            }),
        }
    }

    /// Options for a server with a session of this name.
    pub fn builder(session: impl Into<String>) -> ServerBuilder {
        ServerBuilder::new(session.into())
    }

    /// Starts a server with the default options, see [`ServerBuilder::start`].
    ///
    /// # Errors
    ///
    /// As [`ServerBuilder::start`].
    ///
    /// # Cancel safety
    ///
    /// As [`ServerBuilder::start`].
    pub async fn start(session: impl Into<String>) -> Result<Self, Error> {
        Self::builder(session).start().await
    }

    /// Attaches to a running session with the default options, see [`ServerBuilder::attach`].
    ///
    /// # Errors
    ///
    /// As [`ServerBuilder::attach`].
    ///
    /// # Cancel safety
    ///
    /// As [`ServerBuilder::attach`].
    pub async fn attach(session: impl Into<String>) -> Result<Self, Error> {
        Self::builder(session).attach().await
    }

    /// The name of the session.
    #[must_use]
    pub fn session(&self) -> &str {
        &self.inner.session
    }

    /// The private socket. `tmux -S <socket> attach` shows the panes to a person.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.inner.tmux.socket
    }

    /// Sends to the panes of this server and reads their answers.
    #[must_use]
    pub fn pane_io(&self) -> PaneIo {
        self.inner.io.clone()
    }

    /// Opens a pane and starts a program in it. It does not wait until the program is ready: what the
    /// program prints before its first prompt, but after a message, counts as a part of the answer.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a command or variable that cannot be passed on, [`Error::Io`] for
    /// a missing working folder, [`Error::TmuxFailed`] and [`Error::ServerGone`].
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: a pane without a program may be left.
    pub async fn open_pane(&self, launch: &Launch) -> Result<PaneId, Error> {
        let pane = self.create_pane().await?;
        self.launch(pane, launch).await?;
        Ok(pane)
    }

    /// Creates a pane without a program, in the tiled layout of the window.
    pub(crate) async fn create_pane(&self) -> Result<PaneId, Error> {
        let session = &self.inner.session;
        let control = &self.inner.control;
        let panes = control.list_panes_and_exits().await?;
        if let [only] = panes.as_slice()
            && only.launch.is_empty()
            && only.agent.is_empty()
        {
            return Ok(only.id);
        }
        // Behind the last pane: the order of the panes is that of their creation.
        let last = match panes.last() {
            Some(pane) => pane.id.to_string(),
            None => format!("={session}:"),
        };
        let split = format!(
            "split-window -d -t {last} -P -F \"#{{pane_id}}\" \"\" ; select-layout -t ={session}: tiled"
        );
        let request = Request::new("split-window", split).blocks(2);
        let created = match control.run(request).await {
            Err(Error::TmuxFailed { message, .. }) if message.contains("no space") => {
                return self.create_window().await;
            }
            created => created,
        };
        let id = created?.into_iter().next().unwrap_or_default();
        PaneId::parse(&id).ok_or_else(|| Error::failed("split-window", "no pane id"))
    }

    /// Creates a pane without a program in a window of its own: the other panes keep their sizes.
    pub(crate) async fn create_window(&self) -> Result<PaneId, Error> {
        let session = &self.inner.session;
        let window =
            format!("new-window -d -t ={session}: -P -F \"#{{pane_id}}\" \"{PLACEHOLDER}\"");
        let request = Request::new("new-window", window);
        let id = self.inner.control.run(request).await?.into_iter().next();
        PaneId::parse(&id.unwrap_or_default())
            .ok_or_else(|| Error::failed("new-window", "no pane id"))
    }

    /// Starts a program in a pane, in place of the program that may run there.
    pub(crate) async fn launch(&self, pane: PaneId, launch: &Launch) -> Result<(), Error> {
        self.launch_with(pane, launch, &[]).await
    }

    /// As [`launch`](Self::launch), and sets options of the pane in the same step of tmux.
    pub(crate) async fn launch_with(
        &self,
        pane: PaneId,
        launch: &Launch,
        options: &[(&str, &str)],
    ) -> Result<(), Error> {
        let id = launch.new_id();
        let own = [
            ("@tmux_bus_launch", id.as_str()),
            ("@tmux_bus_bracketing", "0"),
        ];
        let mut line = String::new();
        for (name, value) in own.iter().chain(options) {
            line.push_str(&format!("set-option -p -t {pane} {name} {value} ; "));
        }
        line.push_str(&launch.respawn(pane, &id)?);
        let control = &self.inner.control;
        control.panes().starting(pane, &id);
        let blocks = own.len() + options.len() + 1;
        let respawned = control
            .run(Request::new("respawn-pane", line).blocks(blocks))
            .await;
        control.panes().started(pane);
        respawned?;
        control.list_panes_and_exits().await?;
        Ok(())
    }

    pub(crate) fn folder(&self) -> &SessionFolder {
        &self.inner.folder
    }

    pub(crate) fn program(&self) -> &Path {
        &self.inner.tmux.program
    }

    pub(crate) fn control(&self) -> &ControlClient {
        &self.inner.control
    }

    /// Ends the programs in all panes (SIGTERM, after `grace` SIGKILL) with all their processes,
    /// then the session, and removes its folder with the socket. Returns when they are gone. A
    /// session that is already gone is not an error.
    ///
    /// # Errors
    ///
    /// [`Error::StillAlive`] if processes did not end, [`Error::Io`] if the folder could not be
    /// removed.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: some programs may still run; call it again to continue.
    pub async fn stop(&self, grace: Duration) -> Result<(), Error> {
        let panes = match self.inner.control.list_panes_and_exits().await {
            Ok(panes) => panes,
            // The client may be gone while the session is not.
            Err(_) => self.inner.list_panes_by_program().await?,
        };
        self.inner.stop(panes, grace).await
    }

    /// As [`stop`](Self::stop), for a destructor: without the control-mode client, whose runtime may be
    /// blocked by this call or gone.
    pub(crate) fn stop_blocking(&self, grace: Duration) -> Result<(), Error> {
        let inner = Arc::clone(&self.inner);
        let stop = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(Error::io("start a runtime for", &inner.tmux.socket))?;
            runtime.block_on(async {
                let panes = inner.list_panes_by_program().await?;
                inner.stop(panes, grace).await
            })
        };
        // Not on this thread: a runtime cannot be entered inside another one.
        let stopped = std::thread::spawn(stop).join();
        stopped.unwrap_or_else(|_| Err(Error::failed("stop", "it panicked")))
    }
}

impl ServerInner {
    /// Ends the programs of the panes, the session and its folder. Uses the tmux program alone.
    async fn stop(self: &Arc<Self>, panes: Vec<PaneInfo>, grace: Duration) -> Result<(), Error> {
        let survivors = pane_processes::end(&panes, grace.min(LONGEST_WAIT)).await;
        // By the program: it is answered even if our client is the last of the session.
        let target = format!("={}", self.session);
        match self.tmux.run(&["kill-session", "-t", &target]).await {
            Ok(_) | Err(Error::TmuxFailed { .. }) => {}
            Err(error) => return Err(error),
        }
        if !survivors.is_empty() {
            return Err(Error::StillAlive {
                session: self.session.clone(),
                pids: survivors,
            });
        }
        self.remove_folder().await
    }

    async fn remove_folder(self: &Arc<Self>) -> Result<(), Error> {
        match self.tmux.run(&["list-sessions"]).await {
            // A person has created another session on this server.
            Ok(sessions) if !sessions.is_empty() => return Ok(()),
            Ok(_) | Err(Error::TmuxFailed { .. }) => {}
            Err(error) => return Err(error),
        }
        let inner = Arc::clone(self);
        on_a_thread("stop", move || inner.folder.remove(&inner.tmux.socket)).await
    }

    async fn list_panes_by_program(&self) -> Result<Vec<PaneInfo>, Error> {
        let target = format!("={}", self.session);
        let args = ["list-panes", "-s", "-t", &target, "-F", PaneInfo::FORMAT];
        match self.tmux.run(&args).await {
            Ok(list) => Ok(PaneInfo::parse_list(&list)),
            // The session has ended, or tmux has crashed: processes in sessions of their own may live.
            Err(Error::TmuxFailed { .. }) => Ok(self.control.panes().launched()),
            Err(error) => Err(error),
        }
    }
}
