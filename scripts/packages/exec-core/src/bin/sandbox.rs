//! An agent in a sandbox: it changes the workspace, and neither its neighbour nor the hidden file.

use std::error::Error;
use std::fs;
use std::sync::Arc;

use exec_core::{
    CommandConfig, ExecutionContext, ExecutionService, LaunchRequest, NewChatRequest,
    ProcessParameters, Profile, ProfileSource, Sandbox,
};

const SCRIPT: &str = "echo new > inside; echo new > ../outside/file; cat .env > copied; true";

struct Boxed;

impl Profile for Boxed {
    fn variant_labels(&self) -> Vec<String> {
        Vec::new()
    }
    fn command(&self, _variant: Option<&str>) -> Option<CommandConfig> {
        Some(CommandConfig::new("sh", ["-c", SCRIPT]))
    }
    fn build_process_parameters(
        &self,
        command: &CommandConfig,
        _request: &LaunchRequest,
    ) -> Result<ProcessParameters, Box<dyn Error + Send + Sync>> {
        let mut parameters = ProcessParameters::new(command.args.clone());
        parameters.sandbox = Some(Sandbox::new().hide("{workspace}/.env"));
        Ok(parameters)
    }
}

impl ProfileSource for Boxed {
    fn find_profile(&self, label: &str) -> Option<Arc<dyn Profile>> {
        (label == "boxed").then(|| Arc::new(Boxed) as Arc<dyn Profile>)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // Beside this program: /tmp is another folder in a sandbox.
    let program = std::env::current_exe()?;
    let folder = tempfile::tempdir_in(program.parent().ok_or("it is in a folder")?)?;
    let (workspace, outside) = (folder.path().join("workspace"), folder.path().join("outside"));
    fs::create_dir(&workspace)?;
    fs::create_dir(&outside)?;
    fs::write(outside.join("file"), "old")?;
    fs::write(workspace.join(".env"), "KEY=secret")?;

    let service = ExecutionService::builder(Boxed)
        .state_dir(folder.path().join("state"))
        .open()?;
    let context = ExecutionContext::for_workspace("boxed", &workspace)?;
    let request = NewChatRequest { context, prompt: "go".into() };
    let execution = service.launch(request).await?;
    assert!(execution.sandbox().is_some());
    execution.wait().await?;

    assert_eq!(fs::read_to_string(workspace.join("inside"))?, "new\n");
    assert_eq!(fs::read_to_string(outside.join("file"))?, "old");
    assert_eq!(fs::read_to_string(workspace.join("copied"))?, "");
    println!("the sandbox held");
    Ok(())
}
