//! At most two sessions may work at the same time: a rule of your own, in a transaction.
//!
//! ```sh
//! cargo run -p timed-store --example seats
//! ```
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "printing is the purpose of an example"
)]

use std::error::Error;
use std::process::ExitCode;

use timed_store::{SessionId, TimedStorage};

const SEATS: usize = 2;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Err(error) = run().await else {
        return ExitCode::SUCCESS;
    };
    eprintln!("error: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        eprintln!("  caused by: {cause}");
        source = cause.source();
    }
    ExitCode::FAILURE
}

async fn run() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let open = |session: &str| {
        TimedStorage::<u32>::builder(folder.path().join("seats.json"))
            .session(SessionId::new(session)?)
            .open()
    };

    for name in ["alice", "bob", "carol"] {
        // The closure may run again, so it computes its answer from the entries alone.
        let store = open(name)?;
        let seat = store.transaction(|entries| {
            let taken: Vec<u32> = entries.others().map(|(_, entry)| *entry.value()).collect();
            let free = (1..).take(SEATS).find(|seat| !taken.contains(seat));
            if let Some(seat) = free {
                entries.store(seat);
            }
            free
        });
        match seat.await? {
            Some(seat) => println!("{name} has seat {seat}"),
            None => println!("{name} must wait"),
        }
    }
    open("alice")?.remove().await?;
    println!(
        "alice left; {} seat is free",
        SEATS - open("carol")?.entries().await?.iter().count()
    );
    Ok(())
}
