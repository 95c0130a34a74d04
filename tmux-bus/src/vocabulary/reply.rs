use std::fmt;

use serde::{Deserialize, Serialize};

use super::Hidden;
use super::failure::Failure;
use crate::log::MessageLogEntry;

/// The reply to a [`Request`](super::Request).
///
/// ```
/// use tmux_bus::vocabulary::{AskState, Reply};
///
/// let reply = r#"{"verb":"wait","id":"0123456789ab","from":"a","to":"b","state":"answered","answer":"yes"}"#;
/// let Reply::Wait(report) = serde_json::from_str(reply)? else { unreachable!() };
/// assert_eq!((report.state, report.answer.as_deref()), (AskState::Answered, Some("yes")));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reply {
    /// To [`Request::Ask`](super::Request::Ask).
    Ask(AskReport),
    /// To [`Request::Post`](super::Request::Post).
    Post(PostReport),
    /// To [`Request::Inbox`](super::Request::Inbox).
    Inbox(InboxReport),
    /// To [`Request::Status`](super::Request::Status).
    Status(StatusReport),
    /// To [`Request::Explain`](super::Request::Explain).
    Explain(ExplainReport),
    /// To [`Request::Wait`](super::Request::Wait).
    Wait(AskReport),
    /// To [`Request::Log`](super::Request::Log).
    Log(LogReport),
}

/// An ask and its outcome.
///
/// ```
/// use tmux_bus::vocabulary::AskReport;
///
/// let json = r#"{"id":"0123456789ab","from":"a","to":"b","state":"running"}"#;
/// let report: AskReport = serde_json::from_str(json)?;
/// assert!(report.answer.is_none() && report.error.is_none());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AskReport {
    /// The id, for `wait`.
    pub id: String,
    /// The sender.
    pub from: String,
    /// The receiver.
    pub to: String,
    /// How far it is.
    pub state: AskState,
    /// The answer, if the state is `answered`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Whether the answer has the marker of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub has_marker: Option<bool>,
    /// The message that the agent got, if the agent has changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub altered: Option<String>,
    /// Why there is no answer, if the state is `failed` or `uncertain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

/// How far an ask is.
///
/// ```
/// use tmux_bus::vocabulary::AskState;
///
/// assert_eq!(serde_json::to_string(&AskState::Uncertain)?, "\"uncertain\"");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AskState {
    /// The answer has not come yet.
    Running,
    /// The answer is there.
    Answered,
    /// There is no answer.
    Failed,
    /// The process that carried the ask out has died: the agent may or may not have got the
    /// message.
    Uncertain,
}

/// A message that was left.
///
/// ```
/// use tmux_bus::vocabulary::{PostReport, PostState};
///
/// let report: PostReport = serde_json::from_str(r#"{"from":"a","to":"b","state":"waiting","id":"1"}"#)?;
/// assert_eq!(report.state, PostState::Waiting);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PostReport {
    /// The sender.
    pub from: String,
    /// The receiver.
    pub to: String,
    /// How far it is.
    pub state: PostState,
    /// The id of the message in the inbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// How far a message without an answer is.
///
/// ```
/// use tmux_bus::vocabulary::PostState;
///
/// assert_eq!(serde_json::to_string(&PostState::Delivered)?, "\"delivered\"");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PostState {
    /// The agent has got it.
    Delivered,
    /// It waits in the inbox of the agent.
    Waiting,
}

/// The messages that wait for an agent.
///
/// ```
/// use tmux_bus::vocabulary::InboxReport;
///
/// fn needs_a_decision(inbox: &InboxReport) -> bool {
///     !inbox.uncertain.is_empty() || !inbox.dead.is_empty()
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct InboxReport {
    /// The agent.
    pub agent: String,
    /// Messages that will be delivered, in order.
    pub waiting: Vec<InboxItem>,
    /// Messages that may or may not have been delivered. They are not delivered again.
    pub uncertain: Vec<InboxItem>,
    /// Messages that will not be delivered.
    pub dead: Vec<InboxItem>,
    /// Why the waiting messages are not delivered now, if delivery has failed. It is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// One message of an [`InboxReport`].
///
/// ```
/// use tmux_bus::vocabulary::InboxItem;
///
/// let item: InboxItem = serde_json::from_str(r#"{"id":"1","from":"a","at_ms":5,"text":"secret"}"#)?;
/// assert!(!format!("{item:?}").contains("secret"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct InboxItem {
    /// The id.
    pub id: String,
    /// The sender.
    pub from: String,
    /// When it was left, in milliseconds since 1970.
    pub at_ms: u64,
    /// The text.
    pub text: String,
    /// Why it is uncertain or dead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The state of a cluster.
///
/// ```
/// use tmux_bus::vocabulary::StatusReport;
///
/// fn idle(status: &StatusReport) -> impl Iterator<Item = &str> {
///     let idle = status.agents.iter().filter(|agent| agent.state == "idle");
///     idle.map(|agent| agent.name.as_str())
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StatusReport {
    /// The tmux session.
    pub session: String,
    /// The command line that shows the agents to a person.
    pub attach: String,
    /// The name of the caller: an agent, `user`, or the name that the caller gave.
    pub you: String,
    /// The agents.
    pub agents: Vec<AgentReport>,
}

/// The state of one agent.
///
/// ```
/// use tmux_bus::vocabulary::AgentReport;
///
/// fn describe(agent: &AgentReport) -> String {
///     format!("{} is {} ({})", agent.name, agent.state, agent.evidence)
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AgentReport {
    /// The name.
    pub name: String,
    /// The role.
    pub role: String,
    /// The pane.
    pub pane: String,
    /// The agent program, such as `claude`.
    pub definition: String,
    /// The state, such as `idle`.
    pub state: String,
    /// Why it is believed to be in that state.
    pub evidence: String,
    /// Whether a sender waits for its answer.
    pub busy: bool,
    /// How its program ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<String>,
    /// Time of its last output, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_activity_ms: Option<u64>,
}

/// How the state of an agent was found.
///
/// ```
/// use tmux_bus::vocabulary::ExplainReport;
///
/// fn show(report: &ExplainReport) -> String {
///     format!("{}: {}\n{}", report.agent, report.evidence, report.screen)
/// }
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExplainReport {
    /// The agent.
    pub agent: String,
    /// The agent program, such as `claude`.
    pub definition: String,
    /// The state.
    pub state: String,
    /// Why it is believed to be in that state.
    pub evidence: String,
    /// What a person can do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// The title of its terminal.
    pub title: String,
    /// The text on its screen.
    pub screen: String,
    /// The rules that were tried; the last one matched, if one did.
    pub tried: Vec<String>,
}

/// Entries of the log.
///
/// ```
/// use tmux_bus::vocabulary::LogReport;
///
/// let report: LogReport = serde_json::from_str(r#"{"entries":[]}"#)?;
/// assert!(report.entries.is_empty());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LogReport {
    /// The entries, the oldest first.
    pub entries: Vec<MessageLogEntry>,
}

impl fmt::Debug for AskReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AskReport")
            .field("id", &self.id)
            .field("from", &self.from)
            .field("to", &self.to)
            .field("state", &self.state)
            .field(
                "answer",
                &self.answer.as_ref().map(|text| Hidden(text.len())),
            )
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for InboxItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxItem")
            .field("id", &self.id)
            .field("from", &self.from)
            .field("text", &Hidden(self.text.len()))
            .field("reason", &self.reason)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ExplainReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExplainReport")
            .field("agent", &self.agent)
            .field("state", &self.state)
            .field("evidence", &self.evidence)
            .field("screen", &Hidden(self.screen.len()))
            .finish_non_exhaustive()
    }
}
