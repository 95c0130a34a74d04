//! The scripted agent as an inhabitant of a tmux pane: a prompt, and answers that end with its
//! marker. The directives are those of the module [`scripted_agent`].

use std::io;

use crate::console::{self, Console};
use crate::scripted_agent::{self, SUBCOMMAND, directive, run_tool, think};

const MARKER: &str = "--marker=";

/// The shell command line that starts it in a pane.
pub fn command(marker: &str) -> io::Result<String> {
    let program = scripted_agent::this_program()?;
    let marker = quoted(&format!("{MARKER}{marker}"));
    Ok(format!("exec {} {SUBCOMMAND} {marker}", quoted(&program)))
}

/// A word as `sh` takes it.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Lives in the pane if the arguments name a marker.
pub(crate) fn live_if_asked(arguments: &[String]) -> Option<io::Result<()>> {
    let marker = arguments.iter().find_map(|arg| arg.strip_prefix(MARKER))?;
    Some(live(marker))
}

fn live(marker: &str) -> io::Result<()> {
    let mut console = Console::open()?;
    let mut earlier: Vec<String> = Vec::new();
    while let Some(prompt) = console.read_message("> ")? {
        if prompt.trim().is_empty() {
            continue;
        }
        think(&prompt, "slow");
        let (output, _) = run_tool(directive(&prompt, "tool").unwrap_or("ls | wc -l"))?;
        if prompt.contains("[[crash]]") {
            std::process::abort();
        }
        let answer = scripted_agent::answer(&prompt, &earlier, &output);
        console::print(&format!("{answer}\n{marker}\n"))?;
        earlier.push(prompt);
    }
    Ok(())
}
