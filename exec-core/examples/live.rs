//! A live session with an agent of our own: one process for many turns.
//!
//! ```sh
//! cargo run -p exec-core --example live
//! ```
#![allow(clippy::print_stdout, reason = "a command-line program prints")]

use std::error::Error;
use std::sync::Arc;

use exec_core::{
    CommandConfig, DriverCommand, DriverOutput, ExecutionContext, ExecutionService, LaunchRequest,
    LiveRequest, ProcessParameters, Profile, ProfileSource, ProtocolDriver, TurnOutcome,
};

/// An agent that answers each line with one line.
struct Shout;

impl ProtocolDriver for Shout {
    fn open(&mut self, out: &mut DriverOutput) {
        out.opened(None);
    }

    fn line(&mut self, line: &str, out: &mut DriverOutput) {
        out.turn_ended(TurnOutcome::Completed, Some(line.to_owned()));
    }

    fn command(&mut self, command: DriverCommand<'_>, out: &mut DriverOutput) {
        match command {
            DriverCommand::Prompt(text) => out.send(text.replace('\n', " ")),
            _ => out.refused("this agent knows prompts only"),
        }
    }
}

impl Profile for Shout {
    fn variant_labels(&self) -> Vec<String> {
        Vec::new()
    }

    fn command(&self, _variant: Option<&str>) -> Option<CommandConfig> {
        Some(CommandConfig::new("sed", ["-u", "s/$/!/"]))
    }

    fn build_live_parameters(
        &self,
        command: &CommandConfig,
        _request: &LaunchRequest,
    ) -> Result<Option<ProcessParameters>, Box<dyn Error + Send + Sync>> {
        let mut parameters = ProcessParameters::new(command.args.clone());
        parameters.protocol_driver = Some(Box::new(Shout));
        Ok(Some(parameters))
    }
}

impl ProfileSource for Shout {
    fn find_profile(&self, label: &str) -> Option<Arc<dyn Profile>> {
        (label == "shout").then(|| Arc::new(Shout) as Arc<dyn Profile>)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let state = std::env::temp_dir().join("exec-core-readme");
    let service = ExecutionService::builder(Shout).state_dir(state).open()?;
    let context = ExecutionContext::for_workspace("shout", "/tmp")?;
    let session = service.open_live(LiveRequest::new(context)).await?;

    let first = session.prompt("hello")?;
    let second = session.prompt("again")?; // waits for the end of the first turn
    println!("{}", first.ended().await?.text); // hello!
    println!("{}", second.ended().await?.text); // again!

    session.close().await?;
    Ok(())
}
