//! Command lines and errors of profiles from the user file.

use std::fs;
use std::time::SystemTime;

use exec_core::{EnvPolicy, SessionResolutionContext, StopAction};
use exec_profiles::{LoadReport, ProfileRegistry};

use crate::request::{Launch, UUID, chat, context, find, launch, message, new_chat, resume};
use crate::user_file::write_private;

fn load(toml: &str) -> (ProfileRegistry, LoadReport) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profiles.toml");
    write_private(&path, toml);
    let registry = ProfileRegistry::new();
    let report = registry.load_user_file(&path).unwrap();
    (registry, report)
}

/// A registry with a user file that has no errors.
#[track_caller]
fn registry(toml: &str) -> ProfileRegistry {
    let (registry, report) = load(toml);
    assert_eq!(report.errors, []);
    registry
}

fn start(registry: &ProfileRegistry, label: &str, variant: Option<&str>, text: &str) -> Launch {
    launch(registry, &chat(label, variant, text)).unwrap()
}

#[track_caller]
fn refused(registry: &ProfileRegistry, label: &str, text: &str) -> String {
    let request = chat(label, None, text);
    match launch(registry, &request) {
        Ok(launched) => panic!("started {:?}", launched.argv),
        Err(error) => message(&*error),
    }
}

const QWEN: &str = r#"
[profiles.qwen]
binary = "qwen"
args = ["--yolo", "--session-id={session_id}"]
follow_up_args = ["--yolo", "--resume={session_id}"]
append_args = ["--dir={workspace}"]
events = "claude"
env = { HOME_OF = "at ${HOME}", MODE = "x" }

[profiles.qwen.variants.fast]
append_args = ["--fast"]
env = { MODE = "y" }

[profiles.qwen.variants.slow]
args = ["--slow", "--session-id={session_id}"]
"#;

#[test]
fn an_agent_of_the_user_file_starts_and_resumes() {
    let registry = registry(QWEN);
    let request = chat("qwen", None, "hi");
    let started = launch(&registry, &request).unwrap();
    let id = request.session_id.native_id();
    assert_eq!(
        started.argv,
        ["qwen", "--yolo", &format!("--session-id={id}"), "--dir=/w"]
    );
    assert_eq!(started.parameters.stdin_payload.as_deref(), Some("hi"));
    assert!(started.parameters.session_id_resolver.is_none(), "minted");
    assert!(started.parameters.event_parser.is_some());
    let home = std::env::var("HOME").unwrap();
    assert_eq!(started.env["HOME_OF"], format!("at {home}"));

    let request = resume("qwen", Some("fast"), UUID, "more");
    let resumed = launch(&registry, &request).unwrap();
    assert_eq!(
        resumed.argv,
        [
            "qwen",
            "--yolo",
            &format!("--resume={UUID}"),
            "--dir=/w",
            "--fast"
        ]
    );
    assert_eq!(resumed.env["MODE"], "y");
    assert!(resumed.parameters.session_id_resolver.is_some());

    assert_eq!(find(&registry, "qwen").variant_labels(), ["fast", "slow"]);
    let slow = start(&registry, "qwen", Some("slow"), "hi").argv;
    assert_eq!([&slow[1], &slow[3]], ["--slow", "--dir=/w"]);
}

#[test]
fn a_prompt_as_an_argument_leaves_stdin_empty() {
    let registry = registry(
        r#"
        [profiles.a]
        binary = "agent"
        args = ["-p", "{prompt}"]
        [profiles.b]
        binary = "agent"
        args = ["--prompt={prompt}"]
        [profiles.c]
        binary = "agent"
        args = ["--", "{prompt}"]
        "#,
    );
    let launched = start(&registry, "a", None, "say ${HOME} {workspace}");
    assert_eq!(launched.argv, ["agent", "-p", "say ${HOME} {workspace}"]);
    assert_eq!(launched.parameters.stdin_payload, None);

    assert!(refused(&registry, "a", "--yolo").contains("starts with '-'"));
    assert_eq!(start(&registry, "b", None, "-x").argv[1], "--prompt=-x");
    assert_eq!(start(&registry, "c", None, "-x").argv[2], "-x");
    assert!(refused(&registry, "b", "a\0b").contains("zero byte"));
    // The longest argument that Linux accepts, and one byte more.
    let longest = "x".repeat(128 * 1024 - 1 - "--prompt=".len());
    let launched = start(&registry, "b", None, &longest).argv;
    let started = std::process::Command::new("true")
        .arg(&launched[1])
        .status();
    assert!(started.unwrap().success());
    let too_long = format!("{longest}x");
    let started = std::process::Command::new("true")
        .arg(format!("--prompt={too_long}"))
        .status();
    assert!(started.is_err());
    assert!(refused(&registry, "b", &too_long).contains("128 KiB"));
}

#[test]
fn a_variable_that_is_not_set_refuses_the_launch_and_names_it() {
    let registry = registry(
        r#"
        [profiles.a]
        binary = "agent"
        env = { KEY = "${EXEC_PROFILES_TEST_NOT_SET}" }
        "#,
    );
    let reason = refused(&registry, "a", "x");
    assert_eq!(
        reason,
        "env.KEY: the environment variable EXEC_PROFILES_TEST_NOT_SET is not set"
    );
    // The registry stores the name of the variable.
    let command = registry.get_command("a", None).unwrap();
    assert_eq!(command.env["KEY"], "${EXEC_PROFILES_TEST_NOT_SET}");
}

#[test]
fn debug_output_contains_no_values_of_variables() {
    let registry = registry(QWEN);
    let home = std::env::var("HOME").unwrap();
    let launched = start(&registry, "qwen", None, "hi");
    assert!(launched.env["HOME_OF"].contains(&home));
    let shown = format!(
        "{registry:?} {:?} {:?} {:?}",
        registry.get_profile("qwen"),
        registry.user_profile("qwen"),
        launched.parameters
    );
    assert!(shown.contains("HOME_OF"), "{shown}");
    assert!(!shown.contains(&home) && !shown.contains("at $"), "{shown}");
}

#[test]
fn the_session_id_is_read_from_the_configured_source() {
    let registry = registry(
        r#"
        [profiles.field]
        binary = "agent"
        follow_up_args = ["-r", "{session_id}"]
        session_id = { from = "stdout", field = "session.id" }
        [profiles.events]
        binary = "agent"
        follow_up_args = ["-r", "{session_id}"]
        events = "codex"
        [profiles.files]
        binary = "agent"
        follow_up_args = ["-r", "{session_id}"]
        session_id = { from = "files", dir = "{workspace}/.agent", name = "s-*.json", field = "id" }
        [profiles.home-files]
        binary = "agent"
        session_id = { from = "files", dir = "~/.agent", name = "s-*.json", field = "id" }
        "#,
    );
    let mut parameters = start(&registry, "field", None, "x").parameters;
    let resolver = parameters.session_id_resolver.as_mut().unwrap();
    assert_eq!(resolver.handle_line("not JSON"), None);
    assert_eq!(resolver.handle_line(r#"{"session":{}}"#), None);
    let found = resolver.handle_line(r#"{"session":{"id":"T-1"}}"#);
    assert_eq!(found.as_deref(), Some("T-1"));

    let mut parameters = start(&registry, "events", None, "x").parameters;
    let resolver = parameters.session_id_resolver.as_mut().unwrap();
    let found = resolver.handle_line(r#"{"type":"thread.started","thread_id":"T-2"}"#);
    assert_eq!(found.as_deref(), Some("T-2"));

    let workspace = tempfile::tempdir().unwrap();
    let folder = workspace.path().join(".agent");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("s-old.json"), r#"{"id":"old"}"#).unwrap();
    let request = new_chat(context("files", None, workspace.path()), "x");
    let mut parameters = launch(&registry, &request).unwrap().parameters;
    let lookup = parameters.session_id_lookup.as_mut().unwrap();
    let mut resolution = SessionResolutionContext::new(
        request.session_id.clone(),
        workspace.path(),
        SystemTime::now(),
        1,
    );
    if let Some(home) = std::env::var_os("HOME") {
        resolution.env.insert("HOME".into(), home);
    }
    assert_eq!(lookup.last_look(&resolution), None);
    fs::write(folder.join("s-new.json"), r#"{"id":"new"}"#).unwrap();
    assert_eq!(lookup.last_look(&resolution).as_deref(), Some("new"));
    let at_home = start(&registry, "home-files", None, "x").parameters;
    assert!(at_home.session_id_lookup.is_some());
}

#[test]
fn a_profile_without_follow_up_args_cannot_be_resumed() {
    let registry = registry("[profiles.a]\nbinary = \"agent\"\n");
    let request = resume("a", None, "x", "more");
    let error = launch(&registry, &request).err().unwrap();
    assert!(message(&*error).contains("follow_up_args"), "{error}");
}

#[test]
fn an_entry_changes_only_the_fields_that_it_sets() {
    let registry = registry(
        r#"
        [profiles.claude-code]
        append_args = ["--model=opus"]
        env = { PATH = "/nowhere", EXTRA = "${HOME}" }
        launcher = { npx_version = "2.1.197" }
        wrapper = ["nice", "-n", "10", "--in={workspace}"]
        drop_env = ["OPENAI_*"]
        stop = [{ action = "terminate", grace_ms = 1500 }]

        [profiles.claude-code.variants.careful]
        args = ["-y", "@anthropic-ai/claude-code@latest", "-p", "--permission-mode=default"]

        [profiles.my-claude]
        base = "claude-code"
        launcher = { native_at = "/opt/claude" }
        "#,
    );
    let planned = start(&registry, "claude-code", Some("plan"), "x");
    let argv: Vec<_> = planned.argv.iter().map(String::as_str).collect();
    assert_eq!(
        argv[..12],
        [
            "nice",
            "-n",
            "10",
            "--in=/w",
            "npx",
            "-y",
            "@anthropic-ai/claude-code@2.1.197",
            "-p",
            "--permission-mode=plan",
            "--verbose",
            "--output-format=stream-json",
            "--model=opus",
        ]
    );
    assert!(argv[12].starts_with("--session-id="), "{argv:?}");
    assert_eq!(planned.env["EXTRA"], std::env::var("HOME").unwrap());
    let parameters = planned.parameters;
    assert!(!parameters.env_policy.passes("OPENAI_API_KEY"));
    assert!(!parameters.env_policy.passes("CLAUDECODE"));
    let ladder = parameters.stop_ladder.unwrap();
    assert_eq!(ladder.steps().len(), 1);
    assert_eq!(ladder.steps()[0].action, StopAction::Terminate);
    assert_eq!(ladder.steps()[0].grace.as_millis(), 1500);

    assert_eq!(
        find(&registry, "claude-code").variant_labels(),
        ["plan", "careful"]
    );
    let careful = start(&registry, "claude-code", Some("careful"), "x").argv;
    assert!(careful.contains(&"--permission-mode=default".to_owned()));
    assert!(careful.contains(&"--model=opus".to_owned()));
    assert!(!careful.contains(&"--dangerously-skip-permissions".to_owned()));

    // The base is the built-in profile without the change of the user file.
    let mine = start(&registry, "my-claude", None, "x");
    assert_eq!(mine.argv[..2], ["/opt/claude", "-p"]);
    assert!(!mine.argv.contains(&"--model=opus".to_owned()));
}

#[test]
fn a_change_can_list_the_inherited_variables() {
    let registry = registry(
        r#"
        [profiles.codex]
        pass_env = ["PATH", "HOME", "LC_*"]
        stop = []
        "#,
    );
    let parameters = start(&registry, "codex", None, "x").parameters;
    assert!(matches!(&parameters.env_policy, EnvPolicy::Only(names) if names.len() == 3));
    assert!(parameters.stop_ladder.unwrap().steps().is_empty());
}

#[test]
fn texts_of_the_base_are_literal() {
    use exec_core::CommandConfig;
    use exec_profiles::ProfileDefinition;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profiles.toml");
    write_private(
        &path,
        "[profiles.mine]\nbase = \"raw\"\nappend_args = [\"{workspace}\"]\n",
    );
    let registry = ProfileRegistry::empty();
    let mut command = CommandConfig::new("agent", ["{prompt}", "${NOT_A_VARIABLE}"]);
    command.env.insert("A".into(), "${B".into());
    registry
        .register(ProfileDefinition::new("raw", command))
        .unwrap();
    assert_eq!(registry.load_user_file(&path).unwrap().errors, []);
    let launched = start(&registry, "mine", None, "hi");
    assert_eq!(
        launched.argv,
        ["agent", "{prompt}", "${NOT_A_VARIABLE}", "/w"]
    );
    assert_eq!(launched.env["A"], "${B");
}

#[test]
fn the_file_in_the_readme_is_valid() {
    let readme = include_str!("../../README.md");
    let toml = readme.split("```toml\n").nth(1).unwrap();
    let toml = toml.split("```").next().unwrap();
    let registry = registry(toml);
    let built_in = ProfileRegistry::new().labels();
    assert_eq!(registry.labels().len(), built_in.len() + 2);
}

#[track_caller]
fn check_bad(entry: &str, reason: &str) {
    let (registry, report) = load(&format!("{QWEN}\n[profiles.bad]\n{entry}\n"));
    assert_eq!(report.labels, ["qwen"], "{entry}");
    let [error] = &report.errors[..] else {
        panic!("{entry}: {:?}", report.errors);
    };
    assert_eq!(error.entry, "bad");
    assert!(
        error.file.as_ref().unwrap().ends_with("profiles.toml"),
        "{error}"
    );
    assert!(error.reason.contains(reason), "{entry}: {error}");
    assert!(registry.get_profile("qwen").is_some());
    assert!(registry.get_profile("bad").is_none());
}

#[test]
fn an_invalid_entry_is_reported_with_its_reason_and_the_others_load() {
    check_bad(
        "binary = \"a\"\nargs = [\"x\", 3]",
        "args[1]: invalid type: integer `3`, expected a string",
    );
    check_bad("binary = 3", "binary: invalid type");
    check_bad("bnary = \"a\"", "unknown field `bnary`");
    check_bad("args = [\"x\"]", "there is no profile \"bad\"");
    check_bad("base = \"claude\"", "known are claude-code, codex");
    check_bad("base = \"codex\"\nbinary = \"a\"", "exclude each other");
    check_bad(
        "base = \"codex\"\nfollow_up_args = [\"{session_id}\"]",
        "`follow_up_args` needs `binary`",
    );
    check_bad("base = \"codex\"\nappend_args = [\"{prompt}\"]", "{prompt}");
    check_bad(
        "binary = \"a\"\nargs = [\"--id={sesion_id}\"]",
        "args[0]: unknown placeholder `{sesion_id}`",
    );
    check_bad(
        "binary = \"a\"\nargs = [\"${X\"]",
        "args[0]: `${` without `}`",
    );
    check_bad(
        "binary = \"a\"\nfollow_up_args = [\"--continue\"]\nevents = \"codex\"",
        "follow_up_args: without `{session_id}`",
    );
    check_bad(
        "binary = \"a\"\nfollow_up_args = [\"{session_id}\"]",
        "a follow-up needs the agent's session id",
    );
    check_bad(
        "binary = \"a\"\nsession_id = { from = \"minted\" }",
        "a minted id needs `{session_id}` in `args`",
    );
    check_bad(
        "binary = \"a\"\nsession_id = { from = \"events\" }",
        "raw `events` contain no id",
    );
    check_bad(
        "binary = \"a\"\nevents = \"klaude\"",
        "events: unknown variant `klaude`",
    );
    check_bad(
        "binary = \"a\"\nvariants.envy.args = [1]",
        "variants.envy.args[0]: invalid type: integer",
    );
    check_bad("binary = \"a\"\nwrapper = [\"{prompt}\"]", "wrapper[0]");
    check_bad(
        "binary = \"a\"\npass_env = [\"A\"]\ndrop_env = [\"B\"]",
        "exclude each other",
    );
    check_bad(
        "binary = \"a\"\nstop = [{ action = \"nuke\", grace_ms = 1 }]",
        "stop[0]",
    );
    check_bad(
        "binary = \"a\"\nenv = { \"A=B\" = \"x\" }",
        "is not a variable name",
    );
}

/// Otherwise a typo beside `wrapper = ["bwrap", …]` would start the agent without its sandbox.
#[test]
fn an_invalid_change_refuses_launches_of_the_profile() {
    let (registry, report) = load(
        "[profiles.claude-code]\nwrapper = ['bwrap']\ntypo = 1\n\
         [profiles.codex]\nwrapper = ['bwrap']\nargs = ['{typo}']\n",
    );
    assert_eq!(report.errors.len(), 2);
    for label in ["claude-code", "codex"] {
        let reason = refused(&registry, label, "x");
        assert!(
            reason.contains("profiles.toml") && reason.contains("typo"),
            "{reason}"
        );
    }
    start(&registry, "gemini", None, "x");
}

#[test]
fn the_reason_contains_no_value_that_may_be_a_secret() {
    for entry in [
        "env = \"s3cret\"",
        "env = { KEY = [\"s3cret\"] }",
        "env = { KEY = \"s3cret${\" }",
    ] {
        let (_, report) = load(&format!("[profiles.bad]\nbinary = \"a\"\n{entry}\n"));
        let shown = format!("{:?} {}", report, report.errors[0]);
        assert!(shown.contains("env"), "{shown}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}
