//! The scripted agent in a tmux pane: it shows a prompt, and each answer ends with its marker.
//! The directives in a message are those of [`scripted_agent`].

use std::io;

use crate::console::{self, Console};
use crate::scripted_agent::{self, SUBCOMMAND, run_tool, think, tool_of};

const MARKER: &str = "--marker=";
/// The prompt that it shows, for a stand-in of another agent; the default is `> `.
const PROMPT: &str = "--prompt=";

/// The shell command line that starts the agent in a pane.
pub fn command(marker: &str) -> io::Result<String> {
    let program = scripted_agent::this_program()?;
    let marker = quoted(&format!("{MARKER}{marker}"));
    Ok(format!("exec {} {SUBCOMMAND} {marker}", quoted(&program)))
}

/// A word in single quotes for `sh`.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Runs the agent in this pane if the arguments name a marker.
pub(crate) fn run_if_asked(arguments: &[String]) -> Option<io::Result<()>> {
    let value = |option| arguments.iter().find_map(|arg| arg.strip_prefix(option));
    let marker = value(MARKER)?;
    Some(run(marker, value(PROMPT).unwrap_or("> ")))
}

fn run(marker: &str, shown: &str) -> io::Result<()> {
    let mut console = Console::open()?;
    let mut earlier: Vec<String> = Vec::new();
    while let Some(prompt) = console.read_message(shown)? {
        if prompt.trim().is_empty() {
            continue;
        }
        think(&prompt, "slow");
        let (output, _) = run_tool(tool_of(&prompt))?;
        if prompt.contains("[[crash]]") {
            std::process::abort();
        }
        let answer = scripted_agent::answer(&prompt, &earlier, &output);
        console::print(&format!("{answer}\n{marker}\n"))?;
        earlier.push(prompt);
    }
    Ok(())
}
