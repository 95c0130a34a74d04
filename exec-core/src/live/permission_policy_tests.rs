use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use PermissionAction::{Allow, Ask, Deny};

fn rule(action: PermissionAction) -> PermissionRule {
    PermissionRule::new(action)
}

fn decide(policy: &PermissionPolicy, command: &str) -> PermissionAction {
    let facts = PermissionFacts {
        tool: "Bash",
        command: Some(command),
        paths: &[],
    };
    policy.decide(&facts, Path::new("/"))
}

#[test]
fn an_allow_rule_covers_one_simple_command_only() {
    let policy = PermissionPolicy::default().rule(rule(Allow).tool("Bash").command("cargo test *"));
    for allowed in [
        "cargo test",
        "cargo test -p a",
        "cargo  test   --all",
        "cargo test 'a b'",
        "cargo test --features=x",
    ] {
        assert_eq!(decide(&policy, allowed), Allow, "{allowed:?}");
    }
    let hostile = [
        "cargo test && rm -rf /",
        "cargo test || rm x",
        "cargo test; rm x",
        "cargo test & rm x",
        "cargo test | sh",
        "cargo test\nrm x",
        "cargo test\r\nrm x",
        "cargo test $(rm x)",
        "cargo test `rm x`",
        "cargo test \"$(rm x)\"",
        "cargo test <(rm x)",
        "cargo test > /etc/passwd",
        "cargo test >> x",
        "cargo test 2>&1",
        "cargo test < x",
        "cargo test $IFS",
        "cargo test ${x}",
        "cargo test {a,b}",
        "cargo test *",
        "cargo test ~/x",
        "cargo test \\; rm x",
        "cargo test # x",
        "cargo test !x",
        "cargo test 'open",
        "cargo test \u{0}",
        "PATH=/tmp cargo test",
        "env cargo test",
        "sudo cargo test",
        "./cargo test",
        "/tmp/cargo test",
        "cargo testx",
        "cargo",
        "cargo  tes t",
        "(cargo test)",
        "{ cargo test; }",
        "sh -c 'cargo test'",
        "cargo test \u{1b}[2J",
        "cargo\u{a0}test",
        "cargo test\u{3000}rm",
        "cargo test \u{2028}rm",
        "cargo test \u{202e}mr",
        "cargo test \u{200b}",
        "\u{441}argo test",
        "cargo test ?",
        "cargo test [ab]",
        "cargo test &> x",
        "cargo test <<EOF",
        "cargo test <<< x",
        "cargo test $'\\x72m'",
        "cargo test \\\nrm x",
        "cargo test =rm",
        "cargo test \"a\nb\"",
        "time cargo test",
        "exec cargo test",
        "'cargo test'",
        "cargo\u{b}test",
        "",
    ];
    assert!(hostile.len() >= 50);
    for command in hostile {
        assert_eq!(decide(&policy, command), Ask, "{command:?}");
    }
}

#[test]
fn a_deny_rule_covers_every_part_of_a_command_line() {
    let policy = PermissionPolicy::allow_all().rule(rule(Deny).command("rm *"));
    for denied in [
        "rm x",
        "ls && rm -rf /",
        "ls; rm x",
        "ls | rm",
        "echo $(rm x)",
        "echo `rm x`",
        "/bin/rm x",
        "sudo rm x",
        "env A=1 rm x",
        "ls\nrm x",
        "(rm x)",
        "'rm' x",
        "r\\m x",
        "r\\\nm x",
        "\"rm\" x",
        "{rm,-rf,x}",
        "{/bin/rm,x}",
        "sh -c 'rm x'",
        "eval \"rm x\"",
        "$'rm' x",
        "! rm x",
        "xargs rm",
        "ls\trm x",
        "if true; then rm x; fi",
        "<x rm y",
        "ls |& rm x",
    ] {
        assert_eq!(decide(&policy, denied), Deny, "{denied:?}");
    }
    assert_eq!(decide(&policy, "ls rmdir"), Allow);
}

/// A pattern without a final `*` must match all words of a command, so the rest of the line must not
/// count as words of it.
#[test]
fn a_deny_rule_for_an_exact_command_covers_redirections_and_comments() {
    let policy = PermissionPolicy::allow_all().rule(rule(Deny).command("git push"));
    for denied in [
        "git push",
        "git push 2>&1",
        "git push 2>/dev/null",
        "git push 1> x",
        "git push 2> 'a b'",
        "git push 10>>x",
        "git push &>x",
        "git push >|x",
        "git push 2>${x}",
        "git push # x",
        "git push #",
        "git push 2>&1 # x",
        "ls; git push 2>&1 | tail",
        "git 2>&1 push",
        "git >log push",
        "git push >log 2>&1",
        "git > 'log' push 2>&1",
        "git 2>${x} push",
        "git 2>'a b' push",
        "git 2> \"a b\" push",
        "git 2>a\\ b push",
        "git {fd}>x push",
        "sh -c \"git 2>'a b' push\"",
        "echo \"a > b'c\"; git push 2>&1",
        "sh -c 'git push' name",
        "su -c \"git push 2>&1\" user",
        "env '#' git push",
    ] {
        assert_eq!(decide(&policy, denied), Deny, "{denied:?}");
    }
    for allowed in ["git push2", "git push2>x", "git push origin", "git push#x"] {
        assert_eq!(decide(&policy, allowed), Allow, "{allowed:?}");
    }
}

#[test]
fn a_deny_rule_that_no_line_could_match_forbids_its_parts() {
    for pattern in [
        "curl * | sh",
        "curl '*'",
        "\"curl\" *",
        "(curl *)",
        "",
        "  ",
        "|",
    ] {
        let policy = PermissionPolicy::allow_all().rule(rule(Deny).command(pattern));
        let line = "curl x | sh";
        assert_eq!(decide(&policy, line), Deny, "{pattern:?}");
    }
    // For a rule that allows, the same patterns allow nothing.
    for pattern in ["curl * | sh", "(curl *)", "", "curl x; sh"] {
        let policy = PermissionPolicy::default().rule(rule(Allow).command(pattern));
        for line in ["curl x | sh", "curl x", "sh", ""] {
            assert_eq!(decide(&policy, line), Ask, "{pattern:?} {line:?}");
        }
    }
}

#[test]
fn the_strictest_rule_decides_in_any_order() {
    let allow = rule(Allow).tool("Bash");
    let deny = rule(Deny).command("git push *");
    for rules in [[allow.clone(), deny.clone()], [deny, allow]] {
        let policy = rules
            .into_iter()
            .fold(PermissionPolicy::default(), PermissionPolicy::rule);
        assert_eq!(decide(&policy, "git push origin"), Deny);
        assert_eq!(decide(&policy, "git status"), Allow);
    }
}

#[test]
fn a_tool_is_matched_by_its_name() {
    let policy = PermissionPolicy::default().rule(rule(Allow).tool("mcp__files__*"));
    let by_tool = |tool| {
        let facts = PermissionFacts {
            tool,
            ..PermissionFacts::default()
        };
        policy.decide(&facts, Path::new("/"))
    };
    assert_eq!(by_tool("mcp__files__read"), Allow);
    assert_eq!(by_tool("mcp__file"), Ask);
    assert_eq!(by_tool("xmcp__files__read"), Ask);
}

/// A workspace with a folder inside and one outside.
struct Workspace {
    folder: tempfile::TempDir,
}

impl Workspace {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("work/src")).unwrap();
        fs::create_dir(folder.path().join("outside")).unwrap();
        fs::write(folder.path().join("outside/secret"), "x").unwrap();
        Self { folder }
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    fn decide(&self, policy: &PermissionPolicy, paths: &[&str]) -> PermissionAction {
        let paths: Vec<_> = paths.iter().map(PathBuf::from).collect();
        let facts = PermissionFacts {
            tool: "Write",
            command: None,
            paths: &paths,
        };
        policy.decide(&facts, &self.root())
    }
}

/// `/proc/self/cwd` is the folder of the agent for the agent, and that of the host for the host.
#[cfg(target_os = "linux")]
#[test]
fn a_path_that_is_another_one_for_each_process_is_unknown() {
    let workspace = Workspace::new();
    symlink("/proc/self/cwd", workspace.root().join("cwd")).unwrap();
    symlink("/dev/fd", workspace.root().join("fd")).unwrap();
    let folder = std::env::current_dir().unwrap();
    for path in [
        "/proc/self/cwd/secret",
        "/proc/thread-self/cwd/secret",
        "/proc/./self/../self/cwd/secret",
        "cwd/secret",
        "fd/0",
    ] {
        let denied = PermissionPolicy::allow_all().rule(rule(Deny).path("secret"));
        assert_eq!(workspace.decide(&denied, &[path]), Deny, "{path:?}");
        for allowed in [folder.as_path(), Path::new("/")] {
            let policy = PermissionPolicy::default().rule(rule(Allow).path(allowed));
            assert_eq!(workspace.decide(&policy, &[path]), Ask, "{path:?}");
        }
        let facts = PermissionFacts {
            tool: "Bash",
            command: Some(&format!("cat {path}")),
            paths: &[],
        };
        assert_eq!(denied.decide(&facts, &workspace.root()), Ask, "{path:?}");
    }
}

#[test]
fn paths_are_resolved_before_they_are_compared() {
    let workspace = Workspace::new();
    let root = workspace.root();
    let outside = workspace.folder.path().join("outside");
    symlink(&outside, root.join("link")).unwrap();
    symlink(outside.join("absent"), root.join("dangling")).unwrap();
    symlink("loop", root.join("loop")).unwrap();
    let policy = PermissionPolicy::default().rule(rule(Allow).path("."));
    for inside in [
        "src/new.rs",
        "src/../src/a",
        "./a",
        "new/folder/file",
        "src",
    ] {
        assert_eq!(workspace.decide(&policy, &[inside]), Allow, "{inside:?}");
    }
    let secret = outside.join("secret");
    for hostile in [
        "../outside/secret",
        "src/../../outside/secret",
        "link/secret",
        "link/new",
        "dangling",
        "dangling/x",
        "loop/x",
        "new/../../outside/secret",
        "/etc/passwd",
        secret.to_str().unwrap(),
        "../work-other/x",
        "link/../outside/secret",
        "src/./../../outside",
        "link/",
        "~/x",
        "~root/x",
        "$HOME/x",
        "file:///etc/passwd",
        "file:/etc/passwd",
        "a\u{0}b",
    ] {
        assert_eq!(workspace.decide(&policy, &[hostile]), Ask, "{hostile:?}");
    }
    assert_eq!(workspace.decide(&policy, &["src/a", "/etc/passwd"]), Ask);
    assert_eq!(workspace.decide(&policy, &[]), Ask);
}

#[test]
fn a_path_rule_does_not_allow_a_command() {
    let workspace = Workspace::new();
    let policy = PermissionPolicy::default().rule(rule(Allow).path("."));
    let facts = PermissionFacts {
        tool: "Bash",
        command: Some("rm -rf src"),
        paths: &[workspace.root().join("src")],
    };
    assert_eq!(policy.decide(&facts, &workspace.root()), Ask);
}

#[test]
fn a_deny_rule_for_a_path_is_not_avoided_by_a_link() {
    let workspace = Workspace::new();
    let outside = workspace.folder.path().join("outside");
    symlink(&outside, workspace.root().join("link")).unwrap();
    let policy = PermissionPolicy::allow_all().rule(rule(Deny).path(&outside));
    assert_eq!(workspace.decide(&policy, &["link/secret"]), Deny);
    assert_eq!(workspace.decide(&policy, &["src/a", "link/new"]), Deny);
    assert_eq!(workspace.decide(&policy, &["src/a"]), Allow);
    symlink(outside.join("absent"), workspace.root().join("dangling")).unwrap();
    symlink("loop", workspace.root().join("loop")).unwrap();
    for unknown in ["dangling", "loop/x", "~/x", "$DIR/x", "file:///x"] {
        assert_eq!(workspace.decide(&policy, &[unknown]), Deny, "{unknown}");
    }
}

#[test]
fn a_deny_rule_for_a_path_covers_the_words_of_a_command() {
    let workspace = Workspace::new();
    let root = workspace.root();
    let outside = workspace.folder.path().join("outside");
    symlink(&outside, root.join("link")).unwrap();
    let policy = PermissionPolicy::default()
        .rule(rule(Allow).command("cat *"))
        .rule(rule(Deny).path(&outside))
        .rule(rule(Deny).path("~/.ssh"));
    let decide = |command: &str| {
        let facts = PermissionFacts {
            tool: "Bash",
            command: Some(command),
            paths: &[],
        };
        policy.decide(&facts, &root)
    };
    let absolute = outside.join("secret");
    let absolute = absolute.display();
    for denied in [
        format!("cat {absolute}"),
        format!("cat '{absolute}'"),
        format!("cat --file={absolute}"),
        format!("cat <{absolute}"),
        "cat ../outside/secret".to_owned(),
        "cat link/secret".to_owned(),
        "cd link && cat secret".to_owned(),
        "cat ~/.ssh/id".to_owned(),
        "cat $HOME/.ssh/id".to_owned(),
        "cat \"${HOME}\"/.ssh/id".to_owned(),
        format!("cat {}", "x ".repeat(10_000)),
        format!("cat {}", "x/".repeat(10_000)),
        // An option and its path in one word.
        format!("cat -C{absolute}"),
        format!("cat -xzf{absolute}"),
        "cat -f../outside/secret".to_owned(),
        format!("cat @{absolute}"),
        format!("cat -d@{absolute}"),
        "cat --data=@../outside/secret".to_owned(),
        format!("cat a:{absolute}"),
        format!("cat file://{absolute}"),
        "cat ../outside/s*".to_owned(),
    ] {
        assert_eq!(decide(&denied), Deny, "{denied:?}");
    }
    assert_eq!(decide("cat src/a ../other"), Allow);
    assert_eq!(decide("cat a:b,c=d 'e f'"), Allow);
    assert_eq!(decide("cat -n -A --show-all=x a.b"), Allow);
    // No file can have such a name.
    assert_eq!(decide(&format!("cat {}", "x".repeat(5000))), Allow);
}

/// The rule must not be avoided by a name with a space in it, which a split at spaces tears apart.
#[test]
fn a_deny_rule_for_a_path_with_spaces_covers_commands() {
    let workspace = Workspace::new();
    let policy = PermissionPolicy::default()
        .rule(rule(Allow).command("cat *"))
        .rule(rule(Deny).path("my secrets, a=b; (old)"));
    for denied in [
        "cat 'my secrets, a=b; (old)/key'",
        "cat \"my secrets, a=b; (old)/key\"",
        "cat my\\ secrets,\\ a=b\\;\\ \\(old\\)/key",
        "cat 'my secrets, '\"a=b; (old)\"/key",
    ] {
        let facts = PermissionFacts {
            tool: "Bash",
            command: Some(denied),
            paths: &[],
        };
        let decided = policy.decide(&facts, &workspace.root());
        assert_eq!(decided, Deny, "{denied:?}");
    }
}

#[test]
fn a_word_that_may_lead_to_a_denied_path_is_asked() {
    let workspace = Workspace::new();
    let root = workspace.root();
    let outside = workspace.folder.path().join("outside");
    symlink(outside.join("absent"), root.join("dangling")).unwrap();
    symlink("loop", root.join("loop")).unwrap();
    let policy = PermissionPolicy::allow_all()
        .rule(rule(Deny).path(&outside))
        .rule(rule(Deny).path("src/secret"));
    let decide = |command: &str| {
        let facts = PermissionFacts {
            tool: "Bash",
            command: Some(command),
            paths: &[],
        };
        policy.decide(&facts, &root)
    };
    for asked in [
        // A folder around it.
        "grep -r key ..",
        "grep -r key .",
        "tar -C.. -c outside",
        "cd .. && cat outside/secret",
        "find / -name secret",
        "cat /../..",
        // A pattern that may become it.
        "cat ../outs*/secret",
        "cat ../outsid?/secret",
        "cat ../[o]utside/secret",
        "cat ../out{side,x}/secret",
        "cat ../*/secret",
        "ls s*",
        "ls src/*",
        "cat **/key",
        "cat src/*/../../../outside/secret",
        // Not known.
        "echo x > dangling",
        "cat loop/x",
        "mkdir new && cat new/../../outside/secret",
        "cat ~root/x",
        "cat ~+/x",
    ] {
        assert_eq!(decide(asked), Ask, "{asked:?}");
    }
    for allowed in [
        "ls *.rs",
        "ls src/a*",
        "cat a/../b",
        "echo '{\"a\":1}/x'",
        "ls",
    ] {
        fs::create_dir_all(root.join("a")).unwrap();
        assert_eq!(decide(allowed), Allow, "{allowed:?}");
    }
}

/// Some agents run a command in a folder that the model names.
#[test]
fn the_folder_of_a_command_counts() {
    let workspace = Workspace::new();
    let root = workspace.root();
    let outside = workspace.folder.path().join("outside");
    symlink(&outside, root.join("link")).unwrap();
    let decide = |policy: &PermissionPolicy, command: &str, folder: &Path| {
        let facts = PermissionFacts {
            tool: "Bash",
            command: Some(command),
            paths: &[folder.to_owned()],
        };
        policy.decide(&facts, &root)
    };
    let allow = PermissionPolicy::default().rule(rule(Allow).command("cat *"));
    for inside in [
        root.as_path(),
        Path::new("."),
        Path::new("src"),
        &root.join("src"),
    ] {
        assert_eq!(decide(&allow, "cat x", inside), Allow, "{inside:?}");
    }
    for other in ["..", "link", "../outside", "/", "~", "$X", "missing/../.."] {
        assert_eq!(decide(&allow, "cat x", Path::new(other)), Ask, "{other}");
    }
    let deny = allow.rule(rule(Deny).path("src/secret"));
    assert_eq!(
        decide(&deny, "cat x", &root),
        Allow,
        "the folder of every command"
    );
    assert_eq!(
        decide(&deny, "cat x", Path::new("src")),
        Ask,
        "it contains the path"
    );
    assert_eq!(decide(&deny, "cat secret/key", Path::new("src")), Deny);
    fs::create_dir(root.join("other")).unwrap();
    let other = Path::new("other");
    assert_eq!(decide(&deny, "cat ../src/secret", other), Deny);
    assert_eq!(decide(&deny, "cat ../src/x", other), Allow);
    let deny = PermissionPolicy::allow_all().rule(rule(Deny).path(&outside));
    assert_eq!(decide(&deny, "cat secret", &outside), Deny);
    assert_eq!(decide(&deny, "cat secret", Path::new("link")), Deny);
}

/// The rules run while the session is locked: a hostile request must not stop it.
#[test]
fn the_work_for_a_request_does_not_grow_with_its_length() {
    let workspace = Workspace::new();
    let policy = PermissionPolicy::allow_all()
        .rule(rule(Deny).path("~/.ssh"))
        .rule(rule(Deny).command("rm *"));
    let deep = format!("{}x", "a/".repeat(2000));
    let paths = vec![PathBuf::from(&deep); 256];
    let line = format!("cat {deep} ").repeat(400);
    let facts = PermissionFacts {
        tool: "Bash",
        command: Some(&line),
        paths: &paths,
    };
    // Too long to look at, and so denied. Without a bound this takes minutes.
    assert_eq!(policy.decide(&facts, &workspace.root()), Deny);
    let facts = PermissionFacts {
        command: None,
        ..facts
    };
    assert_eq!(policy.decide(&facts, &workspace.root()), Allow);
    // Longer than any path that can be opened, and so unknown.
    for part in ["a/", "a/../"] {
        std::fs::create_dir_all(workspace.root().join("a")).unwrap();
        let longest = PathBuf::from(format!("{}x", part.repeat(1 << 20)));
        let facts = PermissionFacts {
            paths: std::slice::from_ref(&longest),
            ..facts
        };
        assert_eq!(policy.decide(&facts, &workspace.root()), Deny, "{part}");
    }
}

#[test]
fn the_written_form_refuses_what_it_does_not_know() {
    let read = |json: &str| serde_json::from_str::<PermissionPolicy>(json);
    assert!(read(r#"{"permissions":[{"action":"deny","path":"a"}]}"#).is_ok());
    for wrong in [
        r#"{"permission":[]}"#,
        r#"{"permissions":[{"action":"deny","paths":["a"]}]}"#,
        r#"{"permissions":[{"action":"deny","Path":"a"}]}"#,
        r#"{"permissions":[{"action":"Deny","path":"a"}]}"#,
        r#"{"permissions":[{"action":"denied"}]}"#,
        r#"{"permissions":[{"path":"a"}]}"#,
        r#"{"permissions":[{"action":"deny","path":"a","path":"b"}]}"#,
        r#"{"permissions":{"action":"deny"}}"#,
        r#"{"permission_deadline_ms":-1}"#,
        r#"{"permission_deadline_ms":"1000"}"#,
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_folder_around_a_denied_path_is_asked() {
    let workspace = Workspace::new();
    let policy = PermissionPolicy::allow_all().rule(rule(Deny).path("src/secret"));
    assert_eq!(workspace.decide(&policy, &["src/secret/key"]), Deny);
    assert_eq!(workspace.decide(&policy, &["src"]), Ask);
    assert_eq!(workspace.decide(&policy, &[".", "src/a"]), Ask);
    assert_eq!(workspace.decide(&policy, &["src/a"]), Allow);
    let tool = PermissionPolicy::allow_all().rule(rule(Deny).tool("Read").path("src/secret"));
    assert_eq!(workspace.decide(&tool, &["src"]), Allow, "another tool");
}

#[test]
fn a_rule_for_the_home_folder_needs_one() {
    assert!(from_home(Path::new("~/.ssh"), None).is_err());
    let home = Some(OsStr::new("/home/a"));
    let path = |path: &str| from_home(Path::new(path), home).unwrap();
    assert_eq!(path("~/.ssh"), Path::new("/home/a/.ssh"));
    assert_eq!(path("~a/.ssh"), Path::new("~a/.ssh"));
}

#[test]
fn a_rule_for_a_folder_of_another_user_forbids_nothing_else() {
    let workspace = Workspace::new();
    let policy = PermissionPolicy::allow_all().rule(rule(Deny).path("/root/.ssh"));
    assert_eq!(workspace.decide(&policy, &["src/a"]), Allow);
    assert_eq!(decide(&policy, "cat src/a"), Allow);
    assert_eq!(decide(&policy, "cat /root/.ssh"), Deny);
}

#[test]
fn stars_match_any_characters() {
    for (pattern, text, expected) in [
        ("*", "", true),
        ("a*", "a", true),
        ("a*c", "abc", true),
        ("a*c", "ab", false),
        ("*b*", "abc", true),
        ("a*b*c", "a-b-c", true),
        ("a*b*c", "a-c-b", false),
        ("", "", true),
        ("", "a", false),
        ("aa*aa", "aaa", false),
    ] {
        assert_eq!(glob(pattern, text), expected, "{pattern} {text}");
    }
}
