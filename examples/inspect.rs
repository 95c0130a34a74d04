//! A tool for operators: looks into any storage of agents, copies it, compares it, forks an agent,
//! and exports a conversation.
//!
//! ```sh
//! cargo run -p examples --example inspect -- list sqlite:agents.db
//! cargo run -p examples --example inspect -- show sqlite:agents.db worker_007
//! cargo run -p examples --example inspect -- copy sqlite:agents.db postgres://agent@localhost/agents
//! cargo run -p examples --example inspect -- verify sqlite:agents.db postgres://agent@localhost/agents
//! cargo run -p examples --example inspect -- fork sqlite:agents.db worker_007 12 worker_008
//! cargo run -p examples --example inspect -- export sqlite:agents.db worker_007 --format anthropic
//! ```
//!
//! No file is created: one that does not exist is an error, except as the target of a copy. A PostgreSQL
//! database gets the schema, if it has none.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program prints"
)]

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use agent_snapshot::conversation::{Message, Provider, Role, repair};
use agent_snapshot::{
    AgentId, AgentInfo, AgentSnapshot, SnapshotStorage, copy, fork, open_storage, verify,
};
use clap::{Parser, Subcommand, ValueEnum};
use examples::{Result, report};
use serde_json::{Value, json};

/// Looks into a storage of agents.
#[derive(Parser)]
#[command(name = "inspect")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// List the agents: tick, messages, size, last change, labels
    List {
        /// The address of the storage, such as sqlite:agents.db
        storage: String,
        /// List the agents after this one
        #[arg(long)]
        after: Option<AgentId>,
        /// List at most so many
        #[arg(long, default_value_t = 1000)]
        limit: usize,
    },
    /// Show the state of an agent
    Show { storage: String, agent: AgentId },
    /// Copy every agent to another storage, and verify the copies
    Copy { from: String, to: String },
    /// Compare two storages
    Verify { one: String, two: String },
    /// Make a new agent from the messages before a number
    Fork {
        storage: String,
        agent: AgentId,
        /// The number of the first message that the new agent does not have
        at: u64,
        new_agent: AgentId,
    },
    /// Write a conversation
    Export {
        storage: String,
        agent: AgentId,
        #[arg(long, value_enum, default_value = "markdown")]
        format: Format,
        /// All messages of the stream instead of those in view
        #[arg(long)]
        all: bool,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Markdown,
    /// The fields `system` and `messages` of a request to Anthropic Messages
    Anthropic,
    /// The field `messages` of a request to OpenAI Chat Completions
    Openai,
    /// The fields of a request to OpenAI Responses
    OpenaiResponses,
    /// The fields of a request to Gemini
    Gemini,
}

impl Format {
    /// `None` for a format that is not the JSON of a provider.
    fn provider(self) -> Option<Provider> {
        match self {
            Self::Markdown => None,
            Self::Anthropic => Some(Provider::Anthropic),
            Self::Openai => Some(Provider::OpenAiChat),
            Self::OpenaiResponses => Some(Provider::OpenAiResponses),
            Self::Gemini => Some(Provider::Gemini),
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    report(run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> Result<ExitCode> {
    let is_json = arguments.json;
    let print = |json: Value, text: String| {
        if is_json {
            println!("{json}");
        } else {
            print!("{text}");
        }
    };
    match arguments.command {
        Command::List {
            storage,
            after,
            limit,
        } => {
            let page = existing(&storage)
                .await?
                .page(after.as_ref(), limit)
                .await?;
            let entries = page.iter().map(entry).collect::<Vec<_>>();
            print(json!({ "agents": entries }), table(&page));
        }
        Command::Show { storage, agent } => {
            let snapshot = load(&*existing(&storage).await?, &agent).await?;
            print(serde_json::to_value(&snapshot)?, describe(&snapshot));
        }
        Command::Copy { from, to } => {
            let (from, to) = (existing(&from).await?, open_storage(&to).await?);
            let copied = copy(&*from, &*to).await?;
            to.close().await?;
            let damaged: Vec<&str> = copied.damaged.iter().map(AgentId::as_str).collect();
            let (agents, messages) = (copied.agents, copied.messages);
            let mut text = format!("copied and verified {agents} agents, {messages} messages\n");
            for agent in &damaged {
                writeln!(text, "damaged, not copied: {agent}")?;
            }
            print(
                json!({ "agents": agents, "messages": messages, "damaged": damaged }),
                text,
            );
            return Ok(ExitCode::from(u8::from(!damaged.is_empty())));
        }
        Command::Verify { one, two } => {
            let different = verify(&*existing(&one).await?, &*existing(&two).await?).await?;
            let names: Vec<&str> = different.iter().map(AgentId::as_str).collect();
            let mut text = String::new();
            for agent in &names {
                writeln!(text, "different: {agent}")?;
            }
            if names.is_empty() {
                text.push_str("the storages are the same\n");
            }
            print(json!({ "different": names }), text);
            return Ok(ExitCode::from(u8::from(!names.is_empty())));
        }
        Command::Fork {
            storage,
            agent,
            at,
            new_agent,
        } => {
            let storage = existing(&storage).await?;
            let made = fork(&*storage, &agent, at, new_agent).await?;
            storage.close().await?;
            let messages = made.memory.short_term_history.next_seq();
            print(
                json!({ "agent": made.agent_id, "messages": messages }),
                format!("{} has {messages} messages of {agent}\n", made.agent_id),
            );
        }
        Command::Export {
            storage,
            agent,
            format,
            all,
        } => {
            let storage = existing(&storage).await?;
            let snapshot = load(&*storage, &agent).await?;
            let history = &snapshot.memory.short_term_history;
            let messages: Vec<Message> = if all {
                let stream = storage.stream(&agent, 0..u64::MAX).await?;
                let stream = stream.into_iter().map(|(_, message)| message);
                history.pinned().iter().cloned().chain(stream).collect()
            } else {
                history.iter().cloned().collect()
            };
            let text = match format.provider() {
                None => markdown(&agent, &messages),
                Some(provider) => {
                    // Calls without a result get one, so that every conversation can be exported.
                    let request = provider.request(&repair(messages).messages)?;
                    format!("{}\n", serde_json::to_string_pretty(&request)?)
                }
            };
            print(json!({ "agent": agent, "export": text }), text);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens a storage that is there: reading must not create a folder or a database.
async fn existing(url: &str) -> Result<Arc<dyn SnapshotStorage>> {
    let path = ["file:", "sqlite:"]
        .into_iter()
        .find_map(|scheme| url.strip_prefix(scheme));
    if let Some(path) = path.filter(|path| !path.is_empty()) {
        let path = path.strip_prefix("//").unwrap_or(path);
        if !Path::new(path).exists() {
            return Err(format!("there is no storage at {url}").into());
        }
    }
    Ok(open_storage(url).await?)
}

async fn load(storage: &dyn SnapshotStorage, agent: &AgentId) -> Result<AgentSnapshot> {
    let stored = storage.load(agent).await?;
    stored.ok_or_else(|| format!("there is no agent {agent}").into())
}

fn entry(info: &AgentInfo) -> Value {
    let changed = info.changed.duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "agent": info.agent,
        "tick": info.position.map(|position| position.tick),
        "epoch": info.position.map(|position| position.epoch),
        "messages": info.messages,
        "bytes": info.bytes,
        "changed": changed.as_secs(),
        "labels": info.labels,
        "damaged": info.position.is_none(),
    })
}

fn table(page: &[AgentInfo]) -> String {
    let mut text = format!(
        "{:<32} {:>8} {:>9} {:>10} {:>10}  labels\n",
        "agent", "tick", "messages", "KB", "idle"
    );
    for info in page {
        let tick = info
            .position
            .map_or("damaged".to_owned(), |position| position.tick.to_string());
        let labels: Vec<String> = info
            .labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let idle = info.changed.elapsed().unwrap_or_default().as_secs();
        let idle = format!("{}h{:02}m", idle / 3600, idle / 60 % 60);
        let line = format!(
            "{:<32} {tick:>8} {:>9} {:>10} {idle:>10}  {}",
            info.agent.as_str(),
            info.messages,
            info.bytes.div_ceil(1024),
            labels.join(" ")
        );
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn describe(snapshot: &AgentSnapshot) -> String {
    let history = &snapshot.memory.short_term_history;
    let rows = [
        ("agent", snapshot.agent_id.to_string()),
        ("tick", snapshot.tick_index.to_string()),
        ("epoch", snapshot.epoch.to_string()),
        ("status", snapshot.status.to_string()),
        (
            "messages",
            format!("{} in view, {} in all", history.len(), history.next_seq()),
        ),
        (
            "variables",
            snapshot.memory.working_variables.len().to_string(),
        ),
        ("events", snapshot.event_queue_backup.len().to_string()),
        ("unsent replies", snapshot.outbox.len().to_string()),
        ("uncertain tools", snapshot.tool_intents.len().to_string()),
    ];
    let mut text = String::new();
    for (name, value) in rows {
        text.push_str(&format!("{name:<16} {value}\n"));
    }
    for (key, value) in &snapshot.labels {
        text.push_str(&format!("{:<16} {value}\n", format!("label {key}")));
    }
    text
}

fn markdown(agent: &AgentId, messages: &[Message]) -> String {
    let mut text = format!("# {agent}\n");
    for message in messages {
        let title = match message.role {
            Role::System => "System",
            Role::User => "User",
            Role::Assistant => "Assistant",
            Role::Tool => "Tool",
            _ => "Other",
        };
        text.push_str(&format!("\n## {title}\n"));
        if let Some(content) = message.content.as_deref().filter(|text| !text.is_empty()) {
            text.push_str(&format!("\n{content}\n"));
        }
        for call in &message.tool_calls {
            let input = json!({ "id": call.id, "input": call.args });
            text.push_str(&format!("\n- call `{}` {}\n", call.name, fenced(&input)));
        }
        for result in &message.tool_results {
            let result = serde_json::to_value(result).unwrap_or_default();
            text.push_str(&format!("\n- result {}\n", fenced(&result)));
        }
    }
    text
}

/// JSON in a fence that its contents cannot close.
fn fenced(json: &Value) -> String {
    let body = serde_json::to_string_pretty(json).unwrap_or_default();
    let mut fence = "```".to_owned();
    while body.contains(&fence) {
        fence.push('`');
    }
    format!("\n\n{fence}json\n{body}\n{fence}")
}
