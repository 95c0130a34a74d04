//! Many messages, while senders, deliverers, receivers and the tmux server are killed at random.
//!
//! The referee compares what was acknowledged to the senders with what the agents have kept:
//!
//! - no text arrives twice, in the wrong place, or into a draft, a dialog or a turn,
//! - an acknowledged text has arrived, unless it is listed as uncertain,
//! - the texts of one sender for one agent arrive in the order in which they were left.
//!
//! `TMUX_BUS_STORM` sets the number of messages, `TMUX_BUS_KILLS` about the number of kills.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tmux_bus::{
    ClusterBuilder, ClusterManager, Error, Inbox, InboxEntry, InboxLimits, MessageState,
};

use crate::inbox::kill_agent;
use crate::mail_agent::{MailTeam, mail, mail_file};
use crate::support::{TestDir, eventually, kill_server, tmux};
use crate::worker::Worker;

const AGENTS: usize = 10;
const SENDERS: usize = 4;

fn team(dir: &Path) -> MailTeam<'_> {
    MailTeam {
        dir,
        agents: AGENTS,
        has_moods: true,
    }
}

/// A short queue: senders wait for room, and live as long as the storm.
fn builder(dir: &Path) -> ClusterBuilder {
    let limits = InboxLimits::default().max_messages(30);
    team(dir).builder_of(team(dir).config().inbox(limits))
}

/// Starts the agents in small panes: reading their screens is most of the work.
async fn start(dir: &Path) -> ClusterManager {
    let cluster = match builder(dir).start().await {
        Err(Error::AlreadyRunning { .. }) => builder(dir).attach_unchanged().await.unwrap(),
        Err(error) if is_moody(&error) => builder(dir).attach_unchanged().await.unwrap(),
        started => started.unwrap(),
    };
    tmux(
        cluster.socket(),
        &["resize-window", "-x", "130", "-y", "40"],
    );
    cluster
}

/// Whether a start failed only because the agent shows a dialog. An agent gets messages as soon as
/// it can take them, before the process that starts it has seen it idle, and opens a dialog after
/// some of them. On a machine that is overloaded a dialog can be seen twice in a row, a second
/// apart, although another state was between them.
fn is_moody(error: &Error) -> bool {
    let Error::NotReady { source, .. } = error else {
        return false;
    };
    matches!(&**source, Error::StateTimeout { .. })
}

fn is_server_gone(error: &Error) -> bool {
    match error {
        Error::NotReady { source, .. } => is_server_gone(source),
        error => matches!(error, Error::ServerGone { .. }),
    }
}

/// The texts that were acknowledged to a sender.
fn acknowledged(dir: &Path, sender: usize) -> PathBuf {
    dir.join(format!("acknowledged-{sender}"))
}

/// A text: sender, number, and the run of the sender. A sender that was killed does not know
/// whether its last text was left, and leaves it again under another name.
fn text(sender: usize, number: usize, run: u32) -> String {
    format!("{sender} {number} {run}")
}

/// A process that leaves messages, and continues where the process before it was killed.
pub fn send(folder: &str, sender: &str, count: &str) {
    let (sender, count): (usize, usize) = (sender.parse().unwrap(), count.parse().unwrap());
    let path = acknowledged(folder.as_ref(), sender);
    let done = fs::read_to_string(&path)
        .unwrap_or_default()
        .lines()
        .count();
    let mut file = File::options()
        .create(true)
        .append(true)
        .open(path)
        .unwrap();
    let inbox = builder(folder.as_ref()).inbox();
    for number in done..count {
        let text = text(sender, number, std::process::id());
        let agent = format!("agent{}", number % AGENTS);
        loop {
            match inbox.leave(&format!("sender{sender}"), &agent, &text) {
                Ok(_) => break,
                Err(Error::InboxFull { .. }) => std::thread::sleep(Duration::from_millis(20)),
                Err(error) => panic!("{error}"),
            }
        }
        writeln!(file, "{text}").unwrap();
    }
    fs::write(format!("{folder}/finished-{sender}"), "").unwrap();
}

/// A process that delivers until it is killed.
pub fn deliver(folder: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        loop {
            if let Ok(cluster) = builder(folder.as_ref()).attach_unchanged().await {
                // The server may be killed at any moment.
                let _ = cluster.deliver_inbox().await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

struct Storm {
    socket: PathBuf,
    dir: TestDir,
    inbox: Inbox,
    messages: usize,
    senders: Vec<Worker>,
    deliverers: Vec<Worker>,
    kills: [usize; 4],
    counted: [CountedMail; AGENTS],
}

/// How much of a file of messages has been counted: it grows, and is looked at all the time.
#[derive(Clone, Copy, Default)]
struct CountedMail {
    offset: u64,
    lines: usize,
}

impl CountedMail {
    fn update(&mut self, path: &Path) {
        let Ok(mut file) = File::open(path) else {
            return;
        };
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(self.offset)).unwrap();
        file.read_to_end(&mut bytes).unwrap();
        self.offset += bytes.len() as u64;
        self.lines += bytes.iter().filter(|byte| **byte == b'\n').count();
    }
}

/// Before the folder with the socket is removed.
impl Drop for Storm {
    fn drop(&mut self) {
        self.deliverers.clear();
        self.senders.clear();
        kill_server(&self.socket);
    }
}

impl Storm {
    fn sender(&self, sender: usize) -> Worker {
        let dir = self.dir.path().display();
        Worker::start(&format!(
            "storm-send {dir} {sender} {}",
            self.messages / SENDERS
        ))
    }

    fn deliverer(&self) -> Worker {
        Worker::start(&format!("storm-deliver {}", self.dir.path().display()))
    }

    fn has_finished(&self, sender: usize) -> bool {
        self.dir.path().join(format!("finished-{sender}")).exists()
    }

    fn entries(&self) -> Vec<InboxEntry> {
        self.inbox.all_entries().unwrap()
    }

    /// The number of messages that have arrived.
    fn received(&mut self) -> usize {
        for (agent, counted) in self.counted.iter_mut().enumerate() {
            counted.update(&mail_file(self.dir.path(), agent));
        }
        self.counted.iter().map(|counted| counted.lines).sum()
    }

    async fn kill(&mut self, what: usize, cluster: &mut ClusterManager) {
        match what % 32 {
            0..8 => {
                let sender = what / 32 % SENDERS;
                if self.has_finished(sender) {
                    return;
                }
                self.senders[sender].kill();
                self.senders[sender] = self.sender(sender);
                self.kills[0] += 1;
            }
            8..16 => {
                let deliverer = what / 32 % self.deliverers.len();
                self.deliverers[deliverer].kill();
                self.deliverers[deliverer] = self.deliverer();
                self.kills[1] += 1;
            }
            16..30 => {
                let agent = what / 32 % AGENTS;
                kill_agent(&self.dir, agent);
                match cluster.restart(&format!("agent{agent}")).await {
                    Err(error) if is_moody(&error) => {}
                    // One more death of the server. Known: tmux 3.3a crashes if it has news for its
                    // clients while another one is attaching (tmux/tmux#4980). Seen once here
                    // without the trace of a crash; that cause is not known.
                    Err(error) if is_server_gone(&error) => {
                        *cluster = start(self.dir.path()).await;
                        self.kills[3] += 1;
                    }
                    restarted => restarted.unwrap(),
                }
                self.kills[2] += 1;
            }
            _ => {
                kill_server_by_signal(cluster.socket());
                *cluster = start(self.dir.path()).await;
                self.kills[3] += 1;
            }
        }
    }

    fn judge(&self) {
        let is_uncertain =
            |entry: &&InboxEntry| matches!(entry.state, MessageState::Uncertain { .. });
        let entries = self.entries();
        let uncertain: BTreeSet<String> = entries
            .iter()
            .filter(is_uncertain)
            .map(|entry| entry.text.clone())
            .collect();
        assert!(
            !entries
                .iter()
                .any(|entry| matches!(entry.state, MessageState::Dead { .. })),
            "no message is dead"
        );
        let mut received = BTreeSet::new();
        for agent in 0..AGENTS {
            let mut last = BTreeMap::new();
            // `mail` refuses what was typed into a draft or a dialog.
            for text in mail(&self.dir, agent) {
                assert!(received.insert(text.clone()), "delivered twice: {text}");
                let fields: Vec<usize> = text.split(' ').map(|n| n.parse().unwrap()).collect();
                let (sender, number) = (fields[0], fields[1]);
                assert_eq!(number % AGENTS, agent, "the wrong agent: {text}");
                // A text whose sender was killed may be there twice, under two names.
                let before = last.insert(sender, number);
                assert!(before <= Some(number), "out of order: {text}");
            }
        }
        let mut arrived = 0;
        for sender in 0..SENDERS {
            let acknowledged = fs::read_to_string(acknowledged(self.dir.path(), sender)).unwrap();
            assert_eq!(acknowledged.lines().count(), self.messages / SENDERS);
            for text in acknowledged.lines() {
                let has_arrived = received.contains(text);
                arrived += usize::from(has_arrived);
                assert!(has_arrived || uncertain.contains(text), "vanished: {text}");
            }
        }
        // A kill of a deliverer or of the server hides the outcome of one message of each agent at
        // most.
        let kills: usize = self.kills.iter().sum();
        assert!(uncertain.len() <= AGENTS * kills, "too many are uncertain");
        println!(
            "{} messages, {arrived} arrived, {} uncertain",
            self.messages,
            uncertain.len()
        );
    }
}

fn kill_server_by_signal(socket: &Path) {
    let pid = tmux(socket, &["display-message", "-p", "#{pid}"]);
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    eventually("the server is gone", || {
        std::os::unix::net::UnixStream::connect(socket).is_err()
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_or_delivered_twice_while_all_parts_are_killed() {
    let messages: usize = match std::env::var("TMUX_BUS_STORM") {
        Ok(messages) => messages.parse().unwrap(),
        Err(_) => 10_000,
    };
    let dir = TestDir::new();
    let mut cluster = start(dir.path()).await;
    let mut storm = Storm {
        socket: cluster.socket().to_owned(),
        inbox: builder(dir.path()).inbox(),
        dir,
        messages,
        senders: Vec::new(),
        deliverers: Vec::new(),
        kills: [0; 4],
        counted: Default::default(),
    };
    storm.senders = (0..SENDERS).map(|sender| storm.sender(sender)).collect();
    storm.deliverers = (0..2).map(|_| storm.deliverer()).collect();
    let start = Instant::now();
    let mut random = messages as u64;
    let kills = std::env::var("TMUX_BUS_KILLS").map_or(60, |kills| kills.parse().unwrap());
    let (step, mut next) = (messages / kills, 20);
    let (mut progress, mut last) = (Instant::now(), 0);
    loop {
        let received = storm.received();
        if received != last {
            (progress, last) = (Instant::now(), received);
        }
        assert!(
            progress.elapsed() < Duration::from_secs(60),
            "no progress after {received} messages and {:?} kills",
            storm.kills
        );
        let waits = |entry: &InboxEntry| {
            matches!(entry.state, MessageState::Waiting | MessageState::Sending)
        };
        let have_finished = (0..SENDERS).all(|sender| storm.has_finished(sender));
        if have_finished && !storm.entries().iter().any(waits) {
            break;
        }
        if received >= next {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            storm.kill((random >> 40) as usize, &mut cluster).await;
            next = received + step;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("{:?}, kills: {:?}", start.elapsed(), storm.kills);
    storm.judge();
}
