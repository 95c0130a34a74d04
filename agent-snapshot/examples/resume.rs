//! An agent that continues where it stopped. Run it several times, or stop it with Ctrl-C: the next
//! run has the tick, the conversation and the replies that were not confirmed.
//!
//! ```sh
//! cargo run -p agent-snapshot --example resume
//! cargo run -p agent-snapshot --example resume -- ./data/snapshots
//! ```
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "printing is the purpose of an example"
)]

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use agent_snapshot::conversation::Message;
use agent_snapshot::{AgentId, AgentState, FileStorage, Reply};

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
    let folder = std::env::args().nth(1);
    let folder = folder.as_deref().unwrap_or(FileStorage::DEFAULT_FOLDER);
    let storage = Arc::new(FileStorage::open(folder).await?);
    let (mut agent, recovery) = AgentState::hydrate(storage, AgentId::new("worker_007")?).await?;
    println!("tick {} in {folder}", agent.tick_index());

    for reply in recovery.unsent {
        send(&reply);
        agent.confirm_sent(&reply.key);
    }
    for tool in recovery.uncertain_tools {
        println!("it is unknown whether {} ({}) has run", tool.name, tool.key);
    }

    let mut tick = agent.begin_tick()?;
    let number = tick.index();
    tick.history()
        .push(Message::user(format!("question {number}")));
    tick.history()
        .push(Message::assistant(format!("answer {number}")));
    // The model sees the last ten messages. All of them stay in the stream of the storage.
    let hidden = tick.history().tail_len().saturating_sub(10);
    tick.history().drop_front(hidden);
    tick.reply(format!("answer {number}"));
    for reply in tick.commit().await? {
        send(&reply);
        agent.confirm_sent(&reply.key);
    }
    // Without this, the confirmations are saved with the next tick.
    agent.flush().await?;
    Ok(())
}

fn send(reply: &Reply) {
    println!("reply {}: {}", reply.key, reply.payload);
}
