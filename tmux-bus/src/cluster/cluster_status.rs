//! The state of a cluster and of its agents.

use std::path::PathBuf;
use std::time::SystemTime;

use super::agent_config::AgentRole;
use crate::Exit;
use crate::pane::PaneId;
use crate::state::{AgentState, Evidence};

/// The state of a cluster, see [`ClusterManager::status`](crate::ClusterManager::status).
///
/// ```
/// use tmux_bus::{ClusterManager, Error};
///
/// async fn how_to_watch(cluster: &ClusterManager) -> Result<String, Error> {
///     let status = cluster.status().await?;
///     Ok(format!("tmux -S {} attach", status.socket.display()))
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClusterStatus {
    /// The name of the session.
    pub session: String,
    /// The private socket: `tmux -S <socket> attach` shows the agents to a person.
    pub socket: PathBuf,
    /// The agents, in the order of the layout.
    pub agents: Vec<AgentStatus>,
}

/// The state of an agent.
///
/// ```
/// use tmux_bus::AgentStatus;
///
/// fn describe(agent: &AgentStatus) -> String {
///     match agent.exit {
///         Some(exit) => format!("{} has ended: {exit}", agent.name),
///         None => format!("{} is {} ({})", agent.name, agent.state, agent.evidence),
///     }
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AgentStatus {
    /// The name.
    pub name: String,
    /// The role.
    pub role: AgentRole,
    /// The pane.
    pub pane: PaneId,
    /// The name of its definition, such as `claude` or `plain`.
    pub definition: String,
    /// Its state.
    pub state: AgentState,
    /// Why it is believed to be in that state.
    pub evidence: Evidence,
    /// How its program ended; `None` while it runs.
    pub exit: Option<Exit>,
    /// Whether a sender, of any process, sends to it or waits for its answer, or it owes one after a timeout.
    pub busy: bool,
    /// Time of its last output, as far as this process or the system knows.
    pub last_activity: Option<SystemTime>,
}
