//! A late subscriber sees all events, and a failed launch is an error that names the program.

use std::error::Error;
use std::sync::Arc;

use exec_core::{
    CommandConfig, EventKind, ExecutionContext, ExecutionService, NewChatRequest, Profile,
    ProfileSource,
};

struct Count;

impl Profile for Count {
    fn variant_labels(&self) -> Vec<String> {
        vec!["missing".into()]
    }
    fn command(&self, variant: Option<&str>) -> Option<CommandConfig> {
        Some(match variant {
            None => CommandConfig::new("seq", ["1000"]),
            Some(_) => CommandConfig::new("no-such-program", [""]),
        })
    }
}

impl ProfileSource for Count {
    fn find_profile(&self, label: &str) -> Option<Arc<dyn Profile>> {
        (label == "count").then(|| Arc::new(Count) as Arc<dyn Profile>)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let state = tempfile::tempdir()?;
    let service = ExecutionService::builder(Count).state_dir(state.path()).open()?;
    let context = ExecutionContext::for_workspace("count", state.path())?;
    let request = NewChatRequest { context: context.clone(), prompt: "go".into() };
    let execution = service.launch(request).await?;
    execution.wait().await?;

    let mut lines = Vec::new();
    let mut events = execution.events();
    while let Some(event) = events.next().await {
        if let EventKind::Output(output) = &event.kind {
            lines.push(output.line.text().into_owned());
        }
    }
    assert_eq!(lines.len(), 1000);
    assert_eq!(lines.last().map(String::as_str), Some("1000"));

    let context = ExecutionContext { variant_label: Some("missing".into()), ..context };
    let request = NewChatRequest { context, prompt: "go".into() };
    let Err(error) = service.launch(request).await else {
        return Err("a missing program was started".into());
    };
    assert!(error.to_string().contains("no-such-program"), "{error}");
    assert!(service.executions().is_empty());
    println!("1,000 lines after the end; then: {error}");
    Ok(())
}
