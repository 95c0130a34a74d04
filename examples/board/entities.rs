//! What the board shows. Each type is an object in the JSON of `docs/board-json.md`; points in time
//! are milliseconds since 1970, because a browser reads them without a parser.

use std::collections::BTreeSet;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// A point in time as the board writes it.
pub fn milliseconds(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

/// What an agent does now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentState {
    /// Its program is being started.
    Starting,
    /// It waits for a message.
    Idle,
    /// It works on a message.
    Working,
    /// It waits for a person: a permission or a dialog.
    Waiting,
    /// Its provider refuses requests until a later time.
    Limited,
    /// Its process has ended.
    Exited,
    /// The evidence does not tell.
    #[default]
    Unknown,
}

/// What proves the state of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// `hook`, `title`, `screen`, `process` or `event`.
    pub source: String,
    /// The rule that matched, or the event.
    pub detail: String,
}

/// A command that an agent's source can carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ability {
    /// Give it a message.
    Send,
    /// End its turn and keep its session.
    Interrupt,
    /// End its processes.
    Stop,
    /// Start it again.
    Restart,
}

/// Tokens and money that an agent has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens read, cached ones included.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
    /// US dollars; `None` if the agent reports no cost.
    pub cost_usd: Option<f64>,
}

/// An agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Agent {
    /// Unique on the board.
    pub id: String,
    /// The name to show.
    pub name: String,
    /// Its role, or an empty text.
    pub role: String,
    /// The program: `claude-code`, `codex`, …
    pub kind: String,
    /// Where it runs: a pane, a process.
    pub place: String,
    /// What it does.
    pub state: AgentState,
    /// What proves the state.
    pub evidence: Evidence,
    /// Since when it is in this state.
    pub since: u64,
    /// Agents are shown in this order: that in which their sources have introduced them.
    pub order: u32,
    /// How often it was started again.
    pub restarts: u32,
    /// What it has used.
    pub usage: Usage,
    /// Which commands it takes.
    pub can: BTreeSet<Ability>,
}

/// A message from one agent to another, or from and to a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Its number on the board: 1, 2, 3, … without a gap.
    pub number: u64,
    /// Its id at the source.
    pub id: String,
    /// The name of the sender.
    pub from: String,
    /// The name of the receiver.
    pub to: String,
    /// `task`, `info`, `result`, `error`, …
    pub kind: String,
    /// The text, neutralised and bounded.
    pub text: String,
    /// How many bytes at the end of the text are left out.
    pub cut: usize,
    /// When it was sent.
    pub at: u64,
    /// The id of the message that it answers.
    pub reply_to: Option<String>,
}

/// The answer to a permission request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// The agent may.
    Allow,
    /// The agent may not.
    Deny,
}

/// The end of a permission request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settlement {
    /// `None` if the request became void.
    pub decision: Option<Decision>,
    /// `page`, `policy`, `deadline`, `cancel`, …
    pub by: String,
    /// When.
    pub at: u64,
}

/// An agent asks for a permission.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permission {
    /// Unique on the board.
    pub id: String,
    /// The agent that asks.
    pub agent: String,
    /// The tool that it wants to use.
    pub tool: String,
    /// The command, the path or the input.
    pub detail: String,
    /// When it was asked.
    pub asked: u64,
    /// When it is denied without an answer.
    pub deadline: Option<u64>,
    /// `None` while it is open.
    pub settled: Option<Settlement>,
}

/// A message that waits for its agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueItem {
    /// Unique on the board.
    pub id: String,
    /// The agent that will get it.
    pub agent: String,
    /// The sender.
    pub from: String,
    /// The text, neutralised and bounded.
    pub text: String,
    /// Since when it waits.
    pub at: u64,
}

/// A value that a session has claimed for some time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The store of the claim.
    pub store: String,
    /// The session that holds it.
    pub session: String,
    /// The claimed value.
    pub value: String,
    /// The fencing token.
    pub token: Option<u64>,
    /// When it ends, unless it is refreshed.
    pub expires: u64,
}

/// A saved state of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The agent's id in the storage.
    pub agent: String,
    /// The tick that was saved.
    pub tick: u64,
    /// The epoch of the writer; it grows with every recovery.
    pub epoch: u64,
    /// Messages in the state.
    pub messages: u64,
    /// Size of the stored state.
    pub bytes: u64,
    /// When it was saved.
    pub at: u64,
}

/// Something that went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Its number on the board: 1, 2, 3, …
    pub number: u64,
    /// The agent, or the source.
    pub agent: String,
    /// `limited`, `overloaded`, `authentication`, `context_full`, `session_gone`, `network`,
    /// `agent`, `exited`, `budget`, `stuck`, `not_sent`, `uncertain`, `source`.
    pub class: String,
    /// What happened, neutralised and bounded.
    pub message: String,
    /// When a limit ends.
    pub resets: Option<u64>,
    /// When.
    pub at: u64,
}

/// The most that an agent, or all agents together, should use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    /// The id of an agent; `None` for the sum of all agents.
    pub agent: Option<String>,
    /// US dollars.
    pub cost_usd: Option<f64>,
    /// Tokens, read and written.
    pub tokens: Option<u64>,
}
