//! Programs that behave like the agent TUIs with regard to their hooks and their input line.
//!
//! A message is answered by `echo: <message>` and the marker. `[[WORD VALUE]]` in it changes that:
//!
//! | directive | effect |
//! |---|---|
//! | `[[SAY path]]` | the answer is the content of a file |
//! | `[[LATE path]]` | works until the file exists |
//! | `[[OTHER]]` | reports the turn of another prompt first |
//! | `[[FAIL]]` | the turn fails |
//! | `[[INTERRUPT]]` | the turn ends without a report, as after Esc |
//! | `[[EXIT]]` | reports its answer and ends |
//! | `[[BIG]]` | the payload cannot be passed on: the answer is in the transcript only |

use std::fs::{self, File};
use std::io::{Read, Write, stdin, stdout};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use serde_json::{Value, json};

use crate::pane_program::MARKER;
use crate::worker;

/// Writes a program of this name into `dir`, for the `command` of an agent. It plays the agent.
pub fn install(dir: &Path, name: &str) -> PathBuf {
    let (variable, part, command) = worker::in_a_pane(&format!("agent {name}"));
    let path = dir.join(name);
    let script = format!(
        "#!/bin/sh\nfor word; do printf '%s\\n' \"$word\"; done >\"$0.args\"\n\
         FAKE_ARGS=$0.args {variable}='{part}'; export FAKE_ARGS {variable}\n{command}\n"
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Plays an agent.
pub fn run(name: &str) {
    let args = fs::read_to_string(std::env::var("FAKE_ARGS").unwrap()).unwrap();
    let args = args.lines().map(str::to_owned).collect();
    let mut agent = FakeAgent {
        name: name.to_owned(),
        args,
        home: std::env::var("HOME").unwrap().into(),
        turns: 0,
    };
    let mut modes = tcgetattr(stdin()).unwrap();
    modes.make_raw();
    tcsetattr(stdin(), OptionalActions::Now, &modes).unwrap();
    agent.fire("SessionStart", &mut json!({}));
    agent.draw("", false);
    let mut line = String::new();
    let mut input = Vec::new();
    loop {
        let mut byte = [0];
        if stdin().read(&mut byte).unwrap() == 0 {
            return;
        }
        input.push(byte[0]);
        let (start, end) = (b"\x1b[200~", b"\x1b[201~");
        if input.starts_with(start) {
            if input.ends_with(end) {
                let text = &input[start.len()..input.len() - end.len()];
                line.push_str(std::str::from_utf8(text).unwrap());
                input.clear();
                agent.draw(&line, false);
            }
        } else if !start.starts_with(&input) {
            if input == b"\r" {
                let message = std::mem::take(&mut line);
                agent.turn(&message);
            } else if input == b"\x15" {
                line.clear();
                agent.draw("", false);
            } else {
                line.push_str(&String::from_utf8_lossy(&input));
                agent.draw(&line, false);
            }
            input.clear();
        }
    }
}

struct FakeAgent {
    name: String,
    args: Vec<String>,
    home: PathBuf,
    turns: u32,
}

impl FakeAgent {
    fn turn(&mut self, message: &str) {
        let has = |word: &str| message.contains(&format!("[[{word}]]"));
        let value = |word: &str| {
            let (_, rest) = message.split_once(&format!("[[{word} "))?;
            Some(rest.split_once("]]")?.0.to_owned())
        };
        let mut log = File::options()
            .create(true)
            .append(true)
            .open(self.home.join("prompts"));
        writeln!(log.as_mut().unwrap(), "{}", Value::from(message)).unwrap();
        if has("OTHER") {
            self.report("another prompt", "not this answer", "");
        }
        self.turns += 1;
        let answer = match value("SAY") {
            Some(path) => fs::read_to_string(path).unwrap(),
            None => format!("echo: {message}\n\n{MARKER}"),
        };
        self.draw("", true);
        if let Some(path) = value("LATE") {
            self.begin(message);
            while !Path::new(&path).exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            self.end(message, &answer, "");
        } else if has("INTERRUPT") {
            self.begin(message);
            std::thread::sleep(Duration::from_secs(1));
        } else if has("BIG") {
            std::thread::sleep(Duration::from_secs(1));
            self.transcribe(message, &answer);
        } else {
            let how = if has("FAIL") { "fail" } else { "" };
            self.report(message, &answer, how);
        }
        if has("EXIT") {
            std::process::exit(0);
        }
        self.draw("", false);
    }

    /// A whole turn.
    fn report(&mut self, prompt: &str, answer: &str, how: &str) {
        self.begin(prompt);
        self.end(prompt, answer, how);
    }

    fn ids(&self) -> (String, String) {
        ("session-1".to_owned(), format!("turn-{}", self.turns))
    }

    fn begin(&mut self, prompt: &str) {
        self.turns += 1;
        // Claude makes four spaces of a tab.
        let shown = prompt.replace('\t', "    ");
        let (session, turn) = self.ids();
        match self.name.as_str() {
            "claude" => self.fire(
                "UserPromptSubmit",
                &mut json!({"prompt_id": turn, "prompt": shown}),
            ),
            "gemini" => self.fire("BeforeAgent", &mut json!({"prompt": prompt})),
            "opencode" => self.plugin(
                "prompt",
                &json!({"session": session, "message": turn, "text": prompt}),
            ),
            _ => {}
        }
    }

    fn end(&mut self, prompt: &str, answer: &str, how: &str) {
        let (session, turn) = self.ids();
        match self.name.as_str() {
            "claude" if how == "fail" => self.fire("StopFailure", &mut json!({"prompt_id": turn})),
            "claude" => self.fire(
                "Stop",
                &mut json!({"prompt_id": turn, "last_assistant_message": answer}),
            ),
            "codex" => {
                let title = format!("Make a title of: {prompt}");
                self.notify("thread-2", &title, "A title");
                self.notify("thread-1", prompt, answer);
            }
            "gemini" => {
                self.transcribe(prompt, if how == "fail" { "" } else { answer });
                // The text of the hook repeats pieces of the answer.
                let doubled = format!("{answer}{answer}");
                let path = self.home.join(".gemini/tmp/project/chats/session-1.jsonl");
                self.fire("AfterAgent", &mut json!({"prompt": prompt, "prompt_response": doubled, "transcript_path": path}));
            }
            _ => {
                let finish = if how == "fail" { "error" } else { "stop" };
                self.plugin(
                    "idle",
                    &json!({"session": session, "parent": turn, "finish": finish, "text": answer}),
                );
            }
        }
    }

    fn transcribe(&self, prompt: &str, answer: &str) {
        let now = humantime(SystemTime::now());
        let turn = self.ids().1;
        let (path, lines) = match self.name.as_str() {
            "gemini" => (
                self.home.join(".gemini/tmp/project/chats/session-1.jsonl"),
                [
                    json!({"id": format!("{turn}-user"), "timestamp": now, "type": "user", "content": [{"text": prompt}]}),
                    json!({"id": format!("{turn}-gemini"), "timestamp": now, "type": "gemini", "content": answer}),
                ],
            ),
            _ => (
                self.home.join("sessions/2026/11/17/rollout-x.jsonl"),
                [
                    json!({"timestamp": now, "payload": {"type": "item_completed", "turn_id": turn, "item": {"type": "UserMessage", "content": [{"text": prompt}]}}}),
                    json!({"timestamp": now, "payload": {"type": "task_complete", "turn_id": turn, "last_agent_message": answer}}),
                ],
            ),
        };
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        for line in lines {
            writeln!(file, "{line}").unwrap();
        }
    }

    /// Runs the hooks of all settings that the agent reads.
    fn fire(&self, event: &str, payload: &mut Value) {
        let settings = match self.name.as_str() {
            "claude" => vec![
                self.home.join(".claude/settings.json"),
                self.last_option("--settings").unwrap_or_default().into(),
            ],
            "gemini" => {
                let defaults = std::env::var("GEMINI_CLI_SYSTEM_DEFAULTS_PATH").unwrap_or_default();
                vec![defaults.into(), self.home.join(".gemini/settings.json")]
            }
            "opencode" if event == "SessionStart" => return self.plugin("load", &json!({})),
            _ => return,
        };
        payload["hook_event_name"] = event.into();
        payload["session_id"] = self.ids().0.into();
        for path in settings {
            let Ok(text) = fs::read_to_string(path) else {
                continue;
            };
            let settings: Value = serde_json::from_str(&text).unwrap();
            let groups = settings["hooks"][event]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let hooks = groups
                .iter()
                .flat_map(|group| group["hooks"].as_array().unwrap());
            for hook in hooks {
                let mut child = Command::new("sh")
                    .args(["-c", hook["command"].as_str().unwrap()])
                    .stdin(Stdio::piped())
                    .spawn()
                    .unwrap();
                child
                    .stdin
                    .take()
                    .unwrap()
                    .write_all(payload.to_string().as_bytes())
                    .unwrap();
                child.wait().unwrap();
            }
        }
    }

    /// Codex takes the last `-c notify=`, in place of that of the user's file.
    fn notify(&self, thread: &str, prompt: &str, answer: &str) {
        let values = self.args.iter().rev();
        let given = values
            .filter_map(|word| word.strip_prefix("notify="))
            .next();
        let own = fs::read_to_string(self.home.join("config.toml")).unwrap_or_default();
        let list = given.or_else(|| own.strip_prefix("notify = ")).unwrap();
        let list: Vec<String> = serde_json::from_str(list).unwrap();
        let payload = json!({"type": "agent-turn-complete", "thread-id": thread, "turn-id": self.ids().1, "input-messages": ["earlier", prompt], "last-assistant-message": answer});
        let status = Command::new(&list[0])
            .args(&list[1..])
            .arg(payload.to_string())
            .status();
        assert!(status.unwrap().success());
    }

    /// Does what the plugins of the configuration would do.
    fn plugin(&self, event: &str, payload: &Value) {
        let config = std::env::var("OPENCODE_CONFIG_CONTENT").unwrap_or_default();
        let config: Value = serde_json::from_str(&config).unwrap();
        for url in config["plugin"].as_array().unwrap() {
            let url = url.as_str().unwrap();
            if url == "mine" {
                let mut log = File::options()
                    .create(true)
                    .append(true)
                    .open(self.home.join("mine"));
                writeln!(log.as_mut().unwrap(), "{event}").unwrap();
            } else {
                assert!(
                    url.starts_with("file:///") && url.ends_with("/tmux-bus.js"),
                    "{url}"
                );
                let folder = PathBuf::from(std::env::var("TMUX_BUS_HOOKS").unwrap());
                assert!(folder.parent().unwrap().join("tmux-bus.js").exists());
                let name = format!(
                    "{event}.1.{}",
                    std::process::id() as u64 + u64::from(self.turns) * 100_000
                );
                let part = folder.join(format!(".{name}"));
                fs::write(&part, payload.to_string()).unwrap();
                fs::set_permissions(&part, fs::Permissions::from_mode(0o600)).unwrap();
                fs::rename(part, folder.join(format!("{name}.json"))).unwrap();
            }
        }
    }

    fn last_option(&self, option: &str) -> Option<String> {
        let at = self.args.iter().rposition(|word| word == option)?;
        self.args.get(at + 1).cloned()
    }

    /// The input line of the agent, and whether it works.
    fn draw(&self, text: &str, works: bool) {
        let rule = "─".repeat(60);
        let lines: Vec<&str> = text.split('\n').collect();
        let shown = lines
            .iter()
            .map(|line| line.chars().take(50).collect::<String>());
        let shown: Vec<_> = shown.collect();
        let (above, first, next, below, title) = match self.name.as_str() {
            "claude" => {
                let hint = if works {
                    "  ⏵⏵ accept edits on · esc to interrupt"
                } else {
                    "  ? for shortcuts"
                };
                (
                    rule.clone(),
                    "❯\u{a0}",
                    "  ",
                    format!("{rule}\r\n{hint}"),
                    "✳ Claude Code",
                )
            }
            "codex" => {
                let title = if works { "⠋ project" } else { "project" };
                (
                    String::new(),
                    "› ",
                    "  ",
                    "\r\n  gpt-fake default · /tmp".to_owned(),
                    title,
                )
            }
            "gemini" => {
                let title = if works {
                    "✦ Working"
                } else {
                    "◇ Ready (x)"
                };
                (rule.clone(), " > ", "   ", String::new(), title)
            }
            _ => {
                let bar = if works {
                    "  ■■■■⬝⬝⬝⬝  esc interrupt"
                } else {
                    "  ctrl+p commands"
                };
                let edge = format!("  ╹{}", "▀".repeat(60));
                let below = format!("  ┃\r\n  ┃  Build · fake\r\n{edge}\r\n{bar}");
                ("  ┃".to_owned(), "  ┃  ", "  ┃  ", below, "OpenCode")
            }
        };
        let body = shown.join(&format!("\r\n{next}"));
        let (row, column) = (shown.len(), shown.last().unwrap().chars().count());
        let prefix = if row == 1 { first } else { next };
        let top = if above.is_empty() {
            String::new()
        } else {
            format!("{above}\r\n")
        };
        let row = row + usize::from(!above.is_empty());
        let frame = format!(
            "\x1b[?2004h\x1b]2;{title}\x07\x1b[2J\x1b[H{top}{first}{body}\r\n{below}\x1b[{row};{}H",
            prefix.chars().count() + column + 1
        );
        stdout().write_all(frame.as_bytes()).unwrap();
        stdout().flush().unwrap();
    }
}

/// A time as the transcripts of agents have it.
fn humantime(time: SystemTime) -> String {
    let time = time::OffsetDateTime::from(time);
    let (date, clock) = (time.date(), time.time());
    let millisecond = time.millisecond();
    format!(
        "{date}T{:02}:{:02}:{:02}.{millisecond:03}Z",
        clock.hour(),
        clock.minute(),
        clock.second()
    )
}
