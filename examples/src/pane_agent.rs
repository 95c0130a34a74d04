//! The scripted agent in a tmux pane: it shows a prompt, and each answer ends with its marker.
//! The directives in a message are those of [`scripted_agent`].

use std::io;
use std::path::{Path, PathBuf};

use crate::console::{self, Console};
use crate::scripted_agent::{self, Conversation, SUBCOMMAND, run_tool, tool_of};

const MARKER: &str = "--marker=";
/// The prompt that it shows, for a stand-in of another agent; the default is `> `.
const PROMPT: &str = "--prompt=";
/// The file of its conversation, with which a restarted agent continues.
const MEMORY: &str = "--memory=";

/// The shell command line that starts the agent in a pane.
pub fn command(marker: &str) -> io::Result<String> {
    let program = scripted_agent::this_program()?;
    let marker = quoted(&format!("{MARKER}{marker}"));
    Ok(format!("exec {} {SUBCOMMAND} {marker}", quoted(&program)))
}

/// As [`command`]; the conversation is stored in a file, so that an agent that was killed can continue.
pub fn command_with_memory(marker: &str, file: &Path) -> io::Result<String> {
    let memory = quoted(&format!("{MEMORY}{}", file.display()));
    Ok(format!("{} {memory}", command(marker)?))
}

/// A word in single quotes for `sh`.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Runs the agent in this pane if the arguments name a marker.
pub(crate) fn run_if_asked(arguments: &[String]) -> Option<io::Result<()>> {
    let value = |option| arguments.iter().find_map(|arg| arg.strip_prefix(option));
    let marker = value(MARKER)?;
    let memory = value(MEMORY).map(PathBuf::from);
    Some(run(marker, value(PROMPT).unwrap_or("> "), memory))
}

fn run(marker: &str, shown: &str, memory: Option<PathBuf>) -> io::Result<()> {
    let mut console = Console::open()?;
    let mut talk = Conversation::load(String::new(), memory)?;
    while let Some(prompt) = console.read_message(shown)? {
        if prompt.trim().is_empty() {
            continue;
        }
        let plan = talk.begin(&prompt)?;
        std::thread::sleep(plan.thinking("slow"));
        let output = match &plan.used_tool {
            Some(output) => output.clone(),
            None => {
                let (output, _) = run_tool(tool_of(&plan.prompt))?;
                talk.tool_used(&output)?;
                output
            }
        };
        if plan.prompt.contains("[[crash]]") {
            std::process::abort();
        }
        std::thread::sleep(plan.thinking("ponder"));
        console::print(&format!("{}\n{marker}\n", plan.answer(&output)))?;
    }
    Ok(())
}
