//! Classes of failures, on messages that agents have really printed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use exec_core::{
    CommandConfig, ExecutionContext, ExecutionService, FailureClassifier, FailureKind,
    LaunchRequest, NewChatRequest, ProcessParameters, Profile, ProfileSource,
};
use exec_profiles::{ProfileDefinition, ProfileRegistry, UserProfile};
use serde::Deserialize;

use crate::events::format_of;

/// A line of the corpus. The file has the source of each message: a public issue.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    agent: String,
    class: String,
    scope: Option<String>,
    #[serde(default)]
    resets: bool,
    text: String,
    source: String,
}

fn corpus() -> Vec<Message> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/failures.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The classifier that a launch of this profile would get.
fn classifier(registry: &ProfileRegistry, label: &str) -> Box<dyn FailureClassifier> {
    let profile: Arc<dyn Profile> = registry.find_profile(label).unwrap();
    let context = ExecutionContext::for_workspace(label, "/tmp").unwrap();
    let prompt = "hello".to_owned();
    let request = LaunchRequest::try_from(NewChatRequest { context, prompt }).unwrap();
    let command = profile.command(None).unwrap();
    let parameters = profile
        .build_process_parameters(&command, &request)
        .unwrap();
    parameters.failure_classifier.unwrap()
}

fn registry(user_file: &str) -> (tempfile::TempDir, ProfileRegistry) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profiles.toml");
    std::fs::write(&path, user_file).unwrap();
    let registry = ProfileRegistry::new();
    let report = registry.load_user_file(&path).unwrap();
    assert_eq!(report.errors, []);
    (folder, registry)
}

#[test]
fn every_message_of_the_corpus_has_its_class() {
    let (_folder, registry) = registry("[profiles.qwen]\nbinary = \"qwen\"\n");
    let corpus = corpus();
    let mut counts = BTreeMap::new();
    let mut wrong = Vec::new();
    for message in &corpus {
        let found = classifier(&registry, &message.agent).classify(&message.text);
        let kind = found.map_or(FailureKind::Agent, |found| found.kind);
        let (scope, resets) = match &kind {
            FailureKind::Limited { scope, resets_at } => (scope.clone(), resets_at.is_some()),
            _ => (None, false),
        };
        if (kind.name(), &scope, resets) != (&message.class, &message.scope, message.resets) {
            wrong.push(format!("{kind:?}: {} {}", message.source, message.text));
        }
        *counts.entry(message.class.as_str()).or_insert(0) += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(corpus.len() >= 40, "{}", corpus.len());
    assert_eq!(counts.len(), 7, "every class occurs: {counts:?}");
}

#[test]
fn ordinary_lines_of_standard_error_are_no_failures() {
    let registry = ProfileRegistry::new();
    for line in [
        "YOLO mode is enabled. All tool calls will be automatically approved.",
        "Ripgrep is not available. Falling back to GrepTool.",
        "[STARTUP] Phase 'cleanup_ops' was started but never ended. Skipping metrics.",
        "    at async retryWithBackoff (file:///bundle/chunk-JDPZ4CE3.js:308039:23)",
        "Reading prompt from stdin...",
        "WARNING: proceeding, even though we could not create PATH aliases",
        "npm warn exec The following package was not found and will be installed",
        "Port 5290 is in use, took 429 ms",
        "",
    ] {
        for label in registry.labels() {
            let found = classifier(&registry, &label).classify(line);
            assert_eq!(found, None, "{label}: {line}");
        }
    }
}

#[test]
fn agents_that_try_again_say_so() {
    let registry = ProfileRegistry::new();
    for (label, line, class) in [
        (
            "gemini",
            r#"Attempt 1 failed with status 529. Retrying with backoff... _ApiError: {"error":{"code":529}}"#,
            "overloaded",
        ),
        (
            "opencode",
            r#"timestamp=2026-11-17T12:18:38.244Z level=ERROR run=ba5b4ea2 message="stream error" providerID=fake error.error="AI_APICallError: Rate limit reached for requests""#,
            "limited",
        ),
        (
            "opencode",
            r#"timestamp=2026-11-17T12:18:38.244Z level=ERROR run=ba5b4ea2 message="stream error" providerID=fake error.error="AI_APICallError: Too Many Requests""#,
            "limited",
        ),
        (
            "opencode",
            r#"timestamp=2026-11-17T12:18:38.244Z level=ERROR run=ba5b4ea2 message="stream error" providerID=fake error.error="AI_APICallError: what""#,
            "agent",
        ),
        (
            "codex",
            "Reconnecting... 1/5 (unexpected status 401 Unauthorized: fake 401, url: http://127.0.0.1:8399/v1/responses)",
            "authentication",
        ),
        ("codex", "Reconnecting... 2/5", "network"),
        (
            "claude-code",
            "API Error (Connection error.) · Retrying in 1 seconds… (attempt 1/10)",
            "network",
        ),
    ] {
        let found = classifier(&registry, label).classify(line).unwrap();
        assert_eq!(found.kind.name(), class, "{line}");
        assert!(found.retries, "{line}");
    }
}

#[test]
fn the_user_file_adds_rules_before_the_others() {
    let (_folder, registry) = registry(
        r#"
        [[profiles.codex.failures]]
        contains = ["usage limit"]
        class = "overloaded"

        [[profiles.codex.failures]]
        contains = ["Plan is used up"]
        class = "limited"
        scope = "month"
        reset_in_after = "again in "
        "#,
    );
    let classifier = classifier(&registry, "codex");
    let kind = |text: &str| classifier.classify(text).map(|found| found.kind);
    assert_eq!(
        kind("You've hit your usage limit."),
        Some(FailureKind::Overloaded)
    );
    let Some(FailureKind::Limited { scope, resets_at }) = kind("plan is used up, again in 3 days")
    else {
        panic!("not limited");
    };
    assert_eq!(scope.as_deref(), Some("month"));
    assert!(resets_at.is_some());
    // The rules of the base stay.
    assert_eq!(
        kind("no rollout found for thread id x"),
        Some(FailureKind::SessionGone)
    );
    let entry = registry.user_profile("codex").unwrap();
    assert_eq!(entry.failures.len(), 2);
}

#[test]
fn a_rule_with_a_mistake_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (rule, reason) in [
        ("contains = []\nclass = \"network\"", "contains"),
        ("contains = [\" \"]\nclass = \"network\"", "contains"),
        (
            "contains = [\"x\"]\nclass = \"network\"\nscope = \"y\"",
            "scope",
        ),
        ("contains = [\"x\"]\nclass = \"nonsense\"", "nonsense"),
        (
            "contains = [\"x\"]\nclass = \"network\"\nretires = true",
            "retires",
        ),
    ] {
        let path = folder.path().join("profiles.toml");
        std::fs::write(&path, format!("[[profiles.codex.failures]]\n{rule}\n")).unwrap();
        let report = ProfileRegistry::new().load_user_file(&path).unwrap();
        let [error] = &report.errors[..] else {
            panic!("{rule}: {report:?}");
        };
        assert!(error.reason.contains(reason), "{error}");
        assert!(error.reason.contains("failures"), "{error}");
    }
    assert_eq!(UserProfile::default().failures, []);
}

/// A recorded run, replayed by a script under the rules and the parser of the built-in profile.
async fn replay(transcript: &str, stderr: &str, exit_code: u8) -> exec_core::RunResult {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/transcripts");
    replay_file(transcript, &path.join(transcript), stderr, exit_code).await
}

async fn replay_file(
    transcript: &str,
    output: &Path,
    stderr: &str,
    exit_code: u8,
) -> exec_core::RunResult {
    let label = match transcript.split('-').next().unwrap() {
        "claude" => "claude-code",
        agent => agent,
    };
    let format = format_of(transcript);
    let definitions = exec_profiles::profile_definitions();
    let built_in = definitions.into_iter().find(|d| d.label == label).unwrap();
    let script = format!(
        "cat '{}'; printf '%s\\n' \"$1\" >&2; exit {exit_code}",
        output.display()
    );
    let args = ["-c", &script, "agent", stderr];
    let mut profile = ProfileDefinition::new("replay", CommandConfig::new("sh", args));
    profile.failures = built_in.failures;
    let profile = profile.with_builder(move |command, _| {
        let mut parameters = ProcessParameters::new(command.args.clone());
        parameters.event_parser = Some(format.parser());
        Ok(parameters)
    });
    let registry = ProfileRegistry::empty();
    registry.register(profile).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let service = ExecutionService::builder(registry).state_dir(folder.path().join("state"));
    let request = NewChatRequest {
        context: ExecutionContext::for_workspace("replay", folder.path()).unwrap(),
        prompt: "hello".to_owned(),
    };
    let run = service.open().unwrap().run(request);
    run.time_limit(std::time::Duration::from_secs(60))
        .await
        .unwrap()
}

/// Real output, with the exit codes that the agents had.
#[tokio::test]
async fn recorded_failures_end_with_their_class_and_successes_with_none() {
    for (transcript, stderr, exit_code, class) in [
        ("claude-err-400.jsonl", "", 1, "agent"),
        ("claude-err-401.jsonl", "", 1, "authentication"),
        ("claude-err-429.jsonl", "", 1, "limited"),
        ("claude-err-529.jsonl", "", 1, "overloaded"),
        ("claude-err-model.jsonl", "", 1, "agent"),
        ("claude-err-nokey.jsonl", "", 1, "authentication"),
        ("claude-err-resume.jsonl", "", 1, "session_gone"),
        ("codex-err-400.jsonl", "", 1, "agent"),
        ("codex-err-401.jsonl", "", 1, "authentication"),
        ("codex-err-429.jsonl", "", 1, "limited"),
        ("codex-err-529.jsonl", "", 1, "overloaded"),
        ("codex-err-model.jsonl", "", 1, "agent"),
        ("gemini-err-400.jsonl", "", 144, "agent"),
        ("gemini-err-401.jsonl", "", 145, "authentication"),
        ("gemini-err-model.jsonl", "", 1, "agent"),
        ("opencode-err-model.jsonl", "", 1, "agent"),
        // An exit code of 0 does not make a failure a success.
        ("opencode-err-model.jsonl", "", 0, "agent"),
        ("claude-err-401.jsonl", "", 0, "authentication"),
        ("claude-new.jsonl", "", 0, ""),
        ("claude-subagent.jsonl", "", 0, ""),
        ("codex-tool.jsonl", "Reading prompt from stdin...", 0, ""),
        ("gemini-tool.jsonl", "YOLO mode is enabled.", 0, ""),
        ("opencode-new.jsonl", "", 0, ""),
    ] {
        let result = replay(transcript, stderr, exit_code).await;
        let found = result
            .failure
            .as_ref()
            .map_or("", |failure| failure.kind.name());
        assert_eq!(found, class, "{transcript}: {:?}", result.failure);
        assert_eq!(result.is_success(), class.is_empty(), "{transcript}");
        assert_eq!(result.text.is_empty(), !class.is_empty(), "{transcript}");
    }
}

/// Messages of agents that end before they print an event.
#[tokio::test]
async fn an_unknown_session_is_recognised_on_standard_error() {
    for (transcript, stderr, exit_code) in [
        (
            "codex-err-model.jsonl",
            "Error: thread/resume: thread/resume failed: no rollout found for thread id 9 (code -32600)",
            1,
        ),
        (
            "gemini-err-model.jsonl",
            "Error resuming session: Invalid session identifier \"9\".",
            42,
        ),
        (
            "opencode-err-model.jsonl",
            "\u{1b}[91m\u{1b}[1mError: \u{1b}[0mSession not found",
            1,
        ),
    ] {
        let agent = transcript.split('-').next().unwrap();
        let result = replay_file(transcript, Path::new("/dev/null"), stderr, exit_code).await;
        assert_eq!(
            result.failure.unwrap().kind,
            FailureKind::SessionGone,
            "{agent}"
        );
    }
}
