//! The events of an execution.

use std::sync::Arc;
use std::time::SystemTime;

use crate::{AgentEvent, BudgetNotice, ExitReport, Line, LiveEvent, SessionId, Watchdog};

/// One event of an execution.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, execution) = doctest::launch("echo hello").await;
/// let mut events = execution.events();
/// let mut expected = 0;
/// while let Some(event) = events.next().await {
///     assert_eq!(event.sequence, expected);
///     expected += 1;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Event {
    /// The number of the event: 0, 1, 2, … without holes, the same for every subscriber.
    pub sequence: u64,
    /// When the service saw it.
    pub at: SystemTime,
    /// The kind, with its data.
    pub kind: EventKind,
}

/// The kind of an [`Event`], with its data.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, execution) = doctest::launch("echo hello").await;
/// use exec_core::EventKind;
///
/// let mut events = execution.events();
/// while let Some(event) = events.next().await {
///     match &event.kind {
///         EventKind::Output(output) => println!("{}", output.line.text()),
///         EventKind::Exited(report) => println!("exit code {:?}", report.code),
///         _ => {}
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// The process was started. Always the first event.
    Started {
        /// The process id.
        process_id: u32,
    },
    /// The process wrote a line.
    Output(Output),
    /// The session id is known, also if it is the minted one. A second event follows if the agent
    /// reports its own id after the wait for it has ended; the former id stays an alias.
    SessionResolved {
        /// The id.
        session_id: SessionId,
    },
    /// The agent continued another session than the one of the follow-up: it does not remember
    /// the conversation.
    SessionMismatch {
        /// The agent's id of the session of the request.
        asked: String,
        /// The id that the agent reported.
        reported: String,
    },
    /// Events of the agent that belong to no line: those that only the end of its output decides.
    Agent(Vec<AgentEvent>),
    /// An event of a live session.
    Live(LiveEvent),
    /// A watchdog fired; the execution is being stopped.
    Watchdog(Watchdog),
    /// A budget is nearly used: 80 % of a limit. Once for each limit.
    BudgetWarning(BudgetNotice),
    /// A budget is exceeded; the execution is being stopped.
    BudgetExceeded(BudgetNotice),
    /// A log file could not be written. The execution continues without it.
    LogFailed {
        /// The path and the error of the operating system.
        message: String,
    },
    /// Events were dropped to keep memory bounded, before this subscriber has read them.
    ///
    /// `sequence` is that of the first dropped event; the next event has `sequence + missed`.
    Gap {
        /// How many events were dropped.
        missed: u64,
    },
    /// The execution has ended: the child, and every process of its tree that could be ended. Always
    /// the last event.
    Exited(Arc<ExitReport>),
}

/// A line of output, with the events that the profile's parser has read from it.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, execution) = doctest::launch("echo hello >&2").await;
/// # let mut events = execution.events();
/// use exec_core::{EventKind, OutputStream};
///
/// while let Some(event) = events.next().await {
///     if let EventKind::Output(output) = &event.kind {
///         assert_eq!(output.stream, OutputStream::Stderr);
///         assert_eq!(output.line.text(), "hello");
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Output {
    /// The stream.
    pub stream: OutputStream,
    /// The line as it was written.
    pub line: Line,
    /// The meaning of the line. Empty for lines that the parser does not know and for truncated
    /// lines. A line of standard error has an event if it tells of a known failure.
    pub events: Vec<AgentEvent>,
}

/// One of the two output streams of a process.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, execution) = doctest::launch("echo hello").await;
/// use exec_core::OutputStream;
///
/// // This service writes no log files.
/// assert_eq!(execution.log_path(OutputStream::Stdout), None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Event {
    /// The events of the agent in this event, if there are any.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_folder, execution) = doctest::launch("echo hello").await;
    /// use exec_core::AgentEventKind;
    ///
    /// let mut events = execution.events();
    /// while let Some(event) = events.next().await {
    ///     for agent_event in event.agent_events() {
    ///         if let AgentEventKind::Text { text, .. } = &agent_event.kind {
    ///             println!("{text}");
    ///         }
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn agent_events(&self) -> &[AgentEvent] {
        match &self.kind {
            EventKind::Output(output) => &output.events,
            EventKind::Agent(events) => events,
            _ => &[],
        }
    }
}

impl EventKind {
    /// The memory of the event, for the bound of the log.
    pub(crate) fn cost(&self) -> usize {
        const FIXED: usize = size_of::<Event>() + 32;
        let of_events = |events: &Vec<AgentEvent>| {
            let heap: usize = events.iter().map(AgentEvent::heap_bytes).sum();
            events.capacity() * size_of::<AgentEvent>() + heap
        };
        match self {
            Self::Output(output) => {
                FIXED + output.line.as_bytes().len() + of_events(&output.events)
            }
            Self::Agent(events) => FIXED + of_events(events),
            Self::Live(event) => FIXED + event.heap_bytes(),
            _ => FIXED,
        }
    }
}
