//! Exact token counts for a model of OpenAI.

use std::error::Error;

use agent_snapshot::History;
use agent_snapshot::conversation::{Message, OpenAiCounter, StateManager};

fn main() -> Result<(), Box<dyn Error>> {
    let counter = OpenAiCounter::for_model("gpt-4o").ok_or("unknown model")?;
    let window = StateManager::new(1_000).counter(counter);
    let mut conversation = window.conversation(History::new())?;
    window.append(&mut conversation, Message::user("hello"))?;
    println!("{} of {} tokens", conversation.tokens(), window.budget());
    Ok(())
}
