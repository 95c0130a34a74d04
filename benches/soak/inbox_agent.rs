//! An agent in a pane. It keeps the messages that it gets, and answers asks; at the same time it posts
//! and asks by the bus, in its own name.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use examples::Result;
use examples::console::{self, Console};
use tmux_bus::vocabulary::{AskState, Reply, Request};
use tmux_bus::{Bus, Error};

use crate::worker::Random;

pub(crate) const AGENTS: [&str; 4] = ["ann", "ben", "cleo", "dan"];

/// The folder of the session, in a pane of a cluster.
const FOLDER_VARIABLE: &str = "TMUX_BUS_FOLDER";
/// The time of an agent for its answer, in seconds; generous for a busy machine.
const LIMIT_S: f64 = 60.0;

pub(crate) fn marker(agent: &str) -> String {
    format!("{} OK", agent.to_uppercase())
}

/// Sender, with its process, and number of a post, by its key.
pub(crate) fn post_number(key: &str) -> Option<(&str, u64)> {
    let (sender, number) = key.strip_prefix("post-")?.rsplit_once('-')?;
    Some((sender, number.parse().ok()?))
}

/// Asks all agents to send nothing more.
pub(crate) fn stop_all(folder: &Path) -> Result<()> {
    Ok(std::fs::write(folder.join("stop"), "")?)
}

/// The files of one agent, which survive its process.
#[derive(Clone)]
pub(crate) struct Mailbox {
    folder: PathBuf,
    name: String,
}

/// A message in the journal of its sender.
pub(crate) struct SentMessage {
    pub(crate) key: String,
    pub(crate) to: String,
    pub(crate) end: Option<String>,
    /// Whether the sender was killed before the end.
    pub(crate) is_killed: bool,
}

impl Mailbox {
    pub(crate) fn new(folder: &Path, name: &str) -> Self {
        Self {
            folder: folder.to_owned(),
            name: name.to_owned(),
        }
    }

    /// The process of the agent.
    pub(crate) fn pid(&self) -> Option<u32> {
        std::fs::read_to_string(self.file("pid")).ok()?.parse().ok()
    }

    /// A part of the keys of all messages that the process of the agent sends.
    fn life(&self) -> String {
        std::fs::read_to_string(self.file("life")).unwrap_or_default()
    }

    /// Whether the agent has finished its last call.
    pub(crate) fn has_stopped(&self) -> bool {
        self.file("stopped").exists()
    }

    /// The keys of the messages that the agent has got, in order.
    pub(crate) fn received(&self) -> Result<Vec<String>> {
        let text = std::fs::read_to_string(self.file("received")).unwrap_or_default();
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// The messages that the agent has sent.
    pub(crate) fn sent(&self) -> Result<Vec<SentMessage>> {
        let text = std::fs::read_to_string(self.file("sent")).unwrap_or_default();
        let mut sent = BTreeMap::new();
        let life = self.life();
        for line in text.lines() {
            let (key, rest) = line.split_once(' ').ok_or("an invalid line in a journal")?;
            match rest.strip_prefix("to ") {
                Some(to) => {
                    let message = SentMessage {
                        key: key.to_owned(),
                        to: to.to_owned(),
                        end: None,
                        is_killed: !key.contains(&life),
                    };
                    sent.insert(key.to_owned(), message);
                }
                None => {
                    let message = sent.get_mut(key).ok_or("an end without a message")?;
                    message.end = Some(rest.to_owned());
                }
            }
        }
        Ok(sent.into_values().collect())
    }

    fn file(&self, kind: &str) -> PathBuf {
        self.folder.join(format!("{}.{kind}", self.name))
    }

    /// In one write: a kill leaves all of the line or nothing.
    fn append(&self, kind: &str, line: &str) -> Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options.create(true).append(true).open(self.file(kind))?;
        Ok(file.write_all(format!("{line}\n").as_bytes())?)
    }
}

/// The program in the pane.
#[derive(clap::Args)]
pub(crate) struct Pane {
    #[arg(long)]
    folder: PathBuf,
    #[arg(long)]
    name: String,
}

impl Pane {
    pub(crate) fn run(self) -> Result<()> {
        let mailbox = Mailbox::new(&self.folder, &self.name);
        // Process ids are reused within minutes, where so many processes are started.
        let life = uuid::Uuid::new_v4().simple().to_string();
        std::fs::write(mailbox.file("life"), &life[..8])?;
        std::fs::write(mailbox.file("pid"), std::process::id().to_string())?;
        std::thread::spawn({
            let mailbox = mailbox.clone();
            move || crate::block_on(send_messages(&mailbox))
        });
        let mut console = Console::open()?;
        while let Some(message) = console.read_message("> ")? {
            // Until the answer is there, the screen must show that the agent works.
            console::print("busy")?;
            // The first line names the sender.
            let key = message.lines().last().unwrap_or_default();
            mailbox.append("received", key)?;
            // Time in which a kill can interrupt the work.
            std::thread::sleep(Duration::from_millis(4 * message.len() as u64));
            let answer = match key.starts_with("ask-") {
                true => format!("received {key}\n{}\n", marker(&self.name)),
                false => String::new(),
            };
            console::print(&format!("\r\x1b[K{answer}"))?;
        }
        Ok(())
    }
}

/// Posts and asks until the end of the run.
async fn send_messages(mailbox: &Mailbox) -> Result<()> {
    let is_stopped = || mailbox.folder.join("stop").exists();
    let mut random = Random::new();
    let (name, life) = (&mailbox.name, mailbox.life());
    let mut bus = None;
    let mut number = 0;
    while !is_stopped() {
        tokio::time::sleep(random.millis(200, 1_500)).await;
        let Some(bus) = &bus else {
            let folder = std::env::var_os(FOLDER_VARIABLE).unwrap_or_default();
            // On a busy machine tmux may answer too late.
            bus = Bus::builder().folder(folder).connect().await.ok();
            continue;
        };
        number += 1;
        let others: Vec<_> = AGENTS.iter().filter(|other| **other != *name).collect();
        let to = random.pick(&others).to_string();
        let kind = random.pick(&["post", "post", "ask", "ask-detached"]);
        let key = format!("{kind}-{name}-{life}-{number}");
        mailbox.append("sent", &format!("{key} to {to}"))?;
        let end = match kind {
            "post" => post(bus, to, &key).await.to_owned(),
            _ => ask(bus, to, &key, kind == "ask-detached").await,
        };
        mailbox.append("sent", &format!("{key} {end}"))?;
    }
    Ok(std::fs::write(mailbox.file("stopped"), "")?)
}

async fn post(bus: &Bus, to: String, key: &str) -> &'static str {
    let request = Request::Post {
        to,
        text: key.to_owned(),
        now: false,
    };
    match bus.call(request).await {
        Ok(_) => "accepted",
        Err(_) => "refused",
    }
}

async fn ask(bus: &Bus, to: String, key: &str, detach: bool) -> String {
    let request = Request::Ask {
        to,
        text: key.to_owned(),
        detach,
        timeout_s: None,
        limit_s: Some(LIMIT_S),
    };
    let reply = match bus.call(request).await {
        Ok(Reply::Ask(report)) if report.state == AskState::Running => wait(bus, &report.id).await,
        // Refused before it was sent, such as one that would close a cycle.
        Err(error) if error.is_not_sent() => return "refused".to_owned(),
        reply => reply,
    };
    let report = match reply {
        Ok(Reply::Ask(report) | Reply::Wait(report)) => report,
        Ok(_) => return "got the reply to another request".to_owned(),
        Err(_) => return "uncertain".to_owned(),
    };
    let answer = report.answer.unwrap_or_default();
    match report.state {
        AskState::Answered if answer.starts_with(&format!("received {key}\n")) => "answered",
        AskState::Answered => return format!("was answered by {answer:?}"),
        AskState::Failed => "failed",
        AskState::Uncertain => "uncertain",
        _ => "has no end",
    }
    .to_owned()
}

/// Waits for the end of an ask that runs. While its receiver waits for this agent, the wait is refused.
async fn wait(bus: &Bus, id: &str) -> std::result::Result<Reply, Error> {
    loop {
        let (id, timeout_s) = (id.to_owned(), None);
        match bus.call(Request::Wait { id, timeout_s }).await {
            Err(Error::Cycle { .. }) => tokio::time::sleep(Duration::from_millis(50)).await,
            reply => return reply,
        }
    }
}
