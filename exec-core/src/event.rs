use std::sync::Arc;
use std::time::SystemTime;

use crate::{AgentEvent, ExitReport, Line, SessionId, Watchdog};

/// One thing that happened in an execution.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Event {
    /// The place in the execution: 0, 1, 2, … without holes, the same for every subscriber.
    pub sequence: u64,
    /// When the service saw it.
    pub at: SystemTime,
    /// What happened.
    pub kind: EventKind,
}

/// What an [`Event`] says.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// The process runs: always the first event.
    Started {
        /// Its process id.
        process_id: u32,
    },
    /// The process wrote a line.
    Output(Output),
    /// The session's id is final (also when it is the minted one).
    SessionResolved {
        /// The final id.
        session_id: SessionId,
    },
    /// A follow-up reached another session than the one it was meant for: the agent does not
    /// remember what was said there.
    SessionMismatch {
        /// The agent's id of the session that was asked for.
        asked: String,
        /// The id the agent gave instead.
        reported: String,
    },
    /// A watchdog fired; the execution is being stopped.
    Watchdog(Watchdog),
    /// The log file could not be written. The run goes on without it.
    LogFailed {
        /// What the system said, with the path.
        message: String,
    },
    /// Events that this subscriber should have got were dropped to keep memory bounded.
    ///
    /// `sequence` is that of the first one missing; the next event's is `sequence + missed`.
    Gap {
        /// How many are missing.
        missed: u64,
    },
    /// The whole process tree has ended: always the last event.
    Exited(Arc<ExitReport>),
}

/// A line of output with what the profile's parser read from it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Output {
    /// Where it was written.
    pub stream: OutputStream,
    /// The line as it was written.
    pub line: Line,
    /// What it means. Empty for a line the parser does not know, for standard error, and for a
    /// truncated line.
    pub events: Vec<AgentEvent>,
}

/// One of the two output streams of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl EventKind {
    /// About how many bytes of memory the event takes, for the bound of the log.
    pub(crate) fn cost(&self) -> usize {
        const FIXED: usize = size_of::<Event>() + 32;
        match self {
            // A parsed event repeats about as much as its line holds.
            Self::Output(output) if output.events.is_empty() => {
                FIXED + output.line.as_bytes().len()
            }
            Self::Output(output) => {
                FIXED
                    + 2 * output.line.as_bytes().len()
                    + output.events.len() * size_of::<AgentEvent>()
            }
            _ => FIXED,
        }
    }
}
