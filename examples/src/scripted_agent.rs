//! A stand-in for a coding agent. It behaves like the real command-line programs, without an API
//! key and without a network: it reads a prompt from standard input, prints `stream-json` events
//! in the form of Claude Code, runs a real tool in a process group of its own, stores the
//! conversation on disk, and takes time.
//!
//! Each example contains it as the hidden subcommand `scripted-agent`, so that no other program
//! must be built first. Directives in the prompt control it:
//!
//! | directive | effect |
//! |---|---|
//! | `[[tool CMD]]` | its tool is `sh -c CMD`; without the directive it counts the files of the workspace |
//! | `[[slow SECONDS]]` | waits before it uses the tool |
//! | `[[ponder SECONDS]]` | waits after it has used the tool |
//! | `[[crash]]` | aborts after the tool, without a final event |
//! | `[[say TEXT]]` | answers with this text |
//! | `[[continue]]` | continues the last turn, and does not repeat a tool that has run; in a live session, a text beside it is a new prompt if it is not the last one |
//!
//! With `--marker=TEXT` it runs in a tmux pane: [`pane_agent`]. With `--input-format=stream-json` it
//! serves a live session: [`scripted_live`].

use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use exec_core::CommandConfig;
use exec_profiles::{ProfileDefinition, builtin};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{pane_agent, scripted_live};

/// The label of the agent's profile.
pub const LABEL: &str = "scripted";

/// The name of the hidden subcommand.
pub(crate) const SUBCOMMAND: &str = "scripted-agent";

/// Environment variable: the folder of the conversations. Default: a folder in the workspace.
const HOME: &str = "SCRIPTED_AGENT_HOME";

/// Directive: continue the last turn.
const CONTINUE: &str = "[[continue]]";

/// Default wait before each step.
const THINKING: Duration = Duration::from_millis(120);

/// The agent's profile: that of Claude Code, with the running program as the command.
/// Conversations are stored in `home`.
pub fn profile(home: &Path) -> io::Result<ProfileDefinition> {
    let mut profile = builtin::claude_code();
    profile.label = LABEL.to_owned();
    profile.command = CommandConfig::new(
        this_program()?,
        [SUBCOMMAND, "-p", "--verbose", "--output-format=stream-json"],
    );
    let home = std::path::absolute(home)?.to_string_lossy().into_owned();
    profile.command.env.insert(HOME.to_owned(), home);
    profile.variants.clear();
    profile.native_binary = None;
    if let Some(live) = &mut profile.live {
        live.args.insert(0, SUBCOMMAND.to_owned());
        live.variants.clear();
    }
    Ok(profile)
}

/// The path of the running program, for a command line that starts it again.
pub fn this_program() -> io::Result<String> {
    let program = std::env::current_exe()?.into_os_string();
    program.into_string().map_err(|program| {
        let reason = format!("the path of this program is not UTF-8: {program:?}");
        io::Error::other(reason)
    })
}

/// Runs the agent if the program was started as `PROGRAM scripted-agent …`. Call it first in
/// `main`.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args().skip(1);
    if args.next()? != SUBCOMMAND {
        return None;
    }
    let args: Vec<String> = args.collect();
    let done = pane_agent::run_if_asked(&args)
        .or_else(|| scripted_live::run_if_asked(&args))
        .unwrap_or_else(|| Turn::from_args(&args).and_then(Turn::run));
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scripted-agent: {error}");
            ExitCode::FAILURE
        }
    })
}

/// A conversation on disk.
pub(crate) struct Conversation {
    pub(crate) session: String,
    file: PathBuf,
    /// The prompts so far.
    pub(crate) earlier: Vec<String>,
    /// Output of the last turn's tool, if the tool has run.
    used_tool: Option<String>,
}

impl Conversation {
    /// The conversation that the arguments name, or a new one.
    pub(crate) fn from_args(args: &[String]) -> io::Result<Self> {
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
        let lines: Vec<Value> = match std::fs::read_to_string(&file) {
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
        let (mut earlier, mut used_tool) = (Vec::new(), None);
        for line in lines {
            match line {
                Value::String(prompt) if prompt.contains(CONTINUE) => {}
                Value::String(prompt) => {
                    earlier.push(prompt);
                    used_tool = None;
                }
                other => used_tool = other["tool"].as_str().map(str::to_owned),
            }
        }
        Ok(Self {
            session,
            file,
            earlier,
            used_tool,
        })
    }

    /// The prompt of a message, and the output of its tool if the message continues a turn whose tool
    /// has run. The prompt of such a turn is taken out of the earlier ones.
    pub(crate) fn take_up(&mut self, message: &str) -> (String, Option<String>) {
        if !message.contains(CONTINUE) {
            return (message.to_owned(), None);
        }
        let text = message.replace(CONTINUE, "");
        let text = text.trim();
        match self.earlier.pop_if(|last| last.ends_with(text)) {
            Some(last) => (last, self.used_tool.take()),
            None => (text.to_owned(), None),
        }
    }

    pub(crate) fn remember(&self, line: &Value) -> io::Result<()> {
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            // A conversation is private.
            .mode(0o600)
            .open(&self.file)?;
        writeln!(file, "{line}")
    }

    pub(crate) fn say(&self, text: &str) -> io::Result<()> {
        self.emit(assistant(json!({"type": "text", "text": text})))
    }

    pub(crate) fn emit(&self, mut event: Value) -> io::Result<()> {
        event["session_id"] = json!(self.session);
        event["uuid"] = json!(Uuid::new_v4().to_string());
        let mut out = io::stdout().lock();
        writeln!(out, "{event}")?;
        out.flush()
    }

    /// The event of a tool call, with its new id.
    pub(crate) fn call_tool(&self, command: &str) -> io::Result<String> {
        let call = format!("toolu_{}", Uuid::new_v4().simple());
        self.emit(assistant(json!({
            "type": "tool_use", "id": call, "name": "Bash", "input": {"command": command},
        })))?;
        Ok(call)
    }

    /// The event of the end of a tool call.
    pub(crate) fn tool_ended(&self, call: &str, output: &str, failed: bool) -> io::Result<()> {
        self.emit(json!({
            "type": "user", "parent_tool_use_id": null,
            "message": {"role": "user", "content": [{
                "type": "tool_result", "tool_use_id": call, "content": output, "is_error": failed,
            }]},
        }))
    }

    /// An estimate: three characters a token.
    pub(crate) fn usage(&self, prompt: &str, answer: &str) -> Value {
        let earlier: usize = self.earlier.iter().map(|text| text.chars().count()).sum();
        let input = (earlier + prompt.chars().count()) / 3 + 1;
        json!({"input_tokens": input, "output_tokens": answer.chars().count() / 3 + 1})
    }
}

/// One turn of a conversation.
struct Turn {
    conversation: Conversation,
    prompt: String,
    began: Instant,
}

impl Turn {
    fn from_args(args: &[String]) -> io::Result<Self> {
        let conversation = Conversation::from_args(args)?;
        let mut prompt = String::new();
        io::stdin().read_to_string(&mut prompt)?;
        if prompt.trim().is_empty() {
            return Err(io::Error::other("the prompt is empty"));
        }
        let began = Instant::now();
        Ok(Self {
            conversation,
            prompt,
            began,
        })
    }

    fn run(self) -> io::Result<()> {
        let talk = &self.conversation;
        // The prompt is stored first: a follow-up after a crash still knows it.
        talk.remember(&json!(self.prompt))?;
        let cwd = std::env::current_dir()?;
        talk.emit(json!({
            "type": "system", "subtype": "init", "cwd": cwd, "model": "scripted",
            "tools": ["Bash"], "permissionMode": "bypassPermissions",
        }))?;
        let taken_up = talk.earlier.split_last();
        let taken_up = taken_up.filter(|_| self.prompt.contains(CONTINUE));
        let (prompt, earlier, used_tool) = match taken_up {
            Some((prompt, earlier)) => (prompt, earlier, talk.used_tool.clone()),
            None => (&self.prompt, &*talk.earlier, None),
        };
        think(prompt, "slow");
        talk.say("Let me look at the workspace.")?;
        let output = match used_tool {
            Some(output) => output,
            None => self.use_tool(tool_of(prompt))?,
        };
        if prompt.contains("[[crash]]") {
            std::process::abort();
        }
        // A turn that is continued does not wait a second time.
        think(if taken_up.is_some() { "" } else { prompt }, "ponder");
        let answer = answer(prompt, earlier, &output);
        talk.say(&answer)?;
        let took = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        talk.emit(json!({
            "type": "result", "subtype": "success", "is_error": false, "result": answer,
            "duration_ms": took, "num_turns": talk.earlier.len() + 1, "total_cost_usd": 0.0,
            "usage": talk.usage(&self.prompt, &answer), "permission_denials": [],
        }))
    }

    fn use_tool(&self, command: &str) -> io::Result<String> {
        let talk = &self.conversation;
        let call = talk.call_tool(command)?;
        let (output, failed) = run_tool(command)?;
        // Stored before the event is printed: a reader of the event may kill the agent.
        talk.remember(&json!({"tool": output}))?;
        talk.tool_ended(&call, &output, failed)?;
        Ok(output)
    }
}

fn assistant(content: Value) -> Value {
    json!({
        "type": "assistant", "parent_tool_use_id": null,
        "message": {"role": "assistant", "model": "scripted", "content": [content]},
    })
}

/// Waits for the seconds of the named directive, or for the default time.
pub(crate) fn think(prompt: &str, name: &str) {
    std::thread::sleep(thinking(prompt, name));
}

/// The seconds of the named directive, or the default time.
pub(crate) fn thinking(prompt: &str, name: &str) -> Duration {
    let seconds = directive(prompt, name).and_then(|text| text.parse().ok());
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.unwrap_or(THINKING)
}

/// The command of the tool that a prompt asks for.
pub(crate) fn tool_of(prompt: &str) -> &str {
    directive(prompt, "tool").unwrap_or("ls | wc -l")
}

/// The answer to a prompt.
pub(crate) fn answer(prompt: &str, earlier: &[String], tool_output: &str) -> String {
    if let Some(text) = directive(prompt, "say") {
        return text.to_owned();
    }
    let asked = prompt.lines().next().unwrap_or_default().trim();
    let mut answer = format!("Done: {asked}\nThe tool printed: {}", tool_output.trim());
    if let Some(first) = earlier.first() {
        let first = first.lines().next().unwrap_or_default();
        let count = earlier.len();
        answer.push_str(&format!(
            "\nEarlier messages: {count}; the first was: {first}"
        ));
    }
    answer
}

/// Runs the tool in a process group of its own, as the real agents do: a signal to the agent's
/// group does not reach it.
pub(crate) fn run_tool(command: &str) -> io::Result<(String, bool)> {
    let mut tool = tool_command(command);
    tool.output().map(tool_output)
}

/// The tool, to be started.
pub(crate) fn tool_command(command: &str) -> Command {
    let mut tool = Command::new("sh");
    tool.args(["-c", command])
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    tool
}

/// What the tool has printed, and whether it has failed.
pub(crate) fn tool_output(done: Output) -> (String, bool) {
    let mut output = String::from_utf8_lossy(&done.stdout).into_owned();
    output.push_str(&String::from_utf8_lossy(&done.stderr));
    (output, !done.status.success())
}

/// The text of `[[name TEXT]]` in the prompt.
pub(crate) fn directive<'a>(prompt: &'a str, name: &str) -> Option<&'a str> {
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
