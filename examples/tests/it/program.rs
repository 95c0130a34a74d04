//! Where the examples' programs are, and what they answered.

use std::path::PathBuf;
use std::process::{Command, Output};

/// Cargo builds the examples of a package before it runs its tests, next to them.
pub(crate) fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let target = test.parent().and_then(|deps| deps.parent()).unwrap();
    let program: PathBuf = target.join("examples").join(name);
    assert!(
        program.exists(),
        "{} is not built: run `cargo build -p examples --examples`, or all tests by `cargo test -p examples`",
        program.display()
    );
    Command::new(program)
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
