//! The real agents against a fake model server on loopback: each runs a new chat, a follow-up, a tool
//! that is stopped, errors of the server, an unknown session and a late first token. They are the four
//! built-in agents that npm has, and one that only a user file describes.
//!
//! The test is opt-in, because npm installs about 1 GB:
//!
//! ```sh
//! EXEC_PROFILES_REAL_AGENTS=1 cargo test -p exec-profiles --test real_agents -- --nocapture
//! ```
//!
//! A folder instead of `1` keeps the installed agents for the next run. The test needs npm (Node 20
//! or newer) and python3 on `PATH`. It reads `/proc` to see what is left.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "tests may panic, and this one prints its measurements"
)]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use exec_core::{
    AgentEventKind, EventKind, Execution, ExecutionContext, ExecutionService, FollowUpRequest,
    LaunchRequest, NewChatRequest, Outcome, RunResult, SessionId, StopOutcome,
};
use exec_profiles::{EventFormat, Launcher, ProfileRegistry, UserProfile};

const OPT_IN: &str = "EXEC_PROFILES_REAL_AGENTS";

/// The limit of one turn. Opencode takes 8 s on an idle machine.
const TURN: Duration = Duration::from_secs(120);

/// How long an agent may try again before it is stopped.
const ERROR: Duration = Duration::from_secs(40);

const INSTALL: Duration = Duration::from_secs(600);

struct Agent {
    label: &'static str,
    package: &'static str,
    binary: &'static str,
    variant: Option<&'static str>,
}

const AGENTS: [Agent; 5] = [
    Agent {
        label: "claude-code",
        package: "@anthropic-ai/claude-code",
        binary: "claude",
        variant: Some("plan"),
    },
    Agent {
        label: "codex",
        package: "@openai/codex",
        binary: "codex",
        variant: None,
    },
    Agent {
        label: "gemini",
        package: "@google/gemini-cli",
        binary: "gemini",
        variant: Some("flash"),
    },
    Agent {
        label: "opencode",
        package: "opencode-ai",
        binary: "opencode",
        variant: None,
    },
    Agent {
        label: "qwen",
        package: "@qwen-code/qwen-code",
        binary: "qwen",
        variant: None,
    },
];

#[tokio::test(flavor = "multi_thread")]
async fn real_agents_start_resume_and_leave_no_process() {
    let Some(folder) = std::env::var_os(OPT_IN) else {
        println!("skipped: {OPT_IN}=1 runs the real agents (npm installs about 1 GB)");
        return;
    };
    let lab = Lab::open(&folder);
    for agent in &AGENTS {
        lab.install(agent);
    }
    let mut failed = Vec::new();
    for agent in &AGENTS {
        // A panic in its own task, so that the other agents still run.
        let bench = lab.bench(agent, Launcher::Native);
        let turns = async move {
            bench.run_turns().await;
            bench.run_failures().await;
        };
        if let Err(panic) = tokio::spawn(turns).await {
            println!("{}: FAILED: {panic}", agent.label);
            failed.push(agent.label);
        }
    }
    let gemini = AGENTS.iter().find(|agent| agent.label == "gemini").unwrap();
    let bench = lab.bench(gemini, Launcher::Npx);
    let request = bench.new_chat(&bench.tool());
    let execution = bench.launch(request).await;
    bench.expect_stop(&execution, "stop, npx").await;
    assert!(failed.is_empty(), "{failed:?}");
}

/// The installed agents and their model server.
struct Lab {
    prefix: PathBuf,
    model: ModelServer,
    // The last field is dropped last: the server writes into this folder.
    folder: tempfile::TempDir,
}

/// One agent with its own home folder, workspace and service.
struct Bench {
    label: &'static str,
    variant: Option<&'static str>,
    workspace: PathBuf,
    requests: PathBuf,
    service: ExecutionService,
}

impl Lab {
    fn open(folder: &OsStr) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let prefix = match folder.to_str() {
            Some("1") => temporary.path().join("npm"),
            _ => PathBuf::from(folder),
        };
        fs::create_dir_all(&prefix).unwrap();
        let requests = temporary.path().join("requests");
        fs::create_dir(&requests).unwrap();
        Self {
            prefix: fs::canonicalize(prefix).unwrap(),
            model: ModelServer::start(&requests),
            folder: temporary,
        }
    }

    fn install(&self, agent: &Agent) {
        let binary = self.prefix.join("bin").join(agent.binary);
        if !binary.exists() {
            let mut npm = Command::new("npm");
            npm.args(["install", "--global", "--no-audit", "--no-fund", "--prefix"])
                .arg(&self.prefix)
                // Two of the packages fetch their binary in a script, which npm 11 asks about.
                .arg("--allow-scripts=@anthropic-ai/claude-code,opencode-ai")
                // Without a tag, npm selects an old version that supports the installed Node.
                .arg(format!("{}@latest", agent.package));
            run(npm, INSTALL, "npm (install Node.js 20 or newer)");
        }
        let mut version = Command::new(&binary);
        version.arg("--version").env("PATH", self.path());
        println!(
            "{}: {}",
            agent.label,
            run(version, TURN, agent.binary)
                .lines()
                .next()
                .unwrap_or("?")
        );
    }

    fn path(&self) -> String {
        let path = std::env::var("PATH").unwrap();
        format!("{}:{path}", self.prefix.join("bin").display())
    }

    fn bench(&self, agent: &Agent, launcher: Launcher) -> Bench {
        let folder = self
            .folder
            .path()
            .join(format!("{}-{launcher:?}", agent.label));
        let home = folder.join("home");
        let workspace = folder.join("workspace");
        fs::create_dir_all(&workspace).unwrap();
        self.model.write_settings(&home);

        // The agent inherits no API key and no setting of the host.
        let mut profile = UserProfile::default();
        if agent.label == "qwen" {
            let args = |session: &str| {
                ["--yolo", "--output-format=stream-json", session].map(str::to_owned)
            };
            profile.binary = Some(agent.binary.to_owned());
            profile.args = Some(args("--session-id={session_id}").to_vec());
            profile.follow_up_args = Some(args("--resume={session_id}").to_vec());
            profile.events = Some(EventFormat::Claude);
        }
        profile.pass_env = Some(vec!["LANG".into(), "LC_*".into(), "TMPDIR".into()]);
        profile.launcher = Some(launcher);
        let server = self.model.url();
        let openai = format!("{server}/v1");
        let cache = self.prefix.join("cache");
        for (name, value) in [
            ("PATH", self.path().as_str()),
            ("HOME", home.to_str().unwrap()),
            ("ANTHROPIC_BASE_URL", &server),
            ("ANTHROPIC_API_KEY", "dummy"),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
            // Ten attempts would take minutes.
            ("CLAUDE_CODE_MAX_RETRIES", "2"),
            ("DISABLE_TELEMETRY", "1"),
            ("DISABLE_AUTOUPDATER", "1"),
            ("DISABLE_ERROR_REPORTING", "1"),
            // Claude refuses to run as root without it.
            ("IS_SANDBOX", "1"),
            ("GOOGLE_GEMINI_BASE_URL", &server),
            ("GEMINI_API_KEY", "dummy"),
            ("GEMINI_TELEMETRY_ENABLED", "false"),
            ("FAKE_API_KEY", "dummy"),
            ("OPENAI_API_KEY", "dummy"),
            ("OPENAI_BASE_URL", &openai),
            ("OPENAI_MODEL", "fake-model"),
            ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
            ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
            ("OPENCODE_DISABLE_SHARE", "1"),
            // For npx: the package registry is a setting of the host.
            ("npm_config_userconfig", "${HOME}/.npmrc"),
            ("npm_config_cache", cache.to_str().unwrap()),
        ] {
            profile.env.insert(name.to_owned(), value.to_owned());
        }
        let registry = ProfileRegistry::new();
        registry
            .load_user_file(folder.join("profiles.toml"))
            .unwrap();
        registry.save_user_profile(agent.label, &profile).unwrap();
        let service = ExecutionService::builder(registry)
            .state_dir(folder.join("state"))
            .open()
            .unwrap();
        Bench {
            label: agent.label,
            variant: agent.variant,
            workspace,
            requests: self.folder.path().join("requests"),
            service,
        }
    }
}

impl Bench {
    async fn run_turns(&self) {
        let label = self.label;
        let word = format!("first-{}", uuid::Uuid::new_v4());

        let began = Instant::now();
        let execution = self
            .launch(self.new_chat(&format!("remember {word}")))
            .await;
        let session_id = within(execution.resolved()).await.unwrap();
        let known_after = began.elapsed();
        self.expect_answer(&execution, &word, "new").await;
        println!(
            "{label}: new        ok in {:.1?}, id {} known after {known_after:.1?}",
            began.elapsed(),
            session_id.native_id()
        );

        let began = Instant::now();
        let again = format!("again-{}", uuid::Uuid::new_v4());
        let execution = self.launch(self.follow_up(&session_id, &again)).await;
        self.expect_answer(&execution, &again, "follow-up").await;
        assert!(
            self.model_saw(&word, &again),
            "{label} sent its follow-up without the first prompt"
        );
        println!(
            "{label}: follow-up  ok in {:.1?}, with the first prompt",
            began.elapsed()
        );

        let execution = self.launch(self.follow_up(&session_id, &self.tool())).await;
        self.expect_stop(&execution, "stop").await;

        let began = Instant::now();
        let execution = self
            .launch(self.follow_up(&session_id, "are you still there"))
            .await;
        self.expect_answer(&execution, "are you still there", "after the stop")
            .await;
        println!("{label}: after stop ok in {:.1?}", began.elapsed());

        if let Some(variant) = self.variant {
            let began = Instant::now();
            let mut request = self.new_chat("hello variant");
            request.context.variant_label = Some(variant.to_owned());
            let execution = self.launch(request).await;
            self.expect_answer(&execution, "hello variant", variant)
                .await;
            println!("{label}: {variant:<10} ok in {:.1?}", began.elapsed());
        }
    }

    /// Errors of the model's service, an unknown session, a late first token, and a sub-agent.
    async fn run_failures(&self) {
        let label = self.label;
        for (status, class) in [
            (400, "agent"),
            (401, "authentication"),
            (429, "limited"),
            (529, "overloaded"),
        ] {
            let result = self
                .result(self.new_chat(&format!("hello [[ERR {status}]]")), ERROR)
                .await;
            let failure = result.failure.as_ref();
            let found = failure.map_or("none", |failure| failure.kind.name());
            println!(
                "{label}: HTTP {status}   {found} after {:.1?}, stopped by {:?}",
                result.duration, result.exit.stopped_by
            );
            // Opencode does not print the status, and the message of this server does not tell it.
            let expected = if label == "opencode" { "agent" } else { class };
            assert_eq!(
                found, expected,
                "{label} {status}: {:?}",
                result.exit.stderr_tail
            );
            assert!(!result.is_success(), "{label} {status}");
            assert_eq!(result.text, "", "{label} {status}");
        }

        let unknown = match label {
            "opencode" => "ses_doesnotexist".to_owned(),
            _ => uuid::Uuid::new_v4().to_string(),
        };
        let context = self.context();
        let session_id =
            SessionId::new(&context.executor_type, &context.actual_project_id, &unknown).unwrap();
        let result = self
            .result(self.follow_up(&session_id, "hello"), TURN)
            .await;
        let found = result
            .failure
            .as_ref()
            .map_or("none", |failure| failure.kind.name());
        println!("{label}: unknown    {found} after {:.1?}", result.duration);
        assert_eq!(
            found, "session_gone",
            "{label}: {:?}",
            result.exit.stderr_tail
        );

        // Longer than the wait for the session id.
        let execution = self.launch(self.new_chat("[[HANG 35]]")).await;
        let first = within(execution.resolved()).await.unwrap();
        self.expect_answer(&execution, "late", "first token after 35 s")
            .await;
        let last = execution.session_id();
        let is_found = self
            .service
            .history()
            .load()
            .unwrap()
            .entries
            .iter()
            .any(|entry| {
                let former = entry
                    .former_session_id
                    .as_ref()
                    .unwrap_or(&entry.session_id);
                (former, &entry.session_id) == (&first, &last)
            });
        assert!(is_found, "{label}: {first} became {last}");
        println!(
            "{label}: late       id {} became {}",
            first.native_id(),
            last.native_id()
        );

        if label == "claude-code" {
            let result = self.result(self.new_chat("[[TASK say hi]]"), TURN).await;
            assert!(result.is_success(), "{result:?}");
            let tokens = result.usage.run.input_tokens;
            println!("{label}: sub-agent  ok, {tokens:?} input tokens with it");
            assert_eq!(
                tokens,
                Some(40),
                "three messages of the agent, one of its sub-agent"
            );
        }
    }

    async fn result(&self, request: LaunchRequest, limit: Duration) -> RunResult {
        let run = self.service.run(request).time_limit(limit);
        within(run.into_future()).await.unwrap()
    }

    /// A prompt for a tool that creates a file when it starts, and then does not end.
    fn tool(&self) -> String {
        format!(
            "[[TOOL touch {}; tail -f /dev/null]]",
            self.mark().display()
        )
    }

    fn mark(&self) -> PathBuf {
        self.workspace.join("tool-runs")
    }

    /// Stops the execution while the tool runs; no process may survive.
    async fn expect_stop(&self, execution: &Execution, what: &str) {
        let label = self.label;
        wait_until(|| self.mark().exists()).await;
        let before = tagged(execution.id().as_str());
        let session_id = execution.session_id();
        let outcome = within(self.service.stop_execution(&session_id))
            .await
            .unwrap();
        let StopOutcome::Stopped(report) = outcome else {
            panic!("{label}: {outcome:?}");
        };
        let left = tagged(execution.id().as_str());
        assert!(left.is_empty(), "{label}: still alive: {left:?}");
        println!(
            "{label}: {what:<10} {} processes ({}) gone in {:.0?}, {:?}, exit {:?}",
            report.processes,
            before.join(", "),
            report.took,
            report.level,
            report
                .exit
                .code
                .or(report.exit.signal.map(|signal| -signal)),
        );
    }

    fn context(&self) -> ExecutionContext {
        ExecutionContext::for_workspace(self.label, &self.workspace).unwrap()
    }

    fn new_chat(&self, prompt: &str) -> LaunchRequest {
        let request = NewChatRequest {
            context: self.context(),
            prompt: prompt.to_owned(),
        };
        request.try_into().unwrap()
    }

    fn follow_up(&self, session_id: &SessionId, message: &str) -> LaunchRequest {
        let request = FollowUpRequest {
            context: self.context(),
            session_id: session_id.clone(),
            message: message.to_owned(),
        };
        request.try_into().unwrap()
    }

    async fn launch(&self, request: LaunchRequest) -> Execution {
        self.service.launch(request).await.unwrap()
    }

    /// Expects success, the right session, and a text that contains `word`.
    async fn expect_answer(&self, execution: &Execution, word: &str, what: &str) {
        let label = self.label;
        let mut text = String::new();
        let mut finished = None;
        let mut named = None;
        let mut stream = execution.events();
        while let Some(event) = within(stream.next()).await {
            if let EventKind::SessionMismatch { asked, reported } = &event.kind {
                panic!("{label} {what}: session {reported} instead of {asked}");
            }
            for event in event.agent_events() {
                match &event.kind {
                    AgentEventKind::Text { text: piece, .. } => text.push_str(piece),
                    AgentEventKind::Finished { outcome, .. } => finished = Some(*outcome),
                    AgentEventKind::SessionStarted { session_id, .. } => {
                        named = Some(session_id.clone());
                    }
                    _ => {}
                }
            }
        }
        let exit = within(execution.wait()).await.unwrap();
        let tail = exit.stderr_tail.join("\n");
        assert!(exit.is_success(), "{label} {what}: {exit:?}\n{tail}");
        assert_eq!(finished, Some(Outcome::Success), "{label} {what}\n{tail}");
        assert!(text.contains(word), "{label} {what}: {text:?}\n{tail}");
        let session_id = execution.session_id();
        assert_eq!(named.as_deref(), Some(session_id.native_id()), "{label}");
    }

    /// Whether one request to the model contained both texts.
    fn model_saw(&self, first: &str, second: &str) -> bool {
        fs::read_dir(&self.requests)
            .unwrap()
            .filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok())
            .any(|body| body.contains(first) && body.contains(second))
    }
}

/// Drop kills the server, also during a panic.
struct ModelServer {
    child: Child,
    port: u16,
}

impl ModelServer {
    fn start(requests: &Path) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/fake_model.py");
        let mut child = Command::new("python3")
            .arg(script)
            .arg("--dump")
            .arg(requests)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("python3 runs (install Python 3)");
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        let read = BufReader::new(stdout).read_line(&mut line);
        let port = line.trim().rsplit(':').next().and_then(|p| p.parse().ok());
        let Some(port) = port else {
            panic!("the model server printed {line:?} ({read:?})");
        };
        Self { child, port }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Writes the settings that have no environment variable.
    fn write_settings(&self, home: &Path) {
        let url = self.url();
        for (path, text) in [
            (
                ".gemini/settings.json",
                r#"{
                    "security": {"auth": {"selectedType": "gemini-api-key"}},
                    "privacy": {"usageStatisticsEnabled": false},
                    "general": {"enableAutoUpdate": false, "sessionRetention": {"enabled": false}},
                    "telemetry": {"enabled": false}
                }"#
                .to_owned(),
            ),
            (
                ".codex/config.toml",
                format!(
                    "model = 'gpt-fake'\nmodel_provider = 'fake'\n\
                     check_for_update_on_startup = false\n\
                     [model_providers.fake]\nname = 'fake'\nbase_url = '{url}/v1'\n\
                     env_key = 'FAKE_API_KEY'\nwire_api = 'responses'\n\
                     [features]\nplugins = false\n[analytics]\nenabled = false\n"
                ),
            ),
            (
                ".config/opencode/opencode.json",
                serde_json::json!({
                    "autoupdate": false,
                    "model": "fake/fake-model",
                    "small_model": "fake/fake-model",
                    "provider": {"fake": {
                        "npm": "@ai-sdk/openai-compatible",
                        "name": "fake",
                        "options": {"baseURL": format!("{url}/v1"), "apiKey": "dummy"},
                        "models": {"fake-model": {"name": "fake"}},
                    }},
                })
                .to_string(),
            ),
        ] {
            let path = home.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fs::set_permissions(home, fs::Permissions::from_mode(0o700)).unwrap();
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The names of all processes with the id of a launch in their environment.
fn tagged(execution_id: &str) -> Vec<String> {
    let tag = format!("NORMALIZED_EXECUTION_ID={execution_id}");
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|process| {
            fs::read(process.path().join("environ")).is_ok_and(|environ| {
                environ
                    .split(|byte| *byte == 0)
                    .any(|variable| variable == tag.as_bytes())
            })
        })
        .filter_map(|process| fs::read_to_string(process.path().join("comm")).ok())
        .map(|name| name.trim().to_owned())
        .collect()
}

/// The output of a command; a failure or a timeout panics.
fn run(mut command: Command, limit: Duration, what: &str) -> String {
    let began = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot run {what}: {error}"));
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{what} took longer than {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(status.success(), "{what}: {status}");
    std::io::read_to_string(child.stdout.take().unwrap()).unwrap()
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(TURN, future).await {
        Ok(value) => value,
        Err(_) => panic!("no result within {TURN:?}"),
    }
}

async fn wait_until(mut reached: impl FnMut() -> bool) {
    let began = Instant::now();
    while !reached() {
        assert!(
            began.elapsed() < TURN,
            "the condition was not met within {TURN:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
