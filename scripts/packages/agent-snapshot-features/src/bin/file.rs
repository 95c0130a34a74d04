//! Files alone.

use std::error::Error;
use std::sync::Arc;

use agent_snapshot::conversation::Message;
use agent_snapshot::{AgentId, AgentState, FileStorage};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let storage = FileStorage::open("snapshots").await?;
    let (mut agent, _) = AgentState::hydrate(Arc::new(storage), AgentId::new("worker")?).await?;
    let mut tick = agent.begin_tick()?;
    tick.history().push(Message::user("hello"));
    tick.reply("hi");
    for reply in tick.commit().await? {
        println!("{}", reply.payload);
        agent.confirm_sent(&reply.key);
    }
    Ok(())
}
