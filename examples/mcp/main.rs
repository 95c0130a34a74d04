//! An MCP server over stdio with the verbs of the command `tmux-bus`, and claims.
//!
//! An agent in a pane that speaks MCP gets the tools `ask`, `wait`, `post`, `inbox`, `status`, `claim`
//! and `release`. Their arguments, replies and errors are those of the command with `--json`
//! (`tmux_bus::vocabulary`). The sender is proven as in the command: it is the agent in whose pane the
//! server runs. There is no argument for it.
//!
//! ```sh
//! cargo build -p examples --features mcp --example mcp
//! claude --mcp-config '{"mcpServers": {"bus": {"command": "/path/to/target/debug/examples/mcp"}}}'
//! ```
//!
//! In a pane the cluster is known by `TMUX_BUS_FOLDER`. Elsewhere `--config FILE` names it, and the
//! sender is `user`.
//!
//! | tool | arguments | reply |
//! |---|---|---|
//! | `claim` | `value`, `ttl_s`, `wait_s` | `value`, `state`: `granted` with `token`, or `busy` with `holder`; `expires_s` |
//! | `release` | `value` | `value`, `state`: `released` or `not_held` |
//! | the others | as the command | as the command |
//!
//! A claim belongs to the agent. It ends with `release`, with its time, or with the server, and so with
//! the program that has started the server. Claims are in `claims.json` beside the message log of the
//! cluster, or in `--claims FILE`.

mod claims;
mod server;
mod tools;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use examples::{Result, report, until_signal};
use rmcp::ServiceExt;
use rmcp::transport::stdio_pipes;

use crate::server::BusServer;

/// Serves the verbs of the bus over MCP, on standard input and output
#[derive(Parser)]
#[command(name = "mcp")]
struct Arguments {
    /// The configuration of the cluster
    #[arg(long, value_name = "FILE", conflicts_with = "folder")]
    config: Option<PathBuf>,
    /// The folder of the cluster's session [default: the one of the pane]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// The folder for sockets, if the cluster was started with another one than the default
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
    /// The file with the claims [default: claims.json beside the message log]
    #[arg(long, value_name = "FILE")]
    claims: Option<PathBuf>,
}

/// The folder of the session, in a pane of a cluster.
fn of_pane() -> Option<PathBuf> {
    std::env::var_os("TMUX_BUS_FOLDER").map(PathBuf::from)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    report(until_signal(serve(Arguments::parse())).await)
}

async fn serve(arguments: Arguments) -> Result<()> {
    let server = BusServer {
        config: arguments.config,
        folder: arguments.folder.or_else(of_pane),
        runtime_dir: arguments.runtime_dir,
        claims: arguments.claims,
    };
    // Not blocking reads: a signal must not wait for the next line.
    let running = server.serve(stdio_pipes()).await?;
    running.waiting().await?;
    Ok(())
}
