//! A daemon for headless agents. A file names them; the daemon starts each one as a live session,
//! hydrates it from its snapshot, restarts it with a back-off when it dies, and gives up when it dies
//! too often. A killed daemon is started again and continues: no agent runs twice, and each session
//! goes on under its id.
//!
//! ```sh
//! cargo run -p examples --example daemon -- run agents.toml
//! cargo run -p examples --example daemon -- status agents.toml
//! cargo run -p examples --example daemon -- send agents.toml reviewer "Look at the last commit."
//! cargo run -p examples --example daemon -- stop agents.toml
//! ```
//!
//! ```toml
//! folder = ".daemon"                 # records, claims, socket, snapshots; the default
//! storage = "sqlite:.daemon/agents.db"   # default: files in the folder
//!
//! [[agent]]
//! name = "reviewer"
//! profile = "claude-code"            # `scripted` is the bundled stand-in
//! workspace = "."
//! personality = "You review changes, and change nothing."
//! prompt = "Look at the changes that are not committed."
//! permissions = [{ action = "allow", tool = "Read" }]   # everything else is denied
//!
//! [agent.restart]                    # the defaults
//! first_s = 1.0                      # the first delay, which doubles
//! max_s = 60.0                       # the longest delay
//! give_up_after = 5                  # restarts
//! within_s = 600.0
//! ```
//!
//! Paths are relative to the file. `INT`, `TERM` and `HUP` end the daemon and its agents; a message that
//! an agent was working on is continued after the next start. Read the files in this order:
//! `config.rs`, `daemon.rs`, `agent_keeper.rs`, `control.rs`, `status.rs`.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program prints"
)]

mod agent_keeper;
mod config;
mod control;
mod daemon;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use examples::{Result, report, scripted_agent};

use crate::config::DaemonConfig;
use crate::control::ControlRequest;

/// Starts headless agents from a file, and restarts them
#[derive(Parser)]
#[command(name = "daemon")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the agents of a file until a signal or `stop`
    Run { file: PathBuf },
    /// Show the agents, whether the daemon runs or not
    Status {
        file: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Leave a message for an agent; it is saved when this command returns
    Send {
        file: PathBuf,
        agent: String,
        text: String,
    },
    /// End the daemon and its agents
    Stop { file: PathBuf },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    if let Some(code) = scripted_agent::run_if_asked() {
        return code;
    }
    report(run(Arguments::parse().command).await)
}

async fn run(command: Command) -> Result<()> {
    match command {
        Command::Run { file } => daemon::run(&DaemonConfig::load(&file)?).await,
        Command::Status { file, json } => status::print(&DaemonConfig::load(&file)?, json).await,
        Command::Send { file, agent, text } => {
            let config = DaemonConfig::load(&file)?;
            let request = ControlRequest::Send { agent, text };
            match control::call(&config, &request).await? {
                Some(reply) => println!("{reply}"),
                None => return Err(config.not_running().into()),
            }
            Ok(())
        }
        Command::Stop { file } => {
            let config = DaemonConfig::load(&file)?;
            match control::call(&config, &ControlRequest::Stop).await? {
                Some(reply) => println!("{reply}"),
                None => println!("{}", config.not_running()),
            }
            Ok(())
        }
    }
}
