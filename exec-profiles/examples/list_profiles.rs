//! Prints the registered profiles with their commands.
//!
//! ```sh
//! cargo run -p exec-profiles --example list_profiles -- [profiles.toml]
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use std::error::Error;
use std::iter;
use std::process::ExitCode;

use exec_profiles::ProfileRegistry;

fn main() -> ExitCode {
    let Err(error) = run() else {
        return ExitCode::SUCCESS;
    };
    let chain = iter::successors(Some(&*error), |&error| error.source());
    let messages: Vec<_> = chain.map(ToString::to_string).collect();
    eprintln!("error: {}", messages.join(": "));
    ExitCode::FAILURE
}

fn run() -> Result<(), Box<dyn Error>> {
    let registry = ProfileRegistry::new();
    if let Some(file) = std::env::args_os().nth(1) {
        for error in registry.load_user_file(file)?.errors {
            eprintln!("skipped: {error}");
        }
    }
    for label in registry.labels() {
        let profile = registry.get_profile(&label).ok_or("the label is known")?;
        if let Some(command) = profile.command {
            println!("{label}: {} {}", command.binary, command.args.join(" "));
        }
        for variant in profile.variants {
            let command = variant.command.unwrap_or_default();
            println!("  {}: {}", variant.label, command.args.join(" "));
        }
    }
    Ok(())
}
