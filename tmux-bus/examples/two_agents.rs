//! Starts two agents from a configuration file; one asks the other. Prints the log of the messages.
//!
//! ```sh
//! cargo run -p tmux-bus --example two_agents
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use std::error::Error;
use std::fs;
use std::iter;
use std::process::ExitCode;

use tmux_bus::{ClusterConfig, ClusterManager, LogFilter, MessageLog};

/// Scripted agents in place of real ones, which need no `command`.
const CONFIG: &str = r#"
cluster:
  name: "team"
  session_name: "team"
  work_dir: "."
agents:
  - name: "boss"
    role: "grand_boss"
    personality_prompt_path: "boss.txt"
    marker: "BOSS OK"
    pane_index: 0
    command: "while printf '> '; read -r line; do echo BOSS OK; done"
  - name: "coder"
    role: "specialist_coding_writing"
    personality_prompt_path: "coder.txt"
    marker: "CODING OK"
    pane_index: 1
    command: "while printf '> '; read -r line; do echo Done.; echo CODING OK; done"
"#;

#[tokio::main]
async fn main() -> ExitCode {
    let Err(error) = run().await else {
        return ExitCode::SUCCESS;
    };
    let chain = iter::successors(Some(&*error), |&error| error.source());
    let messages: Vec<_> = chain.map(ToString::to_string).collect();
    eprintln!("error: {}", messages.join(": "));
    ExitCode::FAILURE
}

async fn run() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("boss.txt"), "End with BOSS OK.")?;
    fs::write(dir.path().join("coder.txt"), "End with CODING OK.")?;
    fs::write(dir.path().join("team.yaml"), CONFIG)?;

    let config = ClusterConfig::load(dir.path().join("team.yaml"))?;
    let cluster = ClusterManager::start(config).await?;
    for agent in cluster.status().await?.agents {
        println!("{} ({}) is in pane {}", agent.name, agent.role, agent.pane);
    }
    let answer = cluster.agent("boss")?.send_to("coder", "Fix it.").await;
    cluster.stop().await?;
    answer?;

    let log = MessageLog::load(cluster.logger().path(), &LogFilter::default())?;
    for entry in log.entries {
        let (from, to, kind) = (entry.from_agent, entry.to_agent, entry.message_type);
        println!("{from} -> {to} ({kind}): {}", entry.content);
    }
    Ok(())
}
