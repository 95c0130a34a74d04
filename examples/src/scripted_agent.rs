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
//! | `[[limit]]` | fails its turn by a usage limit; in a live session only |
//! | `[[say TEXT]]` | answers with this text |
//! | `[[script NAME]]` | follows the directives in the file `.scripts/NAME` of the workspace |
//! | `[[continue]]` | continues the last turn, and does not repeat a tool that has run; a text behind it must be the prompt of that turn, and otherwise begins a new one |
//!
//! With `--marker=TEXT` it runs in a tmux pane: [`pane_agent`]. With `--input-format=stream-json` it
//! serves a live session.

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
pub const CONTINUE: &str = "[[continue]]";

/// Folder of scripts in the workspace: a prompt with a name is easier to read than one with
/// directives.
pub const SCRIPTS: &str = ".scripts";

/// US dollars for a million tokens, read and written: an order of magnitude, so that costs and
/// budgets can be shown.
const PRICES: [f64; 2] = [3.0, 15.0];

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

/// A conversation, on disk if it has a file.
pub(crate) struct Conversation {
    pub(crate) session: String,
    file: Option<PathBuf>,
    /// The prompts so far, with that of the running turn.
    earlier: Vec<String>,
    /// Output of the last turn's tool, if the tool has run.
    used_tool: Option<String>,
}

/// What a prompt asks for: a new turn, or the rest of the last one.
pub(crate) struct TurnPlan {
    pub(crate) prompt: String,
    /// The prompts of the turns before.
    pub(crate) earlier: Vec<String>,
    /// Output of the tool, if it has run.
    pub(crate) used_tool: Option<String>,
    is_continued: bool,
}

impl TurnPlan {
    /// How long the agent thinks: a turn that is continued does not wait a second time.
    pub(crate) fn thinking(&self, name: &str) -> Duration {
        let prompt = if self.is_continued { "" } else { &self.prompt };
        thinking(prompt, name)
    }

    pub(crate) fn answer(&self, tool_output: &str) -> String {
        answer(&self.prompt, &self.earlier, tool_output)
    }
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
        match (file.exists(), resume) {
            (true, false) => Err(io::Error::other(format!("session id in use: {session}"))),
            (false, true) => Err(io::Error::other(format!(
                "no conversation found: {session}"
            ))),
            _ => Self::load(session, Some(file)),
        }
    }

    /// The conversation in a file, which need not exist; without a file it is forgotten at the end.
    pub(crate) fn load(session: String, file: Option<PathBuf>) -> io::Result<Self> {
        let text = match file.as_deref().map(std::fs::read_to_string) {
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Some(Ok(text)) => text,
            _ => String::new(),
        };
        let (mut earlier, mut used_tool) = (Vec::new(), None);
        for line in text.lines() {
            match serde_json::from_str(line)? {
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

    /// Begins a turn. The prompt is stored first: a follow-up after a crash still knows it.
    pub(crate) fn begin(&mut self, prompt: &str) -> io::Result<TurnPlan> {
        let continued = prompt.split_once(CONTINUE).map(|(_, rest)| rest.trim());
        if let (Some(rest), Some((last, earlier))) = (continued, self.earlier.split_last())
            && (rest.is_empty() || rest == last.trim())
        {
            let plan = TurnPlan {
                prompt: with_script(last),
                earlier: earlier.to_vec(),
                used_tool: self.used_tool.clone(),
                is_continued: true,
            };
            self.remember(&json!(prompt))?;
            return Ok(plan);
        }
        let prompt = continued.filter(|rest| !rest.is_empty()).unwrap_or(prompt);
        self.remember(&json!(prompt))?;
        let plan = TurnPlan {
            prompt: with_script(prompt),
            earlier: self.earlier.clone(),
            used_tool: None,
            is_continued: false,
        };
        self.earlier.push(prompt.to_owned());
        self.used_tool = None;
        Ok(plan)
    }

    /// The tool has run. Stored before any event is printed: a reader of the event may kill the agent.
    pub(crate) fn tool_used(&mut self, output: &str) -> io::Result<()> {
        self.used_tool = Some(output.to_owned());
        self.remember(&json!({"tool": output}))
    }

    fn remember(&self, line: &Value) -> io::Result<()> {
        let Some(path) = &self.file else {
            return Ok(());
        };
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            // A conversation is private.
            .mode(0o600)
            .open(path)?;
        // One write: an agent that is killed leaves a whole line or none.
        file.write_all(format!("{line}\n").as_bytes())
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
        let mut event = assistant(json!({
            "type": "tool_use", "id": call, "name": "Bash", "input": {"command": command},
        }));
        // As Claude Code does: a budget of tokens can end the turn before its result.
        event["message"]["id"] = json!(format!("msg_{}", Uuid::new_v4().simple()));
        event["message"]["usage"] = self.usage("");
        self.emit(event)?;
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

    /// The number of turns so far.
    pub(crate) fn turns(&self) -> usize {
        self.earlier.len()
    }

    /// An estimate: three characters a token.
    pub(crate) fn usage(&self, answer: &str) -> Value {
        let input: usize = self.earlier.iter().map(|text| text.chars().count()).sum();
        json!({
            "input_tokens": input / 3 + 1, "output_tokens": answer.chars().count() / 3 + 1,
            "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
        })
    }
}

/// The price of a turn.
pub(crate) fn cost_usd(usage: &Value) -> f64 {
    let tokens = ["input_tokens", "output_tokens"].map(|name| usage[name].as_f64());
    let prices = tokens.iter().zip(PRICES);
    let sum: f64 = prices.map(|(n, price)| n.unwrap_or_default() * price).sum();
    sum / 1e6
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

    fn run(mut self) -> io::Result<()> {
        let plan = self.conversation.begin(&self.prompt)?;
        let cwd = std::env::current_dir()?;
        self.conversation.emit(json!({
            "type": "system", "subtype": "init", "cwd": cwd, "model": "scripted",
            "tools": ["Bash"], "permissionMode": "bypassPermissions",
        }))?;
        std::thread::sleep(plan.thinking("slow"));
        self.conversation.say("Let me look at the workspace.")?;
        let output = match &plan.used_tool {
            Some(output) => output.clone(),
            None => self.use_tool(tool_of(&plan.prompt))?,
        };
        if plan.prompt.contains("[[crash]]") {
            std::process::abort();
        }
        std::thread::sleep(plan.thinking("ponder"));
        let (talk, answer) = (&self.conversation, plan.answer(&output));
        talk.say(&answer)?;
        let took = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let usage = talk.usage(&answer);
        talk.emit(json!({
            "type": "result", "subtype": "success", "is_error": false, "result": answer,
            "duration_ms": took, "num_turns": talk.turns(), "total_cost_usd": cost_usd(&usage),
            "usage": usage, "permission_denials": [],
        }))
    }

    fn use_tool(&mut self, command: &str) -> io::Result<String> {
        let call = self.conversation.call_tool(command)?;
        let (output, failed) = run_tool(command)?;
        self.conversation.tool_used(&output)?;
        self.conversation.tool_ended(&call, &output, failed)?;
        Ok(output)
    }
}

fn assistant(content: Value) -> Value {
    json!({
        "type": "assistant", "parent_tool_use_id": null,
        "message": {"role": "assistant", "model": "scripted", "content": [content]},
    })
}

/// The seconds of the named directive, or the default time.
fn thinking(prompt: &str, name: &str) -> Duration {
    let seconds = directive(prompt, name).and_then(|text| text.parse().ok());
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.unwrap_or(THINKING)
}

/// The command of the tool that a prompt asks for.
pub(crate) fn tool_of(prompt: &str) -> &str {
    directive(prompt, "tool").unwrap_or("ls | wc -l")
}

/// The answer to a prompt.
fn answer(prompt: &str, earlier: &[String], tool_output: &str) -> String {
    if let Some(text) = directive(prompt, "say") {
        return text.to_owned();
    }
    let asked = first_line(prompt);
    let mut answer = format!("Done: {asked}\nThe tool printed: {}", tool_output.trim());
    if let Some(first) = earlier.first() {
        let first = first_line(first);
        let count = earlier.len();
        answer.push_str(&format!(
            "\nEarlier messages: {count}; the first was: {first}"
        ));
    }
    answer
}

/// The first line of a prompt, without the words that tmux-bus puts before the message of an agent.
fn first_line(prompt: &str) -> &str {
    let text = match prompt.strip_prefix("[Message from agent ") {
        Some(framed) => framed.split_once(']').map_or(framed, |(_, text)| text),
        None => prompt,
    };
    text.trim_start().lines().next().unwrap_or_default().trim()
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

/// The prompt with its script, if it names one that is there.
fn with_script(prompt: &str) -> String {
    let is_name = |name: &&str| {
        let mut letters = name.bytes();
        letters.all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
    };
    let script = directive(prompt, "script").filter(is_name);
    let script =
        script.and_then(|name| std::fs::read_to_string(Path::new(SCRIPTS).join(name)).ok());
    match script {
        Some(script) => format!("{prompt}\n{script}"),
        None => prompt.to_owned(),
    }
}

/// The text of `[[name TEXT]]` in the prompt.
pub(crate) fn directive<'a>(prompt: &'a str, name: &str) -> Option<&'a str> {
    let begin = format!("[[{name} ");
    let (_, rest) = prompt.split_once(&begin)?;
    rest.split_once("]]").map(|(text, _)| text)
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a failed test panics")]
mod tests {
    use super::*;

    #[test]
    fn directives_are_found_anywhere_in_the_prompt() {
        let prompt = "Do it.\n[[tool echo a; echo b]] and [[slow 0.5]]";
        assert_eq!(directive(prompt, "tool"), Some("echo a; echo b"));
        assert_eq!(directive(prompt, "slow"), Some("0.5"));
        assert_eq!(directive(prompt, "say"), None);
    }

    #[test]
    fn only_the_same_prompt_is_continued() {
        let mut talk = Conversation::load(String::new(), None).expect("no file");
        let mut begin = |prompt: &str, tool: Option<&str>| {
            let plan = talk.begin(prompt).expect("no file");
            if let Some(output) = tool {
                talk.tool_used(output).expect("no file");
            }
            (plan.prompt, plan.used_tool, plan.earlier.len())
        };
        assert_eq!(begin("one", Some("1")), ("one".to_owned(), None, 0));
        let again = format!("Go on. {CONTINUE}\none");
        assert_eq!(
            begin(&again, None),
            ("one".to_owned(), Some("1".to_owned()), 0)
        );
        // A prompt that never arrived.
        let other = format!("Go on. {CONTINUE}\ntwo");
        assert_eq!(begin(&other, None), ("two".to_owned(), None, 1));
        // Killed before the tool.
        assert_eq!(begin(&other, Some("2")), ("two".to_owned(), None, 1));
        assert_eq!(
            begin(CONTINUE, None),
            ("two".to_owned(), Some("2".to_owned()), 1)
        );
    }

    #[test]
    fn the_frame_of_a_message_is_not_its_first_line() {
        for prompt in [
            "hello\nyou",
            "[Message from agent a, not from the user] hello",
            "[Message from agent a, not from the user]\nhello\n",
        ] {
            assert_eq!(first_line(prompt), "hello", "{prompt}");
        }
    }
}
