//! A change of one line replaces files by SQLite; the agent recovers its state from either.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use agent_snapshot::conversation::Message;
use agent_snapshot::{AgentId, AgentState, FileStorage, SnapshotStorage, SqliteStorage};

/// The work of an agent, with any storage.
async fn add_message(storage: Arc<dyn SnapshotStorage>) -> Result<usize, agent_snapshot::Error> {
    let (mut agent, _) = AgentState::hydrate(storage, AgentId::new("worker")?).await?;
    let mut tick = agent.begin_tick()?;
    tick.history().push(Message::user("one more"));
    tick.reply("done");
    for reply in tick.commit().await? {
        agent.confirm_sent(&reply.key);
    }
    Ok(agent.history().len())
}

async fn with_files(folder: &Path) -> Result<Arc<dyn SnapshotStorage>, agent_snapshot::Error> {
    let storage = FileStorage::open(folder.join("snapshots")).await?;
    Ok(Arc::new(storage))
}

async fn with_sqlite(folder: &Path) -> Result<Arc<dyn SnapshotStorage>, agent_snapshot::Error> {
    let storage = SqliteStorage::open(folder.join("agents.db")).await?;
    Ok(Arc::new(storage))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    for expected in 1..=3 {
        assert_eq!(add_message(with_files(folder.path()).await?).await?, expected);
        assert_eq!(add_message(with_sqlite(folder.path()).await?).await?, expected);
    }
    println!("three ticks in files, three in SQLite");
    Ok(())
}
