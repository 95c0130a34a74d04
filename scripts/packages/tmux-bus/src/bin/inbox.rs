//! Messages that are left before the cluster runs are delivered in order; one is taken back.

use std::error::Error;

use tmux_bus::{AgentConfig, ClusterConfig, ClusterManager, LogFilter, MessageLog};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let agent = AgentConfig::new("coder")
        .marker("CODER OK")
        .command("sh config/agent.sh 'CODER OK'");
    let config = ClusterConfig::builder("inbox")
        .work_dir(std::env::current_dir()?)
        .agent(agent)
        .build()?;
    let builder = ClusterManager::builder(config)
        .runtime_dir(folder.path().join("run"))
        .log_file(folder.path().join("messages.jsonl"));

    let inbox = builder.inbox();
    inbox.leave("user", "coder", "first")?;
    let wrong = inbox.leave("user", "coder", "wrong")?;
    inbox.leave("user", "coder", "second")?;
    inbox.take_back(&wrong)?;
    assert_eq!(inbox.entries("coder")?.len(), 2);

    let cluster = builder.start().await?.stop_on_drop();
    cluster.deliver_inbox_until_empty().await?;
    let log = MessageLog::load(cluster.logger().path(), &LogFilter::default())?;
    let texts: Vec<&str> = log.entries.iter().map(|entry| entry.content.as_str()).collect();
    assert_eq!(texts, ["first", "second"]);
    cluster.release().stop().await?;
    println!("delivered {texts:?}");
    Ok(())
}
