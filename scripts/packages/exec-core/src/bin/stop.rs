//! A program starts another one in a session of its own: a stop ends both.

use std::error::Error;
use std::sync::Arc;

use exec_core::{
    CommandConfig, EventKind, ExecutionContext, ExecutionService, NewChatRequest, Profile,
    ProfileSource, StopOutcome,
};

struct Stubborn;

impl Profile for Stubborn {
    fn variant_labels(&self) -> Vec<String> {
        Vec::new()
    }
    fn command(&self, _variant: Option<&str>) -> Option<CommandConfig> {
        let script = "setsid sleep 1000 & echo started $!; wait";
        Some(CommandConfig::new("sh", ["-c", script]))
    }
}

impl ProfileSource for Stubborn {
    fn find_profile(&self, label: &str) -> Option<Arc<dyn Profile>> {
        (label == "stubborn").then(|| Arc::new(Stubborn) as Arc<dyn Profile>)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let state = tempfile::tempdir()?;
    let service = ExecutionService::builder(Stubborn)
        .state_dir(state.path())
        .open()?;
    let context = ExecutionContext::for_workspace("stubborn", state.path())?;
    let request = NewChatRequest { context, prompt: "go".into() };
    let execution = service.launch(request).await?;

    let mut events = execution.events();
    let grandchild = loop {
        let event = events.next().await.ok_or("it ended before it said anything")?;
        if let EventKind::Output(output) = &event.kind {
            let text = output.line.text();
            break text.trim_start_matches("started ").to_owned();
        }
    };
    assert!(runs(&grandchild));

    let outcome = service.stop_execution(&execution.session_id()).await?;
    assert!(matches!(outcome, StopOutcome::Stopped(_)), "{outcome:?}");
    assert!(!runs(&grandchild));
    println!("stopped; process {grandchild} has ended");
    Ok(())
}

/// Whether the process is alive. A zombie is not.
fn runs(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_some_and(|state| !"ZX".contains(state))
}
