//! A private tmux server with one session.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use crate::{
    control::{COMMAND_TIMEOUT, Control, Request},
    error::{Error, Result},
    folder, launch,
    octal::quote,
    pane::PaneId,
    pane_io::PaneIo,
    panes::PaneInfo,
    process,
    tmux::Tmux,
};

/// A program to start in a pane.
#[derive(Clone)]
pub struct Launch {
    command: String,
    work_dir: Option<PathBuf>,
    env: Vec<(String, String)>,
}

impl std::fmt::Debug for Launch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.env.iter().map(|(name, _)| name).collect();
        f.debug_struct("Launch")
            .field("work_dir", &self.work_dir)
            .field("env", &names)
            .finish_non_exhaustive()
    }
}

impl Launch {
    /// A shell command line, run by `sh`.
    #[must_use]
    pub fn new(command: impl Into<String>) -> Self {
        Self {
            command: command.into(),
            work_dir: None,
            env: Vec::new(),
        }
    }

    /// The folder in which it runs. The default is the server's.
    #[must_use]
    pub fn work_dir(mut self, work_dir: impl Into<PathBuf>) -> Self {
        self.work_dir = Some(work_dir.into());
        self
    }

    /// Adds a variable to its environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }
}

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
        folder::create(&base, &folder)?;
        // Two processes that start the same session take turns.
        let path = folder.join("start");
        let locked = tokio::task::spawn_blocking({
            let path = path.clone();
            move || -> std::io::Result<File> {
                let file = File::options()
                    .create(true)
                    .truncate(false)
                    .write(true)
                    .open(path)?;
                file.lock()?;
                Ok(file)
            }
        });
        let _locked = locked
            .await
            .map_err(std::io::Error::other)
            .flatten()
            .map_err(|e| Error::file("lock", path, e))?;
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
        self.connect(folder, tmux).await
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
        if folder.exists() {
            folder::create(&base, &folder)?;
        }
        if !folder.exists() || !tmux.has_session(&self.session).await? {
            return Err(Error::NotRunning {
                session: self.session,
                socket: tmux.socket,
            });
        }
        self.connect(folder, tmux).await
    }

    fn places(&self) -> Result<(PathBuf, PathBuf, Tmux)> {
        check_session_name(&self.session)?;
        let base = self.runtime_dir.clone().unwrap_or_else(folder::runtime_dir);
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

    async fn connect(self, folder: PathBuf, tmux: Tmux) -> Result<Server> {
        let control = Control::attach(&tmux.program, &tmux.socket, &folder, &self.session).await?;
        let io = PaneIo::new(control.clone(), folder, self.max_answer);
        Ok(Server {
            inner: Arc::new(Inner {
                session: self.session,
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
#[derive(Debug, Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    session: String,
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
    /// [`Error::TmuxFailed`] and [`Error::ServerGone`].
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
        let control = &self.inner.control;
        let mut line = format!(
            "set-option -p -t {pane} @tmux_bus_launch {id} ; set-option -p -t {pane} @tmux_bus_bracketing 0 ; respawn-pane -k -t {pane}"
        );
        if let Some(dir) = &launch.work_dir {
            line.push_str(&format!(
                " -c {}",
                quote(dir.as_os_str().as_encoded_bytes())
            ));
        }
        for (name, value) in &launch.env {
            line.push_str(&format!(" -e {}", quote(format!("{name}={value}"))));
        }
        line.push_str(&format!(
            " /bin/sh -c {}",
            quote(launch::wrapper(&launch.command, &id))
        ));
        control.panes().starting(pane, &id);
        control
            .run(Request::new("respawn-pane", line).blocks(3))
            .await?;
        control.list_panes().await?;
        Ok(())
    }

    pub(crate) fn control(&self) -> &Control {
        &self.inner.control
    }

    pub(crate) async fn panes(&self) -> Result<Vec<PaneInfo>> {
        self.inner.control.list_panes().await
    }

    /// Ends the programs in all panes, first gently, and then the session. Returns when their
    /// processes are gone.
    ///
    /// # Errors
    ///
    /// [`Error::Survivors`] when processes could not be ended. A session that is gone already is
    /// not an error.
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
        if left.is_empty() {
            Ok(())
        } else {
            Err(Error::Survivors {
                session: self.inner.session.clone(),
                pids: left,
            })
        }
    }
}

impl Server {
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
