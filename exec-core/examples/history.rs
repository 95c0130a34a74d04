//! Runs a few commands and prints what the history says about them.
//!
//! ```sh
//! cargo run -p exec-core --example history
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use exec_core::{
    CommandConfig, ExecutionContext, ExecutionService, HistoryState, NewChatRequest, Profile,
    ProfileSource,
};

/// An "agent" that runs its prompt.
struct Shell;

impl Profile for Shell {
    fn variant_labels(&self) -> Vec<String> {
        Vec::new()
    }

    fn command(&self, _variant: Option<&str>) -> Option<CommandConfig> {
        Some(CommandConfig::new("sh", ["-s"]))
    }
}

impl ProfileSource for Shell {
    fn find_profile(&self, label: &str) -> Option<Arc<dyn Profile>> {
        (label == "shell").then(|| Arc::new(Self) as Arc<dyn Profile>)
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let state = tempfile::tempdir()?;
    let service = ExecutionService::builder(Shell)
        .state_dir(state.path())
        .open()?;
    let context = ExecutionContext::for_workspace("shell", "/tmp")?;
    for prompt in ["exit 0", "echo oops >&2; exit 3", "kill -9 $$"] {
        let request = NewChatRequest {
            context: context.clone(),
            prompt: prompt.to_owned(),
        };
        service.launch(request).await?.wait().await?;
    }

    let contents = service.history().load()?;
    for entry in &contents.entries {
        print!("{} ", entry.execution_id);
        match &entry.state {
            HistoryState::Ended(report) => println!(
                "code {:?}, signal {:?}, {:?}, stderr {:?}",
                report.code, report.signal, report.wall_time, report.stderr_tail
            ),
            other => println!("{other:?}"),
        }
    }
    for (profile, sums) in contents.statistics() {
        println!(
            "{profile}: {} succeeded, {} failed",
            sums.succeeded, sums.failed
        );
    }
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
