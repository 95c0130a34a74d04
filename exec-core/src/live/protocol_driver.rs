//! The contract with a profile that speaks a protocol with its agent.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{AgentEvent, Failure, ToolInput};

/// A protocol between host and agent, without I/O: lines and commands in, lines and signals out.
///
/// The service owns the process, the queue of prompts, the open questions and the log. It calls the
/// driver from one task at a time:
///
/// 1. [`open`](Self::open) once, before anything else.
/// 2. [`line`](Self::line) for every line of standard output, in order, without the line end,
///    except for truncated lines.
/// 3. [`command`](Self::command) only after [`DriverOutput::opened`], except for
///    [`Answer`](DriverCommand::Answer) and [`Withdraw`](DriverCommand::Withdraw) of a request that
///    the agent has asked before. There is never a second prompt before the turn of the first one
///    has ended.
///
/// A driver does not block and does not panic. Its memory does not grow with the number of turns.
/// It answers every request of the agent once: a permission request by the command that settles it,
/// any other at once, with the protocol's error if it does not know the request. Messages that it
/// does not know are no error: the log has the line.
///
/// A second `opened`, and a `turn_ended` while no turn runs, are ignored. The repeated end of an
/// earlier turn would end the running one: compare the ids, if the protocol has them.
///
/// A profile gets a driver by [`Profile::build_live_parameters`](crate::Profile::build_live_parameters);
/// in `exec-profiles`, by `LiveConfig::with_builder`.
///
/// ```
/// use exec_core::{DriverCommand, DriverOutput, ProtocolDriver, TurnOutcome};
///
/// /// Each line of the agent is the answer to one prompt.
/// struct OneLine;
///
/// impl ProtocolDriver for OneLine {
///     fn open(&mut self, out: &mut DriverOutput) {
///         out.opened(None);
///     }
///
///     fn line(&mut self, line: &str, out: &mut DriverOutput) {
///         out.turn_ended(TurnOutcome::Completed, Some(line.to_owned()));
///     }
///
///     fn command(&mut self, command: DriverCommand<'_>, out: &mut DriverOutput) {
///         match command {
///             DriverCommand::Prompt(text) => out.send(text.replace('\n', " ")),
///             _ => out.refused("this agent knows prompts only"),
///         }
///     }
/// }
/// ```
pub trait ProtocolDriver: Send {
    /// Opens the session.
    fn open(&mut self, out: &mut DriverOutput);

    /// Reads a line of the agent.
    fn line(&mut self, line: &str, out: &mut DriverOutput);

    /// Translates a command of the host.
    fn command(&mut self, command: DriverCommand<'_>, out: &mut DriverOutput);

    /// Whether a text can be put into the running turn.
    fn can_steer(&self) -> bool {
        false
    }

    /// Whether the agent reports the cost of its turns. Otherwise a
    /// [cost budget](crate::Budget::cost_usd) needs a price table.
    fn reports_cost(&self) -> bool {
        false
    }
}

/// A command of the host for a [`ProtocolDriver`]. `Debug` shows the size of a text.
///
/// ```
/// use exec_core::DriverCommand;
///
/// assert_eq!(format!("{:?}", DriverCommand::Prompt("hello")), "Prompt { len: 5 }");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverCommand<'a> {
    /// Starts a turn.
    Prompt(&'a str),
    /// Puts a text into the running turn. The driver reports [`DriverOutput::steered`].
    Steer(&'a str),
    /// Cancels the running turn. The turn ends when the agent says so.
    Interrupt,
    /// Answers a permission request. If the protocol has no such answer, the driver cancels the
    /// request and calls [`DriverOutput::refused`]: no decision is recorded then.
    Answer {
        /// The id of the request.
        permission: &'a str,
        /// The answer.
        decision: Decision,
    },
    /// The question is void, because its turn is cancelled. Protocols that need an answer get one.
    Withdraw {
        /// The id of the request.
        permission: &'a str,
    },
    /// Selects a mode of the agent, such as `plan`.
    SetMode(&'a str),
    /// Selects a model.
    SetModel(&'a str),
}

impl fmt::Debug for DriverCommand<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = |name: &str, text: &str| {
            let mut shown = f.debug_struct(name);
            shown.field("len", &text.len()).finish()
        };
        match self {
            Self::Prompt(prompt) => text("Prompt", prompt),
            Self::Steer(message) => text("Steer", message),
            Self::Interrupt => f.write_str("Interrupt"),
            Self::Answer {
                permission,
                decision,
            } => f
                .debug_struct("Answer")
                .field("permission", permission)
                .field("decision", decision)
                .finish(),
            Self::Withdraw { permission } => f
                .debug_struct("Withdraw")
                .field("permission", permission)
                .finish(),
            Self::SetMode(mode) => f.debug_tuple("SetMode").field(mode).finish(),
            Self::SetModel(model) => f.debug_tuple("SetModel").field(model).finish(),
        }
    }
}

/// The answer to a permission request.
///
/// ```
/// use exec_core::Decision;
///
/// assert_eq!(serde_json::to_string(&Decision::Allow)?, r#""allow""#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// This call may run, once.
    Allow,
    /// It may not.
    Deny,
}

/// A question of the agent: may it call this tool? `Debug` shows the tool, not its arguments.
///
/// ```
/// use exec_core::{PermissionRequest, ToolInput};
///
/// let input = ToolInput::new(r#"{"command":"cargo test"}"#)?;
/// let mut request = PermissionRequest::new("p1", "Bash", input);
/// request.command = Some("cargo test".to_owned());
/// assert!(!format!("{request:?}").contains("cargo"));
/// # Ok::<(), exec_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PermissionRequest {
    /// The id, unique among the requests of the session.
    pub id: String,
    /// The name of the tool.
    pub tool: String,
    /// The arguments.
    pub input: ToolInput,
    /// The command line, if the tool runs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The files and folders that the tool changes or reads, if the agent names them; `/` if it
    /// names more than are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathBuf>,
    /// The tool call that has started the sub-agent that asks; `None` for the agent itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
}

impl PermissionRequest {
    /// A request without a command and without paths.
    #[must_use]
    pub fn new(id: impl Into<String>, tool: impl Into<String>, input: ToolInput) -> Self {
        Self {
            id: id.into(),
            tool: tool.into(),
            input,
            command: None,
            paths: Vec::new(),
            parent: None,
        }
    }

    /// The memory on the heap, for the bounds of the log and of the open requests.
    pub(crate) fn heap_bytes(&self) -> usize {
        const ALLOCATION: usize = 16;
        let optional = |text: &Option<String>| text.as_ref().map_or(0, String::capacity);
        let paths: usize = self
            .paths
            .iter()
            .map(|path| path.capacity() + size_of::<PathBuf>() + ALLOCATION)
            .sum();
        self.id.capacity()
            + self.tool.capacity()
            + self.input.as_str().len()
            + optional(&self.command)
            + optional(&self.parent)
            + paths
            + 5 * ALLOCATION
    }
}

impl fmt::Debug for PermissionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermissionRequest")
            .field("id", &self.id)
            .field("tool", &self.tool)
            .field("input", &self.input)
            .field("parent", &self.parent)
            .finish_non_exhaustive()
    }
}

/// How a turn ended.
///
/// ```
/// use exec_core::TurnOutcome;
///
/// assert_ne!(TurnOutcome::Completed, TurnOutcome::Interrupted);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[non_exhaustive]
pub enum TurnOutcome {
    /// The agent completed the turn.
    Completed,
    /// The turn was cancelled.
    Interrupted,
    /// The agent failed.
    Failed {
        /// Why.
        failure: Failure,
    },
    /// The process ended before the agent reported the end of the turn: the prompt may have had any
    /// effect, or none. It is not sent again.
    Uncertain,
}

/// The output of a [`ProtocolDriver`]: lines for the agent, and signals for the service, in order.
/// `Debug` shows the number and the size of the lines.
///
/// A driver does no I/O, so a test can drive it with recorded lines and look at its output:
///
/// ```
/// use exec_core::{DriverOutput, DriverSignal, TurnOutcome};
///
/// let mut out = DriverOutput::default();
/// out.send(r#"{"type":"user"}"#);
/// out.turn_ended(TurnOutcome::Interrupted, None);
/// assert_eq!(out.lines(), [r#"{"type":"user"}"#]);
/// assert!(matches!(out.signals(), [DriverSignal::TurnEnded { .. }]));
/// ```
#[derive(Default)]
pub struct DriverOutput {
    pub(super) lines: Vec<String>,
    pub(super) signals: Vec<DriverSignal>,
}

/// A signal of a [`ProtocolDriver`]; each one is the argument of a method of [`DriverOutput`].
/// `Debug` shows the sizes of texts.
///
/// ```
/// use exec_core::{DriverOutput, DriverSignal};
///
/// let mut out = DriverOutput::default();
/// out.steered(true);
/// assert!(matches!(out.signals()[0], DriverSignal::Steered { injected: true }));
/// ```
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum DriverSignal {
    /// An event of the agent's work.
    Event(AgentEvent),
    /// The session is open.
    Opened {
        /// The agent's id of the session.
        native_id: Option<String>,
    },
    /// The session cannot be opened.
    OpenFailed(Failure),
    /// The running turn has ended.
    TurnEnded {
        /// How.
        outcome: TurnOutcome,
        /// The final text, if the agent repeats it.
        text: Option<String>,
    },
    /// The agent asks for a permission.
    Asked(PermissionRequest),
    /// The agent does not need the answer any more.
    Withdrawn {
        /// The id of the request.
        permission: String,
    },
    /// The outcome of the last [`DriverCommand::Steer`].
    Steered {
        /// Whether the text is in the running turn.
        injected: bool,
    },
    /// The last command is not supported.
    Refused {
        /// Why.
        reason: String,
    },
}

impl fmt::Debug for DriverOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: usize = self.lines.iter().map(String::len).sum();
        f.debug_struct("DriverOutput")
            .field("lines", &self.lines.len())
            .field("len", &bytes)
            .field("signals", &self.signals)
            .finish()
    }
}

impl fmt::Debug for DriverSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Event(event) => f.debug_tuple("Event").field(event).finish(),
            Self::Opened { native_id } => f
                .debug_struct("Opened")
                .field("native_id", native_id)
                .finish(),
            Self::OpenFailed(failure) => f.debug_tuple("OpenFailed").field(failure).finish(),
            Self::TurnEnded { outcome, text } => f
                .debug_struct("TurnEnded")
                .field("outcome", outcome)
                .field("len", &text.as_ref().map(String::len))
                .finish(),
            Self::Asked(request) => f.debug_tuple("Asked").field(request).finish(),
            Self::Withdrawn { permission } => f
                .debug_struct("Withdrawn")
                .field("permission", permission)
                .finish(),
            Self::Steered { injected } => f
                .debug_struct("Steered")
                .field("injected", injected)
                .finish(),
            Self::Refused { reason } => f.debug_struct("Refused").field("reason", reason).finish(),
        }
    }
}

impl DriverOutput {
    /// The lines for the agent.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// The signals for the service.
    #[must_use]
    pub fn signals(&self) -> &[DriverSignal] {
        &self.signals
    }

    /// Sends a line to the agent. It must not contain a line feed.
    pub fn send(&mut self, line: impl Into<String>) {
        let line = line.into();
        debug_assert!(!line.contains('\n'), "a line has no line feed");
        self.lines.push(line);
    }

    /// Reports an event of the agent's work. [`Finished`](crate::AgentEventKind::Finished) is
    /// ignored: the end of a turn is [`turn_ended`](Self::turn_ended).
    pub fn event(&mut self, event: impl Into<AgentEvent>) {
        self.signals.push(DriverSignal::Event(event.into()));
    }

    /// The session is open, with the agent's id if the agent has reported one.
    pub fn opened(&mut self, native_id: Option<String>) {
        self.signals.push(DriverSignal::Opened { native_id });
    }

    /// The session cannot be opened. The process is stopped.
    pub fn open_failed(&mut self, failure: Failure) {
        self.signals.push(DriverSignal::OpenFailed(failure));
    }

    /// The running turn has ended, with its final text if the agent repeats it. Without one, the text
    /// of the turn is the last message of its events.
    pub fn turn_ended(&mut self, outcome: TurnOutcome, text: Option<String>) {
        self.signals.push(DriverSignal::TurnEnded { outcome, text });
    }

    /// The agent asks for a permission. The rules of a [`PermissionPolicy`](crate::PermissionPolicy)
    /// look at its tool, command and paths: fill in all that the agent tells.
    pub fn asked(&mut self, request: PermissionRequest) {
        self.signals.push(DriverSignal::Asked(request));
    }

    /// The agent does not need the answer any more.
    pub fn withdrawn(&mut self, permission: impl Into<String>) {
        let permission = permission.into();
        self.signals.push(DriverSignal::Withdrawn { permission });
    }

    /// The text of the last [`DriverCommand::Steer`] was put into the running turn, or was not.
    pub fn steered(&mut self, injected: bool) {
        self.signals.push(DriverSignal::Steered { injected });
    }

    /// The agent, or the protocol, does not support the last command or its value.
    pub fn refused(&mut self, reason: impl Into<String>) {
        let reason = reason.into();
        self.signals.push(DriverSignal::Refused { reason });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AgentEventKind;

    #[test]
    fn debug_shows_sizes_and_no_texts() {
        let mut out = DriverOutput::default();
        out.send("secret prompt");
        let text = "secret text".to_owned();
        out.event(AgentEventKind::Text { text, delta: true });
        out.turn_ended(TurnOutcome::Completed, Some("secret answer".to_owned()));
        let mut request = PermissionRequest::new("p", "Bash", ToolInput::default());
        request.command = Some("secret command".to_owned());
        out.asked(request);
        let shown = format!("{out:?}");
        assert!(!shown.contains("secret"), "{shown}");
        assert!(shown.contains("len: 13"), "{shown}");
    }
}
