//! The user file: its syntax, and how it is changed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use exec_core::{CommandConfig, ProfileSource};
use exec_profiles::{Error, ProfileDefinition, ProfileRegistry, UserProfile};

use crate::request::message;
use crate::worker::Worker;

struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self {
            folder: private_folder(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        write_private(&path, text);
        path
    }
}

// The umask may allow the group to write, so both set the mode.

pub(crate) fn private_folder() -> tempfile::TempDir {
    tempfile::Builder::new()
        .permissions(PermissionsExt::from_mode(0o700))
        .tempdir()
        .unwrap()
}

pub(crate) fn write_private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
}

fn agent(binary: &str) -> UserProfile {
    let mut profile = UserProfile::default();
    profile.binary = Some(binary.to_owned());
    profile
}

fn binary(registry: &ProfileRegistry, label: &str) -> Option<String> {
    Some(registry.get_command(label, None)?.binary)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn an_entry_becomes_valid_when_its_base_is_registered() {
    let files = Fixture::new();
    let path = files.write(
        "profiles.toml",
        "[profiles.mine]\nbase = 'acme'\nappend_args = ['-v']\n\
         [profiles.acme]\nenv = { X = '1' }\n[profiles.other]\nbase = 'missing'\n",
    );
    let registry = ProfileRegistry::new();
    let report = registry.load_user_file(&path).unwrap();
    assert_eq!(report.errors.len(), 3, "{:?}", report.errors);
    assert!(registry.check_profile("mine").is_err());
    assert!(registry.user_profile("mine").is_none());
    let acme = ProfileDefinition::new("acme", CommandConfig::new("acme", ["-p"]));
    registry.register(acme).unwrap();
    assert!(registry.check_profile("mine").is_ok());
    assert!(registry.user_profile("mine").is_some());
    let command = registry.get_command("mine", None).unwrap();
    assert_eq!(command.args, ["-p", "-v"]);
    assert_eq!(registry.get_command("acme", None).unwrap().env["X"], "1");
    assert!(registry.check_profile("other").is_err());
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
    assert!(matches!(error, Error::Config { .. }), "{error}");
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
        ("[profiles.a]\nenv = { KEY = 'hunter2' oops }\n", "line 2"),
    ] {
        fs::write(&path, text).unwrap();
        let error = registry.reload().unwrap_err();
        assert!(matches!(error, Error::Config { .. }));
        let text = message(&error);
        assert!(text.contains("p.toml") && text.contains(reason), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
        assert_eq!(binary(&registry, "a").as_deref(), Some("one"));
    }
    fs::write(&path, b"\xff\xfe").unwrap();
    assert!(matches!(registry.reload(), Err(Error::Io { .. })));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = message(&registry.reload().unwrap_err());
    assert!(error.starts_with("refusing "), "{error}");
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
fn a_replaced_entry_keeps_its_place_and_the_comment_above_it() {
    let fixture = Fixture::new();
    let text = "# mine\n\n# first\n[profiles.a]\nbinary = \"1\"\n\n# second\n[profiles.b]\nbinary = \"2\"\n# the end\n";
    let path = fixture.write("p.toml", text);
    let registry = ProfileRegistry::new();
    registry.load_user_file(&path).unwrap();
    registry.save_user_profile("a", &agent("3")).unwrap();
    registry.save_user_profile("b", &agent("4")).unwrap();
    let expected = text.replace('1', "3").replace('2', "4");
    assert_eq!(fs::read_to_string(&path).unwrap(), expected);
}

#[test]
fn a_replaced_entry_keeps_the_comment_above_it_in_every_notation() {
    let fixture = Fixture::new();
    for (text, expected) in [
        (
            "[profiles]\n# first\na = { binary = \"1\" } # mine\n# second\nb = { binary = \"2\" }\n",
            "[profiles]\n# first\na = { binary = \"3\" } # mine\n# second\nb = { binary = \"2\" }\n",
        ),
        (
            "# first\nprofiles.a.binary = \"1\"\n# second\nprofiles.b.binary = \"2\"\n",
            "# second\nprofiles.b.binary = \"2\"\n# first\n[profiles.a]\nbinary = \"3\"\n",
        ),
    ] {
        let path = fixture.write("p.toml", text);
        let registry = ProfileRegistry::new();
        registry.load_user_file(&path).unwrap();
        registry.save_user_profile("a", &agent("3")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        assert_eq!(binary(&registry, "a").as_deref(), Some("3"));
    }
}

#[test]
fn the_head_of_the_file_outlives_its_first_entry() {
    let fixture = Fixture::new();
    for (first, second) in [
        (
            "[profiles.a]\nbinary = '1'\n",
            "\n# second\n[profiles.b]\nbinary = '2'\n",
        ),
        (
            "profiles.a.binary = '1'\n",
            "# second\nprofiles.b.binary = '2'\n",
        ),
    ] {
        for end_of_line in ["\n", "\r\n"] {
            let text = format!("# mine\n\n# first\n{first}{second}");
            let path = fixture.write("p.toml", &text.replace('\n', end_of_line));
            let saved = || fs::read_to_string(&path).unwrap().replace("\r\n", "\n");
            let registry = ProfileRegistry::new();
            registry.load_user_file(&path).unwrap();
            registry.remove_user_profile("a").unwrap();
            assert_eq!(saved(), format!("# mine\n\n{second}"));
            registry.remove_user_profile("b").unwrap();
            assert!(saved().starts_with("# mine\n"), "{}", saved());
        }
    }
}

#[test]
fn a_save_does_not_choose_between_two_entries_of_one_label() {
    let fixture = Fixture::new();
    let text = r#"{ "profiles": { "a": { "binary": "1" }, "a": { "binary": "2" } } }"#;
    let path = fixture.write("p.json", text);
    let registry = ProfileRegistry::new();
    registry.load_user_file(&path).unwrap();
    for refused in [
        registry.save_user_profile("b", &agent("3")),
        registry.remove_user_profile("b"),
    ] {
        let error = message(&refused.unwrap_err());
        assert!(error.contains("occurs twice"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    registry.save_user_profile("a", &agent("3")).unwrap();
    assert_eq!(binary(&registry, "a").as_deref(), Some("3"));
}

#[test]
fn every_notation_of_the_table_can_be_extended_and_changed() {
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
        let other = ProfileRegistry::new();
        let report = other.load_user_file(&path).unwrap();
        assert_eq!(report.labels, ["a", "b"], "{text}");
        assert_eq!(report.errors, [], "{text}");
        let variant = exec_profiles::UserVariant::default();
        profile.variants.insert("v".into(), variant);
        registry.save_user_profile("a", &profile).unwrap();
        other.reload().unwrap();
        assert_eq!(other.user_profile("a"), Some(profile), "{text}");
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
        assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        assert_eq!(binary(&registry, "b"), None);
    }
}

#[test]
fn a_save_keeps_the_mode_and_leaves_only_the_lock_file() {
    let fixture = Fixture::new();
    let path = fixture.write("p.toml", "");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let registry = ProfileRegistry::new();
    registry.load_user_file(&path).unwrap();
    registry.save_user_profile("a", &agent("x")).unwrap();
    assert!(fs::read_to_string(&path).unwrap().contains("[profiles.a]"));
    assert_eq!(mode(&path), 0o640);
    assert_eq!(mode(&fixture.path("p.toml.lock")), 0o600);
    assert_eq!(fs::read_dir(fixture.folder.path()).unwrap().count(), 2);
}

#[test]
fn created_files_and_folders_are_private() {
    let fixture = Fixture::new();
    let path = fixture.path("sub/p.toml");
    let registry = ProfileRegistry::new();
    registry.load_user_file(&path).unwrap();
    registry.save_user_profile("a", &agent("x")).unwrap();
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(&fixture.path("sub")), 0o700);
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

/// The part of a [`Worker`]: saves one profile after the other and prints the number of each.
#[expect(clippy::print_stdout, reason = "the test reads the lines")]
pub(crate) fn save_until_killed(path: &Path) {
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
        let mut saver = Worker::start("save-until-killed", &path);
        let number = |line: &str| line.split_once("saved ")?.1.parse::<usize>().ok();
        let mut numbers = saver.lines().filter_map(|line| number(&line));
        for _ in 0..=round {
            saved = numbers.next().expect("the saver runs until it is killed") + 1;
        }
        saver.kill();
        saved = numbers.last().map_or(saved, |number| number + 1);
        let report = ProfileRegistry::empty().load_user_file(&path).unwrap();
        assert!(report.errors.is_empty() && !report.missing, "{report:?}");
        // The kill may fall between the last save and its line.
        let labels = report.labels.len();
        assert!(
            labels == saved || labels == saved + 1,
            "{labels} of {saved}"
        );
        saved = labels;
    }
}

/// The file names programs to start, so another user must not be able to write it.
#[test]
fn a_file_or_folder_that_others_can_write_to_is_refused() {
    let fixture = Fixture::new();
    let path = fixture.write("p.toml", "[profiles.mine]\nbinary = 'mine'\n");
    let set_mode = |path: &Path, mode| {
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    let registry = ProfileRegistry::new();
    for mode in [0o666, 0o664, 0o646] {
        set_mode(&path, mode);
        let error = registry.load_user_file(&path).unwrap_err();
        assert!(matches!(error, Error::NotPrivate { .. }), "{error}");
        assert!(error.to_string().contains("chmod go-w"), "{error}");
        assert_eq!(binary(&registry, "mine"), None);
    }
    set_mode(&path, 0o644);
    registry.load_user_file(&path).unwrap();
    assert_eq!(binary(&registry, "mine").as_deref(), Some("mine"));
    set_mode(fixture.folder.path(), 0o777);
    let error = registry.save_user_profile("a", &agent("x")).unwrap_err();
    assert!(matches!(error, Error::NotPrivate { .. }), "{error}");
}

#[test]
fn a_link_is_refused_and_its_target_is_accepted() {
    let fixture = Fixture::new();
    let target = fixture.write("dotfiles.toml", "[profiles.mine]\nbinary = 'mine'\n");
    let link = fixture.path("p.toml");
    symlink(&target, &link).unwrap();
    let registry = ProfileRegistry::new();
    let error = registry.load_user_file(&link).unwrap_err();
    assert!(error.to_string().contains("symbolic link"), "{error}");
    registry
        .load_user_file(fs::canonicalize(&link).unwrap())
        .unwrap();
    registry.save_user_profile("a", &agent("x")).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(registry.reload().unwrap().labels, ["a", "mine"]);
}
