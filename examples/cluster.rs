//! The orchestrator of the specification: five agents in tmux panes send messages to each other.
//! A marker in each answer shows that the answer is complete.
//!
//! ```sh
//! cargo run -p examples --example cluster -- --config examples/config/cc-cluster.yaml start
//! cargo run -p examples --example cluster -- --config examples/config/cc-cluster.yaml \
//!     ask grand_boss "Who are you?"
//! cargo run -p examples --example cluster -- --config examples/config/cc-cluster.yaml stop
//! ```
//!
//! The agents talk to each other with the command `tmux-bus`, which `start` builds if it is not installed;
//! their personalities say when.
//!
//! The cluster outlives the process that started it: each command finds it by the configuration
//! file. The message log is `logs/messages.jsonl` in the `work_dir`. An agent without a `command`
//! in the file is Claude Code or, where `claude` is not installed, the bundled scripted agent;
//! `--agents` selects another one.
//!
//! Exit codes: 0 done, 1 failed (the reason is on stderr), 2 wrong arguments, 128 + n ended by signal
//! n. A start that is ended by a signal leaves no agents.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program prints"
)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use clap::{Parser, Subcommand};
use examples::{
    Interrupted, Result, bus_command, pane_agent, report, scripted_agent, until_signal,
};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use tmux_bus::{
    AgentConfig, AgentStatus, ClusterBuilder, ClusterConfig, ClusterManager, LogFilter, MessageLog,
    MessageLogger, Server,
};

/// Runs agents in tmux panes and sends messages between them.
#[derive(Parser)]
#[command(name = "cluster")]
struct Arguments {
    /// The configuration of the cluster
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The program of the agents without a `command`: `scripted`, or the label of a profile such
    /// as `claude-code` [default: claude-code if claude is on PATH, else scripted]
    #[arg(long, global = true, value_name = "LABEL")]
    agents: Option<String>,
    /// Print the result as one JSON object
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start all agents
    Start,
    /// Show the state of each agent
    Status,
    /// Ask an agent as the user and print its answer
    Ask { to: String, text: String },
    /// Send a message from one agent to another without waiting for the answer
    Send {
        from: String,
        to: String,
        text: String,
    },
    /// Show the message log
    Logs,
    /// Stop all agents and every process that they have started
    Stop,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match scripted_agent::run_if_asked() {
        Some(code) => code,
        None => report(run_or_stop(Arguments::parse()).await),
    }
}

/// A start that is interrupted leaves no agents; the other commands leave the cluster as it is.
async fn run_or_stop(arguments: Arguments) -> Result<()> {
    let is_start = matches!(arguments.command, Command::Start);
    let config = arguments.config.clone();
    let done = until_signal(run(arguments)).await;
    if is_start && done.as_ref().is_err_and(|error| error.is::<Interrupted>()) {
        let config = ClusterConfig::load(config)?;
        stop(&config).await?;
        // Race: a server that was being started at the first stop was not seen by it.
        tokio::time::sleep(Duration::from_millis(300)).await;
        stop(&config).await?;
    }
    done
}

async fn run(arguments: Arguments) -> Result<()> {
    let config = ClusterConfig::load(&arguments.config)?;
    let print = |result: Value, text: String| match arguments.json {
        true => println!("{result}"),
        false => print!("{text}"),
    };
    match arguments.command {
        Command::Start => {
            let config = with_commands(config, arguments.agents.as_deref())?;
            let bus = bus_command(&config);
            let wait = spinner(format!("starting {} agents", config.agents.len()));
            let mut cluster = builder(config);
            if let Some(bus) = bus {
                cluster = cluster.command(bus);
            }
            let cluster = cluster.start().await?;
            wait.finish_and_clear();
            let (result, text) = status(&cluster).await?;
            print(result, text);
        }
        Command::Status => {
            let (result, text) = status(&attach(config).await?).await?;
            print(result, text);
        }
        Command::Ask { to, text } => {
            let cluster = attach(config).await?;
            let wait = spinner(format!("waiting for {to}"));
            let began = Instant::now();
            let answer = cluster.outsider("user").send_to(&to, &text).await?;
            wait.finish_and_clear();
            let took = began.elapsed().as_millis();
            let result = json!({"from": "user", "to": to, "answer": answer, "took_ms": took});
            print(result, format!("{answer}\n"));
        }
        Command::Send { from, to, text } => {
            let cluster = attach(config).await?;
            cluster.agent(&from)?.post_to(&to, &text).await?;
            let result = json!({"from": from, "to": to, "sent": true});
            print(result, format!("sent to {to}\n"));
        }
        Command::Logs => {
            let path = log_file(&config);
            let log = match path.exists() {
                true => MessageLog::load(&path, &LogFilter::default())?,
                false => MessageLog::default(),
            };
            for line in &log.skipped {
                eprintln!(
                    "note: line {} of the log is not a message: {}",
                    line.line, line.reason
                );
            }
            let lines = log.entries.iter().map(|entry| {
                let (from, to, kind) = (&entry.from_agent, &entry.to_agent, &entry.message_type);
                let (time, text) = (&entry.timestamp, entry.content.trim_end());
                format!("[{time}] {from} → {to} ({kind}): {text}\n")
            });
            let text = lines.collect();
            print(json!({"log": path, "entries": log.entries}), text);
        }
        Command::Stop => {
            let wait = spinner("stopping".to_owned());
            let stopped = stop(&config).await?;
            wait.finish_and_clear();
            let text = if stopped {
                "stopped\n"
            } else {
                "not running\n"
            };
            print(json!({"stopped": stopped}), text.to_owned());
        }
    }
    Ok(())
}

/// Stops the server of a cluster; `false` if there is none. It is found by its session, so that a
/// cluster whose start was interrupted is stopped, too.
async fn stop(config: &ClusterConfig) -> Result<bool> {
    let server = Server::builder(&config.session_name).key(&config.path);
    match server.attach().await {
        Ok(server) => {
            server.stop(Duration::from_secs(3)).await?;
            Ok(true)
        }
        Err(tmux_bus::Error::NotRunning { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn builder(config: ClusterConfig) -> ClusterBuilder {
    let log = log_file(&config);
    ClusterManager::builder(config).log_file(log)
}

fn log_file(config: &ClusterConfig) -> PathBuf {
    config.work_dir.join(MessageLogger::DEFAULT_PATH)
}

async fn attach(config: ClusterConfig) -> Result<ClusterManager> {
    let path = config.path.clone();
    let attached = builder(config).attach_unchanged().await;
    attached.map_err(|error| match error {
        tmux_bus::Error::NotRunning { .. } => format!(
            "the cluster is not running; start it with: cluster --config {} start",
            path.display()
        )
        .into(),
        error => error.into(),
    })
}

/// The command `tmux-bus` that the agents use. It is built for real agents; scripted ones do not need it.
fn bus_command(config: &ClusterConfig) -> Option<PathBuf> {
    if config.agents.iter().all(|agent| agent.command.is_some()) {
        return bus_command::find();
    }
    let command = bus_command::find_or_build();
    command.inspect_err(|error| eprintln!("note: {error}")).ok()
}

/// Fills in the command of each agent for which the file names none.
fn with_commands(mut config: ClusterConfig, chosen: Option<&str>) -> Result<ClusterConfig> {
    for warning in &config.warnings {
        eprintln!("note: {warning}");
    }
    let open = config.agents.iter_mut().filter(|a| a.command.is_none());
    let open: Vec<&mut AgentConfig> = open.collect();
    let label = match chosen {
        Some(label) => label,
        None if open.is_empty() || examples::on_path("claude") => "claude-code",
        None => {
            eprintln!(
                "note: claude is not on PATH: using the bundled scripted agent (see --agents)"
            );
            "scripted"
        }
    };
    for agent in open {
        // With what tmux-bus tells about its command. Only claude has an option for a system prompt; the others
        // get their personality as the first message.
        let prompt = "\"$(cat \"$TMUX_BUS_PERSONALITY\")\"";
        agent.command = match label {
            "scripted" => Some(pane_agent::command(&agent.marker)?),
            // The default command of tmux-bus.
            "claude-code" => None,
            "codex" => Some(format!("exec codex {prompt}")),
            "gemini" => Some(format!("exec gemini --prompt-interactive {prompt}")),
            "opencode" => Some(format!("exec opencode --prompt {prompt}")),
            "cursor" => Some(format!("exec cursor-agent {prompt}")),
            other => {
                let known = "scripted, claude-code, codex, gemini, opencode, cursor";
                return Err(format!("unknown agent `{other}`; known: {known}").into());
            }
        };
    }
    Ok(config)
}

/// The state of all agents, as JSON and as a table.
async fn status(cluster: &ClusterManager) -> Result<(Value, String)> {
    let status = cluster.status().await?;
    let attach = format!("tmux -S {} attach", status.socket.display());
    let rows = status.agents.iter().map(|agent| {
        let (name, role, pane) = (&agent.name, agent.role.as_str(), agent.pane.to_string());
        let (state, active) = (state(agent), idle_seconds(agent));
        format!("{name:<29} {role:<29} {pane:<5} {state:<22} {active}\n")
    });
    let head = ("agent", "role", "pane", "state", "last output");
    let head = format!(
        "{:<29} {:<29} {:<5} {:<22} {}\n",
        head.0, head.1, head.2, head.3, head.4
    );
    let text = format!("{head}{}\nwatch: {attach}\n", rows.collect::<String>());
    let agents: Vec<Value> = status
        .agents
        .iter()
        .map(|agent| {
            json!({
                "name": agent.name, "role": agent.role.as_str(), "pane": agent.pane.to_string(),
                "agent": agent.definition, "state": agent.state.to_string(),
                "evidence": agent.evidence.to_string(),
                "alive": agent.exit.is_none(), "busy": agent.busy,
                "exit": agent.exit.map(|exit| exit.to_string()),
                "last_activity_ms": agent.last_activity.and_then(milliseconds),
            })
        })
        .collect();
    let result = json!({
        "session": status.session, "socket": status.socket, "attach": attach,
        "log": cluster.logger().path(), "agents": agents,
    });
    Ok((result, text))
}

fn state(agent: &AgentStatus) -> String {
    match agent.exit {
        Some(exit) => format!("ended: {exit}"),
        None if agent.busy && !agent.state.needs_a_person() => "busy".to_owned(),
        None => agent.state.to_string(),
    }
}

fn idle_seconds(agent: &AgentStatus) -> String {
    let since = agent.last_activity.and_then(|at| at.elapsed().ok());
    since.map_or("-".to_owned(), |since| format!("{} s ago", since.as_secs()))
}

fn milliseconds(at: SystemTime) -> Option<u64> {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

/// A spinner on standard error; invisible if that is not a terminal.
fn spinner(message: String) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(message);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}
