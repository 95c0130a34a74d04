//! An agent that is defined only in the user's file: launch, follow-up, and stop while it works.

use std::error::Error;

use exec_core::{
    EventKind, ExecutionContext, ExecutionService, FollowUpRequest, NewChatRequest, StopOutcome,
};
use exec_profiles::ProfileRegistry;

const FILE: &str = r#"
[profiles.parrot]
binary = "sh"
args = ["-c", 'echo "{session_id} heard: {prompt}"']
follow_up_args = ["-c", 'echo "{session_id} again: {prompt}"; exec sleep 1000']
"#;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("profiles.toml");
    std::fs::write(&file, FILE)?;
    let registry = ProfileRegistry::new();
    let report = registry.load_user_file(&file)?;
    assert!(report.errors.is_empty(), "{:?}", report.errors);

    let service = ExecutionService::builder(registry)
        .state_dir(folder.path().join("state"))
        .open()?;
    let context = ExecutionContext::for_workspace("parrot", folder.path())?;
    let prompt = "hello".into();
    let started = service
        .start_new_chat(NewChatRequest { context: context.clone(), prompt })
        .await?;
    let first = service.execution(&started.session_id);
    if let Some(first) = first {
        first.wait().await?;
    }

    let follow_up = FollowUpRequest {
        context,
        session_id: started.session_id.clone(),
        message: "and now?".into(),
    };
    service.send_follow_up(follow_up).await?;
    let second = service
        .execution(&started.session_id)
        .ok_or("it sleeps, so it runs")?;
    let mut events = second.events();
    loop {
        let event = events.next().await.ok_or("it said nothing")?;
        if let EventKind::Output(output) = &event.kind {
            let expected = format!("{} again: and now?", started.session_id.native_id());
            assert_eq!(output.line.text(), expected);
            break;
        }
    }
    let outcome = service.stop_execution(&started.session_id).await?;
    assert!(matches!(outcome, StopOutcome::Stopped(_)), "{outcome:?}");
    println!("session {}: launch, follow-up, stop", started.session_id);
    Ok(())
}
