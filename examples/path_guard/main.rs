//! Keeps agents out of each other's files.
//!
//! ```sh
//! cargo run -p examples --example path_guard -- claim 'src/parser/**' 'docs/*.md'
//! cargo run -p examples --example path_guard -- check src/main.rs   # exit 1 if another has it
//! cargo run -p examples --example path_guard -- release
//! ```
//!
//! A session claims patterns of files. A claim is refused if one of its patterns may match a file
//! that a pattern of another session matches; in doubt it is refused.
//!
//! A file has one name here: its real path below the root folder. The part of a pattern before its
//! first wildcard may have any form (absolute, with `..`, through symbolic links) and is stored as the
//! real path. The rest matches real names only: `..` there is refused, and a link is not followed. A
//! folder stands for everything in it, also `src/*/`. A pattern outside of the root is refused; a file outside of it
//! belongs to no session, also if a link inside leads there.
//!
//! As a git hook (`.git/hooks/pre-commit`); without renames, because of a renamed file git tells the new name only:
//!
//! ```sh
//! git diff --cached --name-only --no-renames -z | xargs -0 path_guard check
//! ```
//!
//! As a hook that an agent calls before it uses a tool (Claude Code `PreToolUse`, matcher
//! `Edit|Write`): `path_guard hook`. It reads the JSON of the call from stdin; exit code 2 refuses
//! the call, and the agent gets the reason. A shell of an agent ends with each call, so name the agent
//! with `--session`, and the folder of the claims with `--root`.
//!
//! Exit codes: 0 allowed or done, 1 refused or failed, 2 refused by `hook`, or wrong arguments.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program prints"
)]

mod overlap;
mod real_pattern;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use examples::Result;
use globset::{GlobBuilder, GlobMatcher};
use timed_store::blocking::TimedStorage;
use timed_store::{Entries, LockPolicy, SessionId};

use overlap::may_overlap;
use real_pattern::{real_path, real_pattern};

/// Claims patterns of files for a session, and checks files against the claims of the others.
#[derive(Parser)]
#[command(name = "path_guard")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// The session [default: that of the terminal, else the parent process]
    ///
    /// An agent's shell tool needs it: there each call may have a shell of its own, which ends with
    /// the call, and with it the session and its claims. Use one name for each agent.
    #[arg(long, global = true, value_name = "ID")]
    session: Option<SessionId>,
    /// The folder that paths are relative to [default: the current one]
    #[arg(long, global = true, value_name = "FOLDER", default_value = ".")]
    root: PathBuf,
    /// The file of the claims [default: .path-guard.json in the root folder]
    #[arg(long, global = true, value_name = "FILE")]
    state: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Claim patterns, in place of those that the session has
    Claim {
        #[arg(required = true)]
        patterns: Vec<String>,
    },
    /// Fail if a file belongs to another session
    Check { files: Vec<PathBuf> },
    /// Check the file of an agent's tool call, whose JSON is on stdin
    Hook,
    /// Release all patterns of the session
    Release,
    /// List the patterns of all sessions
    List,
}

type Patterns = Vec<String>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Command::Hook = arguments.command {
        return match hook(&arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{}", examples::with_causes(&*error));
                ExitCode::from(2)
            }
        };
    }
    examples::report(run(&arguments))
}

fn run(arguments: &Arguments) -> Result<()> {
    let store = open(arguments)?;
    match &arguments.command {
        Command::Claim { patterns } => {
            let root = arguments.root.canonicalize()?;
            let real = patterns.iter().map(|pattern| real_pattern(&root, pattern));
            claim(&store, &real.collect::<Result<Patterns>>()?)
        }
        Command::Check { files } => check(&store.entries()?, &arguments.root, files),
        Command::Hook => hook(arguments),
        Command::Release => {
            store.remove()?;
            Ok(())
        }
        Command::List => {
            for (session, entry) in store.entries()?.iter() {
                println!("{session}: {}", entry.value().join(" "));
            }
            Ok(())
        }
    }
}

/// Decides and stores in one step: two sessions that claim at the same time cannot both win.
fn claim(store: &TimedStorage<Patterns>, patterns: &[String]) -> Result<()> {
    for pattern in patterns {
        matcher(pattern)?;
    }
    let conflict = store.transaction(|entries| {
        let conflict = entries.others().find_map(|(session, entry)| {
            let overlap = |pattern: &&String| {
                entry
                    .value()
                    .iter()
                    .find(|theirs| may_overlap(pattern, theirs))
            };
            let mine = patterns.iter().find(|pattern| overlap(pattern).is_some())?;
            let theirs = overlap(&mine)?;
            Some(format!(
                "`{mine}` may overlap with `{theirs}` of session {session}"
            ))
        });
        if conflict.is_none() {
            entries.store(patterns.to_vec());
        }
        conflict
    })?;
    conflict.map_or(Ok(()), |conflict| Err(conflict.into()))
}

fn check(entries: &Entries<Patterns>, root: &Path, files: &[PathBuf]) -> Result<()> {
    let root = root.canonicalize()?;
    for file in files {
        let real = real_path(&root.join(file))?;
        let Ok(relative) = real.strip_prefix(&root) else {
            continue;
        };
        for (session, entry) in entries.others() {
            for pattern in entry.value() {
                if matcher(pattern)?.is_match(relative) {
                    let file = relative.display();
                    return Err(format!("{file} belongs to session {session} (`{pattern}`)").into());
                }
            }
        }
    }
    Ok(())
}

/// The tool call of an agent: `{"tool_input": {"file_path": "…"}}`. A call without a file is
/// allowed.
fn hook(arguments: &Arguments) -> Result<()> {
    let call: serde_json::Value = serde_json::from_reader(std::io::stdin())?;
    let input = &call["tool_input"];
    let file = ["file_path", "path", "notebook_path"]
        .iter()
        .find_map(|key| input[key].as_str());
    let Some(file) = file else {
        return Ok(());
    };
    let files = [PathBuf::from(file)];
    check(&open(arguments)?.entries()?, &arguments.root, &files)
}

fn matcher(pattern: &str) -> Result<GlobMatcher> {
    let glob = GlobBuilder::new(pattern).literal_separator(true).build()?;
    Ok(glob.compile_matcher())
}

fn open(arguments: &Arguments) -> Result<TimedStorage<Patterns>> {
    if !arguments.root.is_dir() {
        return Err(format!("there is no folder {}", arguments.root.display()).into());
    }
    let state = arguments.state.clone();
    let state = state.unwrap_or_else(|| arguments.root.join(".path-guard.json"));
    let mut builder = TimedStorage::builder(state);
    if let Some(session) = &arguments.session {
        builder = builder.session(session.clone());
    }
    let store = builder
        .lock(LockPolicy::Wait(Duration::from_secs(5)))
        .on_incident(|incident| eprintln!("note: {incident}"))
        .open()?;
    Ok(store)
}
