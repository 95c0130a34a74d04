//! The conversation with tmux: requests, and the answers to them, for all panes of a server.
//!
//! Two tasks share the work. The writer owns the way in and notes each request before it writes it;
//! the reader owns stdout, never waits for anyone, and hands out blocks in the order of the requests.

use std::{
    collections::VecDeque,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::pipe,
    process::ChildStdout,
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::Instant,
};

use crate::{
    client::{Client, Guard},
    error::{Error, PartialAnswer, Result},
    pane::PaneId,
    panes::{PaneInfo, Panes},
    parser::{Event, Parser},
    tap::Tap,
    watch::{self, STATUS_LIMIT, STATUS_PAUSE},
};

/// How long a command may take. tmux answers within a millisecond; a server that hangs is an error.
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

type Reply = Result<Vec<Vec<u8>>>;

/// One line of commands.
#[derive(Debug)]
pub(crate) struct Request {
    /// What errors call it: never the text of a message.
    label: &'static str,
    line: String,
    /// tmux answers each command of the line with a block of its own, up to the first that fails.
    blocks: usize,
    tap: Option<Arc<Tap>>,
}

impl Request {
    pub(crate) fn new(label: &'static str, line: String) -> Self {
        Self {
            label,
            line,
            blocks: 1,
            tap: None,
        }
    }

    pub(crate) fn blocks(mut self, blocks: usize) -> Self {
        self.blocks = blocks;
        self
    }

    /// Opens the tap where this request stands in the stream of the pane's output.
    pub(crate) fn tap(mut self, tap: &Arc<Tap>) -> Self {
        self.tap = Some(Arc::clone(tap));
        self
    }
}

#[derive(Debug)]
enum Answer {
    To(oneshot::Sender<Reply>),
    /// The list of panes, for the client itself.
    Panes,
    Nobody,
}

#[derive(Debug)]
struct Waiting {
    label: &'static str,
    missing: usize,
    bodies: Vec<Vec<u8>>,
    tap: Option<Arc<Tap>>,
    answer: Answer,
}

/// A handle to the client. Clones share it; the last one kills it.
#[derive(Debug, Clone)]
pub(crate) struct Control {
    shared: Arc<Shared>,
    _tasks: Arc<Tasks>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    session: String,
    requests: mpsc::UnboundedSender<(Request, Answer)>,
    waiting: Mutex<Requests>,
    /// How much of the stream the reader has taken in.
    parsed: AtomicU64,
    pub(crate) panes: Panes,
}

#[derive(Debug, Default)]
struct Requests {
    queue: VecDeque<Waiting>,
    gone: bool,
}

#[derive(Debug)]
struct Tasks(Vec<JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

impl Control {
    /// Attaches to a session.
    pub(crate) async fn attach(
        program: &Path,
        socket: &Path,
        folder: &Path,
        session: &str,
    ) -> Result<Self> {
        let Client {
            stdin,
            stdout,
            guard,
            parser,
            early,
        } = Client::start(program, socket, folder, session).await?;
        let (requests, receiver) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            session: session.to_owned(),
            requests,
            waiting: Mutex::default(),
            parsed: AtomicU64::new(parser.parsed()),
            panes: Panes::new(folder),
        });
        let reader = tokio::spawn(read(Arc::downgrade(&shared), guard, stdout, parser, early));
        let writer = tokio::spawn(write(Arc::downgrade(&shared), stdin, receiver));
        let control = Self {
            shared,
            _tasks: Arc::new(Tasks(vec![reader, writer])),
        };
        control.list_panes().await?;
        Ok(control)
    }

    pub(crate) fn session(&self) -> &str {
        &self.shared.session
    }

    /// Whether a pane is known, without asking tmux.
    pub(crate) fn knows(&self, pane: PaneId) -> bool {
        self.shared.panes.knows(pane)
    }

    pub(crate) fn gone(&self, partial: PartialAnswer) -> Error {
        Error::ServerGone {
            session: self.shared.session.clone(),
            partial,
        }
    }

    /// Whether the server is known to be gone, so that nothing sent now can reach it.
    pub(crate) fn is_gone(&self) -> bool {
        self.shared.requests_lock().gone
    }

    pub(crate) fn panes(&self) -> &Panes {
        &self.shared.panes
    }

    /// As [`Shared::run`].
    pub(crate) async fn run(&self, request: Request) -> Reply {
        self.shared.run(request).await
    }

    /// As [`Shared::one`].
    pub(crate) async fn one(&self, label: &'static str, line: String) -> Result<String> {
        self.shared.one(label, line).await
    }

    /// Asks for the panes of the session and takes note of which have ended, and how.
    pub(crate) async fn list_panes(&self) -> Result<Vec<PaneInfo>> {
        let deadline = Instant::now() + STATUS_LIMIT;
        loop {
            let infos = self.shared.list_panes().await?;
            let panes = &self.shared.panes;
            if panes.ending(&infos).next().is_none() {
                return Ok(infos);
            }
            if Instant::now() >= deadline {
                panes
                    .ending(&infos)
                    .for_each(|info| panes.process_gone(info.id, info.pid));
                return Ok(infos);
            }
            tokio::time::sleep(STATUS_PAUSE).await;
        }
    }
}

impl Shared {
    pub(crate) fn gone(&self) -> Error {
        Error::ServerGone {
            session: self.session.clone(),
            partial: PartialAnswer::default(),
        }
    }

    /// Runs a line of commands and returns a body for each.
    ///
    /// Cancel safe in that the line is written whole or not at all; whether it ran is not known.
    async fn run(&self, request: Request) -> Reply {
        let label = request.label;
        let (sender, receiver) = oneshot::channel();
        if self.requests.send((request, Answer::To(sender))).is_err() {
            return Err(self.gone());
        }
        match tokio::time::timeout(COMMAND_TIMEOUT, receiver).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) => Err(self.gone()),
            Err(_) => Err(Error::TmuxTimeout {
                command: label.to_owned(),
                after: COMMAND_TIMEOUT,
            }),
        }
    }

    /// Runs one command and returns its output.
    async fn one(&self, label: &'static str, line: String) -> Result<String> {
        let body = self
            .run(Request::new(label, line))
            .await?
            .pop()
            .unwrap_or_default();
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Asks for the panes of the session once and takes note of what it says.
    pub(crate) async fn list_panes(self: &Arc<Self>) -> Result<Vec<PaneInfo>> {
        let body = self
            .one("list-panes", list_panes_line(&self.session))
            .await?;
        let infos = PaneInfo::parse(&body);
        self.update(&infos);
        Ok(infos)
    }

    fn update(self: &Arc<Self>, infos: &[PaneInfo]) {
        self.panes
            .update(infos, |info| watch::process_of(info, Arc::downgrade(self)));
        if self.panes.ending(infos).next().is_some() {
            // Before 3.5, tmux does not hear of a child that ends while its terminal is taken off the
            // list of logins. The end of another child makes it look after all of them.
            let line = "run-shell -b true".to_owned();
            self.send(Request::new("run-shell", line), Answer::Nobody);
        }
    }

    fn send(&self, request: Request, answer: Answer) {
        // After the end there is nobody to tell.
        let _ = self.requests.send((request, answer));
    }

    /// Asks for the list of panes, without waiting for it.
    fn refresh(&self) {
        self.send(
            Request::new("list-panes", list_panes_line(&self.session)),
            Answer::Panes,
        );
    }

    fn on_event(self: &Arc<Self>, event: Event, now: Instant) {
        match event {
            Event::Output { pane, bytes } => {
                if let Some(on) = self.panes.output(pane, &bytes, now) {
                    // Other processes that attach later have not seen this output.
                    let line = format!(
                        "set-option -p -t {pane} @tmux_bus_bracketing {}",
                        u8::from(on)
                    );
                    self.send(Request::new("set-option", line), Answer::Nobody);
                }
            }
            Event::Begin { ours: true, at } => {
                if let Some(tap) = self
                    .requests_lock()
                    .queue
                    .front_mut()
                    .and_then(|waiting| waiting.tap.take())
                {
                    tap.open_at(at);
                }
            }
            Event::End {
                ours: true,
                ok,
                body,
            } => self.on_block(ok, body),
            Event::PanesChanged => self.refresh(),
            Event::Begin { .. } | Event::End { .. } | Event::Exit => {}
        }
    }

    fn on_block(self: &Arc<Self>, ok: bool, body: Vec<u8>) {
        let mut requests = self.requests_lock();
        let Some(waiting) = requests.queue.front_mut() else {
            return;
        };
        waiting.missing = waiting.missing.saturating_sub(1);
        waiting.bodies.push(body);
        if ok && waiting.missing > 0 {
            return;
        }
        let Some(mut waiting) = requests.queue.pop_front() else {
            return;
        };
        drop(requests);
        let reply = if ok {
            Ok(waiting.bodies)
        } else {
            let message = waiting.bodies.pop().unwrap_or_default();
            Err(Error::failed(
                waiting.label,
                String::from_utf8_lossy(&message).trim(),
            ))
        };
        match waiting.answer {
            Answer::To(sender) => drop(sender.send(reply)),
            Answer::Panes => {
                if let Some(body) = reply.ok().and_then(|mut bodies| bodies.pop()) {
                    self.update(&PaneInfo::parse(&String::from_utf8_lossy(&body)));
                }
            }
            Answer::Nobody => {}
        }
    }

    fn end(&self) {
        let queue = {
            let mut requests = self.requests_lock();
            requests.gone = true;
            std::mem::take(&mut requests.queue)
        };
        for waiting in queue {
            if let Answer::To(sender) = waiting.answer {
                let _ = sender.send(Err(self.gone()));
            }
        }
        self.panes.server_gone();
    }

    fn requests_lock(&self) -> MutexGuard<'_, Requests> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn list_panes_line(session: &str) -> String {
    format!(
        "list-panes -s -t ={session} -F {}",
        crate::octal::quote(PaneInfo::FORMAT)
    )
}

async fn read(
    shared: Weak<Shared>,
    guard: Guard,
    mut stdout: ChildStdout,
    mut parser: Parser,
    early: Vec<Event>,
) {
    // It ends with this task, also by an abort, and the client with it.
    let _guard = guard;
    let mut buffer = vec![0; 64 * 1024];
    let mut events = early;
    loop {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let now = Instant::now();
        let mut exit = false;
        for event in events.drain(..) {
            exit |= event == Event::Exit;
            shared.on_event(event, now);
        }
        shared.parsed.store(parser.parsed(), Ordering::Release);
        if exit {
            return shared.end();
        }
        // Not held while waiting: the last handle must be able to go.
        drop(shared);
        let count = stdout.read(&mut buffer).await.unwrap_or(0);
        if count == 0 {
            break;
        }
        parser.feed(&buffer[..count], |event| events.push(event));
    }
    if let Some(shared) = shared.upgrade() {
        shared.end();
    }
}

async fn write(
    shared: Weak<Shared>,
    mut stdin: pipe::Sender,
    mut requests: mpsc::UnboundedReceiver<(Request, Answer)>,
) {
    while let Some((request, answer)) = requests.recv().await {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        {
            let mut waiting = shared.requests_lock();
            if waiting.gone {
                if let Answer::To(sender) = answer {
                    let _ = sender.send(Err(shared.gone()));
                }
                continue;
            }
            if let Some(tap) = &request.tap {
                tap.arm(shared.parsed.load(Ordering::Acquire));
            }
            waiting.queue.push_back(Waiting {
                label: request.label,
                missing: request.blocks,
                bodies: Vec::new(),
                tap: request.tap,
                answer,
            });
        }
        drop(shared);
        let mut line = request.line.into_bytes();
        line.push(b'\n');
        if let Err(error) = stdin.write_all(&line).await {
            // The reader sees the end of the stream and tells everyone.
            tracing::debug!(%error, "the control client takes no more commands");
        }
    }
}
