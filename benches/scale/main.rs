//! The capacity of one Redis server, one PostgreSQL server and one worker host: the figures of
//! `docs/scale.md`.
//!
//! ```sh
//! cargo run --release -p benches --bin scale               # all
//! cargo run --release -p benches --bin scale -- redis
//! cargo run --release -p benches --bin scale -- host --agent claude-code --sessions 3
//! ```
//!
//! The clients run on the same machine as the server and take most of its processors. So each line has
//! two figures: operations per second as seen by the clients, and the processor time that the server
//! itself used for one. The second hardly depends on other work on the machine.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a command-line program prints, and a measurement stops at the first error"
)]

mod host;
mod load;
mod postgres;
mod redis;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use examples::scripted_agent;

/// Measures what one server and one host can do.
#[derive(Parser)]
#[command(name = "scale")]
struct Arguments {
    /// What to measure [default: all]
    parts: Vec<Part>,
    /// Seconds for each figure
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Live sessions on the host
    #[arg(long, default_value_t = 50)]
    sessions: usize,
    /// The agent of the sessions; one that is not scripted must be installed, and gets one short prompt
    #[arg(long, value_name = "LABEL", default_value = scripted_agent::LABEL)]
    agent: String,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Redis,
    Postgres,
    Host,
}

fn main() -> ExitCode {
    if let Some(code) = scripted_agent::run_if_asked() {
        return code;
    }
    let Arguments {
        parts,
        seconds,
        sessions,
        agent,
    } = Arguments::parse();
    let wants = |part| parts.is_empty() || parts.contains(&part);
    let time = std::time::Duration::from_secs_f64(seconds);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let load = || std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load of the machine at the start: {}", load().trim());
    if wants(Part::Redis) {
        runtime.block_on(redis::measure(time));
    }
    if wants(Part::Postgres) {
        runtime.block_on(postgres::measure(time));
    }
    if wants(Part::Host) {
        runtime.block_on(host::measure(&agent, sessions));
    }
    println!("load of the machine at the end: {}", load().trim());
    ExitCode::SUCCESS
}
