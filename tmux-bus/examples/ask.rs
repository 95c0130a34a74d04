//! Asks a program in a tmux pane and prints its answer.
//!
//! ```sh
//! cargo run -p tmux-bus --example ask -- "How are you?"
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use std::error::Error;
use std::iter;
use std::process::ExitCode;
use std::time::Duration;

use tmux_bus::{Launch, Server};

/// An agent: it reads a message and prints an answer with a marker.
const AGENT: &str = r#"while printf '> '; read -r message
do echo "You said: $message"; echo "AGENT OK"; done"#;

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
    let message = std::env::args().nth(1).unwrap_or("hello".to_owned());
    let server = Server::start(format!("ask-{}", std::process::id())).await?;
    let answer = ask(&server, &message).await;
    // Dropping the server would leave the agent running.
    server.stop(Duration::from_secs(1)).await?;
    println!("{}", answer?);
    Ok(())
}

async fn ask(server: &Server, message: &str) -> Result<String, tmux_bus::Error> {
    let pane = server.open_pane(&Launch::new(AGENT)).await?;
    let io = server.pane_io();
    let sent = io.send_message(pane, message).await?;
    io.get_response(sent, "AGENT OK", Duration::from_secs(30))
        .await
}
