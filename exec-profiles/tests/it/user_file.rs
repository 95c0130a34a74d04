//! The user file: its syntax, and how it is changed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use exec_core::CommandConfig;
use exec_profiles::{Error, ProfileDefinition, ProfileRegistry, UserProfile};

use crate::request::message;

struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }
}

fn agent(binary: &str) -> UserProfile {
    let mut profile = UserProfile::default();
    profile.binary = Some(binary.to_owned());
    profile
}

fn binary(registry: &ProfileRegistry, label: &str) -> Option<String> {
    Some(registry.get_command(label, None)?.binary)
}

#[test]
fn toml_and_json_are_equivalent() {
    let fixture = Fixture::new();
    let toml = fixture.write(
        "p.toml",
        "[profiles.a]\nbinary = 'agent'\nargs = ['-x']\nenv = { K = 'v' }\n[profiles.bad]\nargs = [1]\n",
    );
    let json = fixture.write(
        "p.json",
        r#"{"profiles": {"a": {"binary": "agent", "args": ["-x"], "env": {"K": "v"}}, "bad": {"args": [1]}}}"#,
    );
    for path in [toml, json] {
        let registry = ProfileRegistry::new();
        let report = registry.load_user_file(&path).unwrap();
        assert_eq!(report.labels, ["a"]);
        assert_eq!(report.errors.len(), 1, "{report:?}");
        assert!(
            report.errors[0].reason.starts_with("args[0]: "),
            "{report:?}"
        );
        assert_eq!(report.errors[0].file.as_deref(), Some(&*path));
        let command = registry.get_command("a", None).unwrap();
        assert_eq!(command.args, ["-x"]);
        assert_eq!(command.env["K"], "v");
    }
}

#[test]
fn a_duplicate_label_is_an_error_in_both_formats() {
    let fixture = Fixture::new();
    let json = fixture.write(
        "p.json",
        r#"{"profiles": {"a": {"binary": "x"}, "b": {"binary": "y"}, "a": {"binary": "z"}}}"#,
    );
    let report = ProfileRegistry::new().load_user_file(&json).unwrap();
    assert_eq!(report.labels, ["b"]);
    assert_eq!(report.errors[0].reason, "the label occurs twice");

    let toml = fixture.write(
        "p.toml",
        "[profiles.a]\nbinary='x'\n[profiles.a]\nbinary='z'\n",
    );
    let error = ProfileRegistry::new().load_user_file(&toml).unwrap_err();
    assert!(matches!(error, Error::Syntax { .. }), "{error}");
}

#[test]
fn a_file_that_cannot_be_parsed_changes_nothing() {
    let fixture = Fixture::new();
    let path = fixture.write("p.toml", "[profiles.a]\nbinary = 'one'\n");
    let registry = ProfileRegistry::new();
    registry.load_user_file(&path).unwrap();
    for (text, reason) in [
        ("[profiles.a\n", "line 1"),
        ("[profile.a]\nbinary = 'x'\n", "unknown field `profile`"),
        ("profiles = 3\n", "a table of profiles"),
    ] {
        fs::write(&path, text).unwrap();
        let error = registry.reload().unwrap_err();
        assert!(matches!(error, Error::Syntax { .. }));
        let text = message(&error);
        assert!(text.contains("p.toml") && text.contains(reason), "{text}");
        assert_eq!(binary(&registry, "a").as_deref(), Some("one"));
    }
    fs::write(&path, b"\xff\xfe").unwrap();
    assert!(matches!(registry.reload(), Err(Error::Io { .. })));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = message(&registry.reload().unwrap_err());
    assert!(error.starts_with("cannot read "), "{error}");
    assert_eq!(binary(&registry, "a").as_deref(), Some("one"));

    let error = registry.load_user_file(fixture.path("p.yaml")).unwrap_err();
    assert!(message(&error).contains(".toml nor in .json"), "{error}");
}

#[test]
fn reload_applies_the_current_content_of_the_file() {
    let fixture = Fixture::new();
    let path = fixture.write(
        "p.toml",
        "[profiles.a]\nbinary='one'\n[profiles.codex]\nbinary='x'\n",
    );
    let registry = ProfileRegistry::new();
    assert!(matches!(registry.reload(), Err(Error::NoUserFile)));
    registry.load_user_file(&path).unwrap();
    assert_eq!(binary(&registry, "codex").as_deref(), Some("x"));

    fs::write(&path, "[profiles.a]\nbinary='two'\n").unwrap();
    assert_eq!(
        binary(&registry, "a").as_deref(),
        Some("one"),
        "a change needs a reload"
    );
    registry.reload().unwrap();
    assert_eq!(binary(&registry, "a").as_deref(), Some("two"));
    assert_eq!(
        binary(&registry, "codex").as_deref(),
        Some("npx"),
        "the built-in profile is restored"
    );

    fs::remove_file(&path).unwrap();
    let report = registry.reload().unwrap();
    assert!(report.missing && report.labels.is_empty());
    assert_eq!(binary(&registry, "a"), None);
}

#[test]
fn saved_profiles_can_be_loaded_by_another_registry() {
    for name in ["sub/folder/p.toml", "sub/folder/p.json"] {
        let fixture = Fixture::new();
        let path = fixture.path(name);
        let registry = ProfileRegistry::new();
        let error = registry.save_user_profile("a", &agent("x")).unwrap_err();
        assert!(matches!(error, Error::NoUserFile));
        // On first use the file does not exist.
        assert!(registry.load_user_file(&path).unwrap().missing);
        assert!(registry.remove_user_profile("a").unwrap().missing);
        assert!(!path.exists(), "removing a missing entry writes nothing");

        let mut profile = agent("x");
        profile.args = Some(vec!["--id={session_id}".into(), "quote \" and 日本".into()]);
        profile.follow_up_args = Some(vec!["{session_id}".into()]);
        profile.env.insert("KEY".into(), "${HOME}".into());
        let mut variant = exec_profiles::UserVariant::default();
        variant.append_args = vec!["-v".into()];
        profile.variants.insert("v.1".into(), variant);
        registry.save_user_profile("a", &profile).unwrap();
        registry.save_user_profile("b", &agent("y")).unwrap();
        registry.save_user_profile("b", &agent("z")).unwrap();
        assert_eq!(binary(&registry, "b").as_deref(), Some("z"));

        let other = ProfileRegistry::new();
        let report = other.load_user_file(&path).unwrap();
        assert_eq!(report.labels, ["a", "b"], "{report:?}");
        assert_eq!(other.user_profile("a"), Some(profile));
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.contains("${HOME}"),
            "variables are saved by name: {text}"
        );

        other.remove_user_profile("a").unwrap();
        other.remove_user_profile("a").unwrap();
        assert_eq!(registry.reload().unwrap().labels, ["b"]);
    }
}

#[test]
fn a_save_keeps_comments_order_invalid_entries_and_concurrent_saves() {
    let fixture = Fixture::new();
    let text = "# mine\n[profiles.zed]\nbinary = 'z' # last letter\n\n[profiles.bad]\nargs = [1]\n";
    let path = fixture.write("p.toml", text);
    let (one, two) = (ProfileRegistry::new(), ProfileRegistry::new());
    one.load_user_file(&path).unwrap();
    two.load_user_file(&path).unwrap();
    one.save_user_profile("from-one", &agent("1")).unwrap();
    let report = two.save_user_profile("from-two", &agent("2")).unwrap();
    assert_eq!(report.labels, ["from-one", "from-two", "zed"]);
    assert_eq!(report.errors.len(), 1);
    let saved = fs::read_to_string(&path).unwrap();
    assert!(saved.starts_with(text), "{saved}");
}

#[test]
fn a_new_entry_follows_the_comments_at_the_end_of_the_file() {
    let fixture = Fixture::new();
    for text in ["# mine\n", "[profiles.zed]\nbinary = 'z'\n# the end\n"] {
        let path = fixture.write("p.toml", text);
        let registry = ProfileRegistry::new();
        registry.load_user_file(&path).unwrap();
        registry.save_user_profile("new", &agent("1")).unwrap();
        let saved = fs::read_to_string(&path).unwrap();
        assert!(saved.starts_with(text), "{saved}");
        assert_eq!(binary(&registry, "new").as_deref(), Some("1"));
    }
}

#[test]
fn every_notation_of_the_table_can_be_extended() {
    let fixture = Fixture::new();
    for text in [
        "profiles = { a = { binary = 'x' } }\n",
        "profiles = { a = { binary = 'x' } }\n# the end\n",
        "profiles.a.binary = 'x'\n",
        "[profiles]\na = { binary = 'x' }\n",
        "[profiles.a]\nbinary = 'x'\n[profiles.b]\nargs = [1]\n",
    ] {
        let path = fixture.write("p.toml", text);
        let registry = ProfileRegistry::new();
        registry.load_user_file(&path).unwrap();
        let mut profile = agent("y");
        profile.env.insert("K".into(), "v".into());
        registry.save_user_profile("b", &profile).unwrap();
        let report = ProfileRegistry::new().load_user_file(&path).unwrap();
        assert_eq!(report.labels, ["a", "b"], "{text}");
        assert_eq!(report.errors, [], "{text}");
    }
}

#[test]
fn an_invalid_profile_is_not_saved() {
    let fixture = Fixture::new();
    let path = fixture.write("p.toml", "[profiles.a]\nbinary = 'x'\n");
    let registry = ProfileRegistry::new();
    registry.load_user_file(&path).unwrap();
    let mut bad = agent("y");
    bad.args = Some(vec!["{nonsense}".into()]);
    for (label, profile) in [("a", &bad), ("", &agent("y")), ("a b", &agent("y"))] {
        let error = registry.save_user_profile(label, profile).unwrap_err();
        assert!(matches!(error, Error::Entry(_)), "{error}");
    }
    assert_eq!(binary(&registry, "a").as_deref(), Some("x"));
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "[profiles.a]\nbinary = 'x'\n"
    );
}

#[test]
fn a_damaged_file_is_not_overwritten() {
    let fixture = Fixture::new();
    for (name, text) in [("p.toml", "[profiles.a\n"), ("p.json", "{\"profiles\": ")] {
        let path = fixture.write(name, "");
        let registry = ProfileRegistry::new();
        registry.load_user_file(&path).unwrap();
        fs::write(&path, text).unwrap();
        let refused = registry.save_user_profile("b", &agent("y"));
        assert!(matches!(refused, Err(Error::Syntax { .. })), "{refused:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        assert_eq!(binary(&registry, "b"), None);
    }
}

#[test]
fn a_save_replaces_the_file_behind_a_link_and_keeps_its_mode() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("dotfiles")).unwrap();
    let target = fixture.write("dotfiles/p.toml", "");
    fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).unwrap();
    let link = fixture.path("p.toml");
    symlink(&target, &link).unwrap();
    let registry = ProfileRegistry::new();
    registry.load_user_file(&link).unwrap();
    registry.save_user_profile("a", &agent("x")).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(
        fs::read_to_string(&target)
            .unwrap()
            .contains("[profiles.a]")
    );
    let mode = fs::metadata(&target).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    // No temporary file is left.
    assert_eq!(fs::read_dir(fixture.path("dotfiles")).unwrap().count(), 1);
}

/// Fails if a save loses an entry of another saver, or if a reader sees part of a file.
#[test]
fn concurrent_saves_lose_nothing_and_readers_see_whole_files() {
    const SAVERS: usize = 4;
    const ROUNDS: usize = 10;
    let fixture = Fixture::new();
    let path = fixture.write("p.toml", "");
    let save = |saver: usize, path: &Path| {
        let registry = ProfileRegistry::empty();
        registry.load_user_file(path).unwrap();
        for round in 0..ROUNDS {
            let label = format!("p-{saver}-{round}");
            registry.save_user_profile(&label, &agent("x")).unwrap();
        }
    };
    std::thread::scope(|scope| {
        let savers: Vec<_> = (0..SAVERS)
            .map(|saver| {
                let path = &path;
                scope.spawn(move || save(saver, path))
            })
            .collect();
        let reader = ProfileRegistry::empty();
        let mut seen = 0;
        while !savers.iter().all(|saver| saver.is_finished()) {
            let report = reader.load_user_file(&path).unwrap();
            assert!(report.errors.is_empty() && !report.missing, "{report:?}");
            assert!(report.labels.len() >= seen, "a profile was lost");
            seen = report.labels.len();
        }
    });
    let report = ProfileRegistry::empty().load_user_file(&path).unwrap();
    assert_eq!(report.labels.len(), SAVERS * ROUNDS);
}

#[test]
fn a_change_follows_its_base() {
    let fixture = Fixture::new();
    let path = fixture.write("p.toml", "[profiles.mine]\nbase = 'own'\n");
    let registry = ProfileRegistry::empty();
    let own = |args: &[&str]| {
        ProfileDefinition::new("own", CommandConfig::new("agent", args.iter().copied()))
    };
    registry.register(own(&["1"])).unwrap();
    registry.load_user_file(&path).unwrap();
    assert_eq!(registry.get_command("mine", None).unwrap().args, ["1"]);
    registry.register(own(&["2"])).unwrap();
    assert_eq!(registry.get_command("mine", None).unwrap().args, ["2"]);
    assert_eq!(registry.labels(), ["mine", "own"]);
}

const SAVE_INTO: &str = "EXEC_PROFILES_TEST_SAVE_INTO";

/// Not a test of its own: the process that the next one kills. It says what it has saved, and ends
/// by itself when nobody listens any more.
#[test]
fn saver_that_gets_killed() {
    let Some(path) = std::env::var_os(SAVE_INTO) else {
        return;
    };
    let registry = ProfileRegistry::empty();
    let first = registry.load_user_file(path).unwrap().labels.len();
    for number in first.. {
        let label = format!("p-{number:05}");
        registry.save_user_profile(&label, &agent("x")).unwrap();
        println!("saved {number}");
    }
}

#[test]
fn a_saver_killed_at_any_moment_leaves_a_whole_file_and_no_lock() {
    let fixture = Fixture::new();
    let path = fixture.path("p.toml");
    let mut saved = 0;
    for round in 0..10 {
        let mut saver = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "user_file::saver_that_gets_killed",
                "--nocapture",
            ])
            .env(SAVE_INTO, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(saver.stdout.take().unwrap()).lines();
        let mut said = 0;
        while said <= round {
            let line = lines
                .next()
                .expect("it goes on until it is killed")
                .unwrap();
            if let Some((_, number)) = line.split_once("saved ") {
                saved = number.parse::<usize>().unwrap() + 1;
                said += 1;
            }
        }
        saver.kill().unwrap();
        saver.wait().unwrap();
        for number in lines.map_while(Result::ok) {
            if let Some((_, number)) = number.split_once("saved ") {
                saved = number.parse::<usize>().unwrap() + 1;
            }
        }
        let report = ProfileRegistry::empty().load_user_file(&path).unwrap();
        assert!(report.errors.is_empty() && !report.missing, "{report:?}");
        // The last save may have been done and not yet said.
        let labels = report.labels.len();
        assert!(
            labels == saved || labels == saved + 1,
            "{labels} of {saved}"
        );
        saved = labels;
    }
}

#[test]
fn a_file_that_everybody_can_write_to_is_refused() {
    let fixture = Fixture::new();
    let path = fixture.write("p.toml", "[profiles.mine]\nbinary = 'mine'\n");
    let mode = |mode| fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    let registry = ProfileRegistry::new();
    mode(0o666);
    let error = registry.load_user_file(&path).unwrap_err();
    let reason = std::error::Error::source(&error).unwrap().to_string();
    assert!(reason.contains("everybody can write"), "{error}: {reason}");
    assert_eq!(binary(&registry, "mine"), None);
    mode(0o664);
    registry.load_user_file(&path).unwrap();
    assert_eq!(binary(&registry, "mine").as_deref(), Some("mine"));
}
