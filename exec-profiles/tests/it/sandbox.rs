//! The sandbox of profiles: from the user file to bubblewrap. `scripts/setup` installs it.

use std::fs;

use exec_core::{AgentFolder, CommandConfig, ExecutionService, ReadAccess, Sandbox};
use exec_profiles::{
    ProfileDefinition, ProfileRegistry, UserProfile, builtin, profile_definitions,
};

use crate::request::{chat, context, launch, new_chat};
use crate::user_file::write_private;

fn load(registry: &ProfileRegistry, toml: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profiles.toml");
    write_private(&path, toml);
    let errors = registry.load_user_file(&path).unwrap().errors;
    errors.iter().map(ToString::to_string).collect()
}

fn sandbox_of(registry: &ProfileRegistry, label: &str, variant: Option<&str>) -> Option<Sandbox> {
    let launched = launch(registry, &chat(label, variant, "go")).unwrap();
    let told = launched.env.contains_key("IS_SANDBOX");
    assert_eq!(told, launched.parameters.sandbox.is_some());
    launched.parameters.sandbox
}

#[test]
fn there_is_no_sandbox_by_default() {
    let registry = ProfileRegistry::new();
    for label in registry.labels() {
        assert_eq!(sandbox_of(&registry, &label, None), None, "{label}");
    }
}

#[test]
fn the_user_file_sets_the_sandbox_of_a_profile_and_of_its_variants() {
    let registry = ProfileRegistry::new();
    let file = r#"
        [profiles.claude-code]
        launcher = { native_at = "/opt/claude" }
        sandbox = { write = ["{workspace}", "${HOME}/x"], hide = ["~/.ssh", "{workspace}/.env"] }

        [profiles.claude-code.variants.plan]
        sandbox = { write = [], read = ["/etc"] }

        [profiles.claude-code.variants.free]
        sandbox = "off"

        [profiles.claude-code.variants.same]
        append_args = ["--verbose"]

        [profiles.mine]
        binary = "mine"
        sandbox = {}

        [profiles.mine.variants.free]
        sandbox = "off"
    "#;
    assert_eq!(load(&registry, file), [""; 0]);
    let claude = AgentFolder::new("~/.claude").or_variable("CLAUDE_CONFIG_DIR");
    let home = std::env::var("HOME").unwrap();
    let mut expected = Sandbox::new()
        .write(format!("{home}/x"))
        .hide("~/.ssh")
        .hide("/w/.env")
        .agent_folder(claude.clone());
    expected.write[0] = "/w".into();
    let of = |variant| sandbox_of(&registry, "claude-code", variant);
    assert_eq!(of(None), Some(expected.clone()));
    assert_eq!(of(Some("same")), Some(expected));
    let plan = of(Some("plan")).unwrap();
    assert_eq!(plan.read, ReadAccess::Only(vec!["/etc".into()]));
    assert!(plan.write.is_empty() && plan.agent_folders == [claude]);
    assert_eq!(of(Some("free")), None);
    let mut mine = Sandbox::new();
    mine.write[0] = "/w".into();
    assert_eq!(sandbox_of(&registry, "mine", None), Some(mine));
    assert_eq!(sandbox_of(&registry, "mine", Some("free")), None);
}

#[test]
fn a_sandbox_of_the_code_is_literal_and_can_be_switched_off() {
    let registry = ProfileRegistry::new();
    let literal = Sandbox::new().hide("/odd/${NAME}/{prompt}");
    let mut definition = builtin::codex().with_sandbox(literal.clone());
    definition.label = "literal".to_owned();
    definition.agent_folders.clear();
    registry.register(definition.clone()).unwrap();
    definition.label = "off".to_owned();
    registry.register(definition).unwrap();
    let file = r#"
        [profiles.literal]
        launcher = { native_at = "/opt/codex" }
        [profiles.off]
        sandbox = "off"
    "#;
    assert_eq!(load(&registry, file), [""; 0]);
    assert_eq!(sandbox_of(&registry, "literal", None), Some(literal));
    assert_eq!(sandbox_of(&registry, "off", None), None);
}

#[test]
fn npx_may_write_its_cache() {
    let registry = ProfileRegistry::new();
    let file = "[profiles.gemini]\nlauncher = 'npx'\nsandbox = {}";
    assert_eq!(load(&registry, file), [""; 0]);
    let folders = sandbox_of(&registry, "gemini", None).unwrap().agent_folders;
    let npm = AgentFolder::new("~/.npm").or_variable("npm_config_cache");
    assert_eq!((folders.len(), &folders[1]), (2, &npm));

    let command = CommandConfig::new("/usr/bin/npx", ["-y", "agent"]);
    let definition = ProfileDefinition::new("with-a-path", command).with_sandbox(Sandbox::new());
    registry.register(definition).unwrap();
    let sandbox = sandbox_of(&registry, "with-a-path", None).unwrap();
    assert_eq!(sandbox.agent_folders, [npm]);
}

#[test]
fn a_mistake_refuses_the_profile() {
    for (sandbox, part) in [
        ("'on'", "\"off\" or a table"),
        ("true", "\"off\" or a table"),
        ("{ wirte = [] }", "wirte"),
        ("{ read = 'some' }", "`read` is \"all\" or a list"),
        (
            "{ write = ['src'] }",
            "sandbox.write[0]: \"src\" is a relative path",
        ),
        (
            "{ hide = ['~/.ssh', '../x'] }",
            "sandbox.hide[1]: \"../x\" is a relative path",
        ),
        ("{ write = [''] }", "relative path"),
        ("{ write = ['{workspaces}'] }", "unknown placeholder"),
        ("{ write = ['/x/{prompt}'] }", "allowed in arguments only"),
    ] {
        for entry in [
            format!("[profiles.codex]\nsandbox = {sandbox}"),
            format!("[profiles.codex.variants.v]\nsandbox = {sandbox}"),
        ] {
            let registry = ProfileRegistry::new();
            let errors = load(&registry, &entry);
            assert!(
                errors.len() == 1 && errors[0].contains(part),
                "{entry}: {errors:?}"
            );
            // Not without the sandbox that was meant.
            assert!(
                launch(&registry, &chat("codex", None, "go")).is_err(),
                "{entry}"
            );
        }
    }
}

#[test]
fn a_saved_sandbox_is_loaded_again() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["profiles.toml", "profiles.json"] {
        let path = folder.path().join(name);
        let registry = ProfileRegistry::new();
        registry.load_user_file(&path).unwrap();
        for setting in [
            r#""off""#,
            r#"{"write":[],"read":["/etc"],"hide":["~/.ssh"]}"#,
            "{}",
        ] {
            let mut profile = UserProfile::default();
            profile.sandbox = Some(serde_json::from_str(setting).unwrap());
            registry.save_user_profile("codex", &profile).unwrap();
            let again = ProfileRegistry::new();
            assert_eq!(again.load_user_file(&path).unwrap().errors, []);
            assert_eq!(
                again.user_profile("codex"),
                Some(profile),
                "{name} {setting}"
            );
        }
    }
}

/// Every built-in agent can write to its own folders and to the workspace, and nowhere else.
#[tokio::test]
async fn built_in_agents_keep_their_own_folders() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let below = |name: &str| folder.path().join(name);
    for name in ["workspace", "home/.ssh"] {
        fs::create_dir_all(below(name)).unwrap();
    }
    let agent = below("agent");
    let script =
        "for folder in .claude .codex .cursor .config/cursor .gemini .local/share/opencode \\
            .config/opencode .local/state/opencode .cache/opencode .ssh; do
            (echo x > ~/$folder/by-agent) 2>/dev/null && echo $folder
        done
        echo x > by-agent && echo workspace";
    fs::write(&agent, script).unwrap();
    let registry = ProfileRegistry::empty();
    for definition in profile_definitions() {
        let command = CommandConfig::new("sh", [agent.to_str().unwrap()]);
        let mut sandboxed = ProfileDefinition::new(definition.label, command);
        let home = below("home").to_str().unwrap().to_owned();
        sandboxed.command.env.insert("HOME".to_owned(), home);
        sandboxed.agent_folders = definition.agent_folders;
        sandboxed.env_policy = Some(exec_core::EnvPolicy::Only(vec!["PATH".to_owned()]));
        registry
            .register(sandboxed.with_sandbox(Sandbox::new()))
            .unwrap();
    }
    let service = ExecutionService::builder(registry).state_dir(below("state"));
    let service = service.open().unwrap();
    let expected = [
        ("claude-code", ".claude"),
        ("codex", ".codex"),
        ("cursor", ".cursor .config/cursor"),
        ("gemini", ".gemini"),
        (
            "opencode",
            ".local/share/opencode .config/opencode .local/state/opencode .cache/opencode",
        ),
    ];
    let labels = ProfileRegistry::new().labels();
    assert_eq!(expected.map(|(label, _)| label)[..], labels[..]);
    for (label, folders) in expected {
        let request = new_chat(context(label, None, &below("workspace")), "go");
        let result = service.run(request).await.unwrap();
        let text = result.text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(text, format!("{folders} workspace"), "{label}");
    }
}
