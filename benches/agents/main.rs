//! Runs the crates with the real agent programs and a scripted model on loopback, and prints a table
//! of counts. `scripts/test-agents` installs the programs and starts it.
//!
//! Exit codes: 0 every goal is met, 1 a goal is missed, 2 the run itself failed.

mod conversation;
mod crew;
mod exec;
mod live;
mod mcp;
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
    /// The agents, separated by commas; the default is all that a part knows
    #[arg(long, value_delimiter = ',')]
    agents: Vec<String>,
    /// A tenth of the counts
    #[arg(long)]
    quick: bool,
    /// Only the checks whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// How long the answer to an ask in the background takes, in seconds; the default is 300, with --quick 20
    #[arg(long)]
    delay: Option<u32>,
    /// The folder with `<agent>/node_modules/.bin`
    #[arg(long, default_value = ".")]
    agents_dir: PathBuf,
    /// Runs one prompt, to be killed
    #[arg(long, hide = true, num_args = 5)]
    host: Option<Vec<String>>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Their TUIs in panes, with tmux-bus
    Tmux,
    /// One process for one prompt, with exec-core
    Exec,
    /// One process for many turns, with exec-core
    Live,
    /// The example `crew` with all of them
    Crew,
    /// Claude Code in a pane with the MCP server of the examples
    Mcp,
}

/// The agents with a TUI in a pane.
const TMUX_AGENTS: [&str; 4] = ["claude", "codex", "gemini", "opencode"];
const EXEC_AGENTS: [&str; 5] = ["claude", "codex", "gemini", "opencode", "qwen"];

const LIVE_AGENTS: [&str; 7] = [
    "claude",
    "codex",
    "gemini",
    "opencode",
    "qwen",
    "claude-acp",
    "codex-acp",
];

/// What every check gets.
struct Context {
    agents_dir: PathBuf,
    quick: bool,
    only: String,
    /// Seconds that the answer to an ask in the background takes.
    delay: u32,
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
    if let Some(host) = &arguments.host {
        exec::host(host).await?;
        return Ok(true);
    }
    let context = Context {
        agents_dir: arguments.agents_dir.canonicalize()?,
        quick: arguments.quick,
        only: arguments.only,
        delay: arguments
            .delay
            .unwrap_or(if arguments.quick { 20 } else { 300 }),
    };
    let wants = |part| arguments.parts.is_empty() || arguments.parts.contains(&part);
    let agents = |known: &[&str]| match arguments.agents.is_empty() {
        true => known.iter().map(|&name| name.to_owned()).collect(),
        false => arguments.agents.clone(),
    };
    let mut is_met = true;
    if wants(Part::Tmux) {
        let mut table = Table::default();
        for agent in agents(&TMUX_AGENTS) {
            tmux::run(&context, &agent, &mut table).await?;
        }
        if context.wants("conversation") && arguments.agents.is_empty() {
            conversation::run(&context, &mut table).await?;
        }
        is_met &= table.print();
    }
    if wants(Part::Exec) {
        let mut table = Table::default();
        for agent in agents(&EXEC_AGENTS) {
            exec::run(&context, &agent, &mut table).await?;
        }
        is_met &= table.print();
    }
    if wants(Part::Live) {
        let mut table = Table::default();
        for agent in agents(&LIVE_AGENTS) {
            live::run(&context, &agent, &mut table).await?;
        }
        is_met &= table.print();
    }
    if wants(Part::Crew) {
        let mut table = Table::default();
        crew::run(&context, &mut table).await?;
        is_met &= table.print();
    }
    if wants(Part::Mcp) && agents(&["claude"]).contains(&"claude".to_owned()) {
        let mut table = Table::default();
        mcp::run(&context, &mut table).await?;
        is_met &= table.print();
    }
    Ok(is_met)
}
