//! What an operator does: lists the agents, makes a backup, restores it into another storage, and
//! forks an agent.

use std::error::Error;

use agent_snapshot::conversation::Message;
use agent_snapshot::{
    AgentId, AgentSnapshot, MemoryStorage, SnapshotStorage, StorageLoader, backup, fork, restore,
    verify,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("agents.db").display());
    let storage = StorageLoader::new().open(&url).await?;
    let worker = AgentId::new("worker")?;
    let mut snapshot = AgentSnapshot::new(worker.clone());
    snapshot.labels.insert("team".into(), "blue".into());
    for number in 0..10 {
        let history = &mut snapshot.memory.short_term_history;
        history.push(Message::user(format!("message {number}")));
    }
    snapshot.tick_index = 1;
    storage.save(&snapshot).await?;

    let page = storage.page(None, 100).await?;
    assert_eq!((page.len(), page[0].messages), (1, 10));
    assert_eq!(page[0].labels["team"], "blue");

    let copies = folder.path().join("backup");
    assert_eq!(backup(&*storage, &copies).await?.messages, 10);
    let other = MemoryStorage::new();
    restore(&copies, &other).await?;
    assert!(verify(&*storage, &other).await?.is_empty());

    let branch = AgentId::new("worker-2")?;
    let forked = fork(&other, &worker, 4, branch.clone()).await?;
    assert_eq!(forked.memory.short_term_history.len(), 4);
    assert_eq!(other.list().await?, [worker, branch]);
    println!("{} agents after the fork", other.list().await?.len());
    Ok(())
}
