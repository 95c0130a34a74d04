//! A conversation that is longer than the context window: the view fits, and the stream keeps
//! every message.

use std::error::Error;
use std::sync::Arc;

use agent_snapshot::MemoryStorage;
use agent_snapshot::conversation::{Message, Provider, SessionManager, StateManager};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let window = StateManager::new(1_000).answer_tokens(200);
    let sessions = SessionManager::new(Arc::new(MemoryStorage::new()), window);
    let mut session = sessions.create("alice", Some("You are brief.")).await?;
    for turn in 0..200 {
        session.append(Message::user(format!("question {turn}, in a few words")))?;
        session.append(Message::assistant(format!("answer {turn}, in a few more words")))?;
        session.commit().await?;
    }
    let request = Provider::OpenAiChat.request(session.messages())?;
    let sent = request["messages"].as_array().map_or(0, Vec::len);
    assert!(sent > 10 && sent < 100, "{sent}");
    let all = sessions.stream(session.id()).await?;
    assert!(all.len() >= 400, "{}", all.len());
    println!("{sent} of {} messages fit the window", all.len());
    Ok(())
}
