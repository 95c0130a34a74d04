//! Patterns of files for several sessions.

// Its unit tests: an example that is tested itself is not built as a program.
#[path = "../../path_guard/overlap.rs"]
mod overlap;

use std::io::Write;
use std::process::{Command, Stdio};

use crate::sandbox::{Sandbox, stderr, stdout};

struct Guard(Sandbox);

impl Guard {
    fn command(&self, session: &str, arguments: &[&str]) -> Command {
        let mut command = self.0.example("path_guard");
        command.args(["--session", session]).args(arguments);
        command
    }

    #[track_caller]
    fn allows(&self, session: &str, arguments: &[&str]) {
        let output = self.0.run(&mut self.command(session, arguments));
        assert_eq!((output.status.code(), &*stderr(&output)), (Some(0), ""));
    }

    #[track_caller]
    fn refuses(&self, session: &str, arguments: &[&str], expected: &str) {
        let output = self.0.run(&mut self.command(session, arguments));
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }

    fn hook(&self, session: &str, json: &str) -> (Option<i32>, String) {
        let mut process = self
            .command(session, &["hook"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        process
            .stdin
            .take()
            .unwrap()
            .write_all(json.as_bytes())
            .unwrap();
        let output = process.wait_with_output().unwrap();
        (output.status.code(), stderr(&output))
    }
}

#[test]
fn overlapping_patterns_have_one_session() {
    let guard = Guard(Sandbox::new());
    guard.allows("a", &["claim", "src/parser/**", "docs/*.md"]);
    guard.refuses(
        "b",
        &["claim", "src/**/mod.rs"],
        "`src/parser/**` of session a",
    );
    guard.allows("b", &["claim", "src/lexer/**", "docs/*.txt"]);
    guard.refuses("a", &["claim", "src/*/mod.rs"], "session b");
    guard.refuses("a", &["claim", "src/[oops"], "unclosed character class");
    let list = guard.0.run(&mut guard.command("a", &["list"]));
    let list = stdout(&list);
    assert!(list.contains("a: src/parser/** docs/*.md"), "{list}");
    guard.allows("b", &["release"]);
    guard.allows("a", &["claim", "src/**"]);
}

#[test]
fn files_of_another_session_are_refused() {
    let guard = Guard(Sandbox::new());
    guard.allows("a", &["claim", "src/parser/**"]);
    guard.allows("a", &["check", "src/parser/mod.rs"]);
    let root = guard.0.home();
    std::fs::create_dir_all(root.join("src/parser")).unwrap();
    std::os::unix::fs::symlink("src", root.join("link")).unwrap();
    // The file does not exist yet: a write through the links creates it.
    std::os::unix::fs::symlink("src/parser/new.rs", root.join("first")).unwrap();
    std::os::unix::fs::symlink("first", root.join("second")).unwrap();
    for name in [
        "./src/../src/parser/mod.rs",
        "link/parser/new/file.rs",
        "first",
        "second",
    ] {
        guard.refuses("b", &["check", name], "session a");
    }
    guard.refuses(
        "b",
        &["--root", "absent", "check", "a"],
        "there is no folder",
    );
    guard.allows("b", &["check", "src/lexer/mod.rs", "README.md"]);
    guard.refuses(
        "b",
        &["check", "README.md", "./src/parser/mod.rs"],
        "belongs to session a",
    );
}

#[test]
fn a_pattern_is_stored_by_its_real_path() {
    let guard = Guard(Sandbox::new());
    let root = guard.0.home().canonicalize().unwrap();
    std::fs::create_dir_all(root.join("src/parser")).unwrap();
    std::os::unix::fs::symlink("src", root.join("link")).unwrap();
    std::os::unix::fs::symlink("/usr", root.join("out")).unwrap();
    let absolute = format!("{}/src/parser/*.rs", root.display());
    for (pattern, stored) in [
        ("./src/parser/*.rs", "src/parser/*.rs"),
        ("src/../src/parser/*.rs", "src/parser/*.rs"),
        ("link/parser/*.rs", "src/parser/*.rs"),
        (&absolute, "src/parser/*.rs"),
        ("link/new.rs", "src/new.rs"),
        ("link", "src/**"),
        ("src/parser/", "src/parser/**"),
        ("later/", "later/**"),
        ("src/{a,b}.rs", "src/{a,b}.rs"),
        (".", "**"),
        ("**/*.md", "**/*.md"),
        ("src/*/", "src/*/**"),
        ("src/*/./new//a.rs", "src/*/new/a.rs"),
    ] {
        guard.allows("a", &["claim", pattern]);
        let list = stdout(&guard.0.run(&mut guard.command("a", &["list"])));
        assert_eq!(list, format!("a: {stored}\n"), "{pattern}");
    }
    let above = format!("../{}/*", root.file_name().unwrap().to_str().unwrap());
    guard.allows("a", &["claim", &above]);
    for (pattern, reason) in [
        ("../*.rs", "outside of the root folder"),
        ("/etc/**", "outside of the root folder"),
        ("out/lib/**", "outside of the root folder"),
        ("src/*/../x", "has `..` behind a wildcard"),
        ("**/..", "has `..` behind a wildcard"),
    ] {
        guard.refuses("a", &["claim", pattern], reason);
    }

    // Two names of one file are one file, and a file outside belongs to no session.
    guard.allows("a", &["claim", "link/parser/**"]);
    guard.refuses("b", &["claim", "src/parser/mod.rs"], "session a");
    guard.refuses("b", &["check", "src/parser/mod.rs"], "session a");
    guard.allows("a", &["claim", "**"]);
    guard.allows(
        "b",
        &["check", "/etc/hostname", "../elsewhere.rs", "out/bin/sh"],
    );
    guard.refuses("b", &["check", "anything"], "session a");
}

#[test]
fn a_tool_call_on_a_file_of_another_session_is_refused() {
    let guard = Guard(Sandbox::new());
    guard.allows("a", &["claim", "src/**"]);
    let call = r#"{"tool_name":"Edit","tool_input":{"file_path":"src/main.rs"}}"#;
    let (code, reason) = guard.hook("b", call);
    assert_eq!(code, Some(2));
    assert!(
        reason.contains("src/main.rs belongs to session a"),
        "{reason}"
    );
    assert_eq!(guard.hook("a", call).0, Some(0));
    let other = r#"{"tool_name":"Bash","tool_input":{"command":"ls"}}"#;
    assert_eq!(guard.hook("b", other).0, Some(0));
}

/// The hook is that of the documentation.
#[test]
fn a_commit_that_moves_a_file_of_another_session_is_refused() {
    let guard = Guard(Sandbox::new());
    let mut documented = include_str!("../../path_guard/main.rs").lines();
    let hook = documented.find_map(|line| line.strip_prefix("//! git diff "));
    let hook = hook.unwrap().replace("check", "--session b check");
    let program = guard.command("b", &[]).get_program().to_owned();
    std::os::unix::fs::symlink(program, guard.0.bin().join("path_guard")).unwrap();
    let shell = |script: &str| {
        let example = guard.command("b", &[]);
        let mut shell = Command::new("sh");
        let variables = example.get_envs();
        shell.envs(variables.filter_map(|(name, value)| Some((name, value?))));
        shell.current_dir(guard.0.home()).args(["-c", script]);
        guard.0.run(&mut shell)
    };
    let made = shell(
        "git init -q . && mkdir src && echo theirs >src/theirs.rs && git add src &&
         git -c user.name=a -c user.email=a@localhost commit -q -m first",
    );
    assert!(
        made.status.success(),
        "{}: is git installed?",
        stderr(&made)
    );
    guard.allows("a", &["claim", "src/**"]);
    let moved = shell(&format!("git mv src/theirs.rs mine.rs && git diff {hook}"));
    assert!(!moved.status.success());
    let told = stderr(&moved);
    assert!(
        told.contains("src/theirs.rs belongs to session a"),
        "{told}"
    );
    let own = shell(&format!(
        "git reset -q --hard && echo mine >mine.rs && git add mine.rs && git diff {hook}"
    ));
    assert_eq!((own.status.code(), &*stderr(&own)), (Some(0), ""));
}
