//! The specified behaviour of the registry, and concurrent changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use exec_core::{CommandConfig, ProcessParameters, ProfileSource};
use exec_profiles::{Error, ProfileDefinition, ProfileRegistry, profile_definitions};

use crate::request::{chat, find, launch};

#[test]
fn built_in_profiles_and_variants_are_registered() {
    let registry = ProfileRegistry::new();
    assert_eq!(
        registry.labels(),
        ["claude-code", "codex", "cursor", "gemini", "opencode"]
    );
    let labels: Vec<_> = profile_definitions().into_iter().map(|d| d.label).collect();
    assert_eq!(
        labels,
        ["claude-code", "cursor", "gemini", "codex", "opencode"]
    );
    assert_eq!(find(&registry, "claude-code").variant_labels(), ["plan"]);
    assert_eq!(find(&registry, "gemini").variant_labels(), ["flash"]);
    assert!(registry.find_profile("claude").is_none());
    assert!(ProfileRegistry::empty().labels().is_empty());
}

#[test]
fn get_variant_returns_only_existing_variants() {
    let registry = ProfileRegistry::new();
    let plan = registry.get_variant("claude-code", Some("plan")).unwrap();
    assert_eq!(plan.label, "plan");
    assert!(registry.get_variant("claude-code", None).is_none());
    assert!(registry.get_variant("claude-code", Some("Plan")).is_none());
    assert!(registry.get_variant("unknown", Some("plan")).is_none());
}

#[test]
fn get_command_falls_back_to_the_profiles_command_as_specified() {
    let registry = ProfileRegistry::new();
    let default = registry.get_command("claude-code", None).unwrap();
    let plan = registry.get_command("claude-code", Some("plan")).unwrap();
    assert_ne!(default, plan);
    assert_eq!(
        registry.get_command("claude-code", Some("plam")),
        Some(default)
    );
    assert!(registry.get_command("unknown", None).is_none());
    // The service checks the variants first, so it refuses `plam`.
    assert!(
        !find(&registry, "claude-code")
            .variant_labels()
            .contains(&"plam".to_owned())
    );
}

#[test]
fn a_blank_binary_is_no_command() {
    let registry = ProfileRegistry::empty();
    let permissive = CommandConfig::new("agent", ["--yolo"]);
    for blank in ["", " \t"] {
        registry
            .register(ProfileDefinition::new(
                "none",
                CommandConfig::new(blank, ["x"]),
            ))
            .unwrap();
        assert!(registry.get_profile("none").unwrap().command.is_none());
        assert!(registry.get_command("none", None).is_none());
        // The profile's own command may have more permissions than the variant.
        registry
            .register(
                ProfileDefinition::new("half", permissive.clone())
                    .with_variant("careful", CommandConfig::new(blank, ["--ask"])),
            )
            .unwrap();
        assert!(registry.get_command("half", None).is_some());
        assert!(registry.get_command("half", Some("careful")).is_none());
        assert!(find(&registry, "half").command(Some("careful")).is_none());
    }
}

#[test]
fn a_profile_without_a_builder_gets_its_arguments_and_the_prompt_on_stdin() {
    let registry = ProfileRegistry::empty();
    let mut command = CommandConfig::new("my-agent-cli", ["--mode", "code"]);
    command.env.insert("MY_MODEL".into(), "v1".into());
    registry
        .register(ProfileDefinition::new("my-agent", command))
        .unwrap();
    let request = chat("my-agent", None, "hello");
    let launched = launch(&registry, &request).unwrap();
    assert_eq!(launched.argv, ["my-agent-cli", "--mode", "code"]);
    assert_eq!(launched.env["MY_MODEL"], "v1");
    assert_eq!(launched.parameters.stdin_payload.as_deref(), Some("hello"));
    assert!(launched.parameters.event_parser.is_none());
}

#[test]
fn a_builder_in_code_gets_the_command_and_the_request() {
    let registry = ProfileRegistry::empty();
    let definition = ProfileDefinition::new("a", CommandConfig::new("agent", ["-x"])).with_builder(
        |command, request| {
            if request.text.contains("no") {
                return Err("refused".into());
            }
            Ok(ProcessParameters::new(
                command.args.iter().cloned().chain([request.text.clone()]),
            ))
        },
    );
    registry.register(definition).unwrap();
    let launched = |text| launch(&registry, &chat("a", None, text));
    assert_eq!(launched("yes").unwrap().argv, ["agent", "-x", "yes"]);
    assert_eq!(launched("no").err().unwrap().to_string(), "refused");
}

#[test]
fn invalid_labels_are_refused_and_change_nothing() {
    let registry = ProfileRegistry::new();
    let command = CommandConfig::new("agent", ["x"]);
    for label in ["", "a b", "a\n"] {
        let refused = registry.register(ProfileDefinition::new(label, command.clone()));
        assert!(
            matches!(refused, Err(Error::Invalid { what: "label", .. })),
            "{label:?}"
        );
    }
    let twice = ProfileDefinition::new("a", command.clone())
        .with_variant("v", command.clone())
        .with_variant("v", command);
    assert!(matches!(
        registry.register(twice),
        Err(Error::Invalid { what: "label", .. })
    ));
    assert_eq!(registry.labels(), ProfileRegistry::new().labels());
}

#[test]
fn a_replaced_profile_applies_to_later_launches_only() {
    let registry = ProfileRegistry::empty();
    let define = |version: &str| {
        ProfileDefinition::new("a", CommandConfig::new("agent", [version]))
            .with_variant("v", CommandConfig::new("agent", [version, "v"]))
    };
    registry.register(define("1")).unwrap();
    let handle = registry.clone();
    let in_progress = find(&registry, "a");
    handle.register(define("2")).unwrap();
    assert_eq!(in_progress.command(None).unwrap().args, ["1"]);
    assert_eq!(registry.get_command("a", None).unwrap().args, ["2"]);
    assert_eq!(
        registry.get_command("a", Some("v")).unwrap().args,
        ["2", "v"]
    );
}

/// Fails if a change becomes visible in parts: both commands always have the same version.
#[test]
fn a_reader_never_sees_part_of_a_change() {
    let registry = ProfileRegistry::empty();
    let define = |version: u32| {
        let version = version.to_string();
        ProfileDefinition::new("a", CommandConfig::new("agent", [version.clone()]))
            .with_variant("v", CommandConfig::new("agent", [version]))
    };
    registry.register(define(0)).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (registry, stop) = (registry.clone(), Arc::clone(&stop));
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let config = registry.get_profile("a").unwrap();
                    let variant = config.variants[0].command.as_ref().unwrap();
                    assert_eq!(config.command.unwrap().args, variant.args);
                }
            });
        }
        for version in 1..=2000 {
            registry.register(define(version)).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(registry.get_command("a", None).unwrap().args, ["2000"]);
}

#[test]
fn debug_shows_no_values_of_variables() {
    let registry = ProfileRegistry::empty();
    let mut command = CommandConfig::new("agent", ["x"]);
    command.env.insert("KEY".into(), "s3cret".into());
    let definition = ProfileDefinition::new("a", command);
    let shown = format!("{definition:?}");
    registry.register(definition).unwrap();
    let shown = format!("{shown} {registry:?} {:?}", registry.get_profile("a"));
    assert!(
        shown.contains("KEY") && !shown.contains("s3cret"),
        "{shown}"
    );
}
