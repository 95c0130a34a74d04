//! An agent is killed twice with SIGKILL while it works. After each restart its state is complete:
//! the tick, the conversation, the pending events, the tool call whose outcome is unknown, and the
//! reply that was saved but not sent.
//!
//! ```sh
//! cargo run -p examples --example crash_recovery -- --storage file
//! cargo run -p examples --example crash_recovery -- --storage sqlite
//! cargo run -p examples --example crash_recovery -- --storage redis    # starts a private redis-server
//! ```
//!
//! The agent is a separate process (this program again, with `--worker`). It has three tasks; each
//! runs a tool, which appends a line to `work.log`, and sends a reply. So that the two crashes
//! happen at the same points in each run, the worker waits there to be killed: after the tool of
//! the second task, before its result is saved; and after the third task is saved, before its
//! reply is sent. At the end each tool has run once and each reply has arrived once.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program prints"
)]

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

use agent_snapshot::conversation::Message;
use agent_snapshot::{AgentId, AgentState, Event, Reply, open_storage};
use clap::{Parser, ValueEnum};
use examples::redis_server::{RedisServer, SyncLog};
use examples::{Result, report, until_signal};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

const AGENT: &str = "worker_007";
const TASKS: [&str; 3] = ["fetch the report", "check the numbers", "write the summary"];

/// Kills an agent while it works and shows how it recovers.
#[derive(Parser)]
#[command(name = "crash_recovery")]
struct Arguments {
    /// The storage of the snapshots
    #[arg(long, value_enum, default_value = "file")]
    storage: Storage,
    /// The folder for all files [default: a temporary folder, removed at the end]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
    /// Run as the agent, with the storage at this address
    #[arg(long, hide = true, value_name = "URL", requires = "dir")]
    worker: Option<String>,
    /// The point at which the agent waits to be killed
    #[arg(long, hide = true)]
    wait_at: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Storage {
    File,
    Sqlite,
    Redis,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match (&arguments.worker, &arguments.dir) {
        (Some(url), Some(dir)) => report(work(url, dir, arguments.wait_at.as_deref()).await),
        // A signal drops the worker, the server and the temporary folder.
        _ => report(until_signal(watch(&arguments)).await),
    }
}

// The agent process.

async fn work(url: &str, dir: &Path, wait_at: Option<&str>) -> Result<()> {
    let storage = open_storage(url).await?;
    let (mut agent, recovery) = AgentState::hydrate(storage.clone(), AgentId::new(AGENT)?).await?;
    tell(json!({
        "event": "hydrated", "tick": agent.tick_index(), "messages": agent.history().len(),
        "waiting": agent.events().len(), "unsent": recovery.unsent.len(),
        "uncertain_tools": recovery.uncertain_tools.len(),
    }));
    if agent.tick_index() == 0 {
        for task in TASKS {
            // Idempotent: an event with an id is queued once, even if this runs again.
            let event = Event::new("user", "task", json!(task)).with_id(task);
            agent.enqueue(event).await?;
        }
    }
    for reply in recovery.unsent {
        send(&reply);
        agent.confirm_sent(&reply.key);
    }

    while !agent.events().is_empty() {
        let mut tick = agent.begin_tick()?;
        let Some(event) = tick.next_event() else {
            break;
        };
        let task = event.payload.as_str().unwrap_or_default().to_owned();
        tick.history().push(Message::user(&task));

        // The snapshot only tells that the tool may have run; work.log tells whether it did.
        let before = recovery.uncertain_tools.iter();
        let mut before = before.filter(|intent| intent.args["task"] == task);
        if before.any(|intent| has_run(dir, &intent.key)) {
            tell(json!({"event": "not_repeated", "task": task}));
        } else {
            let intent = tick.intend_tool("work", json!({"task": task})).await?;
            run_tool(dir, &intent.key, &task)?;
        }
        wait_if(wait_at, &format!("tool of {task}"));

        tick.history()
            .push(Message::assistant(format!("done: {task}")));
        tick.reply(format!("done: {task}"));
        let replies = tick.commit().await?;
        wait_if(wait_at, &format!("reply of {task}"));
        for reply in replies {
            send(&reply);
            agent.confirm_sent(&reply.key);
        }
    }
    agent.flush().await?;
    storage.close().await?;
    Ok(())
}

fn run_tool(dir: &Path, key: &str, task: &str) -> std::io::Result<()> {
    let mut log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(dir.join("work.log"))?;
    writeln!(log, "{key} {task}")
}

fn has_run(dir: &Path, key: &str) -> bool {
    let log = std::fs::read_to_string(dir.join("work.log")).unwrap_or_default();
    log.lines().any(|line| line.starts_with(&format!("{key} ")))
}

fn send(reply: &Reply) {
    tell(json!({"event": "reply", "key": reply.key, "payload": reply.payload}));
}

fn tell(what: Value) {
    println!("{what}");
}

fn wait_if(wait_at: Option<&str>, here: &str) {
    if wait_at == Some(here) {
        tell(json!({"event": "waiting", "at": here}));
        loop {
            std::thread::park();
        }
    }
}

// The process that starts and kills the agent.

async fn watch(arguments: &Arguments) -> Result<()> {
    let temporary = match &arguments.dir {
        Some(dir) => {
            std::fs::create_dir_all(dir)?;
            None
        }
        None => Some(tempfile::tempdir()?),
    };
    let dir = match (&arguments.dir, &temporary) {
        (Some(dir), _) => std::path::absolute(dir)?,
        (None, Some(temporary)) => temporary.path().to_owned(),
        (None, None) => return Err("no folder was given".into()),
    };
    if dir.join("work.log").exists() {
        return Err(format!(
            "{} contains the files of an earlier run; choose another folder",
            dir.display()
        )
        .into());
    }
    let (url, _server) = match arguments.storage {
        Storage::File => (format!("file:{}", dir.join("snapshots").display()), None),
        Storage::Sqlite => (format!("sqlite:{}", dir.join("agents.db").display()), None),
        Storage::Redis => {
            let server = RedisServer::start(&dir, SyncLog::EveryWrite)?;
            (server.url(), Some(server))
        }
    };

    let mut inbox = Inbox::default();
    let processes = [
        ("first", Some("tool of check the numbers")),
        ("second", Some("reply of write the summary")),
        ("third", None),
    ];
    for (name, wait_at) in processes {
        run_worker(&dir, &url, name, wait_at, arguments.json, &mut inbox).await?;
    }

    let log = std::fs::read_to_string(dir.join("work.log"))?;
    let runs = |task: &str| log.lines().filter(|line| line.ends_with(task)).count();
    let once = TASKS.iter().all(|task| runs(task) == 1);
    if arguments.json {
        let result = json!({
            "tasks": TASKS.map(|task| json!({"task": task, "tool_runs": runs(task)})),
            "replies": inbox.replies, "dropped_repeats": inbox.repeats, "crashes": 2,
        });
        println!("{result}");
    } else {
        println!();
        for task in TASKS {
            println!("{task:<20} tool runs: {}", runs(task));
        }
        let replies = inbox.replies.len();
        println!(
            "{replies} replies arrived, {} duplicates dropped, 2 crashes",
            inbox.repeats
        );
    }
    if !once || inbox.replies.len() != TASKS.len() {
        return Err("a task was lost or ran twice".into());
    }
    Ok(())
}

/// The receiver of the replies. It drops duplicates by their key.
#[derive(Default)]
struct Inbox {
    keys: Vec<String>,
    replies: Vec<String>,
    repeats: usize,
}

impl Inbox {
    fn receive(&mut self, reply: &Value) {
        let key = reply["key"].as_str().unwrap_or_default().to_owned();
        if self.keys.contains(&key) {
            self.repeats += 1;
            return;
        }
        self.keys.push(key);
        let payload = reply["payload"].as_str().unwrap_or_default();
        self.replies.push(payload.to_owned());
    }
}

/// Runs the agent process until it ends, or kills it at `wait_at`.
async fn run_worker(
    dir: &Path,
    url: &str,
    name: &str,
    wait_at: Option<&str>,
    quiet: bool,
    inbox: &mut Inbox,
) -> Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--dir").arg(dir).args(["--worker", url]);
    command.args(wait_at.iter().flat_map(|at| ["--wait-at", at]));
    command.stdout(Stdio::piped()).kill_on_drop(true);
    let mut worker = command.spawn()?;
    let output = worker.stdout.take().ok_or("the worker has no output")?;
    let mut lines = BufReader::new(output).lines();
    while let Some(line) = lines.next_line().await? {
        let said: Value = serde_json::from_str(&line)?;
        let text = match said["event"].as_str() {
            Some("hydrated") => format!(
                "starts at tick {} with {} messages, {} events, {} unsent replies, {} uncertain tool calls",
                said["tick"],
                said["messages"],
                said["waiting"],
                said["unsent"],
                said["uncertain_tools"],
            ),
            Some("not_repeated") => format!("does not repeat the tool of {}", said["task"]),
            Some("reply") => {
                inbox.receive(&said);
                format!("replies {}", said["payload"])
            }
            Some("waiting") => {
                worker.start_kill()?;
                let point = said["at"].as_str().unwrap_or_default();
                format!("is killed after the {point}")
            }
            _ => continue,
        };
        if !quiet {
            println!("{name:>7} process  {text}");
        }
    }
    let status = worker.wait().await?;
    if wait_at.is_none() && !status.success() {
        return Err(format!("the worker ended with {status}").into());
    }
    Ok(())
}
