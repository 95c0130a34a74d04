//! Two processes serve one session, one of them dies during a tool call, and long-term memory
//! keeps the conversation when the session ends. The processes are two managers on one storage.
//!
//! ```sh
//! cargo run -p agent-snapshot --example conversation_sessions
//! ```
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "printing is the purpose of an example"
)]

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use agent_snapshot::MemoryStorage;
use agent_snapshot::conversation::{
    InMemoryEngine, Message, Session, SessionManager, StateManager, ToolCallRequest,
};
use serde_json::json;

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
    let (storage, memory) = (MemoryStorage::new(), InMemoryEngine::new());
    let process = || {
        SessionManager::new(Arc::new(storage.clone()), StateManager::new(10_000))
            .memory(memory.clone())
    };
    let (one, two) = (process(), process());

    // Both append at the same time. The second commit is rebased onto the first.
    let mut here = one.create("alice", Some("Be brief.")).await?;
    let mut there = two.get(here.id()).await?;
    here.append(Message::user("I like green tea."))?;
    there.append(Message::user("And I live in Kyoto."))?;
    here.commit().await?;
    let committed = there.commit().await?;
    println!(
        "merged with {} message of the other process:",
        committed.merged
    );
    print(&there);

    // A process commits a tool call and dies. The next one finds the call open.
    let call = ToolCallRequest::new("", "weather", json!({"city": "Kyoto"}));
    there.append(Message::assistant("").with_tool_calls(vec![call]))?;
    there.commit().await?;
    drop(there);
    let mut here = one.get(here.id()).await?;
    for call in here.abort_open_calls() {
        println!(
            "\nthe call of {} has no result: it may or may not have run",
            call.name
        );
    }
    here.append(Message::assistant("I cannot see the weather now."))?;
    here.commit().await?;

    // The end of the session hands the whole stream to long-term memory.
    one.destroy(here.id()).await?;
    println!(
        "\n{} messages were offloaded",
        memory.offloads()[0].messages.len()
    );
    let next = two.create("alice", Some("Be brief.")).await?;
    println!("the next session starts with:");
    print(&next);
    Ok(())
}

fn print(session: &Session) {
    for message in session.messages() {
        let text = message.content.as_deref().unwrap_or_default();
        println!("  {:?}: {text}", message.role);
    }
}
