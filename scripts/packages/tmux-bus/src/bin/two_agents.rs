//! Two agents, a question in each direction, and the message log.

use std::error::Error;

use tmux_bus::{ClusterConfig, ClusterManager, LogFilter, MessageLog};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let cluster = ClusterManager::builder(ClusterConfig::load("config/cc-cluster.yaml")?)
        .runtime_dir(folder.path().join("run"))
        .log_file(folder.path().join("messages.jsonl"))
        .start()
        .await?;
    let boss = cluster.agent("grand_boss")?;
    let manager = cluster.agent("middle_manager")?;

    let down = boss.send_to("middle_manager", "build -it; 日本").await?;
    assert!(down.contains("heard build -it; 日本"), "{down}");
    let up = manager.send_to("grand_boss", "built").await?;
    assert!(up.ends_with("GRAND BOSS OK"), "{up}");

    let log = MessageLog::load(cluster.logger().path(), &LogFilter::default())?;
    cluster.stop().await?;
    println!("{down}\n{up}\n{} entries in the log", log.entries.len());
    assert_eq!(log.entries.len(), 4);
    Ok(())
}
