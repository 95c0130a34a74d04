//! Gives each session ports that no other session has, and that no other program listens on.
//!
//! ```sh
//! cargo run -p examples --example ports -- claim                 # 3000, or the next free one
//! cargo run -p examples --example ports -- --name web claim      # a second port of the session
//! cargo run -p examples --example ports -- claim --wait 60       # waits if all are taken
//! cargo run -p examples --example ports -- --watch               # prints every change
//! ```
//!
//! Two agents that start a server on port 3000 at the same time conflict: one of them fails. A claim is decided
//! in one step for all processes; the bind probe finds programs that do not ask.
//!
//! Exit codes: 0 done, 1 refused or failed (the reason is on stderr), 2 wrong arguments.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program prints"
)]

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use examples::Result;
use timed_store::blocking::TimedStorage;
use timed_store::{Change, Claim, LockPolicy, SessionId};

/// How long a port may be in use for a probe of another session.
const PROBES: Duration = Duration::from_secs(1);

/// Gives ports to sessions, each port to one session only.
#[derive(Parser)]
#[command(name = "ports", arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Print every change until the program is stopped
    #[arg(long)]
    watch: bool,
    /// The session [default: that of the terminal, else the parent process]
    ///
    /// An agent's shell tool needs it: there each call may have a shell of its own, which ends with
    /// the call, and with it the session and its claims. Use one name for each agent.
    #[arg(long, global = true, value_name = "ID")]
    session: Option<SessionId>,
    /// A name for the port, so that a session can have several
    #[arg(long, global = true, value_name = "NAME")]
    name: Option<String>,
    /// The file of the claims [default: {temp}/agent-ports-{hostname}.json]
    #[arg(long, global = true, value_name = "FILE")]
    state: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Claim a free port and print it; the session keeps a port that it has
    Claim {
        /// The first port
        #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u16).range(1..))]
        from: u16,
        /// The last port
        #[arg(long, default_value_t = 3999, value_parser = clap::value_parser!(u16).range(1..))]
        to: u16,
        /// Wait so many seconds if no port is free
        #[arg(long, default_value_t = 0, value_name = "SECONDS")]
        wait: u64,
    },
    /// Release the port
    Release,
    /// List all claimed ports
    List,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(Command::Claim { from, to, .. }) = &arguments.command
        && from > to
    {
        let text = format!("there is no port from {from} to {to}: --from is above --to");
        Arguments::command()
            .error(ErrorKind::ValueValidation, text)
            .exit();
    }
    examples::report(run(&arguments))
}

fn run(arguments: &Arguments) -> Result<()> {
    let store = open(arguments)?;
    match &arguments.command {
        _ if arguments.watch => watch(&store),
        Some(Command::Claim { from, to, wait }) => {
            println!(
                "{}",
                claim(&store, *from..=*to, Duration::from_secs(*wait))?
            );
            Ok(())
        }
        Some(Command::Release) => {
            if !store.remove()? {
                return Err("the session has no port of this name".into());
            }
            Ok(())
        }
        Some(Command::List) | None => {
            for (session, entry) in store.entries()?.iter() {
                println!("{} {session}", entry.value());
            }
            Ok(())
        }
    }
}

/// Claims one of the ports that no program listens on.
///
/// The probe cannot be part of the claim: a program that does not use the store may bind the port
/// between the two. So the port is probed again after the claim, and the next one is tried if it was
/// taken.
fn claim(
    store: &TimedStorage<u16>,
    ports: std::ops::RangeInclusive<u16>,
    wait: Duration,
) -> Result<u16> {
    // The program of this session may listen on its port already.
    if let Some(port) = store.restore()?.filter(|port| ports.contains(port)) {
        store.refresh()?;
        return Ok(port);
    }
    let start = Instant::now();
    loop {
        // The slots of one session do not exclude each other.
        let entries = store.entries()?;
        let is_claimed = |port: &u16| entries.iter().any(|(_, entry)| entry.value() == port);
        let others = |port: &u16| entries.others().any(|(_, entry)| entry.value() == port);
        let is_own = |port: &u16| is_claimed(port) && !others(port);
        let free = ports
            .clone()
            .filter(|port| !is_own(port) && can_bind(*port));
        let free: Vec<u16> = free.collect();
        // The probe of another session has a port for a moment.
        if free.is_empty()
            && !ports.clone().all(|port| is_claimed(&port))
            && start.elapsed() < PROBES
        {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        }
        if free.is_empty() {
            let reason =
                "this session has the ports of the range, or other programs listen on them";
            return Err(reason.into());
        }
        let left = wait.saturating_sub(start.elapsed());
        match store.claim_any_within(free, left)? {
            Claim::Granted(lease) => {
                let port = lease.into_value();
                if is_alone(store, port)? && can_bind(port) {
                    return Ok(port);
                }
                // Taken since the first look.
                store.remove()?;
            }
            Claim::Busy { holder, expires_in } => {
                return Err(format!(
                    "all ports are claimed; the next one is free in {} s at the latest (session {holder})",
                    expires_in.as_secs()
                )
                .into());
            }
        }
    }
}

/// Whether no other slot of this session has claimed the port at the same time; if one has, this slot gives it up.
///
/// Race: both slots have claimed it, and look one after the other, because a transaction is one step. The first one
/// finds the other's entry and removes its own, so the second one keeps the port.
fn is_alone(store: &TimedStorage<u16>, port: u16) -> Result<bool> {
    Ok(store.transaction(|entries| {
        let holders = entries.iter().filter(|(_, entry)| *entry.value() == port);
        let is_alone = holders.count() == 1;
        if !is_alone {
            entries.remove();
        }
        is_alone
    })?)
}

/// A program that listens on `localhost` may have one of both addresses. An address that this machine
/// does not have, such as `::1` without IPv6, is not in use.
fn can_bind(port: u16) -> bool {
    let addresses: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let is_taken = |address| match TcpListener::bind((address, port)) {
        Ok(_) => false,
        Err(error) => error.kind() != std::io::ErrorKind::AddrNotAvailable,
    };
    !addresses.into_iter().any(is_taken)
}

fn watch(store: &TimedStorage<u16>) -> Result<()> {
    for change in store.watch() {
        match change? {
            Change::Set { session, entry } => println!("+ {} {session}", entry.value()),
            Change::Removed { session } => println!("- {session}"),
            _ => {}
        }
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn open(arguments: &Arguments) -> Result<TimedStorage<u16>> {
    let mut builder = match &arguments.state {
        Some(path) => TimedStorage::builder(path),
        None => TimedStorage::builder_in_temp("agent-ports"),
    };
    if let Some(session) = &arguments.session {
        builder = builder.session(session.clone());
    }
    let store = builder
        .lock(LockPolicy::Wait(Duration::from_secs(5)))
        .on_incident(|incident| eprintln!("note: {incident}"))
        .open()?;
    Ok(match &arguments.name {
        Some(name) => store.slot(name)?,
        None => store,
    })
}
