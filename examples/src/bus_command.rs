//! Finds the command `tmux-bus`, by which agents talk to each other.

use std::path::PathBuf;
use std::process::Command;

use crate::Result;

const NAME: &str = "tmux-bus";

/// The command on `PATH`, beside this program or in the folder of this build.
#[must_use]
pub fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).filter(|folder| folder.is_absolute());
    let program = std::env::current_exe().ok();
    let built = program
        .iter()
        .flat_map(|program| program.ancestors().skip(1).take(2));
    let built = built.map(PathBuf::from);
    let mut commands = on_path.chain(built).map(|folder| folder.join(NAME));
    commands.find(|command| command.is_file())
}

/// The command; it is built in the folder of this build if it is not there.
pub fn find_or_build() -> Result<PathBuf> {
    if let Some(command) = find() {
        return Ok(command);
    }
    eprintln!("note: building the command tmux-bus, by which the agents talk to each other");
    let program = std::env::current_exe()?;
    let target = program
        .ancestors()
        .nth(3)
        .ok_or("this program is in no folder of a build")?;
    let built = Command::new("cargo")
        .args([
            "build",
            "--quiet",
            "-p",
            "tmux-bus",
            "--features",
            "cli",
            "--bin",
            NAME,
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("CARGO_TARGET_DIR", target)
        .status();
    match (built, find()) {
        (Ok(status), Some(command)) if status.success() => Ok(command),
        _ => Err("the command tmux-bus could not be built; install it with: cargo install tmux-bus --features cli".into()),
    }
}
