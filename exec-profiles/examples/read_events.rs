//! Parses recorded output of an agent from standard input and prints its events.
//!
//! ```sh
//! cargo run -p exec-profiles --example read_events -- claude \
//!     < exec-profiles/tests/data/transcripts/claude-tool.jsonl
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use std::error::Error;
use std::io;
use std::iter;
use std::process::ExitCode;

use exec_profiles::EventFormat;

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
    let format = match std::env::args().nth(1).as_deref() {
        Some("claude") => EventFormat::Claude,
        Some("codex") => EventFormat::Codex,
        Some("gemini") => EventFormat::Gemini,
        Some("opencode") => EventFormat::Opencode,
        Some("cursor") => EventFormat::Cursor,
        _ => return Err("usage: read_events claude|codex|gemini|opencode|cursor".into()),
    };
    // The parser keeps state, so one parser reads the output of one launch.
    let mut parser = format.parser();
    for line in io::stdin().lines() {
        for event in parser.parse_line(&line?) {
            println!("{event:?}");
        }
    }
    Ok(())
}
