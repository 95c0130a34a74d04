//! A private tmux server with one session.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use crate::{
    control::{COMMAND_TIMEOUT, Control, Request},
    error::{Error, Result},
    folder,
    launch::Launch,
    pane::PaneId,
    pane_io::PaneIo,
    panes::PaneInfo,
    process,
    tmux::Tmux,
};

/// How a server is started or found.
#[derive(Debug, Clone)]
pub struct ServerBuilder {
    session: String,
    key: PathBuf,
    runtime_dir: Option<PathBuf>,
    program: PathBuf,
    timeout: Duration,
    size: (u16, u16),
    max_answer: usize,
}

impl ServerBuilder {
    /// A second part of the session's identity, such as the path of its configuration: sessions of
    /// the same name with other keys are other servers.
    #[must_use]
    pub fn key(mut self, key: impl Into<PathBuf>) -> Self {
        self.key = key.into();
        self
    }

    /// The folder for the private folders of sessions. The default is `tmux-bus` under
    /// `XDG_RUNTIME_DIR`, or `tmux-bus-<uid>` in the folder for temporary files.
    #[must_use]
    pub fn runtime_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.runtime_dir = Some(dir.into());
        self
    }

    /// The tmux program. The default is `tmux`, found by `PATH`.
    #[must_use]
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = program.into();
        self
    }

    /// How long one run of the tmux program may take. The default is 10 s.
    #[must_use]
    pub fn tmux_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The size of the session's window while no person is attached. The default is 240 x 100.
    #[must_use]
    pub fn size(mut self, columns: u16, rows: u16) -> Self {
        self.size = (columns, rows);
        self
    }

    /// How many bytes an answer may have. The default is 64 MiB.
    #[must_use]
    pub fn max_answer(mut self, bytes: usize) -> Self {
        self.max_answer = bytes;
        self
    }

    /// Starts a server with an empty session and attaches to it.
    ///
    /// # Errors
    ///
    /// [`Error::TmuxMissing`], [`Error::TmuxFailed`], [`Error::TmuxTimeout`] and
    /// [`Error::TmuxTooOld`] for tmux itself, [`Error::AlreadyRunning`], [`Error::Folder`],
    /// [`Error::InvalidName`].
    ///
    /// # Cancel safety
    ///
    /// Dropped half way, an empty session may stay behind; starting again then says that it runs.
    pub async fn start(self) -> Result<Server> {
        let (base, folder, tmux) = self.places()?;
        tmux.check_version().await?;
        let places = (base.clone(), folder.clone());
        let _locked = on_a_thread("lock", move || {
            folder::create_and_lock(&places.0, &places.1)
        })
        .await?;
        if tmux.has_session(&self.session).await? {
            return Err(Error::AlreadyRunning {
                session: self.session,
                socket: tmux.socket,
            });
        }
        let (columns, rows) = (self.size.0.to_string(), self.size.1.to_string());
        // The first pane waits for its program; panes are created before any program starts, so
        // that none is resized while it draws its first screen, and all output is seen.
        #[rustfmt::skip]
        tmux.run(&[
            "start-server", ";",
            "set-option", "-g", "default-shell", "/bin/sh", ";",
            "set-option", "-g", "history-limit", "100000", ";",
            "set-option", "-g", "remain-on-exit", "on", ";",
            "set-option", "-g", "automatic-rename", "off", ";",
            "set-option", "-g", "allow-rename", "off", ";",
            "set-option", "-s", "escape-time", "0", ";",
            "new-session", "-d", "-s", &self.session, "-n", "agents", "-x", &columns, "-y", &rows,
            "exec sleep 2147483647",
        ])
        .await?;
        self.connect(base, folder, tmux).await
    }

    /// Attaches to a session that another process started.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`], and as [`start`](Self::start).
    ///
    /// # Cancel safety
    ///
    /// Changes nothing.
    pub async fn attach(self) -> Result<Server> {
        let (base, folder, tmux) = self.places()?;
        tmux.check_version().await?;
        let found = folder.exists();
        if found {
            folder::check(&base)?;
            folder::check(&folder)?;
        }
        if !found || !tmux.has_session(&self.session).await? {
            return Err(Error::NotRunning {
                session: self.session,
                socket: tmux.socket,
            });
        }
        self.connect(base, folder, tmux).await
    }

    fn places(&self) -> Result<(PathBuf, PathBuf, Tmux)> {
        check_session_name(&self.session)?;
        let base = self.runtime_dir.clone().unwrap_or_else(folder::runtime_dir);
        // Programs are given paths in it, in which a first `-` would be an option, and the session
        // outlives this process's current folder.
        let base = std::path::absolute(&base).map_err(|source| Error::Folder {
            path: base,
            reason: "it has no absolute path".to_owned(),
            source: Some(source),
        })?;
        let folder = folder::session_folder(&base, &self.session, &self.key);
        let socket = folder::socket(&folder)?;
        Ok((
            base,
            folder,
            Tmux {
                program: self.program.clone(),
                socket,
                timeout: self.timeout,
            },
        ))
    }

    async fn connect(self, base: PathBuf, folder: PathBuf, tmux: Tmux) -> Result<Server> {
        let control = Control::attach(&tmux.program, &tmux.socket, &folder, &self.session).await?;
        let io = PaneIo::new(control.clone(), folder.clone(), self.max_answer);
        Ok(Server {
            inner: Arc::new(Inner {
                session: self.session,
                base,
                folder,
                tmux,
                control,
                io,
            }),
        })
    }
}

/// A private tmux server with one session, attached by one control-mode client.
///
/// Clones share the client. Dropping the last one ends the client, not the session: the programs in
/// its panes go on, and [`ServerBuilder::attach`] finds them again.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("session", &self.inner.session)
            .field("socket", &self.inner.tmux.socket)
            .finish_non_exhaustive()
    }
}

struct Inner {
    session: String,
    base: PathBuf,
    folder: PathBuf,
    tmux: Tmux,
    control: Control,
    io: PaneIo,
}

impl Server {
    /// A server for a session of this name.
    #[must_use]
    pub fn builder(session: impl Into<String>) -> ServerBuilder {
        ServerBuilder {
            session: session.into(),
            key: PathBuf::new(),
            runtime_dir: None,
            program: PathBuf::from("tmux"),
            timeout: COMMAND_TIMEOUT,
            size: (240, 100),
            max_answer: 64 << 20,
        }
    }

    /// The session's name.
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

    /// Opens a pane and starts a program in it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`] for a variable that cannot be passed on, [`Error::File`] for a folder
    /// that is not there, [`Error::TmuxFailed`] and [`Error::ServerGone`].
    ///
    /// # Cancel safety
    ///
    /// Dropped half way, a pane without a program may stay.
    pub async fn open_pane(&self, launch: &Launch) -> Result<PaneId> {
        let pane = self.create_pane().await?;
        self.launch(pane, launch).await?;
        Ok(pane)
    }

    /// Creates a pane without a program, in the equal layout of the window.
    pub(crate) async fn create_pane(&self) -> Result<PaneId> {
        let session = &self.inner.session;
        let control = &self.inner.control;
        let panes = control.list_panes().await?;
        if let [only] = panes.as_slice()
            && only.launch.is_empty()
            && only.agent.is_empty()
        {
            return Ok(only.id);
        }
        let split = format!(
            "split-window -d -t ={session}: -P -F \"#{{pane_id}}\" \"\" ; select-layout -t ={session}: tiled"
        );
        let mut created = control
            .run(Request::new("split-window", split).blocks(2))
            .await
            .map(|bodies| bodies.into_iter().next());
        if matches!(&created, Err(Error::TmuxFailed { message, .. }) if message.contains("no space"))
        {
            let line = format!(
                "new-window -d -t ={session}: -P -F \"#{{pane_id}}\" \"exec sleep 2147483647\""
            );
            created = control
                .run(Request::new("new-window", line))
                .await
                .map(|bodies| bodies.into_iter().next());
        }
        let body = created?.unwrap_or_default();
        PaneId::parse(&body).ok_or_else(|| Error::failed("split-window", "no pane id"))
    }

    /// Starts a program in a pane, in place of the one that may run there.
    pub(crate) async fn launch(&self, pane: PaneId, launch: &Launch) -> Result<()> {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let line = format!(
            "set-option -p -t {pane} @tmux_bus_launch {id} ; set-option -p -t {pane} @tmux_bus_bracketing 0 ; {}",
            launch.respawn(pane, &id)?
        );
        let control = &self.inner.control;
        control.panes().starting(pane, &id);
        let respawned = control
            .run(Request::new("respawn-pane", line).blocks(3))
            .await;
        control.panes().started(pane);
        respawned?;
        control.list_panes().await?;
        Ok(())
    }

    pub(crate) fn control(&self) -> &Control {
        &self.inner.control
    }

    pub(crate) async fn panes(&self) -> Result<Vec<PaneInfo>> {
        self.inner.control.list_panes().await
    }

    /// Ends the programs in all panes, first gently, and then the session, and removes its folder with
    /// the socket. Returns when their processes are gone.
    ///
    /// # Errors
    ///
    /// [`Error::Survivors`] when processes could not be ended, [`Error::File`] when the folder could
    /// not be removed. A session that is gone already is not an error.
    ///
    /// # Cancel safety
    ///
    /// Dropped half way, some programs may still run; calling it again goes on.
    pub async fn stop(&self, grace: Duration) -> Result<()> {
        let panes = match self.inner.control.list_panes().await {
            Ok(panes) => panes,
            // The client may be gone while the session is not.
            Err(_) => self.list_by_program().await?,
        };
        let left = process::end(&panes, grace).await;
        // By the program, not by our client: it is answered even if the client is the session's last.
        let target = format!("={}", self.inner.session);
        match self.inner.tmux.run(&["kill-session", "-t", &target]).await {
            Ok(_) | Err(Error::TmuxFailed { .. }) => {}
            Err(error) => return Err(error),
        }
        if !left.is_empty() {
            return Err(Error::Survivors {
                session: self.inner.session.clone(),
                pids: left,
            });
        }
        self.remove_folder().await
    }
}

impl Server {
    async fn remove_folder(&self) -> Result<()> {
        match self.inner.tmux.run(&["list-sessions"]).await {
            // Someone has put another session on this server.
            Ok(sessions) if !sessions.is_empty() => return Ok(()),
            Ok(_) | Err(Error::TmuxFailed { .. }) => {}
            Err(error) => return Err(error),
        }
        let inner = Arc::clone(&self.inner);
        on_a_thread("stop", move || {
            folder::remove(&inner.base, &inner.folder, &inner.tmux.socket)
        })
        .await
    }

    async fn list_by_program(&self) -> Result<Vec<PaneInfo>> {
        let target = format!("={}", self.inner.session);
        let args = ["list-panes", "-s", "-t", &target, "-F", PaneInfo::FORMAT];
        match self.inner.tmux.run(&args).await {
            Ok(list) => Ok(PaneInfo::parse(&list)),
            Err(Error::TmuxFailed { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// Runs what may have to wait for a lock.
async fn on_a_thread<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(Error::failed(what, error.to_string())))
}

/// tmux changes `.` and `:` in names silently, and reads others as parts of a target.
pub(crate) fn check_session_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let reason = if name.is_empty() || name.len() > 64 {
        "it must have 1 to 64 bytes"
    } else if name.starts_with('-') {
        "it must not begin with `-`"
    } else if !name.chars().all(plain) {
        "only letters, digits, `_` and `-`"
    } else {
        return Ok(());
    };
    Err(Error::InvalidName {
        what: "session name",
        name: name.to_owned(),
        reason,
    })
}
