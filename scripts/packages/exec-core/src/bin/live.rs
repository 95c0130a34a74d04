//! A live session with an agent of our own: one process for two turns, and a permission request
//! that the program answers.

use std::error::Error;
use std::sync::Arc;

use exec_core::{
    CommandConfig, Decision, DriverCommand, DriverOutput, EventKind, ExecutionContext,
    ExecutionService, LaunchRequest, LiveEvent, LiveRequest, PermissionRequest, ProcessParameters,
    Profile, ProfileSource, ProtocolDriver, ToolInput, TurnOutcome,
};

/// The agent repeats each line. A line `may I …` is a question of it.
struct Echo;

impl ProtocolDriver for Echo {
    fn open(&mut self, out: &mut DriverOutput) {
        out.opened(None);
    }

    fn line(&mut self, line: &str, out: &mut DriverOutput) {
        match line.strip_prefix("may I ") {
            Some(what) => out.asked(PermissionRequest::new("1", what, ToolInput::default())),
            None => out.turn_ended(TurnOutcome::Completed, Some(line.to_owned())),
        }
    }

    fn command(&mut self, command: DriverCommand<'_>, out: &mut DriverOutput) {
        match command {
            DriverCommand::Prompt(text) => out.send(text),
            DriverCommand::Answer { decision, .. } => out.send(format!("{decision:?}")),
            _ => out.refused("this agent knows prompts and answers only"),
        }
    }
}

impl Profile for Echo {
    fn variant_labels(&self) -> Vec<String> {
        Vec::new()
    }
    fn command(&self, _variant: Option<&str>) -> Option<CommandConfig> {
        Some(CommandConfig::new("cat", [""; 0]))
    }
    fn build_live_parameters(
        &self,
        command: &CommandConfig,
        _request: &LaunchRequest,
    ) -> Result<Option<ProcessParameters>, Box<dyn Error + Send + Sync>> {
        let mut parameters = ProcessParameters::new(command.args.clone());
        parameters.protocol_driver = Some(Box::new(Echo));
        Ok(Some(parameters))
    }
}

impl ProfileSource for Echo {
    fn find_profile(&self, label: &str) -> Option<Arc<dyn Profile>> {
        (label == "echo").then(|| Arc::new(Echo) as Arc<dyn Profile>)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let state = tempfile::tempdir()?;
    let service = ExecutionService::builder(Echo).state_dir(state.path()).open()?;
    let context = ExecutionContext::for_workspace("echo", state.path())?;
    let session = service.open_live(LiveRequest::new(context)).await?;

    let first = session.prompt("hello")?;
    let second = session.prompt("may I run tests")?; // waits for the end of the first turn
    assert_eq!(first.ended().await?.text, "hello");

    let mut events = session.execution().events();
    let asked = loop {
        let event = events.next().await.ok_or("the agent asked nothing")?;
        if let EventKind::Live(LiveEvent::PermissionAsked(request)) = &event.kind {
            break request.clone();
        }
    };
    assert_eq!(asked.tool, "run tests");
    session.answer(&asked.id, Decision::Allow)?;
    assert_eq!(second.ended().await?.text, "Allow");

    let report = session.close().await?;
    assert!(report.is_success(), "{report:?}");
    println!("two turns and a permission in one process");
    Ok(())
}
