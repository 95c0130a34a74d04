//! Claims an operator that no other session has, works, and gives it back.
//!
//! ```sh
//! cargo run -p timed-store --example claim -- terminal-1 &
//! cargo run -p timed-store --example claim -- terminal-2
//! ```
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "printing is the purpose of an example"
)]

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use timed_store::{Claim, LockPolicy, OwnerProcess, SessionId, TimedStorage};

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
    let session = match std::env::args().nth(1) {
        Some(name) => SessionId::new(name)?,
        None => SessionId::detect(),
    };
    let store = TimedStorage::<String>::builder_in_temp("claim-example")
        .session(session)
        // If this program is killed, its claim ends at once and not after four hours.
        .owner(OwnerProcess::current())
        .lock(LockPolicy::Wait(Duration::from_secs(2)))
        .open()?;

    let operators = ["tsukuyomi", "angie"].map(str::to_owned);
    match store.claim_any(operators).await? {
        Claim::Granted(lease) => {
            println!("{} holds {}", store.session(), lease.value());
            println!("requests to shared resources carry token {}", lease.token());
            tokio::time::sleep(Duration::from_secs(3)).await;
            store.remove().await?;
            println!("{} released it", store.session());
        }
        Claim::Busy { holder, expires_in } => {
            println!("all are busy; {holder} holds one for {expires_in:?} at most");
        }
    }
    Ok(())
}
