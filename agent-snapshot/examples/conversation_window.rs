//! A conversation that outgrows the context window: exchanges leave the view as a whole, and a
//! summary takes their place. No model is called; a small function stands for it.
//!
//! ```sh
//! cargo run -p agent-snapshot --example conversation_window
//! ```
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "printing is the purpose of an example"
)]

use std::error::Error;
use std::process::ExitCode;

use agent_snapshot::History;
use agent_snapshot::conversation::{
    Message, Provider, Role, StateManager, Summarizer, SummaryRequest, ToolCallRequest,
    ToolCallResult,
};
use async_trait::async_trait;
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
    // A window of 700 tokens, of which 200 are reserved for the answer.
    let state = StateManager::new(700).answer_tokens(200);
    let mut conversation = state.conversation(History::new())?;
    state.append(&mut conversation, Message::system("You are a weather bot."))?;

    for day in 1..=12 {
        let question = Message::user(format!("What is the weather on day {day}?"));
        state.append(&mut conversation, question)?;
        let call = ToolCallRequest::new("", "weather", json!({"day": day}));
        let asked = Message::assistant("").with_tool_calls(vec![call]);
        let asked = state.append(&mut conversation, asked)?;
        let id = asked.tool_calls[0].id.clone();
        let result = ToolCallResult::new(id, json!({"sky": "clear", "celsius": 10 + day}));
        state.append(&mut conversation, Message::tool(vec![result]))?;
        let answer = Message::assistant(format!("Day {day} is clear, with {} degrees.", 10 + day));
        state.append(&mut conversation, answer)?;

        // In a server this runs beside the conversation: it may grow while the job runs.
        if let Some(job) = state.begin_summary(&conversation)? {
            let summary = job.run(&CountQuestions).await?;
            state.apply_summary(&mut conversation, &summary)?;
        }
        println!(
            "day {day:>2}: {:>3} of {} tokens, {:>2} messages in view, {:>2} in the stream",
            conversation.tokens(),
            state.budget(),
            conversation.iter().count(),
            conversation.history().next_seq(),
        );
    }

    // Calls and results left together, so the provider accepts the rest.
    let request = Provider::Anthropic.request(conversation.iter())?;
    println!("\nThe request starts with:\n{:#}", request["system"]);
    Ok(())
}

/// Stands for a model: counts the questions.
struct CountQuestions;

#[async_trait]
impl Summarizer for CountQuestions {
    async fn summarize(
        &self,
        request: &SummaryRequest,
    ) -> Result<String, Box<dyn Error + Send + Sync>> {
        let previous = request.previous.as_deref().unwrap_or("0 questions");
        let previous: usize = previous.trim_end_matches(" questions").parse()?;
        let questions = request.messages.iter().filter(|m| m.role == Role::User);
        Ok(format!("{} questions", previous + questions.count()))
    }
}
