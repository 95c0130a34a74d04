//! A long conversation with tool calls under a small token limit. It shows how the view is
//! trimmed, how the summary grows, how another process continues the session, and how a reset
//! moves the whole history to long-term memory.
//!
//! ```sh
//! cargo run -p examples --example chat_session -- --dir /tmp/chat --session demo --limit 600
//! cargo run -p examples --example chat_session -- --dir /tmp/chat --session demo --limit 600
//! cargo run -p examples --example chat_session -- --dir /tmp/chat --session demo --limit 600 --reset
//! ```
//!
//! Each run adds twelve turns to the session, the last four of them in a second process (this
//! program again). The next run continues the session. The assistant is scripted, so no model is
//! needed. All files are in `--dir`: the sessions in `snapshots/`, the long-term memory in
//! `memory.jsonl`.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program prints"
)]

use std::path::PathBuf;
use std::process::ExitCode;
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
use tokio::process::Command;

const TURNS: usize = 12;
const IN_ANOTHER_PROCESS: usize = 4;
const USER: &str = "alice";
const PROMPT: &str = "You are a careful assistant. Use the tools, answer briefly.";

/// A long conversation under a small token limit.
#[derive(Clone, Parser)]
#[command(name = "chat_session")]
struct Arguments {
    /// The folder for all files
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The session; it is created if it does not exist
    #[arg(long, value_name = "ID")]
    session: SessionId,
    /// The context window of the model, including its answer
    #[arg(long, value_name = "TOKENS", default_value_t = 600)]
    limit: usize,
    /// Move the conversation to long-term memory and begin a new one
    #[arg(long)]
    reset: bool,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
    /// Take this many turns and start no second process
    #[arg(long, hide = true)]
    turns: Option<usize>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    examples::report(examples::until_signal(run(Arguments::parse())).await)
}

async fn run(arguments: Arguments) -> Result<()> {
    let storage = FileStorage::open(arguments.dir.join("snapshots")).await?;
    let memory = JsonLinesEngine::new(arguments.dir.join("memory.jsonl"));
    let state = StateManager::new(arguments.limit)
        .answer_tokens(arguments.limit / 8)
        .summary_tokens(arguments.limit / 6);
    let sessions = SessionManager::new(Arc::new(storage), state)
        .memory(memory)
        .summarizer(FirstWords);

    if arguments.reset {
        return reset(&arguments, &sessions).await;
    }
    let id = &arguments.session;
    let mut session = match sessions.get(id).await {
        Err(agent_snapshot::conversation::Error::UnknownSession { .. }) => {
            sessions.create_as(id, USER, Some(PROMPT)).await?
        }
        found => found?,
    };
    // The process before this one may have died during a tool call.
    for call in session.abort_open_calls() {
        eprintln!(
            "note: the tool call {} has no result and is marked as aborted",
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
        // The session is in storage, not in this process: any process can take the next turn.
        let mut other = Command::new(std::env::current_exe()?);
        other.kill_on_drop(true).arg("--dir").arg(&arguments.dir);
        other.args(["--session", id.as_str()]);
        other.args(["--limit", &arguments.limit.to_string()]);
        other.args(["--turns", &IN_ANOTHER_PROCESS.to_string()]);
        other.args(arguments.json.then_some("--json"));
        let status = if show {
            println!("      … a second process takes the next turns");
            other.status().await?
        } else {
            other.output().await?.status
        };
        if !status.success() {
            return Err(format!("the second process ended with {status}").into());
        }
        report(&arguments, &sessions).await?;
    }
    Ok(())
}

/// A user message, a tool call with its result, and the answer.
async fn take_turn(sessions: &SessionManager, session: &mut Session, show: bool) -> Result<()> {
    let number = sessions.stream(session.id()).await?.len() / 4 + 1;
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
        happened = format!("{} messages trimmed", committed.trimmed.messages);
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
    let full = sessions.stream(&arguments.session).await?.len();
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
        println!("\n{view} messages in view, {full} in the full history");
        if let Some(summary) = summary {
            println!("Summary: {summary}");
        }
    }
    Ok(())
}

async fn reset(arguments: &Arguments, sessions: &SessionManager) -> Result<()> {
    let full = sessions.stream(&arguments.session).await?.len();
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
            "{full} messages moved to {}",
            arguments.dir.join("memory.jsonl").display()
        );
        println!("System prompt of the new conversation:\n{prompt}");
    }
    Ok(())
}

/// Stands in for a model that summarises: keeps the beginning of each question.
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
        // A long turn can be trimmed in two steps; its question then comes twice.
        topics.dedup();
        // Bounded: only the newest topics stay.
        let skip = topics.len().saturating_sub(12);
        Ok(topics[skip..].join("; "))
    }
}
