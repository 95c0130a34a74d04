//! Runs all crates at once under load and random kills. Their guarantees must hold to the end, no
//! process may be left, and no long-lived process may grow.
//!
//! ```sh
//! scripts/soak              # 20 minutes
//! scripts/soak --short      # 2 minutes, as in CI
//! ```
//!
//! Each area runs in separate worker processes (this program with a subcommand), so that they can be
//! killed. The first violation ends the run, and its folder is kept.
//!
//! Exit codes: 0 no violation, 1 a violation or an interrupt.

mod board;
mod board_client;
mod exec;
mod failover;
mod inbox;
mod inbox_agent;
mod ledger;
mod live;
mod live_journal;
mod processes;
mod record;
mod snapshot;
mod store;
mod tmux;
mod watch;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use examples::{Result, report, scripted_agent, with_causes};
use tokio::signal::unix::{SignalKind, signal};

use ledger::Ledger;

/// Runs all crates at once under random kills and checks their guarantees.
#[derive(Parser)]
#[command(name = "soak")]
struct Arguments {
    /// Duration of the run
    #[arg(long, default_value_t = 20.0)]
    minutes: f64,
    /// Two minutes
    #[arg(long, conflicts_with = "minutes")]
    short: bool,
    /// Only this area; can be repeated
    #[arg(long, value_parser = AREAS.map(|(name, _)| name))]
    only: Vec<String>,
    #[command(subcommand)]
    worker: Option<Worker>,
}

/// Runs an area until the end of the run, then checks its files and processes.
type Run = fn(&Arc<Ledger>) -> Result<()>;

const AREAS: [(&str, Run); 8] = [
    ("store", store::run),
    ("failover", failover::run),
    ("exec", exec::run),
    ("live", live::run),
    ("tmux", tmux::run),
    ("inbox", inbox::run),
    ("snapshot", snapshot::run),
    ("board", board::run),
];

/// The worker processes.
#[derive(Subcommand)]
#[command(hide = true)]
enum Worker {
    Store(store::Session),
    Failover(failover::Session),
    Exec(exec::Host),
    Live(live::Host),
    Tmux(tmux::Host),
    Pane(tmux::Pane),
    Inbox(inbox::Host),
    Mailbox(inbox_agent::Pane),
    Snapshot(snapshot::Writer),
    Board(board::Clients),
}

fn main() -> ExitCode {
    if let Some(code) = scripted_agent::run_if_asked() {
        return code;
    }
    let arguments = Arguments::parse();
    report(match arguments.worker {
        None => soak(arguments),
        Some(Worker::Pane(pane)) => pane.run(),
        Some(Worker::Mailbox(pane)) => pane.run(),
        Some(Worker::Store(session)) => worker::run(|| session.run()),
        Some(Worker::Failover(session)) => worker::run(|| session.run()),
        Some(Worker::Exec(host)) => worker::run(|| block_on(host.run())),
        Some(Worker::Live(host)) => worker::run(|| block_on(host.run())),
        Some(Worker::Tmux(host)) => worker::run(|| block_on(host.run())),
        Some(Worker::Inbox(host)) => worker::run(|| block_on(host.run())),
        Some(Worker::Snapshot(writer)) => worker::run(|| block_on(writer.run())),
        Some(Worker::Board(clients)) => worker::run(|| block_on(clients.run())),
    })
}

fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work)
}

/// The path of a program, relative to the folder into which this one is built.
fn built(name: &str) -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    match path.is_file() {
        true => Ok(path),
        false => Err(format!("{} is missing: `scripts/soak` builds it", path.display()).into()),
    }
}

fn soak(arguments: Arguments) -> Result<()> {
    let minutes = if arguments.short {
        2.0
    } else {
        arguments.minutes
    };
    let time = Duration::try_from_secs_f64(minutes * 60.0)?;
    let mut folder = tempfile::Builder::new().prefix("soak-").tempdir()?;
    // Kept for the analysis of a violation; deleted below if there is none.
    folder.disable_cleanup(true);
    let ledger = Arc::new(Ledger::new(folder.path().to_owned()));
    println!("soak: {minutes} min in {}", folder.path().display());

    let only = &arguments.only;
    let interrupted = std::thread::scope(|scope| {
        for (area, run) in AREAS {
            let ledger = &ledger;
            if only.is_empty() || only.iter().any(|name| name == area) {
                scope.spawn(move || {
                    if let Err(error) = run(ledger) {
                        ledger.violation(with_causes(&*error));
                    }
                });
            }
        }
        scope.spawn(|| watch::sample_until_end(&ledger));
        let interrupted = block_on(wait(&ledger, time));
        ledger.end();
        interrupted
    })?;

    let strays = processes::end_all_tagged(ledger.run());
    for stray in &strays {
        ledger.violation(format!("process left: {stray}"));
    }
    ledger.judge_growth();
    ledger.print(strays.len());
    if ledger.is_broken() {
        let kept = folder.path().display();
        return Err(format!("a guarantee was violated; all files are kept in {kept}").into());
    }
    folder.disable_cleanup(false);
    folder.close()?;
    if interrupted {
        return Err("interrupted".into());
    }
    Ok(())
}

/// Waits until the time is up, a violation, or an interrupt. Returns whether it was an interrupt.
async fn wait(ledger: &Ledger, time: Duration) -> Result<bool> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let began = Instant::now();
    let mut progress = tokio::time::interval(Duration::from_secs(1));
    let mut next_report = Duration::from_secs(30);
    loop {
        tokio::select! {
            _ = interrupt.recv() => return Ok(true),
            _ = terminate.recv() => return Ok(true),
            _ = progress.tick() => {}
        }
        if began.elapsed() >= time || ledger.is_ending() {
            return Ok(false);
        }
        if began.elapsed() >= next_report {
            let (now, all) = (began.elapsed().as_secs(), time.as_secs());
            println!("soak: {now} of {all} s: {}", ledger.in_one_line());
            next_report += Duration::from_secs(30);
        }
    }
}
