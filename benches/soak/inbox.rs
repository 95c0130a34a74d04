//! The inbox of tmux-bus: four agents in panes post and ask each other by the bus. The processes that
//! deliver posts and carry out asks are killed, and so are agents.
//!
//! Guarantees: a post that was accepted arrives once, or is listed as uncertain; a post that was
//! refused does not arrive; an answered ask has arrived once; no message arrives twice; the posts of
//! one agent for another arrive in order; every ask has an end, and nothing waits for ever.
//!
//! tmux can crash when a pane is restarted whose last output a client has not read (the guarantees of
//! tmux-bus name the issue). Then the agents are gone in the middle of their calls: the area ends, and
//! the run counts it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use examples::Result;
use examples::pane_agent::quoted;
use examples::scripted_agent::this_program;
use serde_json::json;
use tmux_bus::vocabulary::{Reply, Request};
use tmux_bus::{Bus, ClusterConfig, ClusterManager, Error, InboxEntry, MessageState};

use crate::inbox_agent::{self, AGENTS, Mailbox};
use crate::ledger::Ledger;
use crate::processes::{self, Tagged};
use crate::worker::{self, Random, Worker};

/// The command by which agents talk to each other.
const COMMAND: &str = "examples/tmux-bus";
/// The first arguments of its processes in the background.
const VERBS: [&str; 2] = [" deliver ", " carry-out "];
/// For the last messages to be delivered; generous for a busy machine.
const SOON: Duration = Duration::from_secs(100);

/// The input line of the agents: the first line names the sender, the second one is the key of the message.
/// Without this rule a text that a killed process has left there could not be found and removed.
const DEFINITION: &str = r"
[mail]
submit = { clear_keys = ['C-u'] }
idle = { settle_ms = 5 }
input = { line = '^(?P<prefix>> )(?P<text>.*)$', next = '^(?P<text>(post|ask)-.*)$' }
[[mail.working]]
id = 'busy'
all = ['^busy']
";

pub(crate) fn run(ledger: &Arc<Ledger>) -> Result<()> {
    let folder = ledger.folder("inbox")?;
    let command = crate::built(COMMAND)?;
    let mut host = Worker::start(ledger, &["inbox", "--folder", &folder.to_string_lossy()])?;
    ledger.watch("inbox host", host.pid());
    let mut random = Random::new();
    let mut watched = false;
    while ledger.pace(random.millis(300, 2_000)) {
        if let Err(error) = host.expect_alive() {
            return if has_tmux_crashed(ledger, &folder) {
                Ok(())
            } else {
                Err(error)
            };
        }
        // The first agent is never killed.
        if !watched && let Some(pid) = Mailbox::new(&folder, AGENTS[0]).pid() {
            ledger.watch("inbox agent", pid);
            watched = true;
        }
        let mut bus = bus_processes(ledger, &command);
        // Most processes carry out asks.
        let verb = random.pick(&VERBS);
        bus.retain(|process| process.command.contains(verb));
        if !bus.is_empty() {
            processes::kill(bus[random.below(bus.len())].pid);
            ledger.count("inbox bus processes killed", 1);
        }
    }
    host.finish()?;
    if has_tmux_crashed(ledger, &folder) {
        return Ok(());
    }
    // They end with the cluster, a moment later.
    let deadline = Instant::now() + SOON;
    while !bus_processes(ledger, &command).is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    check(ledger, &folder)?;
    ledger.expect_some("inbox posts delivered");
    ledger.expect_some("inbox asks answered");
    Ok(())
}

/// The file that tells that the tmux server ended by itself.
fn crashed(folder: &Path) -> PathBuf {
    folder.join("tmux-crashed")
}

fn has_tmux_crashed(ledger: &Ledger, folder: &Path) -> bool {
    let has_crashed = crashed(folder).exists();
    if has_crashed {
        ledger.count("inbox tmux servers that crashed", 1);
    }
    has_crashed
}

/// The processes that deliver posts or carry out an ask.
fn bus_processes(ledger: &Ledger, command: &Path) -> Vec<Tagged> {
    let mut found = processes::tagged(processes::RUN);
    found.retain(|process| {
        let rest = process.command.strip_prefix(&*command.to_string_lossy());
        let is_bus = |rest: &str| VERBS.iter().any(|verb| rest.starts_with(verb));
        process.value == ledger.run() && rest.is_some_and(is_bus)
    });
    found
}

/// Compares what the agents have sent with what they have got.
fn check(ledger: &Ledger, folder: &Path) -> Result<()> {
    let uncertain = std::fs::read_to_string(uncertain(folder)).unwrap_or_default();
    let uncertain: BTreeSet<&str> = uncertain.lines().collect();
    let mut received: BTreeMap<String, &str> = BTreeMap::new();
    for agent in AGENTS {
        for key in Mailbox::new(folder, agent).received()? {
            if received.insert(key.clone(), agent).is_some() {
                ledger.violation(format!("message {key} arrived twice"));
            }
        }
    }
    for agent in AGENTS {
        for sent in Mailbox::new(folder, agent).sent()? {
            let key = &sent.key;
            let arrived = received.remove(key);
            if arrived.is_some_and(|agent| agent != sent.to) {
                ledger.violation(format!("message {key} for {} arrived elsewhere", sent.to));
            }
            let is_uncertain = uncertain.contains(key.as_str());
            let (right, what) = match sent.end.as_deref() {
                Some("accepted") if is_uncertain => (true, "inbox posts uncertain"),
                Some("accepted") => (arrived.is_some(), "inbox posts delivered"),
                Some("answered") => (arrived.is_some(), "inbox asks answered"),
                Some("refused") => (arrived.is_none(), "inbox messages refused"),
                Some("failed") => (true, "inbox asks failed"),
                Some("uncertain") => (true, "inbox asks uncertain"),
                // At the end of the run every agent has waited for the end of its last call.
                None => (sent.is_killed, "inbox messages of killed agents"),
                Some(other) => return Err(format!("{key}: {other}").into()),
            };
            ledger.count(what, 1);
            if !right {
                let (end, came) = (&sent.end, arrived.is_some());
                ledger.violation(format!("message {key}: end {end:?}, arrived: {came}"));
            }
        }
        check_order(ledger, folder, agent)?;
    }
    if let Some((key, agent)) = received.first_key_value() {
        ledger.violation(format!("{agent} got {key}, which was not sent"));
    }
    Ok(())
}

/// Checks that the posts of each sender arrived in order.
fn check_order(ledger: &Ledger, folder: &Path, agent: &str) -> Result<()> {
    let mut last = BTreeMap::new();
    for key in Mailbox::new(folder, agent).received()? {
        let Some((sender, number)) = inbox_agent::post_number(&key) else {
            continue;
        };
        if let Some(before) = last.insert(sender.to_owned(), number)
            && before > number
        {
            ledger.violation(format!("{agent} got post {key} after number {before}"));
        }
    }
    Ok(())
}

/// The file with the keys of the messages that the inbox lists as uncertain.
fn uncertain(folder: &Path) -> PathBuf {
    folder.join("uncertain")
}

/// The process that starts the cluster and kills agents.
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
            .command(crate::built(COMMAND)?)
            .start()
            .await?;
        let done = async {
            self.kill_agents(&cluster).await?;
            self.drain(&cluster).await
        };
        let done = done.await;
        let is_gone = |error: &Error| matches!(error, Error::ServerGone { .. });
        let status = cluster.status().await.map(drop);
        if done.is_err() && status.as_ref().is_err_and(is_gone) {
            return Ok(std::fs::write(crashed(&self.folder), "")?);
        }
        cluster.stop().await?;
        done
    }

    /// Writes the configuration as JSON, which is valid YAML.
    fn write_config(&self) -> Result<PathBuf> {
        let program = quoted(&this_program()?);
        let folder = self.folder.to_string_lossy();
        let definitions = self.folder.join("agents.toml");
        let agent = |(index, name): (usize, &&str)| {
            let arguments = format!("--folder {} --name {name}", quoted(&folder));
            json!({
                "name": name, "role": "other", "marker": inbox_agent::marker(name),
                "agent": "mail", "pane_index": index, "timeout_s": 90,
                "personality_prompt_path": "personality.txt",
                "command": format!("exec {program} mailbox {arguments}"),
            })
        };
        let config = json!({
            "cluster": {
                "name": "inbox", "session_name": "inbox", "work_dir": folder,
                "agent_definitions": definitions,
            },
            "agents": AGENTS.iter().enumerate().map(agent).collect::<Vec<_>>(),
        });
        std::fs::write(definitions, DEFINITION)?;
        std::fs::write(
            self.folder.join("personality.txt"),
            "Answers what it is asked.",
        )?;
        let path = self.folder.join("cluster.yaml");
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }

    /// Kills and restarts random agents, except the first.
    async fn kill_agents(&self, cluster: &ClusterManager) -> Result<()> {
        let mut random = Random::new();
        loop {
            let next = Instant::now() + random.millis(5_000, 10_000);
            while Instant::now() < next {
                if worker::is_ending() {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            let agent = AGENTS[1 + random.below(AGENTS.len() - 1)];
            if let Some(pid) = Mailbox::new(&self.folder, agent).pid() {
                processes::kill(pid);
                worker::count("inbox agents killed");
            }
            cluster.restart(agent).await?;
        }
    }

    /// Lets the agents finish, and waits until no message waits.
    async fn drain(&self, cluster: &ClusterManager) -> Result<()> {
        inbox_agent::stop_all(&self.folder)?;
        let deadline = Instant::now() + SOON;
        let talks = |agent: &&str| !Mailbox::new(&self.folder, agent).has_stopped();
        while let Some(agent) = AGENTS.iter().find(|agent| talks(agent)) {
            pause(deadline, || format!("the last call of {agent} has no end")).await?;
        }
        let bus = Bus::builder().folder(cluster.folder()).connect().await?;
        let deadline = Instant::now() + SOON;
        let entries = loop {
            let entries = cluster.inbox().all_entries()?;
            let Some(entry) = entries.iter().find(|entry| waits(entry)) else {
                break entries;
            };
            // Starts a process that delivers, if all were killed.
            let agent = Some(entry.to.clone());
            let reply = bus.call(Request::Inbox { agent }).await?;
            let problem = match reply {
                Reply::Inbox(report) => report.problem,
                _ => None,
            };
            let state = |problem| format!("{entry:?} still waits, problem: {problem:?}");
            pause(deadline, || state(problem)).await?;
        };
        let mut keys = String::new();
        for entry in entries {
            match entry.state {
                MessageState::Uncertain { .. } => keys.push_str(&format!("{}\n", entry.text)),
                MessageState::Dead { reason } => {
                    worker::violation(&format!("{} is a dead letter: {reason}", entry.text));
                }
                _ => {}
            }
        }
        Ok(std::fs::write(uncertain(&self.folder), keys)?)
    }
}

fn waits(entry: &InboxEntry) -> bool {
    matches!(entry.state, MessageState::Waiting | MessageState::Sending)
}

/// Waits for a moment, up to the deadline.
async fn pause(deadline: Instant, problem: impl FnOnce() -> String) -> Result<()> {
    if Instant::now() > deadline {
        return Err(problem().into());
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    Ok(())
}
