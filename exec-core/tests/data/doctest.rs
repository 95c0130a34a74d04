/// For the examples in the documentation: a profile whose agent is a shell script.
mod doctest {
    use std::sync::Arc;

    use exec_core::{
        CommandConfig, Execution, ExecutionContext, ExecutionService, NewChatRequest, Profile,
        ProfileSource,
    };

    pub struct Script(pub &'static str);

    impl Profile for Script {
        fn variant_labels(&self) -> Vec<String> {
            Vec::new()
        }

        fn command(&self, _variant: Option<&str>) -> Option<CommandConfig> {
            Some(CommandConfig::new("sh", ["-c", self.0]))
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

    pub async fn launch(script: &'static str) -> (tempfile::TempDir, Execution) {
        let (folder, service) = open(script);
        let execution = service.launch(request("go")).await.unwrap();
        (folder, execution)
    }
}
