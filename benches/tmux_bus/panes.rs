//! A private server with panes, and requests to the programs in them.

use super::*;

/// A private server. Dropping it ends the server.
pub(crate) struct Panes {
    pub(crate) runtime: Runtime,
    /// `None` after `detach`.
    pub(crate) server: Option<Server>,
    pub(crate) socket: PathBuf,
    pub(crate) panes: Vec<PaneId>,
    pub(crate) program: &'static str,
    _dir: TempDir,
}

impl Panes {
    pub(crate) fn start(program: &'static str, count: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        // One worker thread, which reads while the thread of the bench blocks.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let server = runtime.block_on(async {
            let size = if count > 1 { (2_400, 800) } else { (200, 50) };
            let builder = Server::builder("bench").runtime_dir(dir.path().join("run"));
            builder.size(size.0, size.1).start().await.unwrap()
        });
        let mut started = Self {
            runtime,
            socket: server.socket().to_owned(),
            server: Some(server),
            panes: Vec::new(),
            program,
            _dir: dir,
        };
        started.grow(count);
        if program == "receiver" {
            started.wait_for("ready>");
        }
        started
    }

    /// Opens panes until there are `count`.
    pub(crate) fn grow(&mut self, count: usize) {
        let exe = std::env::current_exe().unwrap();
        let launch = Launch::new(format!("exec '{}'", exe.display()));
        let launch = launch.env("BENCH_PROGRAM", self.program);
        while self.panes.len() < count {
            let opened = self.runtime.block_on(self.server().open_pane(&launch));
            self.panes.push(opened.unwrap());
        }
    }

    pub(crate) fn wait_for(&self, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !capture(&self.socket, self.panes[0]).contains(text) {
            assert!(Instant::now() < deadline, "`{text}` did not appear");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends our control client, which would otherwise receive the output of all panes too.
    pub(crate) fn detach(&mut self) {
        self.server = None;
        let deadline = Instant::now() + Duration::from_secs(30);
        while !tmux(&self.socket, &["list-clients"]).is_empty() {
            assert!(Instant::now() < deadline, "the control client does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().expect("it is not detached")
    }

    pub(crate) fn ask(&self, message: &str) -> String {
        self.ask_in(self.panes[0], message)
    }

    pub(crate) fn ask_in(&self, pane: PaneId, message: &str) -> String {
        self.runtime
            .block_on(ask(&self.server().pane_io(), pane, message))
    }
}

impl Drop for Panes {
    fn drop(&mut self) {
        let _ = Command::new("tmux")
            .arg("-S")
            .arg(&self.socket)
            .arg("kill-server")
            .status();
    }
}

pub(crate) async fn ask(io: &PaneIo, pane: PaneId, message: &str) -> String {
    let options = ResponseOptions::default().end(AnswerEnd::AtMarker);
    let sent = io.send_message(pane, message).await.unwrap();
    io.get_response_with(sent, MARKER, &options).await.unwrap()
}
