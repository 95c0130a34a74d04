//! From a pipe of the child to the event log, and byte for byte to the log file.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use tokio::net::unix::pipe;

use crate::activity::Activity;
use crate::event_log::EventLog;
use crate::execution::ExecutionState;
use crate::framing::LineFramer;
use crate::raw_log::RawLog;
use crate::{AgentEvent, EventKind, EventParser, Line, Output, OutputStream, SessionIdResolver};

/// What a pipe holds at first.
const SMALL_PIPE: usize = 64 << 10;
/// What a pipe holds once it has been found full: an agent that writes faster than we are scheduled
/// need not wait as often. Also the most that is read in one go.
const LARGE_PIPE: usize = 256 << 10;
const TAIL_LINES: usize = 20;
const TAIL_LINE_BYTES: usize = 1 << 10;

thread_local! {
    // One for each thread, not for each pipe: a thousand idle executions need no buffers.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; LARGE_PIPE]);
}

/// Reads one pipe of the child.
pub(crate) struct Pump {
    /// `None` after the end of the output.
    pipe: Option<pipe::Receiver>,
    is_large: bool,
    framer: LineFramer,
    raw_log: Option<RawLog>,
    lines: LineHandler,
}

/// What becomes of a line.
pub(crate) struct LineHandler {
    stream: OutputStream,
    log: EventLog,
    state: Arc<ExecutionState>,
    activity: Arc<Activity>,
    parser: Option<Box<dyn EventParser>>,
    resolver: Option<Box<dyn SessionIdResolver>>,
    /// Read but not yet in the log. It holds one chunk at most: the pipe is not read while it
    /// holds anything.
    pending: VecDeque<EventKind>,
    truncated: u64,
    tail: VecDeque<String>,
}

impl Pump {
    pub(crate) fn new(
        pipe: pipe::Receiver,
        max_line_bytes: usize,
        raw_log: Option<RawLog>,
        lines: LineHandler,
    ) -> Self {
        Self {
            pipe: Some(pipe),
            is_large: false,
            framer: LineFramer::new(max_line_bytes),
            raw_log,
            lines,
        }
    }

    /// Reads until the end of the output.
    ///
    /// Cancel safe: whatever has been read is in the log or pending.
    pub(crate) async fn run(&mut self) {
        loop {
            self.lines.deliver().await;
            let Some(pipe) = &self.pipe else { return };
            if let Err(error) = pipe.readable().await {
                tracing::warn!(%error, "cannot wait for output");
                self.pipe = None;
                continue;
            }
            self.read_some();
        }
    }

    /// Takes what the pipe holds, without waiting for anything or anyone.
    pub(crate) fn drain(&mut self) {
        let mut taken = 0;
        // A process that is out of our reach may go on writing for ever.
        while self.pipe.is_some() && taken < LARGE_PIPE {
            match self.read_some() {
                0 => break,
                read => taken += read,
            }
        }
        self.lines.force();
    }

    /// The end: nothing more is read, and half a line is a line.
    pub(crate) fn finish(&mut self) {
        self.drain();
        self.pipe = None;
        if let Some(line) = self.framer.finish() {
            self.lines.handle(line);
        }
        self.lines.force();
    }

    pub(crate) fn truncated_lines(&self) -> u64 {
        self.lines.truncated
    }

    pub(crate) fn tail(&self) -> Vec<String> {
        self.lines.tail.iter().cloned().collect()
    }

    /// One read; tells how much there was.
    fn read_some(&mut self) -> usize {
        BUFFER.with_borrow_mut(|buffer| {
            let Some(pipe) = &self.pipe else { return 0 };
            match pipe.try_read(buffer) {
                Ok(0) => {
                    self.pipe = None;
                    0
                }
                Ok(read) => {
                    if read >= SMALL_PIPE && !self.is_large {
                        self.is_large = true;
                        // Users have a limit of pipe memory; then it stays as it is.
                        let _ = rustix::pipe::fcntl_setpipe_size(pipe, LARGE_PIPE);
                    }
                    self.take(&buffer[..read]);
                    read
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) => {
                    tracing::warn!(%error, "cannot read output");
                    self.pipe = None;
                    0
                }
            }
        })
    }

    fn take(&mut self, bytes: &[u8]) {
        self.lines.activity.output();
        if let Some(raw_log) = &mut self.raw_log
            && let Err(error) = raw_log.write(bytes)
        {
            let message = format!("{}: {error}", raw_log.path().display());
            tracing::error!(%message, "cannot write the log file");
            self.lines
                .pending
                .push_back(EventKind::LogFailed { message });
            self.raw_log = None;
        }
        let lines = &mut self.lines;
        self.framer.push(bytes, |line| lines.handle(line));
    }
}

impl LineHandler {
    pub(crate) fn new(
        stream: OutputStream,
        state: Arc<ExecutionState>,
        activity: Arc<Activity>,
    ) -> Self {
        Self {
            stream,
            log: state.log.clone(),
            state,
            activity,
            parser: None,
            resolver: None,
            pending: VecDeque::new(),
            truncated: 0,
            tail: VecDeque::new(),
        }
    }

    pub(crate) fn parsing(
        mut self,
        parser: Option<Box<dyn EventParser>>,
        resolver: Option<Box<dyn SessionIdResolver>>,
    ) -> Self {
        self.parser = parser;
        self.resolver = resolver;
        self
    }

    async fn deliver(&mut self) {
        if !self.log.try_push_output(&mut self.pending) {
            let _held_back = self.activity.hold_back();
            self.log.push_output(&mut self.pending).await;
        }
    }

    fn force(&mut self) {
        self.log.force_output(&mut self.pending);
    }

    fn handle(&mut self, line: Line) {
        if line.is_truncated() {
            self.truncated += 1;
        }
        let mut events = Vec::new();
        let mut resolved = None;
        match self.stream {
            OutputStream::Stderr => self.remember(&line),
            OutputStream::Stdout if line.is_truncated() => {}
            OutputStream::Stdout if self.parser.is_none() && self.resolver.is_none() => {}
            OutputStream::Stdout => {
                let text = line.text();
                if let Some(parser) = &mut self.parser {
                    events = parser.parse_line(&text);
                }
                if let Some(resolver) = &mut self.resolver
                    && let Some(agent_id) = resolver.handle_line(&text)
                {
                    self.resolver = None;
                    resolved = self.state.agent_reported(&agent_id);
                }
            }
        }
        if events
            .iter()
            .any(|event| matches!(event, AgentEvent::Finished { .. }))
        {
            self.activity.finished();
        }
        let stream = self.stream;
        self.pending.push_back(EventKind::Output(Output {
            stream,
            line,
            events,
        }));
        self.pending.extend(resolved);
    }

    fn remember(&mut self, line: &Line) {
        if self.tail.len() == TAIL_LINES {
            self.tail.pop_front();
        }
        let bytes = line.as_bytes();
        let kept = &bytes[..bytes.len().min(TAIL_LINE_BYTES)];
        self.tail
            .push_back(String::from_utf8_lossy(kept).into_owned());
    }
}
