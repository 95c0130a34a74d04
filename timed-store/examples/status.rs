//! Prints the live entries of a store, without a runtime.
//!
//! ```sh
//! cargo run -p timed-store --example status -- claim-example
//! ```
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "printing is the purpose of an example"
)]

use std::error::Error;
use std::process::ExitCode;

use serde_json::Value;
use timed_store::blocking::TimedStorage;

fn main() -> ExitCode {
    let Err(error) = run() else {
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

fn run() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1);
    let name = name.unwrap_or_else(|| "claim-example".to_owned());
    // `Value` accepts entries of every type.
    let store = TimedStorage::<Value>::builder_in_temp(&name)
        .on_incident(|incident| eprintln!("note: {incident}"))
        .open()?;
    let entries = store.entries()?;
    for (session, entry) in entries.iter() {
        let seconds = entry.expires_in().as_secs();
        println!("{session}: {} for {seconds} s", entry.value());
    }
    println!(
        "{} entries in {}",
        entries.iter().count(),
        store.path().display()
    );
    Ok(())
}
