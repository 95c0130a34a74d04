//! Live sessions with a driver that is registered in code.

use std::time::Duration;

use exec_core::{
    CommandConfig, DriverCommand, DriverOutput, Error, ExecutionKind, ExecutionService,
    LaunchRequest, LiveRequest, PermissionAction, PermissionPolicy, PermissionRule,
    ProcessParameters, ProtocolDriver, StopAction, StopLadder, TurnOutcome,
};
use exec_profiles::{LiveConfig, ProfileDefinition, ProfileRegistry};

use crate::request::{chat, context, live};
use crate::user_file::{private_folder, write_private};

/// Prints its session, then an answer to each line.
const PARROT: &str = r#"echo "ready ${1:-p-1}"; while read -r line; do echo "$WORDS $line"; done"#;

struct ParrotDriver {
    is_open: bool,
}

impl ProtocolDriver for ParrotDriver {
    fn open(&mut self, _out: &mut DriverOutput) {}

    fn line(&mut self, line: &str, out: &mut DriverOutput) {
        if self.is_open {
            out.turn_ended(TurnOutcome::Completed, Some(line.to_owned()));
        } else if let Some(id) = line.strip_prefix("ready ") {
            self.is_open = true;
            out.opened(Some(id.to_owned()));
        }
    }

    fn command(&mut self, command: DriverCommand<'_>, out: &mut DriverOutput) {
        match command {
            DriverCommand::Prompt(text) => out.send(text.replace('\n', " ")),
            _ => out.refused("a parrot knows prompts only"),
        }
    }
}

fn build(command: &CommandConfig, request: &LaunchRequest) -> ProcessParameters {
    let mut parameters = ProcessParameters::new(command.args.clone());
    if request.kind == ExecutionKind::FollowUp {
        let native_id = request.session_id.native_id().to_owned();
        parameters.args.push(native_id);
    }
    parameters.protocol_driver = Some(Box::new(ParrotDriver { is_open: false }));
    parameters
}

fn registry(
    change: impl Fn(ProcessParameters) -> ProcessParameters + Send + Sync + 'static,
) -> ProfileRegistry {
    let mut command = CommandConfig::new("sh", ["-c", "exit 1"]);
    command.env.insert("WORDS".to_owned(), "says".to_owned());
    let mut profile = ProfileDefinition::new("parrot", command);
    let args = ["-c", PARROT, "parrot"];
    let mut live = LiveConfig::with_builder(args, move |command, request| {
        Ok(change(build(command, request)))
    });
    live.permissions = vec![PermissionRule::new(PermissionAction::Allow).command("fly *")];
    profile.live = Some(live);
    let registry = ProfileRegistry::empty();
    registry.register(profile).unwrap();
    registry
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(Duration::from_secs(30), future).await;
    done.expect("the session makes no progress")
}

#[tokio::test]
async fn a_driver_registered_in_code_is_changed_by_the_user_file_and_resumed() {
    let folder = private_folder();
    let file = folder.path().join("profiles.toml");
    write_private(&file, "[profiles.parrot]\nenv = { WORDS = 'repeats' }\n");
    let registry = registry(|parameters| parameters);
    assert_eq!(registry.load_user_file(&file).unwrap().errors, []);
    let service = ExecutionService::builder(registry).state_dir(folder.path().join("state"));
    let service = service.open().unwrap();

    let request = LiveRequest::new(context("parrot", None, folder.path()));
    let session = within(service.open_live(request)).await.unwrap();
    assert_eq!(session.session_id().native_id(), "p-1");
    let report = within(session.prompt("hello").unwrap().ended()).await;
    assert_eq!(report.unwrap().text, "repeats hello");
    within(session.close()).await.unwrap();

    let resumed = within(session.resume()).await.unwrap();
    assert_eq!(resumed.session_id(), session.session_id());
    let report = within(resumed.prompt("again").unwrap().ended()).await;
    assert_eq!(report.unwrap().text, "repeats again");
    within(resumed.close()).await.unwrap();
}

#[tokio::test]
async fn a_builder_without_a_driver_is_refused() {
    let folder = private_folder();
    let registry = registry(|mut parameters| {
        parameters.protocol_driver = None;
        parameters
    });
    let service = ExecutionService::builder(registry).state_dir(folder.path().join("state"));
    let request = LiveRequest::new(context("parrot", None, folder.path()));
    let error = service.open().unwrap().open_live(request).await;
    let error = error.unwrap_err();
    assert!(matches!(error, Error::NoLiveProtocol { .. }), "{error}");
}

#[test]
fn permissions_and_stop_are_those_of_the_profile_unless_the_builder_sets_them() {
    let start = |registry: &ProfileRegistry| {
        let launch = live(registry, &chat("parrot", None, "")).unwrap();
        launch.expect("it has a live mode").parameters
    };
    let rule = PermissionRule::new(PermissionAction::Allow).command("fly *");
    let of_profile = start(&registry(|parameters| parameters));
    let expected = PermissionPolicy::default().rule(rule);
    assert_eq!(of_profile.permission_policy, Some(expected));

    let of_builder = start(&registry(|mut parameters| {
        parameters.permission_policy = Some(PermissionPolicy::default());
        let hush = StopLadder::kill_at_once();
        let hush = hush.then(StopAction::Interrupt, Duration::from_secs(7));
        parameters.stop_ladder = Some(hush);
        parameters
    }));
    let policy = of_builder.permission_policy;
    assert_eq!(policy, Some(PermissionPolicy::default()));
    let ladder = of_builder.stop_ladder.unwrap();
    let actions = ladder.steps().iter().map(|step| step.action);
    assert_eq!(
        Vec::from_iter(actions),
        [StopAction::CloseStdin, StopAction::Interrupt]
    );
}
