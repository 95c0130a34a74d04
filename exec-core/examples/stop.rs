//! Stops an agent whose tool runs in a session of its own.
//!
//! A signal to the process group would leave the tool running. The stop finds it by its
//! environment, and returns when no process is left.
//!
//! ```sh
//! cargo run -p exec-core --example stop
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use exec_core::{
    CommandConfig, EventKind, ExecutionContext, ExecutionService, NewChatRequest, Profile,
    ProfileSource, StopOutcome,
};

/// An "agent" with a tool in a session of its own.
const AGENT: &str = "setsid sh -c 'echo tool started; sleep 600; :' & wait";

struct Agent;

impl Profile for Agent {
    fn variant_labels(&self) -> Vec<String> {
        Vec::new()
    }

    fn command(&self, _variant: Option<&str>) -> Option<CommandConfig> {
        Some(CommandConfig::new("sh", ["-c", AGENT]))
    }
}

impl ProfileSource for Agent {
    fn find_profile(&self, _label: &str) -> Option<Arc<dyn Profile>> {
        Some(Arc::new(Self))
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let state = tempfile::tempdir()?;
    let service = ExecutionService::builder(Agent)
        .state_dir(state.path())
        .open()?;
    let context = ExecutionContext::for_workspace("agent", "/tmp")?;
    let prompt = "go".to_owned();
    let execution = service.launch(NewChatRequest { context, prompt }).await?;
    let mut events = execution.events();
    while let Some(event) = events.next().await {
        if let EventKind::Output(output) = &event.kind {
            println!("{}", output.line.text());
            break;
        }
    }
    println!(
        "before the stop: {} processes",
        execution.usage().await?.processes
    );
    if let StopOutcome::Stopped(report) = execution.stop().await? {
        println!(
            "{:?} after {:?}, {} processes ended",
            report.level, report.took, report.processes
        );
    }
    println!(
        "after the stop: {} processes",
        execution.usage().await?.processes
    );
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Err(error) = run().await else {
        return ExitCode::SUCCESS;
    };
    eprintln!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprintln!("caused by: {error}");
        cause = error.source();
    }
    ExitCode::FAILURE
}
