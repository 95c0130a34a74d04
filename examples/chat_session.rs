//! A long conversation with tool calls under a small token limit: watch the window move, the
//! summary grow and fold, the session go on in another process, and the whole history go to
//! long-term memory when it is reset.
//!
//! ```sh
//! cargo run -p examples --example chat_session -- --dir /tmp/chat --session demo --limit 600
//! cargo run -p examples --example chat_session -- --dir /tmp/chat --session demo --limit 600
//! cargo run -p examples --example chat_session -- --dir /tmp/chat --session demo --limit 600 --reset
//! ```
//!
//! Each run takes twelve turns of the session, the last four of them in a process of its own
//! (this program again); run it again and it goes on where it was. The assistant is scripted,
//! so it needs no model. Everything is in `--dir`: `snapshots/` holds the sessions,
//! `memory.jsonl` is the long-term memory.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "printing is what a command is for"
)]

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use agent_snapshot::FileStorage;
use agent_snapshot::conversation::{
    JsonLinesEngine, Message, Role, Session, SessionId, SessionManager, StateManager, Summarizer,
    SummaryOutcome, SummaryRequest, ToolCallRequest, ToolCallResult,
};
use async_trait::async_trait;
use clap::Parser;
use examples::Result;
use serde_json::json;

const TURNS: usize = 12;
const IN_ANOTHER_PROCESS: usize = 4;
const USER: &str = "alice";
const PROMPT: &str = "You are a careful assistant. Use the tools, answer briefly.";

/// A long conversation under a small token limit.
#[derive(Clone, Parser)]
#[command(name = "chat_session")]
struct Arguments {
    /// Everything is stored in here
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Which session; it is created if there is none
    #[arg(long, value_name = "ID")]
    session: SessionId,
    /// How many tokens the model takes, the answer included
    #[arg(long, value_name = "TOKENS", default_value_t = 600)]
    limit: usize,
    /// End the conversation, hand it to long-term memory, and begin another
    #[arg(long)]
    reset: bool,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
    /// Take this many turns, and start no other process
    #[arg(long, hide = true)]
    turns: Option<usize>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    examples::report(run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> Result<()> {
    let storage = FileStorage::open(arguments.dir.join("snapshots")).await?;
    let memory = JsonLinesEngine::new(arguments.dir.join("memory.jsonl"));
    let state = StateManager::new(arguments.limit)
        .answer_room(arguments.limit / 8)
        .summary_room(arguments.limit / 6);
    let sessions = SessionManager::new(Arc::new(storage), state)
        .memory(memory)
        .summarizer(FirstWords);

    if arguments.reset {
        return reset(&arguments, &sessions).await;
    }
    let id = &arguments.session;
    let mut session = match sessions.get(id).await {
        Err(agent_snapshot::Error::UnknownSession { .. }) => {
            sessions.create_as(id, USER, Some(PROMPT)).await?
        }
        found => found?,
    };
    // Whoever held the session before may have died in the middle of a tool call.
    for call in session.abort_open_calls() {
        eprintln!(
            "the call {} was never answered; it counts as aborted",
            call.name
        );
    }

    let show = !arguments.json;
    if show && arguments.turns.is_none() {
        println!(
            "turn  in view  tokens of {:<6}  what happened",
            arguments.limit
        );
    }
    let turns = arguments.turns.unwrap_or(TURNS - IN_ANOTHER_PROCESS);
    for _ in 0..turns {
        take_turn(&sessions, &mut session, show).await?;
    }
    if arguments.turns.is_none() {
        // Nothing of the session is in this process: any other can take the next turn.
        let mut other = Command::new(std::env::current_exe()?);
        other.arg("--dir").arg(&arguments.dir);
        other.args(["--session", id.as_str()]);
        other.args(["--limit", &arguments.limit.to_string()]);
        other.args(["--turns", &IN_ANOTHER_PROCESS.to_string()]);
        other.args(arguments.json.then_some("--json"));
        if show {
            println!("      … the next turns are taken by another process");
            other
                .status()?
                .success()
                .then_some(())
                .ok_or("the other process failed")?;
        } else {
            other
                .output()?
                .status
                .success()
                .then_some(())
                .ok_or("the other process failed")?;
        }
        report(&arguments, &sessions).await?;
    }
    Ok(())
}

/// A user message, a tool call with its result, and the answer.
async fn take_turn(sessions: &SessionManager, session: &mut Session, show: bool) -> Result<()> {
    let number = sessions.full_history(session.id()).await?.len() / 4 + 1;
    let city = [
        "Sapporo", "Sendai", "Tokyo", "Nagoya", "Kyoto", "Osaka", "Fukuoka",
    ][number % 7];
    session.append(Message::user(format!(
        "Question {number}: how is the weather in {city}, and what should I wear there today?"
    )))?;
    let call = ToolCallRequest::new(format!("call-{number}"), "weather", json!({"city": city}));
    let call_id = call.id.clone();
    session.append(Message::new(Role::Assistant).with_tool_calls(vec![call]))?;
    let result = json!({"city": city, "sky": "clear", "celsius": 10 + number % 20});
    session.append(Message::tool(vec![ToolCallResult::new(call_id, result)]))?;
    session.append(Message::assistant(format!(
        "{city} is clear with {} degrees. 上着を持って行くとよいでしょう。",
        10 + number % 20
    )))?;

    let committed = session.commit().await?;
    let mut happened = String::new();
    if committed.trimmed.messages > 0 {
        happened = format!("{} messages left the window", committed.trimmed.messages);
        happened += match committed.summary {
            SummaryOutcome::Made => ", summarised",
            _ => "",
        };
    }
    if show {
        let conversation = session.conversation();
        let (view, tokens) = (conversation.iter().count(), conversation.tokens());
        println!("{number:>4}  {view:>7}  {tokens:>16}  {happened}");
    }
    Ok(())
}

async fn report(arguments: &Arguments, sessions: &SessionManager) -> Result<()> {
    let session = sessions.get(&arguments.session).await?;
    let full = sessions.full_history(&arguments.session).await?.len();
    let conversation = session.conversation();
    let (view, tokens) = (conversation.iter().count(), conversation.tokens());
    let summary = conversation
        .history()
        .summary()
        .and_then(|message| message.content.clone());
    if arguments.json {
        let result = json!({
            "session_id": arguments.session.as_str(), "limit": arguments.limit,
            "tokens": tokens, "messages_in_view": view, "full_history": full, "summary": summary,
        });
        println!("{result}");
    } else {
        println!("\n{view} messages are in view, {full} in the full history.");
        if let Some(summary) = summary {
            println!("The model also sees: {summary}");
        }
    }
    Ok(())
}

async fn reset(arguments: &Arguments, sessions: &SessionManager) -> Result<()> {
    let full = sessions.full_history(&arguments.session).await?.len();
    let session = sessions.reset(&arguments.session).await?;
    let prompt = session
        .messages()
        .next()
        .and_then(|message| message.content.clone());
    let prompt = prompt.unwrap_or_default();
    if arguments.json {
        let result = json!({
            "session_id": arguments.session.as_str(), "offloaded_messages": full, "prompt": prompt,
        });
        println!("{result}");
    } else {
        println!(
            "{full} messages went to {}",
            arguments.dir.join("memory.jsonl").display()
        );
        println!("The new conversation begins with:\n{prompt}");
    }
    Ok(())
}

/// Where a model would summarise, this keeps how each question began.
struct FirstWords;

#[async_trait]
impl Summarizer for FirstWords {
    async fn summarize(&self, request: &SummaryRequest) -> Result<String> {
        let previous = request.previous.as_deref().unwrap_or_default();
        let mut topics: Vec<String> = previous.split("; ").map(str::to_owned).collect();
        topics.retain(|topic| !topic.is_empty());
        for message in request
            .messages
            .iter()
            .filter(|message| message.role == Role::User)
        {
            let text = message.content.as_deref().unwrap_or_default();
            topics.extend(text.split(':').next().map(str::to_owned));
        }
        // A long turn may have been cut in two, and its question be seen twice.
        topics.dedup();
        // The newest are worth the most.
        let skip = topics.len().saturating_sub(12);
        Ok(topics[skip..].join("; "))
    }
}
