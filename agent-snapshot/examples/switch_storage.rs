//! One program, any storage: the address decides. Lists the agents of a storage and saves one.
//!
//! ```sh
//! cargo run -p agent-snapshot --example switch_storage -- memory:
//! cargo run -p agent-snapshot --example switch_storage -- file:./data/snapshots
//! cargo run -p agent-snapshot --features sqlite --example switch_storage -- sqlite:agents.db
//! cargo run -p agent-snapshot --features redis --example switch_storage -- redis://127.0.0.1/0
//! ```
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "printing is the purpose of an example"
)]

use std::error::Error;
use std::process::ExitCode;
use std::time::SystemTime;

use agent_snapshot::conversation::Message;
use agent_snapshot::{AgentId, AgentSnapshot, open_storage};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Err(error) = run().await else {
        return ExitCode::SUCCESS;
    };
    eprintln!("error: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        eprintln!("  caused by: {cause}");
        source = cause.source();
    }
    ExitCode::FAILURE
}

async fn run() -> Result<(), Box<dyn Error + Send + Sync>> {
    let address = std::env::args().nth(1);
    let storage = open_storage(address.as_deref().unwrap_or("memory:")).await?;

    let agent = AgentId::new("notes")?;
    let stored = storage.load(&agent).await?;
    let mut snapshot = stored.unwrap_or_else(|| AgentSnapshot::new(agent));
    snapshot.tick_index += 1;
    snapshot.set_timestamp(SystemTime::now());
    let text = format!("note {}", snapshot.tick_index);
    snapshot.memory.short_term_history.push(Message::user(text));
    storage.save(&snapshot).await?;

    for agent in storage.list().await? {
        let stream = storage.stream(&agent, 0..u64::MAX).await?;
        println!("{agent}: {} messages", stream.len());
    }
    storage.close().await?;
    Ok(())
}
