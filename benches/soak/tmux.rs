//! tmux-bus: five agents in panes send messages to each other; agents are killed and restarted.
//!
//! Guarantees: an answered message has arrived once, byte for byte, and in the order of its sender;
//! its answer is complete; a message fails only because of a kill.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use examples::console::{self, Console};
use examples::pane_agent::quoted;
use examples::scripted_agent::this_program;
use examples::{Result, with_causes};
use serde_json::json;
use tmux_bus::{AnswerEnd, ClusterConfig, ClusterManager, Error, SendToOptions};
use tokio::task::JoinSet;

use crate::ledger::Ledger;
use crate::processes;
use crate::worker::{self, Random, Worker};

const AGENTS: [&str; 5] = ["boss", "manager", "writer", "researcher", "tester"];

/// Parts of messages: text with a meaning for a shell, tmux or a terminal.
const PARTS: [&str; 10] = [
    "plain words ",
    "日本語と絵文字🙂 ",
    "\n",
    "\n\n  indented",
    "$(touch no) `no` ",
    "-t %1 ; kill-server ",
    "'single' \"double\" \\n ",
    "#{pane_id} #[fg=red] ",
    "\ta tab",
    "e\u{301} combining ",
];

pub(crate) fn run(ledger: &Arc<Ledger>) -> Result<()> {
    let folder = ledger.folder("tmux")?;
    let mut host = Worker::start(ledger, &["tmux", "--folder", &folder.to_string_lossy()])?;
    ledger.watch("tmux host", host.pid());
    while ledger.pace(Duration::from_secs(1)) {
        host.expect_alive()?;
    }
    host.finish()?;
    let acknowledged = check(&folder)?;
    ledger.count("tmux messages answered", acknowledged);
    // The log contains every message and its answer, a few kilobytes each; the rest is small.
    Ok(ledger.judge_disk(&folder, acknowledged * 16_384 + (1 << 20))?)
}

/// Compares the answered messages with the records of the receivers. Returns their number.
fn check(folder: &Path) -> Result<u64> {
    let acknowledged = std::fs::read_to_string(folder.join("acknowledged"))?;
    let mut acknowledged: BTreeSet<_> = acknowledged.lines().map(str::to_owned).collect();
    let count = acknowledged.len() as u64;
    let mut latest = BTreeMap::new();
    for receiver in AGENTS {
        let received = std::fs::read_to_string(inbox(folder, receiver)).unwrap_or_default();
        for line in received.lines() {
            let [from, number, _] = words(line)?;
            let number: u64 = number.parse()?;
            if let Some(before) = latest.insert((from.to_owned(), receiver), number)
                && before >= number
            {
                let what = format!("{receiver} got message {number} of {from} after {before}");
                return Err(what.into());
            }
            acknowledged.remove(&format!("{receiver} {line}"));
        }
    }
    match acknowledged.first() {
        None => Ok(count),
        Some(lost) => Err(format!("answered but not received: {lost}").into()),
    }
}

fn words(line: &str) -> Result<[&str; 3]> {
    let words: Vec<_> = line.split(' ').collect();
    let words = <[&str; 3]>::try_from(words);
    words.map_err(|_| format!("invalid line in an inbox: {line:?}").into())
}

fn inbox(folder: &Path, agent: &str) -> PathBuf {
    folder.join(format!("{agent}.inbox"))
}

fn marker(agent: &str) -> String {
    format!("{} OK", agent.to_uppercase())
}

/// A hash of the message, computed by the sender and by the receiver.
fn receipt(message: &str) -> String {
    let mut hasher = DefaultHasher::new();
    message.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// The complete answer, often longer than the screen.
fn answer(agent: &str, message: &str) -> String {
    let receipt = receipt(message);
    let mut answer = String::new();
    for row in 0..message.len() % 70 {
        answer.push_str(&format!("row {row} of {receipt}\n"));
    }
    format!("{answer}received {receipt}\n{}", marker(agent))
}

/// An agent in its pane.
#[derive(clap::Args)]
pub(crate) struct Pane {
    #[arg(long)]
    folder: PathBuf,
    #[arg(long)]
    name: String,
}

impl Pane {
    pub(crate) fn run(self) -> Result<()> {
        let mut console = Console::open()?;
        let pid = std::process::id().to_string();
        std::fs::write(self.folder.join(format!("{}.pid", self.name)), pid)?;
        let mut inbox = append(&inbox(&self.folder, &self.name))?;
        while let Some(message) = console.read_message("> ")? {
            // The first line has the sender and the number of the message.
            let head = message.lines().next().unwrap_or_default();
            // One write: a kill does not leave half a line.
            let line = format!("{head} {}\n", receipt(&message));
            inbox.write_all(line.as_bytes())?;
            // Time in which a kill can interrupt the work.
            std::thread::sleep(Duration::from_millis((message.len() % 300) as u64));
            console::print(&format!("{}\n", answer(&self.name, &message)))?;
        }
        Ok(())
    }
}

fn append(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// The process that runs the cluster.
#[derive(clap::Args)]
pub(crate) struct Host {
    #[arg(long)]
    folder: PathBuf,
}

impl Host {
    pub(crate) async fn run(self) -> Result<()> {
        let config = ClusterConfig::load(self.write_config()?)?;
        let cluster = ClusterManager::builder(config)
            .runtime_dir(self.folder.join("run"))
            .start()
            .await?;
        let lives: Arc<Lives> = Arc::default();
        let mut tasks = JoinSet::new();
        for from in 0..AGENTS.len() {
            let journal = append(&self.folder.join("acknowledged"))?;
            tasks.spawn(talk(cluster.clone(), from, journal, Arc::clone(&lives)));
        }
        tasks.spawn(kill_agents(cluster.clone(), self.folder.clone(), lives));
        let mut done = Ok(());
        while let Some(ended) = tasks.join_next().await {
            done = done.and(ended?);
        }
        cluster.stop().await?;
        done
    }

    /// Writes the configuration as JSON, which is valid YAML.
    fn write_config(&self) -> Result<PathBuf> {
        let program = quoted(&this_program()?);
        let folder = self.folder.to_string_lossy();
        let agent = |(index, name): (usize, &&str)| {
            json!({
                "name": name, "role": "other", "marker": marker(name), "pane_index": index,
                "personality_prompt_path": "personality.txt", "timeout_s": 90,
                "command": format!("exec {program} pane --folder {} --name {name}", quoted(&folder)),
            })
        };
        let config = json!({
            "cluster": {"name": "soak", "session_name": "soak", "work_dir": folder},
            "agents": AGENTS.iter().enumerate().map(agent).collect::<Vec<_>>(),
        });
        std::fs::write(
            self.folder.join("personality.txt"),
            "Confirms each message.",
        )?;
        let path = self.folder.join("cluster.yaml");
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }
}

/// A counter for each agent, incremented before a kill and after the restart: odd while the agent may
/// be dead.
#[derive(Default)]
struct Lives([AtomicU32; AGENTS.len()]);

impl Lives {
    fn of(&self, agent: usize) -> u32 {
        self.0[agent].load(Ordering::Relaxed)
    }

    fn turn(&self, agent: usize) {
        self.0[agent].fetch_add(1, Ordering::Relaxed);
    }
}

/// Sends messages from one agent to all others.
async fn talk(
    cluster: ClusterManager,
    from: usize,
    mut journal: File,
    lives: Arc<Lives>,
) -> Result<()> {
    let sender = cluster.agent(AGENTS[from])?;
    let mut random = Random::new();
    let mut number = 0;
    while !worker::is_ending() {
        number += 1;
        let to = (from + 1 + random.below(AGENTS.len() - 1)) % AGENTS.len();
        let mut message = format!("{} {number}\n", AGENTS[from]);
        for _ in 0..random.below(200) {
            message.push_str(random.pick(&PARTS));
        }
        // No trailing white space, which the screen does not show.
        message.push('.');
        let mut options = SendToOptions::default();
        if random.below(2) == 0 {
            options = options.end(AnswerEnd::AtMarker);
        }
        let life = lives.of(to);
        match sender.send_to_with(AGENTS[to], &message, &options).await {
            Ok(given) => {
                let expected = answer(AGENTS[to], &message);
                if given != expected {
                    worker::violation(&format!("answer {given:?} is not {expected:?}"));
                }
                let (name, receipt) = (AGENTS[to], receipt(&message));
                writeln!(journal, "{name} {} {number} {receipt}", AGENTS[from])?;
                worker::count("tmux messages sent");
            }
            Err(error) => {
                let killed = life % 2 == 1 || life != lives.of(to);
                let expected = error.is_not_sent() || matches!(error, Error::PaneDied { .. });
                if !(killed && expected) {
                    let error = with_causes(&error);
                    worker::violation(&format!("message {number} to {}: {error}", AGENTS[to]));
                    return Ok(());
                }
                worker::count("tmux messages cut off by a kill");
            }
        }
        tokio::time::sleep(random.millis(20, 200)).await;
    }
    Ok(())
}

/// Kills and restarts random agents, except the first.
async fn kill_agents(cluster: ClusterManager, folder: PathBuf, lives: Arc<Lives>) -> Result<()> {
    let mut random = Random::new();
    let mut wait = random.millis(4_000, 8_000);
    while !worker::is_ending() {
        tokio::time::sleep(Duration::from_millis(200)).await;
        wait = wait.saturating_sub(Duration::from_millis(200));
        if !wait.is_zero() {
            continue;
        }
        let agent = 1 + random.below(AGENTS.len() - 1);
        let pid = std::fs::read_to_string(folder.join(format!("{}.pid", AGENTS[agent])))?;
        lives.turn(agent);
        processes::kill(pid.parse()?);
        worker::count("tmux agents killed");
        cluster.restart(AGENTS[agent]).await?;
        lives.turn(agent);
        wait = random.millis(4_000, 8_000);
    }
    Ok(())
}
