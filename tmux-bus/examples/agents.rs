//! Starts the agents of a configuration file, prints their states with the evidence, and stops them.
//!
//! ```sh
//! cargo run -p tmux-bus --example agents -- config/cc-cluster.yaml
//! ```
//!
//! Explains the state of each agent that is not idle: its screen, the rules that were tried, and what a person can
//! do about it.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use std::process::ExitCode;
use std::time::Instant;

use tmux_bus::{AgentState, ClusterConfig, ClusterManager, Error};

#[tokio::main]
async fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: agents CONFIG.yaml");
        return ExitCode::FAILURE;
    };
    match run(&path).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(path: &str) -> Result<(), Error> {
    let config = ClusterConfig::load(path)?;
    let start = Instant::now();
    let cluster = match ClusterManager::start(config.clone()).await {
        // The cluster runs: a person can answer what the agent asks.
        Err(error @ Error::NotReady { .. }) => {
            println!("{error}");
            ClusterManager::builder(config).attach_unchanged().await?
        }
        started => started?,
    };
    let seconds = start.elapsed().as_secs_f32();
    let cluster = cluster.stop_on_drop();
    for agent in cluster.status().await?.agents {
        let (name, definition, state) = (&agent.name, &agent.definition, &agent.state);
        let evidence = &agent.evidence;
        println!("{name} ({definition}): {state} after {seconds:.1} s ({evidence})");
        if agent.state != AgentState::Idle {
            println!("{}", cluster.explain(name).await?);
        }
    }
    cluster.stop().await
}
