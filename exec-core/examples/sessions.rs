//! A new chat, the session id that the agent prints, and a follow-up to that session.
//!
//! ```sh
//! cargo run -p exec-core --example sessions
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use exec_core::{
    CommandConfig, ExecutionContext, ExecutionKind, ExecutionService, FollowUpRequest,
    LaunchRequest, NewChatRequest, ProcessParameters, Profile, ProfileSource, print_prefixed,
};

/// An "agent" that prints its session id, then its input. `$1` is the id of a follow-up.
const AGENT: &str = r#"echo "session: ${1:-ses_$$}"; cat; echo"#;

struct Agent;

impl Profile for Agent {
    fn variant_labels(&self) -> Vec<String> {
        Vec::new()
    }

    fn command(&self, _variant: Option<&str>) -> Option<CommandConfig> {
        Some(CommandConfig::new("sh", ["-c", AGENT, "agent"]))
    }

    fn build_process_parameters(
        &self,
        command: &CommandConfig,
        request: &LaunchRequest,
    ) -> Result<ProcessParameters, Box<dyn Error + Send + Sync>> {
        let mut parameters = ProcessParameters::new(command.args.clone());
        parameters.stdin_payload = Some(request.text.clone());
        if request.kind == ExecutionKind::FollowUp {
            let id = request.session_id.native_id();
            parameters.args.push(id.to_owned());
        }
        parameters.session_id_resolver = Some(Box::new(|line: &str| {
            line.strip_prefix("session: ").map(str::to_owned)
        }));
        Ok(parameters)
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

    let first = NewChatRequest {
        context: context.clone(),
        prompt: "remember 42".to_owned(),
    };
    let execution = service.launch(first).await?;
    print_prefixed(&execution, io::stdout(), io::stderr()).await?;
    let session_id = execution.resolved().await?;
    println!("the agent calls the session {}", session_id.native_id());

    let second = FollowUpRequest {
        context,
        session_id,
        message: "what was it?".to_owned(),
    };
    let execution = service.launch(second).await?;
    print_prefixed(&execution, io::stdout(), io::stderr()).await?;
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
