//! An agent of the Agent Client Protocol from the user's file: a live session of two turns. The
//! built-in profiles have live modes, too.

use std::error::Error;

use exec_core::{ExecutionContext, ExecutionService, LiveRequest};
use exec_profiles::{ProfileRegistry, builtin};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let script = std::env::current_dir()?.join("config/acp-agent.sh");
    let text = format!(
        "[profiles.pong]\nbinary = 'sh'\nprotocol = 'acp'\nlive_args = ['{}']\n",
        script.display()
    );
    let file = folder.path().join("profiles.toml");
    std::fs::write(&file, text)?;
    let registry = ProfileRegistry::new();
    let report = registry.load_user_file(&file)?;
    assert!(report.errors.is_empty(), "{:?}", report.errors);

    let service = ExecutionService::builder(registry)
        .state_dir(folder.path().join("state"))
        .open()?;
    let context = ExecutionContext::for_workspace("pong", folder.path())?;
    let session = service.open_live(LiveRequest::new(context)).await?;
    for text in ["ping", "ping again"] {
        assert_eq!(session.prompt(text)?.ended().await?.text, "pong");
    }
    assert_eq!(session.session_id().native_id(), "session-1");
    session.close().await?;

    for profile in builtin::profile_definitions() {
        assert!(profile.live.is_some(), "{} has no live mode", profile.label);
    }
    println!("two turns in session {}", session.session_id());
    Ok(())
}
