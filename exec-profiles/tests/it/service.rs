//! Profiles used by an execution service, which starts a scripted agent.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use exec_core::{
    AgentEvent, AgentEventKind, Error, EventKind, Execution, ExecutionService, FollowUpRequest,
    LaunchRequest, NewChatRequest, OutputStream, SessionId, StopOutcome,
};
use exec_profiles::{ProfileDefinition, ProfileRegistry, builtin, profile_definitions};

use crate::request::{context, message, new_chat};
use crate::user_file::{private_folder, write_private};

/// Long, because the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(60);

/// A service with its own folders, and the scripted agent under the name of every agent.
struct Host {
    folder: tempfile::TempDir,
    registry: ProfileRegistry,
    service: ExecutionService,
}

/// The built-in profiles, each changed to find the scripted agent on its `PATH`.
fn built_in_labels() -> Vec<String> {
    let definitions = profile_definitions().into_iter();
    definitions.map(|definition| definition.label).collect()
}

/// The programs of the built-in profiles.
fn programs() -> Vec<String> {
    let definitions = profile_definitions().into_iter();
    let program = |definition: ProfileDefinition| {
        definition
            .native_binary
            .unwrap_or(definition.command.binary)
    };
    definitions.map(program).collect()
}

impl Host {
    fn new() -> Self {
        Self::with("")
    }

    /// Adds `extra` to the user file; `{env}` stands for the variables that the agent needs.
    fn with(extra: &str) -> Self {
        let folder = private_folder();
        let below = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let bin = below("bin");
        for name in ["workspace", "agent", "home"] {
            below(name);
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/scripted_agent.sh");
        for name in programs().into_iter().chain(["qwen".to_owned()]) {
            // Not a copy: a fork in another test could still have it open for writing (ETXTBSY).
            symlink(&script, bin.join(name)).unwrap();
        }
        let env = format!(
            "PATH = '{}:/usr/bin:/bin', AGENT_HOME = '{}', HOME = '{}'",
            bin.display(),
            folder.path().join("agent").display(),
            folder.path().join("home").display(),
        );
        let mut file = String::new();
        for label in built_in_labels()
            .iter()
            .filter(|label| !extra.contains(&format!("[profiles.{label}]")))
        {
            writeln!(file, "[profiles.{label}]\nenv = {{ {env} }}\n").unwrap();
        }
        file.push_str(&extra.replace("{env}", &env));
        let path = folder.path().join("profiles.toml");
        write_private(&path, &file);
        let registry = ProfileRegistry::new();
        let report = registry.load_user_file(&path).unwrap();
        let errors = report.errors.iter().filter(|error| error.entry != "bad");
        assert_eq!(errors.count(), 0, "{report:?}");
        let service = ExecutionService::builder(registry.clone())
            .state_dir(folder.path().join("state"))
            .open()
            .unwrap();
        Self {
            folder,
            registry,
            service,
        }
    }

    fn workspace(&self) -> PathBuf {
        fs::canonicalize(self.folder.path().join("workspace")).unwrap()
    }

    fn agent_file(&self, name: &str) -> PathBuf {
        self.folder.path().join("agent").join(name)
    }

    fn argv(&self) -> Vec<String> {
        let text = fs::read_to_string(self.agent_file("argv")).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn env(&self) -> BTreeMap<String, String> {
        let text = fs::read_to_string(self.agent_file("env")).unwrap();
        text.lines()
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    async fn launch(&self, label: &str, prompt: &str) -> Execution {
        let request = new_chat(context(label, None, &self.workspace()), prompt);
        self.service.launch(request).await.unwrap()
    }

    async fn follow_up(&self, label: &str, session_id: SessionId, message: &str) -> Execution {
        let request = FollowUpRequest {
            context: context(label, None, &self.workspace()),
            session_id,
            message: message.to_owned(),
        };
        let request = LaunchRequest::try_from(request).unwrap();
        self.service.launch(request).await.unwrap()
    }
}

/// The lines, the agent events and the other events of an execution, until its end.
async fn output(execution: &Execution) -> (Vec<String>, Vec<AgentEvent>, Vec<EventKind>) {
    let (mut lines, mut events, mut others) = (Vec::new(), Vec::new(), Vec::new());
    let mut stream = execution.events();
    let read = async {
        while let Some(event) = stream.next().await {
            match &event.kind {
                EventKind::Output(output) if output.stream == OutputStream::Stdout => {
                    lines.push(output.line.text().into_owned());
                    events.extend(output.events.clone());
                }
                EventKind::Agent(at_the_end) => events.extend(at_the_end.clone()),
                other => others.push(other.clone()),
            }
        }
    };
    tokio::time::timeout(DEADLINE, read)
        .await
        .expect("the execution ends");
    (lines, events, others)
}

fn texts(events: &[AgentEvent]) -> String {
    events
        .iter()
        .filter_map(|event| match &event.kind {
            AgentEventKind::Text { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect()
}

fn mismatch(events: &[EventKind]) -> bool {
    let is = |event: &EventKind| matches!(event, EventKind::SessionMismatch { .. });
    events.iter().any(is)
}

/// Runs a new chat and a follow-up in which the agent remembers the first prompt.
async fn converse(host: &Host, label: &str) {
    let first = host.launch(label, "one").await;
    let (_, events, _) = output(&first).await;
    let session_id = first.resolved().await.unwrap();
    assert_eq!(texts(&events), "before:  now: one", "{label}");
    let last = events.last().map(|event| &event.kind);
    assert!(
        matches!(last, Some(AgentEventKind::Finished { .. })),
        "{label}"
    );
    assert!(
        events.iter().any(|event| matches!(
            &event.kind,
            AgentEventKind::SessionStarted { session_id: id, .. } if *id == session_id.native_id()
        )),
        "{label}: {events:?}"
    );
    let report = first.wait().await.unwrap();
    assert!(report.is_success(), "{label}: {report:?}");

    let second = host.follow_up(label, session_id.clone(), "two").await;
    let (_, events, others) = output(&second).await;
    assert_eq!(texts(&events), "before: one| now: two", "{label}");
    assert!(!mismatch(&others), "{label}");
    assert_eq!(second.session_id(), session_id);
    assert!(second.wait().await.unwrap().is_success());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_built_in_agent_remembers_a_follow_up() {
    let host = Host::new();
    for label in built_in_labels() {
        converse(&host, &label).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_native_binary_is_started_with_the_specified_variables() {
    let host = Host::new();
    let execution = host.launch("claude-code", "hi").await;
    output(&execution).await;
    let id = execution.session_id();
    assert_eq!(
        host.argv(),
        [
            "-p",
            "--dangerously-skip-permissions",
            "--verbose",
            "--output-format=stream-json",
            &format!("--session-id={}", id.native_id()),
        ]
    );
    let env = host.env();
    assert_eq!(env["NORMALIZED_EXECUTION_PROFILE"], "claude-code");
    assert_eq!(env["NORMALIZED_EXECUTION_SESSION_ID"], id.as_str());
    assert!(!env.contains_key("NORMALIZED_EXECUTION_VARIANT"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_the_user_file_runs_like_a_built_in_one() {
    let host = Host::with(
        "[profiles.qwen]\nbinary = 'qwen'\nargs = ['--session-id={session_id}']\n\
         follow_up_args = ['--resume={session_id}']\nevents = 'claude'\nenv = { {env} }\n\
         [profiles.arg]\nbinary = 'qwen'\nargs = ['--prompt={prompt}']\nevents = 'claude'\n\
         follow_up_args = ['--resume={session_id}', '--prompt={prompt}']\nenv = { {env} }\n",
    );
    converse(&host, "qwen").await;
    converse(&host, "arg").await;
    assert!(host.argv().contains(&"--prompt=two".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_and_events_work_under_a_wrapper() {
    let host = Host::with(
        "[profiles.codex]\nwrapper = ['nice', '-n', '5', 'env', 'WRAPPED={workspace}']\n\
         env = { {env} }\n",
    );
    converse(&host, "codex").await;
    let workspace = host.workspace();
    assert_eq!(host.env()["WRAPPED"], workspace.to_str().unwrap());
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn stop_kills_the_agent_and_its_tools_even_under_a_wrapper() {
    let host = Host::with("[profiles.codex]\nwrapper = ['nice', '-n', '5']\nenv = { {env} }\n");
    for label in ["claude-code", "gemini", "codex"] {
        let execution = host.launch(label, "[[TOOL]]").await;
        let running = host.agent_file("running");
        wait_until(|| running.exists()).await;
        let pids: Vec<u32> = fs::read_to_string(&running)
            .unwrap()
            .split_whitespace()
            .map(|pid| pid.parse().unwrap())
            .collect();
        assert_eq!(pids.len(), 3);
        assert!(pids.iter().all(|pid| alive(*pid)), "{label}");
        let session_id = execution.resolved().await.unwrap();
        let outcome = host.service.stop_execution(&session_id).await.unwrap();
        assert!(matches!(outcome, StopOutcome::Stopped(_)), "{outcome:?}");
        assert!(!pids.iter().any(|pid| alive(*pid)), "{label}: {outcome:?}");
        fs::remove_file(running).unwrap();
        let again = host.service.stop_execution(&session_id).await.unwrap();
        assert!(matches!(again, StopOutcome::NotFound));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_launches_each_find_their_own_session_file() {
    let host = Host::with("[profiles.gemini]\nenv = { AGENT_SILENT = '1', {env} }\n");
    host.registry
        .register(builtin::gemini_without_session_id_option())
        .unwrap();
    let start = |prompt: &'static str| {
        let request = NewChatRequest {
            context: context("gemini", None, &host.workspace()),
            prompt: prompt.to_owned(),
        };
        host.service.start_new_chat(request)
    };
    let (one, two, three) = tokio::join!(start("one"), start("two"), start("three"));
    for (result, prompt) in [(one, "one|"), (two, "two|"), (three, "three|")] {
        let session_id = result.unwrap().session_id;
        let recorded = fs::read_to_string(host.agent_file(session_id.native_id())).unwrap();
        assert_eq!(recorded, prompt);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_from_another_session_is_reported() {
    let host = Host::new();
    let first = host.launch("codex", "one").await;
    output(&first).await;
    let session_id = first.resolved().await.unwrap();
    let second = host.follow_up("codex", session_id, "[[FORGET]]").await;
    let (_, _, others) = output(&second).await;
    assert!(mismatch(&others), "{others:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_lines_are_delivered_unparsed() {
    let host = Host::new();
    for label in built_in_labels() {
        let execution = host.launch(&label, "[[NOISE]]").await;
        let (lines, events, _) = output(&execution).await;
        assert_eq!(
            lines[..3],
            ["a plain line", r#"{"type":"from_the_future"}"#, "{broken"],
            "{label}"
        );
        assert!(texts(&events).contains("NOISE"), "{label}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_inherits_only_the_listed_variables() {
    let host = Host::with("[profiles.codex]\npass_env = ['CARGO_PKG_NAME']\nenv = { {env} }\n");
    output(&host.launch("codex", "x").await).await;
    let env = host.env();
    assert_eq!(env["CARGO_PKG_NAME"], "exec-profiles");
    assert!(!env.contains_key("CARGO_PKG_VERSION"), "{env:?}");
    assert!(env.contains_key("NORMALIZED_EXECUTION_ID"));

    output(&host.launch("opencode", "x").await).await;
    assert!(
        host.env().contains_key("CARGO_PKG_VERSION"),
        "all by default"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn launch_checks_follow_the_specified_order() {
    let host = Host::with("[profiles.blank]\nbinary = ' '\n");
    let missing = host.folder.path().join("nowhere");
    let workspace = host.workspace();
    let refused = async |label: &str, variant: Option<&str>, workspace: &Path, prompt: &str| {
        let request = new_chat(context(label, variant, workspace), prompt);
        let error = host.service.launch(request).await.err().unwrap();
        message(&error)
    };
    assert_eq!(
        refused("unknown", Some("x"), &missing, "").await,
        format!("Workspace path does not exist: {}", missing.display())
    );
    assert_eq!(
        refused("unknown", Some("x"), &workspace, "").await,
        "Profile config not found for unknown"
    );
    let unknown = refused("claude-code", Some("plam"), &workspace, "").await;
    assert!(
        unknown.contains("plam") && unknown.ends_with("plan"),
        "{unknown}"
    );
    assert_eq!(
        refused("blank", None, &workspace, "").await,
        "Profile command not found for blank"
    );
    assert!(
        refused("codex", None, &workspace, " \n")
            .await
            .contains("empty")
    );
    assert!(!host.agent_file("argv").exists(), "nothing was started");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launch_of_an_invalid_entry_names_the_mistake() {
    let host = Host::new();
    let path = host.folder.path().join("profiles.toml");
    let mut text = fs::read_to_string(&path).unwrap();
    text += "[profiles.typo]\nbnary = 'agent'\n[profiles.cursor.variants.fast]\nargz = ['-x']\n";
    write_private(&path, &text);
    assert_eq!(host.registry.reload().unwrap().errors.len(), 2);
    for (label, variant, field) in [
        ("typo", None, "bnary"),
        ("typo", Some("fast"), "bnary"),
        ("cursor", Some("fast"), "argz"),
        ("cursor", None, "argz"),
    ] {
        let request = new_chat(context(label, variant, &host.workspace()), "hi");
        let error = host.service.launch(request).await.err().unwrap();
        let text = message(&error);
        assert!(matches!(error, Error::Parameters { .. }), "{text}");
        for part in ["profiles.toml", &format!("{label:?}"), field] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    assert!(host.registry.get_profile("typo").is_none());
    // A corrected file is used at once.
    write_private(&path, &text.replace("bnary", "binary"));
    host.registry.reload().unwrap();
    let request = new_chat(context("typo", Some("fast"), &host.workspace()), "hi");
    let error = host.service.launch(request).await.err().unwrap();
    assert!(matches!(error, Error::UnknownVariant { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_id_of_another_form_is_refused_with_the_reason() {
    let host = Host::new();
    let context = context("gemini", None, &host.workspace());
    let session_id =
        SessionId::new(&context.executor_type, &context.actual_project_id, "latest").unwrap();
    let request = FollowUpRequest {
        context,
        session_id,
        message: "hi".into(),
    };
    let error = host.service.send_follow_up(request).await.unwrap_err();
    assert!(matches!(error, Error::Parameters { .. }), "{error:?}");
    assert!(message(&error).contains("UUIDs"), "{}", message(&error));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_saved_change_applies_to_the_next_launch() {
    let host = Host::new();
    output(&host.launch("codex", "x").await).await;
    assert!(!host.argv().contains(&"--extra".to_owned()));
    let mut profile = host.registry.user_profile("codex").unwrap();
    profile.append_args = vec!["--extra".into()];
    host.registry.save_user_profile("codex", &profile).unwrap();
    output(&host.launch("codex", "x").await).await;
    assert!(host.argv().contains(&"--extra".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_reaches_the_agent_but_no_log() {
    tracing::subscriber::set_global_default(Logged).unwrap();
    // Cargo sets this variable, and no other text contains its value.
    let secret = &std::env::var("CARGO_PKG_DESCRIPTION").unwrap();
    let host = Host::with(
        "[profiles.codex]\nenv = { KEY = '${CARGO_PKG_DESCRIPTION}', {env} }\n\
         [profiles.bad]\nbinary = 3\n",
    );
    output(&host.launch("codex", "x").await).await;
    assert_eq!(&host.env()["KEY"], secret);
    let logged = LOGGED.lock().unwrap().clone();
    assert!(logged.contains("skipped an invalid profile"), "{logged}");
    assert!(!logged.contains(secret), "{logged}");
}

static LOGGED: Mutex<String> = Mutex::new(String::new());

/// Records all log output, at every level.
struct Logged;

impl tracing::Subscriber for Logged {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        span.record(&mut Logged);
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        values.record(&mut Logged);
    }

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Logged);
    }

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

impl tracing::field::Visit for Logged {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        writeln!(LOGGED.lock().unwrap(), "{field}: {value:?}").unwrap();
    }
}

#[cfg(target_os = "linux")]
fn alive(pid: u32) -> bool {
    // A zombie has ended; only its parent has not waited for it.
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().starts_with(" Z"))
}

async fn wait_until(mut reached: impl FnMut() -> bool) {
    let began = Instant::now();
    while !reached() {
        assert!(began.elapsed() < DEADLINE, "the condition was never met");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
