//! Runs an agent that only a user file describes: a new chat and a follow-up in the same session.
//!
//! ```sh
//! cargo run -p exec-profiles --example user_agent
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use std::error::Error;
use std::io::Write;
use std::iter;
use std::process::ExitCode;

use exec_core::{
    EventKind, Execution, ExecutionContext, ExecutionService, FollowUpRequest, NewChatRequest,
};
use exec_profiles::ProfileRegistry;

/// A shell script instead of an agent.
const USER_FILE: &str = r#"
[profiles.parrot]
binary = "sh"
args = ["-c", 'echo "session {session_id}: $(cat)"']
follow_up_args = ["-c", 'echo "session {session_id} again: $(cat)"']
"#;

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
    let folder = tempfile::tempdir()?;
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile()?;
    file.write_all(USER_FILE.as_bytes())?;
    let registry = ProfileRegistry::empty();
    if let Some(error) = registry.load_user_file(file.path())?.errors.pop() {
        return Err(error.into());
    }

    let service = ExecutionService::builder(registry)
        .state_dir(folder.path().join("state"))
        .open()?;
    let context = ExecutionContext::for_workspace("parrot", folder.path())?;
    let request = NewChatRequest {
        context: context.clone(),
        prompt: "hello".into(),
    };
    let first = service.launch(request).await?;
    print_output(&first).await?;

    let request = FollowUpRequest {
        context,
        session_id: first.resolved().await?,
        message: "how are you?".into(),
    };
    let second = service.launch(request).await?;
    print_output(&second).await
}

async fn print_output(execution: &Execution) -> Result<(), Box<dyn Error>> {
    let mut events = execution.events();
    while let Some(event) = events.next().await {
        if let EventKind::Output(output) = &event.kind {
            println!("{}", output.line.text());
        }
    }
    execution.wait().await?;
    Ok(())
}
