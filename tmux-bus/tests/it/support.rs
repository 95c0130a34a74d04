//! A private server for a test.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tmux_bus::{AnswerEnd, Error, PaneId, ResponseOptions, Server, ServerBuilder};

use crate::pane_program::MARKER;

/// Time limit for steps that take milliseconds on an idle machine.
pub const LONG: Duration = Duration::from_secs(40);

/// A folder for a test. Dropping it kills the servers with sockets in its subfolders, then removes it.
///
/// A fixture must not do that alone: a start that fails because an agent is not ready leaves its cluster running, and
/// there is no fixture yet.
pub struct TestDir(TempDir);

impl TestDir {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

impl Deref for TestDir {
    type Target = TempDir;

    fn deref(&self) -> &TempDir {
        &self.0
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let folders = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
        for runtime_dir in folders(self.path()) {
            for session in folders(&runtime_dir.path()) {
                let socket = session.path().join("tmux");
                if socket.exists() {
                    kill_server(&socket);
                }
            }
        }
    }
}

/// A server that is killed when the test ends.
pub struct TestServer {
    server: Server,
    dir: TestDir,
}

impl Deref for TestServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// Kills the server of a private socket.
pub fn kill_server(socket: &Path) {
    let _ = Command::new("tmux")
        .arg("-S")
        .arg(socket)
        .arg("kill-server")
        .stderr(Stdio::null())
        .status();
}

pub fn need_tmux() {
    let found = Command::new("tmux")
        .arg("-V")
        .output()
        .is_ok_and(|output| output.status.success());
    assert!(
        found,
        "these tests need tmux 3.2 or newer: `apt install tmux`, `dnf install tmux` or `brew install tmux`"
    );
}

pub fn builder(dir: &TestDir) -> ServerBuilder {
    builder_in(dir.path())
}

/// For a process that does not own the folder of the test.
pub fn builder_in(dir: &Path) -> ServerBuilder {
    need_tmux();
    Server::builder("test").runtime_dir(dir.join("run"))
}

impl TestServer {
    pub async fn start() -> Self {
        let dir = TestDir::new();
        let server = builder(&dir).start().await.unwrap();
        Self { server, dir }
    }

    /// A server that was started in `dir`.
    pub fn from(server: Server, dir: TestDir) -> Self {
        Self { server, dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn dir(&self) -> &TestDir {
        &self.dir
    }

    /// Runs the tmux program on the private socket.
    pub fn tmux(&self, args: &[&str]) -> String {
        tmux(self.server.socket(), args)
    }

    /// Waits until a pane shows a text.
    pub fn shows(&self, pane: PaneId, text: &str) {
        let target = pane.to_string();
        eventually(&format!("`{text}` in {pane}"), || {
            self.tmux(&["capture-pane", "-p", "-J", "-t", &target])
                .contains(text)
        });
    }

    /// Sends a message and returns the answer, with the default options.
    pub async fn ask(&self, pane: PaneId, message: &str) -> Result<String, Error> {
        self.ask_with(pane, message, &ResponseOptions::default().timeout(LONG))
            .await
    }

    pub async fn ask_with(
        &self,
        pane: PaneId,
        message: &str,
        options: &ResponseOptions,
    ) -> Result<String, Error> {
        let io = self.pane_io();
        let sent = io.send_message(pane, message).await?;
        io.get_response_with(sent, MARKER, options).await
    }
}

pub fn literal() -> ResponseOptions {
    ResponseOptions::default()
        .timeout(LONG)
        .end(AnswerEnd::AtMarker)
}

pub fn tmux(socket: &Path, args: &[&str]) -> String {
    let output = Command::new("tmux")
        .arg("-u")
        .arg("-S")
        .arg(socket)
        .args(args)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "tmux {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A zombie has ended: its parent, tmux, reaps it in its own time.
#[cfg(target_os = "linux")]
pub fn is_running(pid: &str) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !state.is_empty() && !state.contains(") Z ")
}

/// Waits until a condition holds.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "did not happen: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
