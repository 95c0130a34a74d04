//! Prints the messages of a log as they are written, until it is interrupted.
//!
//! ```sh
//! cargo run -p tmux-bus --example follow_log -- logs/messages.jsonl
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use std::error::Error;
use std::iter;
use std::process::ExitCode;

use tmux_bus::{LogFilter, MessageLog, MessageLogger};

#[tokio::main]
async fn main() -> ExitCode {
    let Err(error) = run().await else {
        return ExitCode::SUCCESS;
    };
    let chain = iter::successors(Some(&*error), |&error| error.source());
    let messages: Vec<_> = chain.map(ToString::to_string).collect();
    eprintln!("error: {}", messages.join(": "));
    ExitCode::FAILURE
}

async fn run() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1);
    let path = path.unwrap_or(MessageLogger::DEFAULT_PATH.to_owned());
    let mut follower = MessageLog::follow(path, LogFilter::default());
    loop {
        let entry = follower.next().await?;
        let (from, to, kind) = (entry.from_agent, entry.to_agent, entry.message_type);
        println!(
            "[{}] {from} -> {to} ({kind}): {}",
            entry.timestamp, entry.content
        );
    }
}
