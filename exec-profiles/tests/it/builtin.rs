//! The command lines of the built-in profiles.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use exec_core::{CommandConfig, EnvPolicy, ProcessParameters, StopAction};
use exec_profiles::{Launcher, ProfileDefinition, ProfileRegistry, builtin, profile_definitions};

use crate::request::{UUID, chat, launch, message, resume};

/// The built-in profiles with this `PATH`, so that the agents installed on this machine do not
/// matter.
fn registry_with(path: &str, launcher: Launcher) -> ProfileRegistry {
    let registry = ProfileRegistry::new();
    for mut definition in profile_definitions() {
        let variants = definition.variants.iter_mut().map(|v| v.command.as_mut());
        for command in variants.flatten().chain([&mut definition.command]) {
            command.env.insert("PATH".into(), path.into());
        }
        if definition.native_binary.is_some() {
            definition = definition.with_launcher(launcher.clone());
        }
        registry.register(definition).unwrap();
    }
    registry
}

#[track_caller]
fn check(label: &str, variant: Option<&str>, new: &[&str], resumed: &str, follow_up_argv: &[&str]) {
    let registry = registry_with("/nowhere", Launcher::Auto);
    let request = chat(label, variant, "do it");
    let started = launch(&registry, &request).unwrap();
    let fill = |words: &[&str], id: &str| -> Vec<String> {
        words.iter().map(|word| word.replace("<id>", id)).collect()
    };
    assert_eq!(started.argv, fill(new, request.session_id.native_id()));
    assert_eq!(started.parameters.stdin_payload.as_deref(), Some("do it"));
    assert!(started.parameters.event_parser.is_some());

    let request = resume(label, variant, resumed, "and that");
    let resumed_launch = launch(&registry, &request).unwrap();
    assert_eq!(resumed_launch.argv, fill(follow_up_argv, resumed));
    assert_eq!(
        resumed_launch.parameters.stdin_payload.as_deref(),
        Some("and that")
    );
    assert!(
        resumed_launch.parameters.session_id_resolver.is_some(),
        "the service compares the id in the answer"
    );
}

#[test]
fn claude_code_accepts_the_minted_id_and_resumes_by_it() {
    let fixed = ["npx", "-y", "@anthropic-ai/claude-code@latest", "-p"];
    for (variant, permissions) in [
        (None, "--dangerously-skip-permissions"),
        (Some("plan"), "--permission-mode=plan"),
    ] {
        let format = [permissions, "--verbose", "--output-format=stream-json"];
        let argv = |last| [&fixed[..], &format, &[last]].concat();
        check(
            "claude-code",
            variant,
            &argv("--session-id=<id>"),
            UUID,
            &argv("--resume=<id>"),
        );
    }
}

#[test]
fn codex_prints_its_id_and_resumes_after_the_options() {
    let fixed = [
        "npx",
        "-y",
        "@openai/codex@latest",
        "exec",
        "--json",
        "--skip-git-repo-check",
        "--dangerously-bypass-approvals-and-sandbox",
    ];
    check(
        "codex",
        None,
        &[&fixed[..], &["-"]].concat(),
        UUID,
        &[&fixed[..], &["resume", "<id>", "-"]].concat(),
    );
}

#[test]
fn gemini_accepts_the_minted_id_and_resumes_by_it() {
    let fixed = [
        "npx",
        "-y",
        "@google/gemini-cli@latest",
        "--yolo",
        "--skip-trust",
        "--output-format=stream-json",
    ];
    for (variant, model) in [
        (None, &[][..]),
        (Some("flash"), &["--model", "gemini-2.5-flash"]),
    ] {
        let argv = |last| [&fixed[..], model, &[last]].concat();
        check(
            "gemini",
            variant,
            &argv("--session-id=<id>"),
            UUID,
            &argv("--resume=<id>"),
        );
    }
}

#[test]
fn opencode_prints_its_id_and_resumes_by_it() {
    let fixed = [
        "npx",
        "-y",
        "opencode-ai@latest",
        "run",
        "--format",
        "json",
        "--auto",
        "--print-logs",
        "--log-level=ERROR",
    ];
    check(
        "opencode",
        None,
        &fixed,
        "ses_4f",
        &[&fixed[..], &["--session=<id>"]].concat(),
    );
}

#[test]
fn cursor_prints_its_id_and_resumes_by_it() {
    let fixed = [
        "cursor-agent",
        "-p",
        "--output-format=stream-json",
        "--force",
    ];
    check(
        "cursor",
        None,
        &fixed,
        "chat-1",
        &[&fixed[..], &["--resume=<id>"]].concat(),
    );
}

#[test]
fn ids_are_minted_only_for_agents_that_accept_one() {
    let registry = registry_with("/nowhere", Launcher::Auto);
    for (label, minted) in [
        ("claude-code", true),
        ("gemini", true),
        ("codex", false),
        ("opencode", false),
        ("cursor", false),
    ] {
        let request = chat(label, None, "x");
        let parameters = launch(&registry, &request).unwrap().parameters;
        assert_eq!(parameters.session_id_resolver.is_none(), minted, "{label}");
        assert!(parameters.session_id_lookup.is_none(), "{label}");
    }
}

#[test]
fn the_id_of_codex_and_opencode_is_read_from_stdout() {
    let registry = registry_with("/nowhere", Launcher::Auto);
    for (label, file, id) in [
        (
            "codex",
            include_str!("../data/transcripts/codex-new.jsonl"),
            "01a1e1b2-7491-7973-b0ef-c155a944f994",
        ),
        (
            "opencode",
            include_str!("../data/transcripts/opencode-new.jsonl"),
            "ses_e1e494dcdffeBHuSVvDMkaEw9e",
        ),
    ] {
        let request = chat(label, None, "x");
        let mut parameters = launch(&registry, &request).unwrap().parameters;
        let resolver = parameters.session_id_resolver.as_mut().unwrap();
        assert_eq!(resolver.handle_line("a notice"), None);
        let found = file.lines().find_map(|line| resolver.handle_line(line));
        assert_eq!(found.as_deref(), Some(id));
    }
}

#[test]
fn an_id_that_the_agent_would_misread_is_refused() {
    let registry = registry_with("/nowhere", Launcher::Auto);
    // Gemini reads a number as an index; codex starts a new thread for a name.
    for (label, id) in [
        ("gemini", "5"),
        ("gemini", "latest"),
        ("codex", "my-thread"),
        ("claude-code", "ses_4f"),
        ("opencode", UUID),
    ] {
        let request = resume(label, None, id, "x");
        let Err(error) = launch(&registry, &request) else {
            panic!("{label} resumed {id}");
        };
        let text = message(&*error);
        assert!(text.contains("invalid session id"), "{label}: {text}");
    }
}

#[test]
fn a_native_binary_on_path_replaces_npx() {
    let bin = tempfile::tempdir().unwrap();
    for name in ["claude", "codex"] {
        let path = bin.path().join(name);
        fs::write(&path, "#!/bin/sh\n").unwrap();
        let mode = if name == "codex" { 0o644 } else { 0o755 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let registry = registry_with(bin.path().to_str().unwrap(), Launcher::Auto);
    let argv = |label| {
        let request = chat(label, None, "x");
        launch(&registry, &request).unwrap().argv
    };
    assert_eq!(argv("claude-code")[..2], ["claude", "-p"]);
    // The file is not executable.
    assert_eq!(argv("codex")[..2], ["npx", "-y"]);
    // `get_command` returns the definition.
    let command = registry.get_command("claude-code", None).unwrap();
    assert_eq!(command.binary, "npx");
    assert_eq!(command.args[1], "@anthropic-ai/claude-code@latest");
}

#[test]
fn a_launcher_pins_the_native_binary_or_a_version() {
    let argv = |launcher| {
        let registry = registry_with("/nowhere", launcher);
        let request = chat("codex", None, "x");
        launch(&registry, &request).unwrap().argv
    };
    assert_eq!(argv(Launcher::Native)[..2], ["codex", "exec"]);
    assert_eq!(
        argv(Launcher::NativeAt("/opt/codex".into()))[..2],
        ["/opt/codex", "exec"]
    );
    assert_eq!(
        argv(Launcher::NpxVersion("0.166.0".into()))[..4],
        ["npx", "-y", "@openai/codex@0.166.0", "exec"]
    );

    let registry = ProfileRegistry::new();
    registry
        .register(builtin::cursor().with_launcher(Launcher::Npx))
        .unwrap();
    let request = chat("cursor", None, "x");
    let Err(error) = launch(&registry, &request) else {
        panic!("npx would run an unrelated package");
    };
    assert!(message(&*error).contains("names no npm package"), "{error}");
}

#[test]
fn claude_does_not_inherit_claudecode() {
    let registry = registry_with("/nowhere", Launcher::Auto);
    let request = chat("claude-code", None, "x");
    let parameters = launch(&registry, &request).unwrap().parameters;
    assert!(!parameters.env_policy.passes("CLAUDECODE"));
    assert!(parameters.env_policy.passes("ANTHROPIC_API_KEY"));
    let ladder = parameters.stop_ladder.unwrap();
    assert_eq!(ladder.steps()[0].action, StopAction::Interrupt);
}

#[test]
fn gemini_does_not_relaunch_itself() {
    let registry = registry_with("/nowhere", Launcher::Auto);
    let request = chat("gemini", Some("flash"), "x");
    let launched = launch(&registry, &request).unwrap();
    assert_eq!(launched.env["GEMINI_CLI_NO_RELAUNCH"], "true");
}

#[test]
fn the_policy_of_a_definition_adds_to_the_agents_own() {
    let with = |policy| {
        let registry = ProfileRegistry::new();
        let mut definition: ProfileDefinition = builtin::claude_code();
        definition.env_policy = Some(policy);
        registry.register(definition).unwrap();
        let request = chat("claude-code", None, "x");
        launch(&registry, &request).unwrap().parameters.env_policy
    };
    let without_keys = with(EnvPolicy::AllExcept(vec!["OPENAI_*".into()]));
    assert!(!without_keys.passes("OPENAI_API_KEY"));
    assert!(!without_keys.passes("CLAUDECODE"));
    assert!(without_keys.passes("HOME"));
    let listed = with(EnvPolicy::Only(vec!["HOME".into()]));
    assert!(listed.passes("HOME") && !listed.passes("PATH"));
    assert!(!with(EnvPolicy::All).passes("CLAUDECODE"));
}

#[test]
fn an_exclusion_does_not_widen_the_agents_own_list() {
    let registry = ProfileRegistry::empty();
    let mut definition = ProfileDefinition::new("a", CommandConfig::new("agent", ["x"]))
        .with_builder(|command, _| {
            let mut parameters = ProcessParameters::new(command.args.clone());
            parameters.env_policy = EnvPolicy::Only(vec!["HOME".into(), "KEY".into()]);
            Ok(parameters)
        });
    definition.env_policy = Some(EnvPolicy::AllExcept(vec!["KEY".into()]));
    registry.register(definition).unwrap();
    let request = chat("a", None, "x");
    let policy = launch(&registry, &request).unwrap().parameters.env_policy;
    assert!(policy.passes("HOME") && !policy.passes("KEY") && !policy.passes("PATH"));
}

#[test]
fn an_exclusion_holds_against_a_pattern_of_the_agents_own_list() {
    for excluded in ["AWS_SECRET", "AWS_S*", "A*", "AWS_*"] {
        let registry = ProfileRegistry::empty();
        let mut definition = ProfileDefinition::new("a", CommandConfig::new("agent", ["x"]))
            .with_builder(|command, _| {
                let mut parameters = ProcessParameters::new(command.args.clone());
                parameters.env_policy = EnvPolicy::Only(vec!["HOME".into(), "AWS_*".into()]);
                Ok(parameters)
            });
        definition.env_policy = Some(EnvPolicy::AllExcept(vec![excluded.into()]));
        registry.register(definition).unwrap();
        let request = chat("a", None, "x");
        let policy = launch(&registry, &request).unwrap().parameters.env_policy;
        assert!(
            policy.passes("HOME") && !policy.passes("AWS_SECRET"),
            "{excluded}"
        );
    }
}
