//! Runs the crates with the real agent programs and a scripted model on loopback, and prints a table
//! of counts. `scripts/test-agents` installs the programs and starts it.
//!
//! Exit codes: 0 every goal is met, 1 a goal is missed, 2 the run itself failed.

mod model;
mod real_agent;
mod table;
mod tmux;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use examples::{Result, with_causes};

use table::Table;

/// Runs the crates with the real agent programs and a scripted model.
#[derive(Parser)]
#[command(name = "test_agents")]
struct Arguments {
    /// What to run; the default is everything
    parts: Vec<Part>,
    /// The agents, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "claude,codex,gemini,opencode")]
    agents: Vec<String>,
    /// A tenth of the counts
    #[arg(long)]
    quick: bool,
    /// Only the checks whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// The folder with `<agent>/node_modules/.bin`
    #[arg(long)]
    agents_dir: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Their TUIs in panes, with tmux-bus
    Tmux,
}

/// What every check gets.
struct Context {
    agents_dir: PathBuf,
    quick: bool,
    only: String,
}

impl Context {
    fn count(&self, full: usize) -> usize {
        if self.quick { full.div_ceil(10) } else { full }
    }

    fn wants(&self, check: &str) -> bool {
        check.contains(&self.only)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("test_agents: {}", with_causes(&*error));
            ExitCode::from(2)
        }
    }
}

async fn run(arguments: Arguments) -> Result<bool> {
    let context = Context {
        agents_dir: arguments.agents_dir.canonicalize()?,
        quick: arguments.quick,
        only: arguments.only,
    };
    let wants = |part| arguments.parts.is_empty() || arguments.parts.contains(&part);
    let mut is_met = true;
    if wants(Part::Tmux) {
        let mut table = Table::default();
        for agent in &arguments.agents {
            tmux::run(&context, agent, &mut table).await?;
        }
        table.print();
        is_met &= table.is_met();
    }
    Ok(is_met)
}
