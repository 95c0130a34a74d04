//! A service with a single agent.

use std::path::PathBuf;
use std::sync::Arc;

use exec_core::{
    CommandConfig, Execution, ExecutionContext, ExecutionService, ExecutionServiceBuilder,
    LaunchRequest, NewChatRequest, ProcessParameters, Profile, ProfileSource, Sandbox,
};
use exec_profiles::EventFormat;
use tempfile::TempDir;

pub struct Host {
    pub service: ExecutionService,
    pub dir: TempDir,
}

struct Agent {
    command: CommandConfig,
    events: Option<EventFormat>,
    sandbox: Option<Sandbox>,
}

impl Profile for Agent {
    fn variant_labels(&self) -> Vec<String> {
        Vec::new()
    }

    fn command(&self, _: Option<&str>) -> Option<CommandConfig> {
        Some(self.command.clone())
    }

    fn build_process_parameters(
        &self,
        command: &CommandConfig,
        _: &LaunchRequest,
    ) -> Result<ProcessParameters, Box<dyn std::error::Error + Send + Sync>> {
        let mut parameters = ProcessParameters::new(command.args.clone());
        parameters.event_parser = self.events.map(EventFormat::parser);
        parameters.sandbox.clone_from(&self.sandbox);
        Ok(parameters)
    }
}

struct OneAgent(Arc<Agent>);

impl ProfileSource for OneAgent {
    fn find_profile(&self, _: &str) -> Option<Arc<dyn Profile>> {
        Some(Arc::clone(&self.0) as Arc<dyn Profile>)
    }
}

impl Host {
    /// A host whose agent is a shell script.
    pub fn new(
        script: &str,
        settings: impl FnOnce(ExecutionServiceBuilder) -> ExecutionServiceBuilder,
    ) -> Self {
        Self::with_command(CommandConfig::new("/bin/sh", ["-c", script]), settings)
    }

    pub fn with_command(
        command: CommandConfig,
        settings: impl FnOnce(ExecutionServiceBuilder) -> ExecutionServiceBuilder,
    ) -> Self {
        Self::with_agent(
            Agent {
                command,
                events: None,
                sandbox: None,
            },
            settings,
        )
    }

    /// A host whose agent prints events.
    pub fn with_events(
        command: CommandConfig,
        events: EventFormat,
        settings: impl FnOnce(ExecutionServiceBuilder) -> ExecutionServiceBuilder,
    ) -> Self {
        let agent = Agent {
            command,
            events: Some(events),
            sandbox: None,
        };
        Self::with_agent(agent, settings)
    }

    pub fn with_sandbox(
        command: CommandConfig,
        sandbox: Option<Sandbox>,
        settings: impl FnOnce(ExecutionServiceBuilder) -> ExecutionServiceBuilder,
    ) -> Self {
        let agent = Agent {
            command,
            events: None,
            sandbox,
        };
        Self::with_agent(agent, settings)
    }

    fn with_agent(
        agent: Agent,
        settings: impl FnOnce(ExecutionServiceBuilder) -> ExecutionServiceBuilder,
    ) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let agent = OneAgent(Arc::new(agent));
        let builder = ExecutionService::builder(agent).state_dir(dir.path().join("state"));
        let service = settings(builder).open().expect("a service");
        Self { service, dir }
    }

    pub fn workspace(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    pub fn request(&self) -> LaunchRequest {
        let context = ExecutionContext::for_workspace("agent", self.workspace());
        NewChatRequest {
            context: context.expect("a context"),
            prompt: "go".to_owned(),
        }
        .try_into()
        .expect("a request")
    }

    pub async fn launch(&self) -> Execution {
        self.service.launch(self.request()).await.expect("a launch")
    }
}

/// A thousand executions need four thousand file descriptors.
pub fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).expect("a higher limit of open files");
}
