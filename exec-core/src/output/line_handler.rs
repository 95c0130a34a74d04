use std::collections::VecDeque;
use std::sync::Arc;

use super::event_log::EventLog;
use super::line::Line;
use crate::run::{Activity, LiveExecution};
use crate::{
    AgentEvent, AgentEventKind, EventKind, EventParser, Output, OutputStream, SessionIdResolver,
};

/// From this size on, room for a line and its events is made before it is parsed.
const LARGE_LINE: usize = 256 << 10;
/// How much of standard error the exit report contains.
const TAIL_LINES: usize = 20;
const TAIL_LINE_BYTES: usize = 1 << 10;

/// Turns the lines of one stream into events.
pub(crate) struct LineHandler {
    stream: OutputStream,
    log: EventLog,
    execution: Arc<LiveExecution>,
    activity: Arc<Activity>,
    parser: Option<Box<dyn EventParser>>,
    resolver: Option<Box<dyn SessionIdResolver>>,
    /// Events that are not yet in the log. The pipe is not read while there are any, so they
    /// come from one read at most.
    pending: VecDeque<EventKind>,
    truncated: u64,
    tail: VecDeque<String>,
}

impl LineHandler {
    pub(crate) fn new(
        stream: OutputStream,
        execution: Arc<LiveExecution>,
        activity: Arc<Activity>,
    ) -> Self {
        Self {
            stream,
            log: execution.log.clone(),
            execution,
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

    pub(super) fn truncated_lines(&self) -> u64 {
        self.truncated
    }

    pub(super) fn tail(&self) -> Vec<String> {
        self.tail.iter().cloned().collect()
    }

    pub(super) fn saw_output(&self) {
        self.activity.output();
    }

    /// Whether the lines go to the protocol of a live session.
    fn is_live(&self) -> bool {
        self.stream == OutputStream::Stdout && self.execution.link.is_some()
    }

    /// Moves the pending events into the log; waits for room.
    pub(super) async fn deliver(&mut self) {
        if self.is_live() {
            // Its lines are already there, above the bound by one read at most. Subscribers that
            // sleep would make no room.
            self.log.wake();
            if !self.log.has_room() {
                let _blocked = self.activity.block_output();
                self.log.room().await;
            }
        }
        if !self.log.try_push_output(&mut self.pending) {
            let _blocked = self.activity.block_output();
            self.log.push_output(&mut self.pending).await;
        }
    }

    /// As [`deliver`](Self::deliver) without waiting.
    pub(super) fn force(&mut self) {
        self.log.wake();
        self.log.force_output(&mut self.pending);
    }

    pub(super) fn push(&mut self, event: EventKind) {
        self.pending.push_back(event);
    }

    pub(super) fn handle(&mut self, line: Line) {
        if line.is_truncated() {
            self.truncated += 1;
        }
        if self.is_live()
            && let Some(control) = self.execution.control()
        {
            if line.as_bytes().len() >= LARGE_LINE {
                self.log.reserve(2 * line.as_bytes().len());
            }
            // A failure of the log file.
            self.log.force_output(&mut self.pending);
            return control.line(line);
        }
        let mut events = Vec::new();
        let mut resolved = None;
        let mut notices = Vec::new();
        match self.stream {
            OutputStream::Stderr => {
                self.remember(&line);
                let mut run = self.execution.run();
                if run.has_classifier() {
                    events.extend(run.observe_stderr(&line.text()));
                }
            }
            OutputStream::Stdout if line.is_truncated() => {}
            // Decoding a line that is not parsed would be a wasted pass over it.
            OutputStream::Stdout if self.parser.is_none() && self.resolver.is_none() => {}
            OutputStream::Stdout => {
                if line.as_bytes().len() >= LARGE_LINE {
                    // The events of a line contain about as much text as the line.
                    self.log.reserve(2 * line.as_bytes().len());
                }
                let text = line.text();
                if let Some(parser) = &mut self.parser {
                    events = parser.parse_line(&text);
                }
                if let Some(resolver) = &mut self.resolver
                    && let Some(native_id) = resolver.handle_line(&text)
                {
                    self.resolver = None;
                    resolved = self.execution.agent_reported(&native_id);
                }
                for event in &events {
                    // The session of a sub-agent is not that of the execution.
                    if let AgentEventKind::SessionStarted { session_id, .. } = &event.kind
                        && event.parent.is_none()
                    {
                        resolved = resolved.or(self.execution.agent_reported(session_id));
                    }
                }
                notices = self.observe(&mut events);
            }
        }
        let stream = self.stream;
        self.pending.push_back(EventKind::Output(Output {
            stream,
            line,
            events,
        }));
        self.pending.extend(resolved);
        self.pending.extend(notices);
    }

    /// The end of the stream: the events that only the end decides.
    pub(super) fn finish(&mut self) {
        // Once: what follows has no parser.
        let Some(mut parser) = self.parser.take() else {
            return;
        };
        let mut events = parser.finish();
        let notices = self.observe(&mut events);
        if !events.is_empty() {
            self.pending.push_back(EventKind::Agent(events));
        }
        self.pending.extend(notices);
    }

    /// Returns the events that follow.
    fn observe(&self, events: &mut [AgentEvent]) -> Vec<EventKind> {
        if events.is_empty() {
            return Vec::new();
        }
        self.execution.run().observe(events);
        let is_finish = |event: &AgentEvent| matches!(event.kind, AgentEventKind::Finished { .. });
        if events.iter().any(is_finish) {
            self.activity.finished();
        }
        self.execution.count(events)
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
