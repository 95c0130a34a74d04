//! Command lines, variables, stop and permissions of live sessions, for built-in profiles and for
//! profiles of the user file.

use std::time::Duration;

use exec_core::{
    CommandConfig, EnvPolicy, LaunchRequest, PermissionAction, PermissionPolicy, PermissionRule,
    StopAction,
};
use exec_profiles::{
    Launcher, LiveConfig, LiveProtocol, ProfileDefinition, ProfileRegistry, builtin,
};

use crate::request::{Launch, UUID, chat, context, launch, live, message, new_chat, resume};
use crate::user_file::write_private;

fn load(toml: &str) -> (ProfileRegistry, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profiles.toml");
    write_private(&path, toml);
    let registry = ProfileRegistry::new();
    let report = registry.load_user_file(&path).unwrap();
    let errors = report.errors.iter().map(ToString::to_string).collect();
    (registry, errors)
}

#[track_caller]
fn registry(toml: &str) -> ProfileRegistry {
    let (registry, errors) = load(toml);
    assert_eq!(errors, [""; 0]);
    registry
}

#[track_caller]
fn start(registry: &ProfileRegistry, request: &LaunchRequest) -> Launch {
    live(registry, request)
        .unwrap()
        .expect("it has a live mode")
}

/// The arguments behind the package of `npx`.
fn own_args(launch: &Launch) -> Vec<String> {
    let argv = launch.argv.iter();
    let own = argv.skip_while(|arg| !arg.ends_with("@latest")).skip(1);
    own.cloned().collect()
}

#[test]
fn built_in_profiles_start_their_protocols_and_ask() {
    let registry = ProfileRegistry::new();
    registry.register(npx(builtin::claude_code())).unwrap();
    registry.register(npx(builtin::codex())).unwrap();
    registry.register(npx(builtin::gemini())).unwrap();
    registry.register(npx(builtin::opencode())).unwrap();
    let claude = [
        "-p",
        "--input-format=stream-json",
        "--output-format=stream-json",
        "--verbose",
        "--permission-prompt-tool=stdio",
    ];
    let new = start(&registry, &chat("claude-code", None, ""));
    let args = own_args(&new);
    assert_eq!(args[..5], claude);
    assert_eq!(args[5], "--permission-mode=default");
    assert!(args[6].starts_with("--session-id="), "{args:?}");
    let plan = resume("claude-code", Some("plan"), UUID, "");
    let args = own_args(&start(&registry, &plan));
    assert_eq!(args[5], "--permission-mode=plan");
    assert_eq!(args[6], format!("--resume={UUID}"));

    let codex = start(&registry, &chat("codex", None, ""));
    assert_eq!(own_args(&codex), ["app-server"]);
    let gemini = start(&registry, &chat("gemini", None, ""));
    assert_eq!(own_args(&gemini), ["--acp", "--skip-trust"]);
    assert_eq!(gemini.env["GEMINI_CLI_NO_RELAUNCH"], "true");
    let flash = start(&registry, &chat("gemini", Some("flash"), ""));
    assert_eq!(
        own_args(&flash),
        ["--acp", "--skip-trust", "--model", "gemini-2.5-flash"]
    );
    let opencode = start(&registry, &chat("opencode", None, ""));
    assert_eq!(own_args(&opencode), ["acp"]);
    assert!(opencode.env["OPENCODE_PERMISSION"].contains(r#""bash":"ask""#));
    let cursor = start(&registry, &chat("cursor", None, ""));
    assert_eq!(cursor.argv, ["cursor-agent", "acp"]);

    for launch in [new, codex, gemini, opencode, cursor] {
        let parameters = launch.parameters;
        let argv = launch.argv.join(" ");
        for switch in ["dangerously", "yolo", "--auto", "--force"] {
            assert!(!argv.contains(switch), "{argv}");
        }
        assert_eq!(
            parameters.permission_policy,
            Some(PermissionPolicy::default())
        );
        let ladder = parameters.stop_ladder.unwrap();
        assert_eq!(ladder.steps()[0].action, StopAction::CloseStdin);
        assert!(ladder.steps().len() > 1, "signals follow");
        assert!(parameters.stdin_payload.is_none() && parameters.event_parser.is_none());
    }
}

fn npx(profile: exec_profiles::ProfileDefinition) -> exec_profiles::ProfileDefinition {
    profile.with_launcher(Launcher::Npx)
}

#[test]
fn launcher_wrapper_and_environment_are_those_of_the_one_shot_mode() {
    let registry = registry(
        "[profiles.claude-code]\nlauncher = { native_at = '/opt/claude' }\nwrapper = ['nice', '{workspace}']\n\
         append_args = ['--model=opus']\ndrop_env = ['SECRET']\nenv = { X = 'at {workspace}' }\n",
    );
    let launch = start(&registry, &chat("claude-code", None, ""));
    assert_eq!(launch.argv[..3], ["nice", "/w", "/opt/claude"]);
    assert!(launch.argv.contains(&"--model=opus".to_owned()));
    assert!(launch.argv.contains(&"--verbose".to_owned()));
    assert_eq!(launch.env["X"], "at /w");
    let policy = launch.parameters.env_policy;
    assert_eq!(
        policy,
        EnvPolicy::AllExcept(vec!["CLAUDECODE".into(), "SECRET".into()])
    );
    assert!(launch.parameters.failure_classifier.is_some());
}

#[test]
fn a_variable_of_the_user_file_replaces_that_of_the_live_mode() {
    let registry = registry(
        "[profiles.opencode]\nenv = { OPENCODE_PERMISSION = '{\"bash\":\"deny\"}' }\n\
         [profiles.opencode.variants.free]\nenv = { OPENCODE_PERMISSION = '{\"bash\":\"allow\"}' }\n\
         [profiles.opencode.variants.other]\nenv = { X = '1' }\n",
    );
    let variable = |variant| {
        let mut env = start(&registry, &chat("opencode", variant, "")).env;
        env.remove("OPENCODE_PERMISSION").unwrap()
    };
    assert_eq!(variable(None), r#"{"bash":"deny"}"#);
    assert_eq!(variable(Some("free")), r#"{"bash":"allow"}"#);
    assert_eq!(variable(Some("other")), r#"{"bash":"deny"}"#);
}

#[test]
fn a_variant_without_a_live_mode_gets_none_by_a_change() {
    let registry = ProfileRegistry::new();
    let command = |args: &[&str]| CommandConfig::new("agent", args.iter().copied());
    let mut profile =
        ProfileDefinition::new("acme", command(&[])).with_variant("safe", command(&["--safe"]));
    profile.live = Some(LiveConfig::new(LiveProtocol::Acp, ["--acp"]));
    registry.register(profile).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profiles.toml");
    let load = |toml: &str| {
        write_private(&path, toml);
        let report = registry.load_user_file(&path).unwrap();
        report.errors.first().map(ToString::to_string)
    };
    let request = chat("acme", Some("safe"), "");
    assert_eq!(
        load(
            "[profiles.acme.variants.a]\nenv = { X = '1' }\n[profiles.acme.variants.safe]\nenv = { X = '1' }\n"
        ),
        None
    );
    let refused = live(&registry, &request).map(drop).unwrap_err();
    assert!(refused.to_string().contains("no live mode"), "{refused}");
    let error =
        load("[profiles.acme.variants.safe]\npermissions = [{ action = 'allow', tool = 'x' }]\n");
    assert!(error.unwrap().contains("`live_args`"));
    let with_args = "[profiles.acme.variants.safe]\nlive_args = ['--acp', '--safe']\n";
    assert_eq!(load(with_args), None);
    assert_eq!(
        start(&registry, &request).argv,
        ["agent", "--acp", "--safe"]
    );
    // A variant of the user file is a change of the profile itself.
    assert_eq!(
        load("[profiles.acme.variants.new]\nenv = { X = '1' }\n"),
        None
    );
    let request = chat("acme", Some("new"), "");
    assert_eq!(start(&registry, &request).argv, ["agent", "--acp"]);
}

#[test]
fn a_variant_with_arguments_of_its_own_is_not_live_only() {
    let registry = registry(
        "[profiles.helper]\nbinary = 'helper'\nprotocol = 'acp'\nlive_args = ['--acp']\n\
         [profiles.helper.variants.once]\nargs = ['-p']\n",
    );
    let once = launch(&registry, &chat("helper", Some("once"), "x")).unwrap();
    assert_eq!(once.argv, ["helper", "-p"]);
    let refused = launch(&registry, &chat("helper", None, "x")).map(drop);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("`args`"), "{refused}");
}

#[test]
fn the_user_file_makes_any_acp_agent_a_profile() {
    let registry = registry(
        "[profiles.helper]\nbinary = 'helper'\nprotocol = 'acp'\nlive_args = ['--acp', '--dir={workspace}']\n\
         append_args = ['-v']\nstop = [{ action = 'terminate', grace_ms = 5 }]\n\
         [profiles.helper.variants.fast]\nlive_args = ['--acp', '--fast']\n\
         [profiles.helper.variants.slow]\nappend_args = ['--slow']\n",
    );
    let argv = |variant| start(&registry, &chat("helper", variant, "")).argv;
    assert_eq!(argv(None), ["helper", "--acp", "--dir=/w", "-v"]);
    assert_eq!(argv(Some("fast")), ["helper", "--acp", "--fast", "-v"]);
    assert_eq!(
        argv(Some("slow")),
        ["helper", "--acp", "--dir=/w", "-v", "--slow"]
    );
    let ladder = start(&registry, &chat("helper", None, "")).parameters;
    let steps: Vec<_> = ladder.stop_ladder.unwrap().steps().to_vec();
    assert_eq!(steps[1].action, StopAction::Terminate);
    assert_eq!(steps[1].grace, Duration::from_millis(5));

    // Without arguments for one prompt it is for live sessions only.
    let error = launch(&registry, &chat("helper", None, "x")).err().unwrap();
    assert!(message(&*error).contains("live sessions only"));
}

#[test]
fn a_profile_without_a_protocol_has_no_live_mode() {
    let registry = registry("[profiles.plain]\nbinary = 'plain'\n");
    assert!(live(&registry, &chat("plain", None, "")).unwrap().is_none());
}

/// The profile's own arguments could give the agent more permissions than the variant.
#[test]
fn a_variant_without_a_live_mode_is_refused() {
    let registry = ProfileRegistry::new();
    let command = exec_core::CommandConfig::new("codex", ["exec"]);
    registry
        .register(builtin::codex().with_variant("careful", command))
        .unwrap();
    let error = live(&registry, &chat("codex", Some("careful"), ""))
        .err()
        .unwrap();
    assert!(message(&*error).contains("it has no live mode"));
}

#[test]
fn permission_rules_are_data_of_profile_and_variant() {
    let registry = registry(
        "[profiles.codex]\npermission_deadline_ms = 30000\n\
         [[profiles.codex.permissions]]\naction = 'allow'\ncommand = 'cargo test *'\n\
         [[profiles.codex.permissions]]\naction = 'deny'\npath = '~/.ssh'\n\
         [[profiles.codex.variants.careful.permissions]]\naction = 'deny'\ntool = 'web_search'\n",
    );
    let policy = |variant| {
        let launch = start(&registry, &chat("codex", variant, ""));
        launch.parameters.permission_policy.unwrap()
    };
    let own = PermissionPolicy::default()
        .rule(PermissionRule::new(PermissionAction::Allow).command("cargo test *"))
        .rule(PermissionRule::new(PermissionAction::Deny).path("~/.ssh"))
        .deadline(Duration::from_secs(30));
    assert_eq!(policy(None), own);
    let careful = PermissionRule::new(PermissionAction::Deny).tool("web_search");
    assert_eq!(policy(Some("careful")), own.rule(careful));
}

#[track_caller]
fn check_bad(entry: &str, reason: &str) {
    let (_, errors) = load(&format!("[profiles.bad]\n{entry}\n"));
    assert_eq!(errors.len(), 1, "{entry}");
    assert!(errors[0].contains(reason), "{}", errors[0]);
}

#[test]
fn mistakes_in_the_live_mode_are_named() {
    check_bad(
        "binary = 'a'\nprotocol = 'acpp'",
        "protocol: unknown variant `acpp`, expected one of `acp`, `claude`, `codex`",
    );
    check_bad(
        "base = 'codex'\nprotocol = 'acp'",
        "`protocol` needs `binary`",
    );
    check_bad("binary = 'a'\nlive_args = ['--acp']", "need a `protocol`");
    check_bad(
        "binary = 'a'\nprotocol = 'acp'\nlive_args = ['{prompt}']",
        "live_args[0]: `{prompt}` is not known when a live session is opened",
    );
    check_bad(
        "binary = 'a'\nprotocol = 'acp'\nappend_args = ['{prompt}']",
        "append_args[0]: `{prompt}` is not known",
    );
    check_bad(
        "binary = 'a'\nprotocol = 'acp'\nvariants.x.append_args = ['{prompt}']",
        "variants.x.append_args[0]: `{prompt}` is not known",
    );
    check_bad(
        "binary = 'a'\nprotocol = 'acp'\n[[profiles.bad.permissions]]\naction = 'allow'\ncomand = 'ls'",
        "permissions[0].comand: unknown field `comand`, expected one of `action`, `tool`, `command`, `path`",
    );
    check_bad(
        "binary = 'a'\nprotocol = 'acp'\n[[profiles.bad.permissions]]\naction = 'permit'",
        "permissions[0].action: unknown variant `permit`",
    );
    check_bad(
        "binary = 'a'\nprotocol = 'acp'\nvariants.x.permissions = [{ tool = 'Bash' }]",
        "missing field `action`",
    );
}

/// A typo beside a rule must not start the agent without the rule.
#[test]
fn an_invalid_change_refuses_live_sessions_too() {
    let (registry, errors) = load("[profiles.codex]\npermissions = [{ action = 'no' }]\n");
    assert_eq!(errors.len(), 1);
    assert!(live(&registry, &chat("codex", None, "")).is_err());
}

/// Gemini names the file of a session after the minute, and `session/load` in that minute would write
/// a new file over it.
#[test]
fn gemini_does_not_load_a_session_in_the_minute_of_its_start() {
    let home = tempfile::tempdir().unwrap();
    let workspace = home.path().join("project");
    let chats = home.path().join(".gemini/tmp/project/chats");
    std::fs::create_dir_all(&chats).unwrap();
    std::fs::create_dir_all(&workspace).unwrap();
    let projects = format!(r#"{{"projects":{{"{}":"project"}}}}"#, workspace.display());
    std::fs::write(home.path().join(".gemini/projects.json"), projects).unwrap();
    let registry = registry(&format!(
        "[profiles.gemini]\nenv = {{ HOME = '{}' }}\n",
        home.path().display()
    ));
    let load = || {
        let mut request = resume("gemini", None, UUID, "");
        request.context = context("gemini", None, &workspace);
        live(&registry, &request)
    };
    assert!(load().is_ok(), "no file at all");
    let short = &UUID[..8];
    std::fs::write(
        chats.join(format!("session-2020-01-01T00-00-{short}.jsonl")),
        "",
    )
    .unwrap();
    assert!(load().is_ok(), "a file of another minute");
    // The minute may end between the write and the check, so two minutes are covered.
    for minute in minutes_around_now() {
        let name = format!("session-{minute}-{short}.jsonl");
        std::fs::write(chats.join(name), "").unwrap();
    }
    let error = load().err().expect("a file of this minute");
    assert!(message(&*error).contains("minute"), "{error}");
    let new = new_chat(context("gemini", None, &workspace), "");
    assert!(
        live(&registry, &new).is_ok(),
        "a new session has another id"
    );
}

/// This minute and the next, as `date` writes them.
fn minutes_around_now() -> Vec<String> {
    let date = |when: &str| {
        let output = std::process::Command::new("date")
            .args(["-u", "-d", when, "+%Y-%m-%dT%H-%M"])
            .output()
            .expect("date (coreutils) is installed");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    vec![date("now"), date("now + 1 minute")]
}
