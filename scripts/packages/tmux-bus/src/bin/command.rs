//! The installed command `tmux-bus`: a question and its answer, an unknown agent, the log.

use std::error::Error;
use std::process::{Command, Output};

use tmux_bus::{ClusterConfig, ClusterManager};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let cluster = ClusterManager::builder(ClusterConfig::load("config/cc-cluster.yaml")?)
        .runtime_dir(folder.path().join("run"))
        .log_file(folder.path().join("messages.jsonl"))
        .start()
        .await?
        .stop_on_drop();
    let command = |arguments: &[&str]| -> Result<Output, Box<dyn Error>> {
        let mut command = Command::new("tmux-bus");
        command.arg("--folder").arg(cluster.folder()).args(arguments);
        Ok(command.output()?)
    };

    let asked = command(&["ask", "grand_boss", "are you there?"])?;
    let answer = String::from_utf8(asked.stdout)?;
    assert!(answer.contains("heard are you there?"), "{answer} {:?}", asked.stderr);
    let unknown = command(&["ask", "stranger", "are you there?"])?;
    assert_eq!(unknown.status.code(), Some(3));
    let log = String::from_utf8(command(&["log"])?.stdout)?;
    assert!(log.contains("are you there?"), "{log}");
    cluster.release().stop().await?;
    println!("{answer}");
    Ok(())
}
