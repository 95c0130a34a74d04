use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A message to the outside world. Only a successful commit hands it out.
///
/// ```
/// use std::sync::Arc;
/// use agent_snapshot::{AgentId, AgentState, MemoryStorage, Reply};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
/// let storage = Arc::new(MemoryStorage::new());
/// let (mut agent, _) = AgentState::hydrate(storage, AgentId::new("worker_007")?).await?;
/// let mut tick = agent.begin_tick()?;
/// tick.reply("done");
/// let replies: Vec<Reply> = tick.commit().await?;
/// assert_eq!(replies[0].payload, "done");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Reply {
    /// Identifies the reply: the same each time this reply is handed out, and different for every
    /// other reply. A receiver drops a key that it has seen.
    pub key: String,
    /// The contents to send.
    pub payload: Value,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A tool call, saved before the tool starts and cleared by the commit of its tick.
///
/// After a crash it is unknown whether the tool has run;
/// [`Recovery::uncertain_tools`](crate::Recovery::uncertain_tools) lists such calls.
///
/// ```
/// use std::sync::Arc;
/// use agent_snapshot::{AgentId, AgentState, MemoryStorage};
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
/// let storage = Arc::new(MemoryStorage::new());
/// let (mut agent, _) = AgentState::hydrate(storage, AgentId::new("worker_007")?).await?;
/// let mut tick = agent.begin_tick()?;
/// let intent = tick.intend_tool("delete", json!({ "path": "old.txt" })).await?;
/// assert_eq!(intent.name, "delete");
/// // Now the tool may run.
/// tick.commit().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolIntent {
    /// Identifies the call: the same each time it is reported. A tool that accepts an idempotency
    /// key can drop repeats.
    pub key: String,
    /// The name of the tool.
    pub name: String,
    /// The arguments of the call.
    pub args: Value,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ToolIntent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolIntent")
            .field("key", &self.key)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
