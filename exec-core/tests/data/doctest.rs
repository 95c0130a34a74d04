/// For the examples in the documentation: a profile whose agent is a shell script.
mod doctest {
    #![allow(dead_code, reason = "each example uses its own part")]

    use std::sync::Arc;

    use exec_core::{
        CommandConfig, DriverCommand, DriverOutput, Execution, ExecutionContext, ExecutionService,
        LaunchRequest, LiveRequest, LiveSession, NewChatRequest, ProcessParameters, Profile,
        ProfileSource, ProtocolDriver, TurnOutcome,
    };

    pub struct Script(pub &'static str);

    impl Profile for Script {
        fn variant_labels(&self) -> Vec<String> {
            Vec::new()
        }

        fn command(&self, _variant: Option<&str>) -> Option<CommandConfig> {
            Some(CommandConfig::new("sh", ["-c", self.0]))
        }

        fn build_live_parameters(
            &self,
            command: &CommandConfig,
            _request: &LaunchRequest,
        ) -> Result<Option<ProcessParameters>, Box<dyn std::error::Error + Send + Sync>> {
            let mut parameters = ProcessParameters::new(command.args.clone());
            parameters.protocol_driver = Some(Box::new(OneLine));
            Ok(Some(parameters))
        }
    }

    /// Each line of the agent is the answer to one prompt.
    struct OneLine;

    impl ProtocolDriver for OneLine {
        fn open(&mut self, out: &mut DriverOutput) {
            out.opened(None);
        }

        fn line(&mut self, line: &str, out: &mut DriverOutput) {
            out.turn_ended(TurnOutcome::Completed, Some(line.to_owned()));
        }

        fn command(&mut self, command: DriverCommand<'_>, out: &mut DriverOutput) {
            match command {
                DriverCommand::Prompt(text) => out.send(text.replace('\n', " ")),
                DriverCommand::Interrupt => out.turn_ended(TurnOutcome::Interrupted, None),
                _ => out.refused("this agent knows prompts only"),
            }
        }
    }

    impl ProfileSource for Script {
        fn find_profile(&self, _label: &str) -> Option<Arc<dyn Profile>> {
            Some(Arc::new(Self(self.0)))
        }
    }

    /// Keep the folder: it is removed on drop.
    pub fn open(script: &'static str) -> (tempfile::TempDir, ExecutionService) {
        let folder = tempfile::tempdir().unwrap();
        let builder = ExecutionService::builder(Script(script)).state_dir(folder.path());
        (folder, builder.open().unwrap())
    }

    pub fn request(prompt: &str) -> NewChatRequest {
        NewChatRequest {
            context: ExecutionContext::for_workspace("scripted", "/tmp").unwrap(),
            prompt: prompt.to_owned(),
        }
    }

    /// A service whose agent answers each prompt in capital letters.
    pub fn live_service() -> (tempfile::TempDir, ExecutionService) {
        open("while read -r line; do echo \"$line\" | tr a-z A-Z; done")
    }

    pub async fn open_live() -> (tempfile::TempDir, LiveSession) {
        let (folder, service) = live_service();
        let live = LiveRequest::new(request("").context);
        (folder, service.open_live(live).await.unwrap())
    }

    pub async fn launch(script: &'static str) -> (tempfile::TempDir, Execution) {
        let (folder, service) = open(script);
        let execution = service.launch(request("go")).await.unwrap();
        (folder, execution)
    }
}
