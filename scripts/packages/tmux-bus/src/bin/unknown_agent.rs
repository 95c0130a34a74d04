//! An unknown agent, and a second start of the same cluster: both are errors that say what to do.

use std::error::Error;

use tmux_bus::{ClusterConfig, ClusterManager};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let builder = ClusterManager::builder(ClusterConfig::load("config/cc-cluster.yaml")?)
        .runtime_dir(folder.path().join("run"))
        .log_file(folder.path().join("messages.jsonl"));
    let cluster = builder.clone().start().await?;

    let Err(unknown) = cluster.agent("nobody") else {
        return Err("expected an error: there is no such agent".into());
    };
    assert!(unknown.to_string().contains("grand_boss"), "{unknown}");
    let Err(running) = builder.clone().start().await else {
        return Err("expected an error: the cluster is already running".into());
    };
    let attached = builder.attach().await?;
    let asked = attached.outsider("user").send_to("grand_boss", "still there?").await?;
    assert!(asked.contains("heard still there?"), "{asked}");
    cluster.stop().await?;
    println!("{unknown}\n{running}");
    Ok(())
}
