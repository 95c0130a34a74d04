//! The five agents of the specification work on a task together; all five crates are used. Each
//! agent runs in a tmux pane, claims a name (`timed-store`), starts a coding agent (`exec-core`,
//! `exec-profiles`), sends messages to the others (`tmux-bus`) and saves its state
//! (`agent-snapshot`). One of them is killed while it works; after its restart it continues, and
//! no work is done twice.
//!
//! ```sh
//! cargo run -p examples --example crew
//! cargo run -p examples --example crew -- --agents claude-code "Write a haiku about tmux"
//! ```
//!
//! This file starts the crew, sends the task to the Grand Boss, prints the messages, and cleans up.
//! `member.rs` is the program in the panes; `crew.rs` knows the files of a crew.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong arguments, 128 + n interrupted by signal n.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program prints"
)]

mod crew;
mod effects;
mod member;
mod report;
mod show;
mod worker;

use std::error::Error;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use agent_snapshot::AgentSnapshot;
use clap::Parser;
use examples::{Interrupted, Result, scripted_agent, with_causes};
use exec_core::termination_signal;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tmux_bus::{ClusterConfig, ClusterManager, LogFilter, MessageLog, SendToOptions, Server};

use crew::{CODING, Crew, GRAND_BOSS, ROLES, Role};
use show::Show;

/// Runs five agents that work on a task together.
#[derive(Parser)]
#[command(name = "crew")]
struct Arguments {
    /// The folder for all files [default: a private folder below the temporary folder]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The profile of the coding agents, such as claude-code
    #[arg(long, value_name = "LABEL", default_value = scripted_agent::LABEL)]
    agents: String,
    /// The storage of the snapshots: file, sqlite, or an address such as redis://127.0.0.1/0
    #[arg(long, value_name = "KIND", default_value = "file", value_parser = storage)]
    storage: String,
    /// Leave the agents running at the end
    #[arg(long)]
    keep: bool,
    /// Print each event as one line of JSON
    #[arg(long)]
    json: bool,
    /// The task of the crew
    #[arg(default_value = "Write a script that greets people, and say what machine it runs on")]
    task: String,
}

/// `crew worker`
#[derive(Parser)]
#[command(name = "crew worker")]
struct WorkerCommand {
    #[command(flatten)]
    arguments: worker::WorkerArguments,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    if let Some(code) = scripted_agent::run_if_asked() {
        return code;
    }
    let words: Vec<String> = std::env::args().collect();
    if let [_, member, folder, name] = words.as_slice()
        && member == "member"
    {
        return examples::report(member::run(Path::new(folder), name).await);
    }
    if words.get(1).is_some_and(|word| word == "worker") {
        let WorkerCommand { arguments } = WorkerCommand::parse_from(&words[1..]);
        return examples::report(worker::run(arguments).await);
    }
    examples::report(run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> Result<ExitCode> {
    let shared = match arguments.dir {
        Some(dir) => dir,
        None => private_folder()?,
    };
    let crew = Crew::create(&shared, &arguments.agents, &arguments.storage)?;
    let config = crew.config()?;
    let signal = termination_signal()?;
    let show = Show::new(arguments.json);
    // In a task of the runtime, so that the clean-up below also runs after a panic.
    let work = work_on_task(crew.clone(), config.clone(), arguments.task, show.clone());
    let mut work = tokio::spawn(work);
    let done = tokio::select! {
        done = &mut work => Ok(done),
        signal = signal => {
            work.abort();
            Err(Interrupted { signal })
        }
    };
    // Cleaned up before anything is printed: printing may be what failed.
    let keep = arguments.keep && matches!(&done, Ok(Ok(Ok(_))));
    if !keep {
        clean_up(&crew, &config).await?;
    }
    let outcome = match done {
        Ok(Ok(Ok(outcome))) => outcome,
        Ok(Ok(Err(error))) => {
            show.gave_up(&with_causes(&*error));
            return Err(error);
        }
        Ok(Err(panicked)) => return Err(format!("bug: {panicked}").into()),
        Err(interrupted) => {
            // Race: a process that was being started at the first clean-up was not seen by it.
            tokio::time::sleep(Duration::from_millis(300)).await;
            clean_up(&crew, &config).await?;
            let _ = writeln!(
                std::io::stderr(),
                "{interrupted}: all processes of the crew have ended"
            );
            show.gave_up("interrupted");
            return Ok(interrupted.exit_code());
        }
    };
    let (fields, text) = report::report(&crew, &outcome, keep).await?;
    show.finished(fields, &text);
    Ok(ExitCode::from(u8::from(outcome.failed)))
}

/// The result of a crew's work on a task.
struct TaskResult {
    answer: String,
    failed: bool,
    took: Duration,
    recovery: Option<Value>,
    /// The command that shows the panes.
    attach: String,
}

/// Starts the crew, sends the task to the Grand Boss, and prints all messages until its answer.
async fn work_on_task(
    crew: Crew,
    config: ClusterConfig,
    task: String,
    show: Show,
) -> Result<TaskResult> {
    show.waiting("starting five agents");
    let cluster = match ClusterManager::start(config).await {
        Ok(cluster) => cluster,
        Err(error) => return Err(start_error(error)),
    };
    let names = crew.names("main")?.entries().await?;
    let name = |role: &Role| {
        let session = crew.session(role.name);
        let entry = names.iter().find(|(holder, _)| holder.as_str() == session);
        entry.map_or("?", |(_, entry)| entry.value().as_str())
    };
    let names: Vec<&str> = ROLES.iter().map(name).collect();
    let attach = format!("tmux -S {} attach", cluster.socket().display());
    let folder = &crew.folder;
    let text = format!(
        "crew {} in {}\n         watch: {attach}",
        crew.id,
        folder.display()
    );
    let text = format!("{text}\n         agents: {}", names.join(", "));
    let fields = json!({"crew": crew.id, "dir": folder, "attach": attach, "names": names});
    show.started(&text, fields);

    show.waiting("the crew is at work");
    let began = Instant::now();
    let mut log = MessageLog::follow(cluster.logger().path(), LogFilter::default());
    let task = format!("task {}\n{task}", crew.id);
    let user = cluster.outsider("user");
    let options = SendToOptions::default().timeout(member::ASK_TIMEOUT);
    let asking = user.send_to_with(GRAND_BOSS, &task, &options);
    let crash = crash_specialist(&crew, &cluster, &show);
    tokio::pin!(asking, crash);
    let (mut recovery, mut crashed) = (None, false);
    let answer = loop {
        tokio::select! {
            biased;
            entry = log.next() => show.message(&entry?),
            recovered = &mut crash, if !crashed => (recovery, crashed) = (Some(recovered?), true),
            answer = &mut asking => break answer?,
        }
    };
    // The answer is the last message in the log; the log may be behind.
    while let Ok(entry) = tokio::time::timeout(Duration::from_millis(300), log.next()).await {
        show.message(&entry?);
    }
    let answer = member::answer_text(&answer, cluster.get_marker(GRAND_BOSS)?);
    let failed = answer.starts_with(member::FAILED);
    Ok(TaskResult {
        answer,
        failed,
        took: began.elapsed(),
        recovery,
        attach,
    })
}

/// Kills a specialist after its coding agent has used a tool, and restarts it. A coding agent that
/// uses no tool is not killed.
async fn crash_specialist(crew: &Crew, cluster: &ClusterManager, show: &Show) -> Result<Value> {
    let pid = |snapshot: &AgentSnapshot| {
        let pid = snapshot.memory.working_variables.get("pid");
        i32::try_from(pid.and_then(Value::as_i64).unwrap_or_default()).ok()
    };
    let has_used_a_tool =
        |snapshot: &AgentSnapshot| snapshot.memory.working_variables.contains_key("tools");
    let at_work = snapshot_when(crew, CODING, has_used_a_tool).await?;
    let old = pid(&at_work).and_then(Pid::from_raw);
    let old = old.ok_or("the snapshot of the member has no process id")?;
    kill_process(old, Signal::KILL)?;
    show.killed(CODING, old.as_raw_pid());

    let began = Instant::now();
    // Recovered means: the new process has loaded the snapshot. `restart` returns later, when the
    // prompt is on the screen, and the member may be at work by then.
    let is_new = move |snapshot: &AgentSnapshot| pid(snapshot) != Some(old.as_raw_pid());
    let back = snapshot_when(crew, CODING, is_new);
    tokio::pin!(back);
    let back = tokio::select! {
        back = &mut back => back?,
        restarted = cluster.restart(CODING) => {
            restarted?;
            back.await?
        }
    };
    let took = began.elapsed();
    show.recovered(CODING, back.tick_index, took);
    let took_ms = u64::try_from(took.as_millis())?;
    Ok(json!({"agent": CODING, "tick": back.tick_index, "took_ms": took_ms}))
}

/// Polls the snapshot of a member until `wanted` accepts it.
async fn snapshot_when(
    crew: &Crew,
    member: &str,
    wanted: impl Fn(&AgentSnapshot) -> bool + Send,
) -> Result<AgentSnapshot> {
    let (snapshots, id) = (crew.snapshots().await?, crew.agent_id(member)?);
    loop {
        match snapshots.load(&id).await? {
            Some(snapshot) if wanted(&snapshot) => return Ok(snapshot),
            _ => tokio::time::sleep(Duration::from_millis(25)).await,
        }
    }
}

/// A member that cannot start prints the reason in its pane: that is the error to show.
fn start_error(error: tmux_bus::Error) -> Box<dyn Error + Send + Sync> {
    let tmux_bus::Error::NotReady { agent, source, .. } = &error else {
        return error.into();
    };
    let said = source.partial().unwrap_or_default();
    match said.split_once("error: ") {
        Some((_, reason)) => format!("{agent} did not start: {}", reason.trim()).into(),
        None => error.into(),
    }
}

/// Ends every process of the crew, after success, failure or an interrupt.
async fn clean_up(crew: &Crew, config: &ClusterConfig) -> Result<()> {
    let server = Server::builder(&config.session_name).key(&config.path);
    match server.attach().await {
        Ok(server) => server.stop(Duration::from_secs(3)).await?,
        // A killed server leaves the folder of its socket.
        Err(tmux_bus::Error::NotRunning { socket, .. }) => {
            if let Some(folder) = socket.parent() {
                let _ = fs::remove_dir_all(folder);
            }
        }
        Err(error) => return Err(error.into()),
    }
    // Coding agents whose member was killed and not restarted.
    for role in &ROLES {
        crew.executions(role.name)?.reap_orphans().await?;
    }
    Ok(())
}

/// Refuses a storage in memory: members are separate processes.
fn storage(kind: &str) -> std::result::Result<String, String> {
    match kind.split_once(':').map_or(kind, |(scheme, _)| scheme) {
        "file" | "sqlite" | "redis" | "redis+unix" => Ok(kind.to_owned()),
        _ => Err("expected `file`, `sqlite` or the address of a Redis server".to_owned()),
    }
}

/// A folder below the temporary folder that only this user can read.
fn private_folder() -> Result<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    let folder = std::env::temp_dir().join(format!("crew-{user}"));
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)?;
    let found = fs::symlink_metadata(&folder)?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        let path = folder.display();
        return Err(format!("refusing {path}: not a private folder; choose one with --dir").into());
    }
    Ok(folder)
}
