//! The operator tool of the specification: several terminals share six operators, and an operator
//! is assigned to one terminal at a time.
//!
//! ```sh
//! cargo run -p examples --example operator_manager -- --session terminal-1 assign tsukuyomi
//! cargo run -p examples --example operator_manager -- --session terminal-2 available
//! ```
//!
//! The default session is that of the terminal. If the terminal sets no session variable, it is
//! the parent process; under `cargo run` that is cargo, which ends with the command.
//!
//! Exit codes: 0 done, 1 refused or failed (the reason is on stderr), 2 wrong arguments, 128 + n ended
//! by signal n.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program prints"
)]

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};
use examples::Result;
use serde::Serialize;
use timed_store::{Claim, Entries, LockPolicy, SessionId, TimedStorage};

const OPERATORS: [&str; 6] = ["tsukuyomi", "angie", "alma", "akane", "dia", "kana"];

/// Assigns operators to terminal sessions, each operator to one session only.
#[derive(Parser)]
#[command(name = "operator_manager")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// The session [default: that of the terminal, else the parent process]
    #[arg(long, global = true, value_name = "ID")]
    session: Option<SessionId>,
    /// The file of the assignments [default: {temp}/coeiroink-operators-{hostname}.json]
    #[arg(long, global = true, value_name = "FILE")]
    state: Option<PathBuf>,
    /// A JSON configuration; `operatorTimeout` is in milliseconds
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON: operator, state (free, mine, other), `expires_in_ms`
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Assign an operator; without a name, the session keeps its operator or gets a free one
    Assign {
        #[arg(value_parser = PossibleValuesParser::new(OPERATORS))]
        name: Option<String>,
    },
    /// List the operators that this session can get
    Available,
    /// Show for each operator whether it is free, mine, or in use by another session
    Status,
    /// Release the operator of this session
    Release,
    /// Extend the assignment of this session by the full time
    Refresh,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Free,
    Mine,
    Other,
}

#[derive(Serialize)]
struct Operator {
    operator: String,
    state: State,
    expires_in_ms: Option<u128>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    examples::report(examples::until_signal(run(Arguments::parse())).await)
}

async fn run(arguments: Arguments) -> Result<()> {
    let store = open(&arguments)?;
    let json = arguments.json;
    match arguments.command {
        Command::Assign { name } => {
            let candidates = name.map_or_else(shuffled, |name| vec![name]);
            let all = candidates.len() > 1;
            let wanted = candidates[0].clone();
            match store.claim_any(candidates).await? {
                Claim::Granted(lease) => {
                    let operator = Operator::new(lease.value(), State::Mine, Some(lease.expires_in()));
                    print(&operator, json, || println!("assigned {}", lease.value()))
                }
                Claim::Busy { expires_in, .. } if all => Err(format!(
                    "all operators are in use by other sessions; the next is free in {} at the latest",
                    duration_text(expires_in)
                )
                .into()),
                Claim::Busy { expires_in, .. } => Err(format!(
                    "{wanted} is in use by another session (free in {} at the latest)",
                    duration_text(expires_in)
                )
                .into()),
            }
        }
        Command::Available => {
            let mut operators = operators(&store.entries().await?);
            operators.retain(|operator| operator.state != State::Other);
            print(&operators, json, || {
                let names: Vec<&str> = operators
                    .iter()
                    .map(|operator| operator.operator.as_str())
                    .collect();
                println!(
                    "available operators: {}",
                    if names.is_empty() {
                        "none".to_owned()
                    } else {
                        names.join(", ")
                    }
                );
            })
        }
        Command::Status => {
            let operators = operators(&store.entries().await?);
            print(&operators, json, || {
                for Operator {
                    operator,
                    state,
                    expires_in_ms,
                } in &operators
                {
                    let state = match state {
                        State::Free => "free",
                        State::Mine => "mine",
                        State::Other => "in use by another session",
                    };
                    let left = expires_in_ms
                        .and_then(|ms| u64::try_from(ms).ok())
                        .map(Duration::from_millis);
                    let left = left.map_or_else(String::new, |left| {
                        format!(", expires in {}", duration_text(left))
                    });
                    println!("{operator:<10} {state}{left}");
                }
            })
        }
        Command::Release => {
            let released = store
                .transaction(|entries| {
                    let name = entries.mine().map(|entry| entry.value().clone());
                    entries.remove();
                    name
                })
                .await?;
            let operator = released
                .as_ref()
                .map(|name| Operator::new(name, State::Free, None));
            print(&operator, json, || match released {
                Some(name) => println!("released {name}"),
                None => println!("no operator was assigned"),
            })
        }
        Command::Refresh => {
            if !store.refresh().await? {
                return Err("no operator is assigned to this session; use `assign` first".into());
            }
            let entries = store.entries().await?;
            let mine = entries
                .mine()
                .ok_or("the operator was released in the meantime")?;
            let operator = Operator::new(mine.value(), State::Mine, Some(mine.expires_in()));
            print(&operator, json, || println!("refreshed {}", mine.value()))
        }
    }
}

fn open(arguments: &Arguments) -> Result<TimedStorage<String>> {
    let mut builder = match &arguments.state {
        Some(path) => TimedStorage::builder(path),
        None => TimedStorage::builder_in_temp("coeiroink-operators"),
    };
    if let Some(session) = &arguments.session {
        builder = builder.session(session.clone());
    }
    if let Some(config) = &arguments.config {
        builder = builder.ttl_from_config(config)?;
    }
    let store = builder
        .lock(LockPolicy::Wait(Duration::from_secs(5)))
        .on_incident(|incident| eprintln!("note: {incident}"))
        .open()?;
    Ok(store)
}

impl Operator {
    fn new(name: &str, state: State, expires_in: Option<Duration>) -> Self {
        Self {
            operator: name.to_owned(),
            state,
            expires_in_ms: expires_in.map(|left| left.as_millis()),
        }
    }
}

fn operators(entries: &Entries<String>) -> Vec<Operator> {
    let look_up = |name: &&str| {
        let mine = entries.mine().filter(|entry| entry.value() == name);
        let other = entries
            .others()
            .map(|(_, entry)| entry)
            .find(|entry| entry.value() == name);
        match (mine, other) {
            (Some(entry), _) => Operator::new(name, State::Mine, Some(entry.expires_in())),
            (None, Some(entry)) => Operator::new(name, State::Other, Some(entry.expires_in())),
            (None, None) => Operator::new(name, State::Free, None),
        }
    };
    OPERATORS.iter().map(look_up).collect()
}

/// All operators in random order; the first free one is assigned.
fn shuffled() -> Vec<String> {
    let random = RandomState::new();
    let mut operators = OPERATORS.map(str::to_owned).to_vec();
    operators.sort_by_key(|name| random.hash_one(name));
    operators
}

fn print<T: Serialize>(answer: &T, json: bool, print_text: impl FnOnce()) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(answer)?);
    } else {
        print_text();
    }
    Ok(())
}

fn duration_text(left: Duration) -> String {
    match left.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}
