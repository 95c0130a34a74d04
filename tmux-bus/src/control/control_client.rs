//! The control-mode client: one connection to tmux for all panes of a server.
//!
//! Two tasks share the work. The writer takes lines from the [`CommandQueue`]. The reader owns the
//! output of tmux, hands blocks to the queue and output to the taps, and never waits for either.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::process::ChildStdout;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::attach_lock::AttachLock;
use super::client_process::{ClientProcess, ProcessGuard};
use super::command_queue::{Blocks, CommandQueue, Request};
use super::stream_parser::{StreamEvent, StreamParser};
use crate::pane::PaneId;
use crate::pane::exit_watch::ExitWatch;
use crate::pane::pane_info::PaneInfo;
use crate::pane::pane_table::PaneTable;
use crate::shared::kernel_lock::{Access, LockedFile};
use crate::timing::{EXIT_STATUS_LIMIT, EXIT_STATUS_PAUSE, TMUX_TIMEOUT};
use crate::{Error, PartialAnswer};

/// A handle to the client. Clones share it; dropping the last one kills the client process.
#[derive(Clone, Debug)]
pub(crate) struct ControlClient {
    connection: Arc<Connection>,
    /// Dropping the set aborts the tasks.
    _tasks: Arc<JoinSet<()>>,
}

/// The screen of a pane with the lines that scrolled off it.
pub(crate) struct Capture {
    pub(crate) text: String,
    /// The first line is the first one of the screen at the given moment: no line was lost. Never
    /// the case on the alternate screen, which has no scroll-back.
    pub(crate) begins_at_since: bool,
}

#[derive(Debug)]
pub(crate) struct Connection {
    session: String,
    commands: CommandQueue,
    /// Offset up to which the reader has parsed the stream.
    parsed: AtomicU64,
    panes: PaneTable,
    /// See [`ControlClient::paste_flags`].
    paste_flags: OnceLock<&'static str>,
    attach_lock: AttachLock,
}

impl ControlClient {
    pub(crate) async fn attach(
        program: &Path,
        socket: &Path,
        folder: &Path,
        session: &str,
    ) -> Result<Self, Error> {
        let client = ClientProcess::start(program, socket, folder, session).await?;
        let connection = Arc::new(Connection {
            session: session.to_owned(),
            commands: CommandQueue::new(session),
            parsed: AtomicU64::new(client.parser.parsed()),
            panes: PaneTable::new(folder),
            paste_flags: OnceLock::new(),
            attach_lock: AttachLock::new(folder),
        });
        let mut tasks = JoinSet::new();
        let reader = StreamReader {
            connection: Arc::clone(&connection),
            stdout: client.stdout,
            parser: client.parser,
            _guard: client.guard,
        };
        tasks.spawn(reader.run(client.early));
        tasks.spawn(write(Arc::clone(&connection), client.stdin));
        let control = Self {
            connection,
            _tasks: Arc::new(tasks),
        };
        control.read_paste_flags().await?;
        control.list_panes_and_exits().await?;
        Ok(control)
    }

    /// tmux 3.7 and newer replace control characters of a paste by visible ones, unless `-S` is given;
    /// older ones refuse `-S`. The usage line decides, because the server may be of another version
    /// than the program, and builds from source have no number.
    async fn read_paste_flags(&self) -> Result<(), Error> {
        let line = "list-commands -F \"#{command_list_usage}\" paste-buffer".to_owned();
        let usage = self.run_one("list-commands", line).await?;
        let switches = usage.split(']').next().unwrap_or_default();
        let flags = if switches.contains('S') {
            "-d -r -S"
        } else {
            "-d -r"
        };
        let _ = self.connection.paste_flags.set(flags);
        Ok(())
    }

    /// No client attaches while this is held; `None` if one takes too long.
    pub(crate) async fn hold_attaches(&self) -> Result<Option<LockedFile>, Error> {
        self.connection.attach_lock.lock(Access::Shared).await
    }

    /// The switches of `paste-buffer` for a paste that is exact, and whose buffer is deleted.
    pub(crate) fn paste_flags(&self) -> &'static str {
        self.connection
            .paste_flags
            .get()
            .copied()
            .unwrap_or("-d -r")
    }

    pub(crate) fn session(&self) -> &str {
        &self.connection.session
    }

    pub(crate) fn gone(&self, partial: PartialAnswer) -> Error {
        Error::ServerGone {
            session: self.connection.session.clone(),
            partial,
        }
    }

    /// Whether the server is known to be gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.connection.commands.is_closed()
    }

    pub(crate) fn panes(&self) -> &PaneTable {
        &self.connection.panes
    }

    /// As [`Connection::run`].
    pub(crate) async fn run(&self, request: Request) -> Result<Blocks, Error> {
        self.connection.run(request).await
    }

    /// As [`Connection::run_one`].
    pub(crate) async fn run_one(&self, label: &'static str, line: String) -> Result<String, Error> {
        self.connection.run_one(label, line).await
    }

    /// The screen of a pane; wrapped lines are joined.
    pub(crate) async fn capture(&self, pane: PaneId) -> Result<String, Error> {
        let line = format!("capture-pane -p -J -t {pane}");
        self.run_one("capture-pane", line).await
    }

    /// The text of a pane since `since` lines had scrolled off its screen; wrapped lines are joined.
    ///
    /// Race: lines scroll off between the request for their number and the capture. Both are therefore
    /// read in one step of tmux, and again until the capture has as many lines as there are.
    pub(crate) async fn capture_since(&self, pane: PaneId, since: usize) -> Result<Capture, Error> {
        const ATTEMPTS: usize = 4;
        let mut scrolled = 0;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let line = format!(
                "display-message -p -t {pane} \"#{{history_size}} #{{history_limit}} #{{alternate_on}}\" ; \
                 capture-pane -p -J -S -{scrolled} -t {pane}"
            );
            let bodies = self
                .run(Request::new("capture-pane", line).blocks(2))
                .await?;
            let [fields, text] = bodies.as_slice() else {
                return Err(Error::failed("capture-pane", "incomplete answer"));
            };
            let fields = String::from_utf8_lossy(fields);
            let mut fields = fields.trim().split(' ');
            let mut number = || fields.next().and_then(|field| field.parse::<usize>().ok());
            let (Some(size), Some(limit)) = (number(), number()) else {
                return Err(Error::failed("display-message", "no history size"));
            };
            let is_alternate = number() == Some(1);
            let wanted = match is_alternate {
                true => 0,
                false => size.saturating_sub(since),
            };
            if wanted != scrolled && attempt < ATTEMPTS {
                scrolled = wanted;
                continue;
            }
            // A full scroll-back loses a tenth of its lines at once.
            let is_whole = wanted == scrolled && size >= since && size < limit - limit / 10;
            return Ok(Capture {
                text: String::from_utf8_lossy(text).into_owned(),
                begins_at_since: is_whole && !is_alternate,
            });
        }
    }

    /// Lists the panes of the session and updates the table. Waits for the exit status of programs
    /// that are just ending.
    pub(crate) async fn list_panes_and_exits(&self) -> Result<Vec<PaneInfo>, Error> {
        let deadline = Instant::now() + EXIT_STATUS_LIMIT;
        loop {
            let infos = self.connection.list_panes().await?;
            let panes = &self.connection.panes;
            if panes.ending(&infos).next().is_none() {
                return Ok(infos);
            }
            if Instant::now() >= deadline {
                panes
                    .ending(&infos)
                    .for_each(|info| panes.process_gone(info.id, info.pid));
                return Ok(infos);
            }
            tokio::time::sleep(EXIT_STATUS_PAUSE).await;
        }
    }
}

impl Connection {
    pub(crate) fn panes(&self) -> &PaneTable {
        &self.panes
    }

    /// Runs a line of commands and returns the output of each.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: the line is written whole or not at all, but whether it ran is unknown.
    async fn run(&self, request: Request) -> Result<Blocks, Error> {
        let label = request.label;
        let answered = async {
            let slot = self.commands.slot().await?;
            self.commands.push(request, slot).await.ok()
        };
        match tokio::time::timeout(TMUX_TIMEOUT, answered).await {
            Ok(Some(reply)) => reply,
            Ok(None) => Err(Error::ServerGone {
                session: self.session.clone(),
                partial: PartialAnswer::default(),
            }),
            Err(_) => Err(Error::TmuxTimeout {
                command: label.to_owned(),
                after: TMUX_TIMEOUT,
            }),
        }
    }

    /// Runs one command and returns its output.
    async fn run_one(&self, label: &'static str, line: String) -> Result<String, Error> {
        let mut blocks = self.run(Request::new(label, line)).await?;
        let body = blocks.pop().unwrap_or_default();
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Lists the panes of the session once. The reader has updated the table.
    pub(crate) async fn list_panes(&self) -> Result<Vec<PaneInfo>, Error> {
        let mut blocks = self.run(Request::list_panes(&self.session)).await?;
        let list = blocks.pop().unwrap_or_default();
        Ok(PaneInfo::parse_list(&String::from_utf8_lossy(&list)))
    }

    fn update(self: &Arc<Self>, infos: &[PaneInfo]) {
        let watch = |info: &PaneInfo| ExitWatch::start(info, Arc::downgrade(self));
        self.panes.update(infos, watch);
        if self.panes.ending(infos).next().is_some() {
            self.commands.reap_children();
        }
    }

    fn on_event(self: &Arc<Self>, event: StreamEvent, now: Instant) {
        match event {
            StreamEvent::Output { pane, bytes } => {
                if let Some(on) = self.panes.output(pane, &bytes, now) {
                    self.commands.store_bracketing(pane, on);
                }
            }
            StreamEvent::Begin { ours: true, at } => self.commands.block_began(at),
            StreamEvent::End {
                ours: true,
                end,
                body,
            } => self
                .commands
                .block_ended(end, body, |infos| self.update(infos)),
            StreamEvent::ModeChanged(pane) => self.panes.wake_taps(pane),
            StreamEvent::PanesChanged => self.commands.request_pane_list(),
            StreamEvent::Begin { .. } | StreamEvent::End { .. } | StreamEvent::Exit => {}
        }
    }

    fn end(&self) {
        self.commands.close();
        self.panes.server_gone();
    }
}

struct StreamReader {
    connection: Arc<Connection>,
    stdout: ChildStdout,
    parser: StreamParser,
    /// Ends with this task, also when it is aborted, and kills the client process.
    _guard: ProcessGuard,
}

impl StreamReader {
    async fn run(mut self, early: Vec<StreamEvent>) {
        let mut buffer = vec![0; 64 * 1024];
        let mut events = early;
        loop {
            let now = Instant::now();
            let mut exits = false;
            for event in events.drain(..) {
                exits |= event == StreamEvent::Exit;
                self.connection.on_event(event, now);
            }
            let parsed = &self.connection.parsed;
            parsed.store(self.parser.parsed(), Ordering::Release);
            if exits {
                break;
            }
            let count = self.stdout.read(&mut buffer).await.unwrap_or(0);
            if count == 0 {
                break;
            }
            self.parser
                .feed(&buffer[..count], |event| events.push(event));
        }
        self.connection.end();
    }
}

async fn write(connection: Arc<Connection>, mut stdin: pipe::Sender) {
    let parsed = || connection.parsed.load(Ordering::Acquire);
    loop {
        let line = connection.commands.next_line(parsed).await;
        if let Err(error) = stdin.write_all(line.as_bytes()).await {
            // The reader sees the end of the stream and ends all waits.
            tracing::debug!(%error, "the control client accepts no more commands");
        }
    }
}
