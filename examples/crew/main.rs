//! A crew of agents from a file: they work on tasks together, each in a tmux pane or headless; all five crates are used.
//! Every part can be killed at any time, and no task is done twice.
//!
//! ```sh
//! cargo run -p examples --example crew                                             # the built-in crew, scripted agents
//! cargo run -p examples --example crew -- --page --agents claude-code,codex "Write a haiku about tmux"
//! cargo run -p examples --example crew -- --file examples/config/three.toml
//! cargo run -p examples --example crew -- --dir /tmp/crew-1000/3f9a1c22            # continues a crew that was ended
//! cargo run -p examples --example crew -- --redis redis://host/0 --file crew.toml  # the same on several machines
//! cargo run -p examples --example crew -- worker --redis redis://host/0 crew.toml  # only takes tasks, without panes
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `crew_file.rs` | the file that describes a crew |
//! | `crew.rs` | the folder of a crew and its stores |
//! | `member.rs` | holds a role, takes its tasks, asks its agent, saves each step |
//! | `crew_agent.rs`, `pane_agent.rs`, `live_agent.rs` | what a member needs of an agent; agents in panes; headless ones |
//! | `worker.rs`, `effects.rs` | takes tasks of all roles on one of several machines; a resource that compares fencing tokens |
//! | `page.rs` | the web page |
//! | `report.rs` | what is printed |
//!
//! The list of tasks is `examples::task_list`. An agent asks another one with the command `tmux-bus`: its prompt says how.
//! A second program with the same `--dir` waits for the roles, and continues if the first one dies.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong arguments, 128 + n interrupted by signal n. A crew that has failed or was
//! interrupted continues with `--dir`.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program prints"
)]
#![allow(
    unreachable_pub,
    reason = "modules that other programs can use by path"
)]

mod crew;
mod crew_agent;
mod crew_file;
mod effects;
mod live_agent;
mod member;
mod page;
mod pane_agent;
mod report;
mod worker;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use examples::task_list::TaskList;
use examples::{Interrupted, Result, bus_command, scripted_agent, with_causes};
use exec_core::{ExecutionService, termination_signal};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crew::Crew;
use crew_agent::CrewAgent;
use crew_file::{CrewFile, Lives, check_storage};
use live_agent::{Headless, LiveAgent};
use member::Member;
use page::Page;
use pane_agent::{PaneAgent, Panes};
use report::{Report, Tone};

/// The time for headless agents to end.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// Runs agents that work on tasks together.
#[derive(Parser)]
#[command(name = "crew", args_conflicts_with_subcommands = true)]
#[command(disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The file that describes the crew [default: the five roles of the specification]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The folder of the crew; a crew that is in it continues [default: a private one below the temporary folder]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The agents of the roles in turn: scripted, claude-code, codex, gemini, opencode
    #[arg(long, value_name = "LABELS", value_delimiter = ',')]
    agents: Vec<String>,
    /// Let all agents live without a terminal
    #[arg(long)]
    headless: bool,
    /// The storage of the states: file, sqlite, or an address such as redis://127.0.0.1/0
    #[arg(long, value_name = "KIND", value_parser = storage)]
    storage: Option<String>,
    /// Share the tasks with the programs of other machines through this server
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// Serve a web page that shows the agents and steers them
    #[arg(long)]
    page: bool,
    /// Kill the agent of this role once while it works; `none` for no role [default: as the file says]
    #[arg(long, value_name = "ROLE")]
    kill: Option<String>,
    /// Leave the agents in panes, and the page, running at the end
    #[arg(long)]
    keep: bool,
    /// Print each event as one line of JSON
    #[arg(long)]
    json: bool,
    /// What the crew is to do [default: the goal in the file]
    goal: Option<String>,
}

#[derive(Subcommand)]
enum Command {
    Worker(worker::WorkerArguments),
}

impl Arguments {
    /// The crew that the arguments describe, if they describe one.
    fn crew_file(&self) -> Result<Option<CrewFile>> {
        let is_plain = self.file.is_none() && self.agents.is_empty() && !self.headless;
        if is_plain && self.storage.is_none() && self.goal.is_none() {
            return Ok(None);
        }
        let mut file = self
            .file
            .as_deref()
            .map_or_else(CrewFile::builtin, CrewFile::load)?;
        if self.headless {
            file.roles
                .iter_mut()
                .for_each(|role| role.lives = Lives::Headless);
        }
        file.mix(&self.agents)?;
        file.storage = self.storage.clone().unwrap_or(file.storage);
        file.goal = self.goal.clone().unwrap_or(file.goal);
        Ok(Some(file))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    if let Some(code) = scripted_agent::run_if_asked() {
        return code;
    }
    let mut arguments = Arguments::parse();
    examples::report(match arguments.command.take() {
        Some(Command::Worker(arguments)) => worker::run(arguments).await,
        None => run(arguments).await,
    })
}

async fn run(arguments: Arguments) -> Result<ExitCode> {
    let given = arguments.crew_file()?;
    let folder = match &arguments.dir {
        Some(dir) => dir.clone(),
        None => crew::default_folder()?,
    };
    let crew = Crew::open(&folder, given, arguments.redis.clone())?;
    let kill = arguments.kill.clone().or(crew.file.kill.clone());
    let kill = kill.filter(|role| role != "none");
    if let Some(role) = kill.as_ref().filter(|role| crew.file.role(role).is_none()) {
        return Err(format!("--kill: there is no role `{role}`").into());
    }
    let signal = termination_signal()?;
    let report = Report::new(arguments.json);
    let running = Running::start(crew, &arguments, report).await?;
    // In a task of the runtime, so that the clean-up below also runs after a panic.
    let mut work = tokio::spawn(running.clone().work(kill));
    let limit = running.crew.file.wall_time();
    let mut signal = std::pin::pin!(signal);
    let done = tokio::select! {
        done = tokio::time::timeout(limit, &mut work) => Ok(done),
        signal = &mut signal => Err(Interrupted { signal }),
    };
    work.abort();
    // Cleaned up before anything is printed: printing may be what failed.
    let is_done = matches!(&done, Ok(Ok(Ok(Ok(_)))));
    let keep = arguments.keep && is_done;
    running.clean_up(keep).await?;
    if !is_done {
        // Race: a process that was being started at the first clean-up was not seen by it.
        tokio::time::sleep(Duration::from_millis(300)).await;
        running.clean_up(false).await?;
    }
    let outcome = match done {
        Ok(Ok(Ok(outcome))) => outcome,
        Ok(Ok(Err(panicked))) => return Err(format!("bug: {panicked}").into()),
        Ok(Err(_)) => Err(format!(
            "the budget of {} s for the whole crew is used up",
            limit.as_secs()
        )
        .into()),
        Err(interrupted) => {
            let folder = running.crew.folder.display();
            let told =
                format!("{interrupted}: all agents have ended; continue with --dir {folder}");
            let _ = writeln!(std::io::stderr(), "{told}");
            Err(interrupted.into())
        }
    };
    match outcome {
        Ok(outcome) => {
            running.print_end(&outcome, keep);
            if keep && arguments.page {
                signal.await;
                running.clean_up(false).await?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            if report.is_json() {
                report.finished(
                    json!({"ok": false, "error": with_causes(&*error), "dir": running.crew.folder}),
                    "",
                );
            }
            Err(error)
        }
    }
}

/// The parts of a crew in this program.
#[derive(Clone)]
struct Running {
    crew: Arc<Crew>,
    tasks: TaskList,
    storage: Arc<dyn agent_snapshot::SnapshotStorage>,
    panes: Option<Arc<Panes>>,
    headless: Arc<Headless>,
    report: Report,
    /// Served until the end of the program.
    page: Option<Arc<Page>>,
}

impl Running {
    /// Creates the files and opens the stores. No agent is started yet.
    async fn start(crew: Crew, arguments: &Arguments, report: Report) -> Result<Self> {
        let crew = Arc::new(crew.create()?);
        let roles: Vec<Value> = crew.file.roles.iter().map(|role| json!(role)).collect();
        let fields = json!({"crew": crew.id, "dir": crew.folder, "roles": roles});
        report.event(
            "started",
            Tone::Plain,
            fields,
            &format!("crew {} in {}", crew.id, crew.folder.display()),
        );
        let storage = crew.storage().await?;
        let page = match arguments.page {
            true => Some(Arc::new(Page::serve(&crew, storage.clone(), report).await?)),
            false => None,
        };
        let tasks = TaskList::builder(crew.place(), storage.clone(), crew.file.tasks());
        let tasks = tasks.name(&crew.id).open().await?;
        let panes = match crew.in_panes().next() {
            Some(_) => {
                let command = bus_command::find_or_build()?;
                let hub = page.as_ref().map(|page| page.hub.clone());
                Some(Arc::new(Panes::new(&crew, command, hub, report)))
            }
            None => None,
        };
        let service = crew.executions()?;
        // Agents of a program that was killed: their output has no reader.
        service.reap_orphans().await?;
        let headless = Headless {
            service,
            workspace: crew.workspace(),
            budget: crew.budget(),
            page: page.as_ref().map(|page| page.live.clone()),
            ask_command: panes.as_ref().map(|panes| panes.outside_command()),
        };
        let headless = Arc::new(headless);
        Ok(Self {
            crew,
            tasks,
            storage,
            panes,
            headless,
            report,
            page,
        })
    }

    /// Runs all members until all tasks are done; the answer to the last task.
    async fn work(self, kill: Option<String>) -> Result<String> {
        let mut members = JoinSet::new();
        for role in self.crew.file.roles.clone() {
            let agent: Box<dyn CrewAgent> = match (role.lives, &self.panes) {
                (Lives::Pane, Some(panes)) => Box::new(PaneAgent::new(panes.clone(), &role)),
                _ => Box::new(LiveAgent::new(self.headless.clone(), role.clone())),
            };
            let member = Member {
                crew: self.crew.clone(),
                kill: kill.as_ref() == Some(&role.name),
                role,
                agent,
                tasks: self.tasks.clone(),
                storage: self.storage.clone(),
                report: self.report,
            };
            members.spawn(member.run());
        }
        while let Some(ended) = members.join_next().await {
            ended??;
        }
        let last = self.tasks.done().await?.pop();
        last.map(|task| task.answer)
            .ok_or_else(|| "no task is done".into())
    }

    /// Ends the agents, after success, failure or an interrupt. Headless ones are kept for the page only: no other
    /// program can reach them.
    async fn clean_up(&self, keep: bool) -> Result<()> {
        if !keep || self.page.is_none() {
            shut_down(&self.headless.service).await?;
        }
        if !keep {
            // A crew that is done needs no panes; a program that was killed may have left them.
            let is_done = self.tasks.is_complete().await.unwrap_or(false);
            if let Some(panes) = self
                .panes
                .as_ref()
                .filter(|panes| is_done || panes.is_used())
            {
                panes.stop().await?;
            }
        }
        Ok(())
    }

    fn print_end(&self, answer: &str, kept: bool) {
        let folder = &self.crew.folder;
        let work = fs::read_to_string(self.crew.workspace().join("work.log")).unwrap_or_default();
        let work: Vec<&str> = work.lines().collect();
        let took = self.report.elapsed_ms();
        let mut text = format!(
            "\n{answer}\n\n  {} tasks in {:.1} s",
            self.tasks.tasks().len(),
            took as f64 / 1000.0
        );
        if !work.is_empty() {
            let mut different = work.clone();
            different.sort_unstable();
            different.dedup();
            let twice = work.len() - different.len();
            text += &format!("\n  {} pieces of work, {twice} done twice", work.len());
        }
        text += &format!("\n  all files are in {}", folder.display());
        let attach = self.panes.as_ref().and_then(|panes| panes.attach_command());
        if let (true, Some(page)) = (kept, &self.page) {
            text += &format!("\n  agents and page stay until Ctrl-C: {}", page.address);
        } else if let (true, Some(attach)) = (kept, &attach) {
            let config = self.crew.cluster_file();
            text += &format!(
                "\n  the agents in panes are still running; watch them with\n    {attach}\n  stop them with\n    \
                 cargo run -p examples --example cluster -- --config {} stop",
                config.display()
            );
        }
        let fields = json!({
            "ok": true, "answer": answer, "took_ms": took, "work": work, "dir": folder, "kept": kept, "attach": attach,
        });
        self.report.finished(fields, &text);
    }
}

async fn shut_down(service: &ExecutionService) -> Result<()> {
    service.shutdown(SHUTDOWN).await;
    service.reap_orphans().await?;
    Ok(())
}

fn storage(kind: &str) -> std::result::Result<String, String> {
    check_storage(kind).map(|()| kind.to_owned())
}
