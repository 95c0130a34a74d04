use std::path::PathBuf;

use super::server::{PLACEHOLDER, Server};
use super::session_folder::{SessionFolder, runtime_dir};
use super::tmux_program::TmuxProgram;
use crate::Error;
use crate::control::control_client::ControlClient;

/// Options for starting or finding a private tmux server.
///
/// ```
/// use std::time::Duration;
/// use tmux_bus::Server;
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let dir = tempfile::tempdir()?;
/// let builder = Server::builder("example").runtime_dir(dir.path()).size(120, 40);
/// let server = builder.clone().start().await?;
/// // Another process would do the same.
/// let again = builder.attach().await?;
/// assert_eq!(again.socket(), server.socket());
/// server.stop(Duration::ZERO).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is started until `start`"]
pub struct ServerBuilder {
    session: String,
    key: PathBuf,
    runtime_dir: Option<PathBuf>,
    program: PathBuf,
    size: (u16, u16),
    max_answer: usize,
}

impl ServerBuilder {
    pub(super) fn new(session: String) -> Self {
        Self {
            session,
            key: PathBuf::new(),
            runtime_dir: None,
            program: PathBuf::from("tmux"),
            size: (240, 100),
            max_answer: 64 << 20,
        }
    }

    /// Sets a second part of the identity of the session, such as the path of its configuration;
    /// the default is empty. Sessions of the same name with different keys are different servers.
    pub fn key(mut self, key: impl Into<PathBuf>) -> Self {
        self.key = key.into();
        self
    }

    /// Sets the folder for the private folders of sessions; the default is `tmux-bus` in
    /// `XDG_RUNTIME_DIR`, or `tmux-bus-<uid>` in the folder for temporary files.
    pub fn runtime_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.runtime_dir = Some(dir.into());
        self
    }

    /// Sets the tmux program; the default is `tmux`, found by `PATH`.
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = program.into();
        self
    }

    /// Sets the size of the window while no person is attached; the default is 240 x 100.
    pub fn size(mut self, columns: u16, rows: u16) -> Self {
        self.size = (columns, rows);
        self
    }

    /// Sets the longest answer in bytes; the default is 64 MiB.
    pub fn max_answer(mut self, bytes: usize) -> Self {
        self.max_answer = bytes;
        self
    }

    /// Starts a server with an empty session and attaches to it.
    ///
    /// # Errors
    ///
    /// [`Error::TmuxMissing`], [`Error::TmuxFailed`], [`Error::TmuxTimeout`] and
    /// [`Error::TmuxTooOld`] for tmux itself, [`Error::AlreadyRunning`], [`Error::Io`] and
    /// [`Error::NotPrivate`] for the folder of the socket, [`Error::Invalid`].
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: an empty session may be left; the next start then fails with
    /// [`Error::AlreadyRunning`].
    pub async fn start(self) -> Result<Server, Error> {
        let (folder, tmux) = self.locations()?;
        tmux.check_version().await?;
        let locking = folder.clone();
        let _lock = on_a_thread("lock", move || locking.create_and_lock()).await?;
        if tmux.has_session(&self.session).await? {
            return Err(Error::AlreadyRunning {
                session: self.session,
                socket: tmux.socket,
            });
        }
        let (columns, rows) = (self.size.0.to_string(), self.size.1.to_string());
        // The first pane has a placeholder: all panes are created before the first program starts,
        // so that no program is resized while it draws its first screen.
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
            PLACEHOLDER,
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
    /// Cancel safe: it changes nothing.
    pub async fn attach(self) -> Result<Server, Error> {
        let (folder, tmux) = self.locations()?;
        tmux.check_version().await?;
        if !folder.exists()? || !tmux.has_session(&self.session).await? {
            return Err(Error::NotRunning {
                session: self.session,
                socket: tmux.socket,
            });
        }
        self.connect(folder, tmux).await
    }

    fn locations(&self) -> Result<(SessionFolder, TmuxProgram), Error> {
        check_session_name(&self.session)?;
        let base = self.runtime_dir.clone().unwrap_or_else(runtime_dir);
        // The session outlives the current folder of this process, and a path that begins with `-`
        // would be an option.
        let base = std::path::absolute(&base).map_err(Error::io("make absolute", &base))?;
        let folder = SessionFolder::new(&base, &self.session, &self.key);
        let tmux = TmuxProgram {
            program: self.program.clone(),
            socket: folder.socket()?,
        };
        Ok((folder, tmux))
    }

    async fn connect(self, folder: SessionFolder, tmux: TmuxProgram) -> Result<Server, Error> {
        let control =
            ControlClient::attach(&tmux.program, &tmux.socket, folder.path(), &self.session)
                .await?;
        Ok(Server::new(
            self.session,
            folder,
            tmux,
            control,
            self.max_answer,
        ))
    }
}

/// Runs code that may block on a lock.
pub(super) async fn on_a_thread<T: Send + 'static>(
    command: &str,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(Error::unfinished(command, &error)))
}

/// tmux silently replaces `.` and `:` in names, and reads other characters as parts of a target.
pub(crate) fn check_session_name(name: &str) -> Result<(), Error> {
    let is_plain = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let reason = if name.is_empty() || name.len() > 64 {
        "it must have 1 to 64 bytes"
    } else if name.starts_with('-') {
        "it must not begin with `-`"
    } else if !name.chars().all(is_plain) {
        "it must have only letters, digits, `_` and `-`"
    } else {
        return Ok(());
    };
    Err(Error::Invalid {
        what: "session name",
        value: name.to_owned(),
        reason,
    })
}
