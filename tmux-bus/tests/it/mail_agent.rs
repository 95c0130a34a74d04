//! A program in a pane that keeps the messages it gets, and tells whether one was typed into a
//! draft or a dialog.
//!
//! A person controls it with keys: `C-d` opens and closes a dialog, `C-b` begins and ends work,
//! other keys are a draft. With moods, it opens dialogs and has drafts by itself after some of the
//! messages.

use std::fs::{self, File};
use std::io::{Read, Write, stdin, stdout};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use serde_json::json;
use tmux_bus::{AgentConfig, ClusterBuilder, ClusterConfig, ClusterConfigBuilder, ClusterManager};

use crate::support::{LONG, TestDir, need_tmux};
use crate::worker;

const DEFINITION: &str = r"
[mail]
submit = { clear_keys = ['C-u'] }
idle = { settle_ms = 5 }
input = { line = '^(?P<prefix>> )(?P<text>.*)$', next = '^  (?P<text>.*)$' }
[[mail.working]]
id = 'busy'
all = ['^busy']
[[mail.dialog]]
id = 'allow'
all = ['^Allow this\?']
say = 'It asks whether it may.'
";

/// A team of such agents, in a folder.
pub struct MailTeam<'a> {
    pub dir: &'a Path,
    pub agents: usize,
    pub has_moods: bool,
}

impl MailTeam<'_> {
    pub fn config(&self) -> ClusterConfigBuilder {
        need_tmux();
        let definitions = self.dir.join("agents.toml");
        // By a rename: others read it.
        let part = self.dir.join(format!("agents.{}", std::process::id()));
        fs::write(&part, DEFINITION).unwrap();
        fs::rename(part, definitions).unwrap();
        let config = ClusterConfig::builder("mail")
            .work_dir(self.dir)
            .agent_definitions("agents.toml");
        (0..self.agents).fold(config, |config, number| config.agent(self.agent(number)))
    }

    pub fn agent(&self, number: usize) -> AgentConfig {
        let (variable, part, command) = worker::in_a_pane("mail");
        let file = mail_file(self.dir, number);
        let moods = if self.has_moods { "1" } else { "0" };
        AgentConfig::new(format!("agent{number}"))
            .agent("mail")
            .command(command)
            .timeout(LONG)
            .env(variable, part)
            .env("MAIL_FILE", file.to_str().unwrap())
            .env("MAIL_MOODS", moods)
    }

    pub fn builder(&self) -> ClusterBuilder {
        self.builder_of(self.config())
    }

    pub fn builder_of(&self, config: ClusterConfigBuilder) -> ClusterBuilder {
        let config = config.build().unwrap();
        ClusterManager::builder(config).runtime_dir(self.dir.join("run"))
    }
}

pub fn mail_file(dir: &Path, agent: usize) -> PathBuf {
    dir.join(format!("mail-{agent}"))
}

/// The messages that an agent has got.
#[track_caller]
pub fn mail(dir: &TestDir, agent: usize) -> Vec<String> {
    let lines = fs::read_to_string(mail_file(dir.path(), agent)).unwrap_or_default();
    let got = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["wrong"], serde_json::Value::Null, "agent{agent}");
        line["got"].as_str().unwrap().to_owned()
    };
    lines.lines().map(got).collect()
}

#[derive(PartialEq)]
enum Mood {
    Idle,
    Busy,
    Dialog,
    /// A draft that its person deletes.
    Draft,
}

struct MailAgent {
    file: File,
    line: String,
    mood: Mood,
}

/// Plays the agent.
pub fn run() {
    let path = std::env::var("MAIL_FILE").unwrap();
    let has_moods = std::env::var("MAIL_MOODS").unwrap() == "1";
    fs::write(format!("{path}.pid"), std::process::id().to_string()).unwrap();
    let file = File::options().create(true).append(true).open(path);
    let mut agent = MailAgent {
        file: file.unwrap(),
        line: String::new(),
        mood: Mood::Idle,
    };
    let mut modes = tcgetattr(stdin()).unwrap();
    modes.make_raw();
    tcsetattr(stdin(), OptionalActions::Now, &modes).unwrap();
    print!("\x1b[?2004h");
    agent.draw();
    let mut messages = std::process::id() as usize;
    let mut mood_ends = None;
    let (mut input, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(end) = mood_ends {
            let left = Timespec::try_from(Instant::duration_since(&end, Instant::now())).unwrap();
            let stdin = stdin();
            let mut polled = [PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
            if poll(&mut polled, Some(&left)).is_ok_and(|ready| ready == 0) {
                mood_ends = None;
                agent.line.clear();
                agent.mood = Mood::Idle;
                agent.draw();
                continue;
            }
        }
        let len = stdin().read(&mut buffer).unwrap();
        if len == 0 {
            return;
        }
        for byte in &buffer[..len] {
            input.push(*byte);
            let (start, end) = (b"\x1b[200~", b"\x1b[201~");
            if input.starts_with(start) {
                if input.ends_with(end) {
                    let text = &input[start.len()..input.len() - end.len()];
                    agent.take(std::str::from_utf8(text).unwrap());
                    input.clear();
                }
            } else if !start.starts_with(&input) {
                if input == b"\r" {
                    agent.submit();
                    messages += 1;
                    if has_moods && messages % 16 < 2 {
                        mood_ends = Some(Instant::now() + Duration::from_millis(60));
                        agent.mood = [Mood::Dialog, Mood::Draft]
                            .into_iter()
                            .nth(messages % 16)
                            .unwrap();
                        if agent.mood == Mood::Draft {
                            agent.line.push_str("a draft");
                        }
                    }
                    agent.draw();
                } else {
                    agent.key(input[0]);
                }
                input.clear();
            }
        }
    }
}

impl MailAgent {
    /// A paste, which only the bus does.
    fn take(&mut self, text: &str) {
        if self.mood != Mood::Idle || !self.line.is_empty() {
            self.keep(&json!({ "wrong": "typed into a draft, a dialog or a turn" }));
        }
        self.line.push_str(text);
        self.draw();
    }

    fn submit(&mut self) {
        let message = std::mem::take(&mut self.line);
        if self.mood != Mood::Idle {
            self.keep(&json!({ "wrong": "submitted to a draft, a dialog or a turn" }));
        } else if message.is_empty() {
            self.keep(&json!({ "wrong": "an empty message" }));
        } else {
            self.keep(&json!({ "got": message }));
        }
    }

    fn key(&mut self, key: u8) {
        match key {
            0x15 => self.line.clear(),
            0x04 | 0x02 if self.mood != Mood::Idle => self.mood = Mood::Idle,
            0x04 => self.mood = Mood::Dialog,
            0x02 => self.mood = Mood::Busy,
            key => self.line.push(char::from(key)),
        }
        self.draw();
    }

    fn keep(&mut self, line: &serde_json::Value) {
        // In one write: a kill leaves all of it or nothing.
        self.file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn draw(&self) {
        let text = match self.mood {
            Mood::Idle | Mood::Draft => format!("> {}", self.line),
            Mood::Busy => "busy".to_owned(),
            Mood::Dialog => "Allow this? ".to_owned(),
        };
        print!("\x1b[H\x1b[J{text}");
        stdout().flush().unwrap();
    }
}
