//! The record of executions survives the host.

use std::error::Error;
use std::sync::Arc;

use exec_core::{
    CommandConfig, ExecutionContext, ExecutionService, NewChatRequest, Profile, ProfileSource,
};

struct True;

impl Profile for True {
    fn variant_labels(&self) -> Vec<String> {
        Vec::new()
    }
    fn command(&self, _variant: Option<&str>) -> Option<CommandConfig> {
        Some(CommandConfig::new("true", [""; 0]))
    }
}

impl ProfileSource for True {
    fn find_profile(&self, label: &str) -> Option<Arc<dyn Profile>> {
        (label == "true").then(|| Arc::new(True) as Arc<dyn Profile>)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let state = tempfile::tempdir()?;
    for _ in 0..3 {
        let service = ExecutionService::builder(True).state_dir(state.path()).open()?;
        let context = ExecutionContext::for_workspace("true", state.path())?;
        let request = NewChatRequest { context, prompt: "go".into() };
        let execution = service.launch(request).await?;
        assert!(execution.wait().await?.is_success());
    }
    let service = ExecutionService::builder(True).state_dir(state.path()).open()?;
    let reaped = service.reap_orphans().await?;
    assert!(reaped.executions.is_empty(), "{reaped:?}");
    let history = service.history().load()?;
    assert_eq!(history.entries.len(), 3);
    println!("three runs are in the history");
    Ok(())
}
