//! A stand-in for a coding agent that behaves as the real command lines do, with no key and
//! no network: it takes a prompt on standard input, prints claude-shaped `stream-json`, runs
//! a real tool in a process group of its own, remembers the conversation on disk, and takes time.
//!
//! Each example carries it as a hidden subcommand, `scripted-agent`, so that one `cargo run`
//! is enough. What the prompt holds steers it:
//!
//! | in the prompt | what it does |
//! |---|---|
//! | `[[tool CMD]]` | runs `sh -c CMD` as its tool (else it counts the files of the workspace) |
//! | `[[slow SECONDS]]` | thinks for that long |
//! | `[[crash]]` | dies in the middle, without a final event |
//! | `[[say TEXT]]` | answers exactly that |

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use exec_core::CommandConfig;
use exec_profiles::{ProfileDefinition, builtin};
use serde_json::{Value, json};
use uuid::Uuid;

/// The label of its profile.
pub const LABEL: &str = "scripted";

/// The name of the hidden subcommand.
const SUBCOMMAND: &str = "scripted-agent";

/// Where conversations are kept; below the workspace if unset.
const HOME: &str = "SCRIPTED_AGENT_HOME";

/// How long it thinks before each step unless told otherwise.
const THINKING: Duration = Duration::from_millis(120);

/// Its profile: Claude Code's, with this very program in the place of `claude`. Conversations
/// are kept in `home`.
pub fn profile(home: &Path) -> io::Result<ProfileDefinition> {
    let program = std::env::current_exe()?;
    let program = program.to_str().ok_or_else(|| {
        io::Error::other(format!(
            "the path of this program is not UTF-8: {program:?}"
        ))
    })?;
    let mut profile = builtin::claude_code();
    profile.label = LABEL.to_owned();
    profile.command = CommandConfig::new(
        program,
        [SUBCOMMAND, "-p", "--verbose", "--output-format=stream-json"],
    );
    let home = std::path::absolute(home)?.to_string_lossy().into_owned();
    profile.command.env.insert(HOME.to_owned(), home);
    profile.variants.clear();
    profile.native_binary = None;
    Ok(profile)
}

/// Runs the agent if the program was called as one: `PROGRAM scripted-agent …`. Call it first
/// in `main`.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args().skip(1);
    if args.next()? != SUBCOMMAND {
        return None;
    }
    Some(match Turn::from_args(args).and_then(Turn::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scripted-agent: {error}");
            ExitCode::FAILURE
        }
    })
}

/// One turn: a prompt and what came before it.
struct Turn {
    session: String,
    file: PathBuf,
    earlier: Vec<String>,
    prompt: String,
    began: Instant,
}

impl Turn {
    fn from_args(args: impl Iterator<Item = String>) -> io::Result<Self> {
        let (mut session, mut resume) = (None, false);
        for arg in args {
            if let Some(id) = arg.strip_prefix("--session-id=") {
                session = Some(id.to_owned());
            } else if let Some(id) = arg.strip_prefix("--resume=") {
                (session, resume) = (Some(id.to_owned()), true);
            }
        }
        let session = session.unwrap_or_else(|| Uuid::new_v4().to_string());
        if Uuid::parse_str(&session).is_err() {
            return Err(io::Error::other(format!("not a session id: {session}")));
        }
        let home =
            std::env::var_os(HOME).map_or_else(|| PathBuf::from(".scripted-agent"), PathBuf::from);
        std::fs::create_dir_all(&home)?;
        let file = home.join(format!("{session}.jsonl"));
        let earlier: Vec<String> = match std::fs::read_to_string(&file) {
            Ok(_) if !resume => {
                return Err(io::Error::other(format!("session id in use: {session}")));
            }
            Ok(text) => text
                .lines()
                .map(serde_json::from_str)
                .collect::<Result<_, _>>()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound && resume => {
                return Err(io::Error::other(format!(
                    "no conversation found: {session}"
                )));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let mut prompt = String::new();
        io::stdin().read_to_string(&mut prompt)?;
        if prompt.trim().is_empty() {
            return Err(io::Error::other("the prompt is empty"));
        }
        let began = Instant::now();
        Ok(Self {
            session,
            file,
            earlier,
            prompt,
            began,
        })
    }

    fn run(self) -> io::Result<()> {
        // The conversation is written first: a follow-up after a crash still knows the prompt.
        self.remember()?;
        let cwd = std::env::current_dir()?;
        self.emit(json!({
            "type": "system", "subtype": "init", "cwd": cwd, "model": "scripted",
            "tools": ["Bash"], "permissionMode": "bypassPermissions",
        }))?;
        let seconds = directive(&self.prompt, "slow").and_then(|text| text.parse().ok());
        std::thread::sleep(seconds.map_or(THINKING, Duration::from_secs_f64));
        self.say("Let me look at the workspace.")?;

        let command = directive(&self.prompt, "tool").unwrap_or("ls | wc -l");
        let call = format!("toolu_{}", Uuid::new_v4().simple());
        self.emit(assistant(json!({
            "type": "tool_use", "id": call, "name": "Bash", "input": {"command": command},
        })))?;
        let (output, failed) = run_tool(command)?;
        self.emit(json!({
            "type": "user", "parent_tool_use_id": null,
            "message": {"role": "user", "content": [{
                "type": "tool_result", "tool_use_id": call, "content": output, "is_error": failed,
            }]},
        }))?;
        if self.prompt.contains("[[crash]]") {
            std::process::abort();
        }
        std::thread::sleep(THINKING);
        let answer = self.answer(&output);
        self.say(&answer)?;
        let took = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.emit(json!({
            "type": "result", "subtype": "success", "is_error": false, "result": answer,
            "duration_ms": took, "num_turns": self.earlier.len() + 1, "total_cost_usd": 0.0,
            "usage": self.usage(&answer), "permission_denials": [],
        }))
    }

    fn answer(&self, tool_output: &str) -> String {
        if let Some(text) = directive(&self.prompt, "say") {
            return text.to_owned();
        }
        let asked = self.prompt.lines().next().unwrap_or_default().trim();
        let mut answer = format!("Done: {asked}\nThe tool said: {}", tool_output.trim());
        if let Some(first) = self.earlier.first() {
            let first = first.lines().next().unwrap_or_default();
            let count = self.earlier.len();
            answer.push_str(&format!(
                "\nI remember {count} earlier; the first was: {first}"
            ));
        }
        answer
    }

    /// Rough, but honest in kind: what went in and what came out.
    fn usage(&self, answer: &str) -> Value {
        let earlier: usize = self.earlier.iter().map(|text| text.chars().count()).sum();
        let input = (earlier + self.prompt.chars().count()) / 3 + 1;
        json!({"input_tokens": input, "output_tokens": answer.chars().count() / 3 + 1})
    }

    fn remember(&self) -> io::Result<()> {
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.file)?;
        writeln!(file, "{}", json!(self.prompt))
    }

    fn say(&self, text: &str) -> io::Result<()> {
        self.emit(assistant(json!({"type": "text", "text": text})))
    }

    fn emit(&self, mut event: Value) -> io::Result<()> {
        event["session_id"] = json!(self.session);
        event["uuid"] = json!(Uuid::new_v4().to_string());
        let mut out = io::stdout().lock();
        writeln!(out, "{event}")?;
        out.flush()
    }
}

fn assistant(content: Value) -> Value {
    json!({
        "type": "assistant", "parent_tool_use_id": null,
        "message": {"role": "assistant", "model": "scripted", "content": [content]},
    })
}

/// Runs the tool in a process group of its own, as the real agents do: stopping the agent's
/// group alone would leave it behind.
fn run_tool(command: &str) -> io::Result<(String, bool)> {
    let done = Command::new("sh")
        .args(["-c", command])
        .process_group(0)
        .stdin(std::process::Stdio::null())
        .output()?;
    let mut output = String::from_utf8_lossy(&done.stdout).into_owned();
    output.push_str(&String::from_utf8_lossy(&done.stderr));
    Ok((output, !done.status.success()))
}

/// The text of `[[name TEXT]]` in the prompt.
fn directive<'a>(prompt: &'a str, name: &str) -> Option<&'a str> {
    let begin = format!("[[{name} ");
    let (_, rest) = prompt.split_once(&begin)?;
    rest.split_once("]]").map(|(text, _)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_found_anywhere_in_the_prompt() {
        let prompt = "Do it.\n[[tool echo a; echo b]] and [[slow 0.5]]";
        assert_eq!(directive(prompt, "tool"), Some("echo a; echo b"));
        assert_eq!(directive(prompt, "slow"), Some("0.5"));
        assert_eq!(directive(prompt, "say"), None);
    }
}
