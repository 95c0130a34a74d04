//! The board of the examples: clients of its page connect, read, lag, vanish and come back, while
//! messages come in at a steady rate and in bursts.
//!
//! Guarantees: no client sees an event twice, out of order or with a gap, also over a new connection;
//! a client that is too slow is told so; the memory and the descriptors of the board stay flat.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use examples::{Result, with_causes};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::board_client::{Address, Client, Ended, Place};
use crate::ledger::Ledger;
use crate::processes;
use crate::worker::{self, Random, Worker};

const CLIENTS: usize = 8;
/// The close code for a client that reads too slowly.
const TOO_SLOW: u16 = 4008;
/// The agents that the board plays.
const AGENTS: [&str; 5] = [
    "grand_boss",
    "middle_manager",
    "coding",
    "research",
    "testing",
];
/// Tolerated growth of memory. The full board replaces 56 MiB of texts of all lengths, which fragments
/// the heap, and its clients buffer frames with the whole state. Measured over ten minutes, from the
/// second to the last quarter: 153 to 156 MB, and 101 to 106 MB if each text of 3,000 bytes or more has
/// a mapping of its own (`MALLOC_MMAP_THRESHOLD_=3000`); over twenty minutes beside all other areas: 162
/// to 180 MB. So only a long run judges it: one more copy of each message is 50 MB in ten minutes.
const FRAGMENTS_KB: u64 = 48 << 10;
/// Bytes of the longest message, usually and in a burst.
const USUAL: usize = 24_000;
const LONGEST: usize = 60_000;

pub(crate) fn run(ledger: &Arc<Ledger>) -> Result<()> {
    let (mut board, address) = Board::start(ledger)?;
    let file = ledger.folder("board")?.join("address");
    std::fs::write(&file, address.text())?;
    let mut clients = Worker::start(ledger, &["board", "--address", &file.to_string_lossy()])?;
    ledger.watch_within("board clients", clients.pid(), FRAGMENTS_KB);
    // The board keeps 32 MiB of messages and 24 MiB of events. It may grow until it is full.
    if crate::block_on(fill(ledger, &address))? {
        ledger.watch_within("board", board.0.id(), FRAGMENTS_KB);
    }
    while ledger.pace(Duration::from_secs(1)) {
        board.expect_alive()?;
        clients.expect_alive()?;
    }
    clients.finish()?;
    board.expect_alive()?;
    ledger.expect_some("board events seen");
    Ok(())
}

/// The program. Dropping it kills the process.
struct Board(Child);

impl Board {
    fn start(ledger: &Ledger) -> Result<(Self, Address)> {
        let mut child = Command::new(crate::built("board")?)
            .args(["--demo", "--json"])
            .env(processes::RUN, ledger.run())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let output = child.stdout.take().ok_or("the board has no output")?;
        let board = Self(child);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let line: Value = serde_json::from_str(&line)?;
        let address = line["address"].as_str().ok_or("the board has no address")?;
        Ok((board, Address::parse(address)?))
    }

    fn expect_alive(&mut self) -> Result<()> {
        match self.0.try_wait()? {
            None => Ok(()),
            Some(status) => Err(format!("the board ended by itself with {status}").into()),
        }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends messages until the board drops the first one. False if the run ends before that.
async fn fill(ledger: &Ledger, address: &Address) -> Result<bool> {
    let mut random = Random::new();
    let mut client = Client::open(address, None).await?;
    'connected: while !ledger.is_ending() {
        // The reads below tell why a connection has ended.
        for _ in 0..20 {
            let _ = client.send(&message(&mut random, USUAL)).await;
        }
        let first = json!({"type": "messages", "before": 2, "limit": 1});
        let _ = client.send(&first).await;
        let is_dropped = loop {
            match client.receive_reply().await? {
                Ok(reply) if reply["messages"].is_null() => {}
                Ok(reply) => break reply["messages"].as_array().is_some_and(Vec::is_empty),
                Err(ended) => {
                    judge(Some(ended))?;
                    client = Client::open(address, None).await?;
                    continue 'connected;
                }
            }
        };
        if is_dropped {
            return Ok(true);
        }
        // Replies overtake events.
        let until = Instant::now() + Duration::from_millis(20);
        if let Some(ended) = client.read_until(until).await? {
            judge(Some(ended))?;
            client = Client::open(address, None).await?;
        }
    }
    Ok(false)
}

/// A message for one of the agents.
fn message(random: &mut Random, longest: usize) -> Value {
    let bytes = longest / 6 + random.below(longest * 5 / 6);
    let text = format!("[[say done]] {}", "word ".repeat(bytes / 5));
    json!({"id": "m", "type": "send", "agent": random.pick(&AGENTS), "text": text})
}

/// A process with all clients.
#[derive(clap::Args)]
pub(crate) struct Clients {
    /// The file with the address, which contains a secret
    #[arg(long)]
    address: PathBuf,
}

impl Clients {
    pub(crate) async fn run(self) -> Result<()> {
        let address = Address::parse(&std::fs::read_to_string(self.address)?)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(report(speak(address.clone())));
        tasks.spawn(report(knock(address.clone())));
        for _ in 0..CLIENTS {
            tasks.spawn(report(come_and_go(address.clone())));
        }
        while let Some(done) = tasks.join_next().await {
            done?;
        }
        Ok(())
    }
}

async fn report(work: impl Future<Output = Result<()>>) {
    if let Err(error) = work.await {
        worker::violation(&format!("a client of the board: {}", with_causes(&*error)));
    }
}

/// Sends messages: one after the other, and sometimes a burst, which a client that does not read
/// cannot keep up with.
async fn speak(address: Address) -> Result<()> {
    let mut random = Random::new();
    while !worker::is_ending() {
        let mut client = Client::open(&address, None).await?;
        let mut ended = None;
        while ended.is_none() && !worker::is_ending() {
            let (messages, longest) = match random.below(100) {
                0 => (40, LONGEST),
                _ => (1, USUAL),
            };
            for _ in 0..messages {
                // The read below tells why a connection has ended.
                let message = message(&mut random, longest);
                if client.send(&message).await.is_ok() {
                    worker::count("board messages sent");
                }
            }
            let until = Instant::now() + random.millis(60, 240);
            ended = client.read_until(until).await?;
        }
        judge(ended)?;
    }
    Ok(())
}

/// The board may end the connection of a client that is too slow, and of no other. On a busy machine
/// that is not only one that does not read. It may see a reset instead of the code.
fn judge(ended: Option<Ended>) -> Result<()> {
    match ended {
        None => {}
        Some(Ended::Closed(TOO_SLOW)) => worker::count("board clients too slow"),
        Some(Ended::Reset) => worker::count("board connections reset"),
        Some(ended) => return Err(format!("the board ended the connection: {ended:?}").into()),
    }
    Ok(())
}

/// Connects and sends nothing, or only a part of a request.
async fn knock(address: Address) -> Result<()> {
    let mut random = Random::new();
    while !worker::is_ending() {
        let mut stream = TcpStream::connect(address.socket()).await?;
        if random.below(2) == 0 {
            stream.write_all(b"GET /events HTTP/1.1\r\nHost:").await?;
        }
        worker::count("board connections without a request");
        tokio::time::sleep(random.millis(100, 2_000)).await;
    }
    Ok(())
}

/// A client that reads, lags or vanishes, and mostly continues with the next connection.
async fn come_and_go(address: Address) -> Result<()> {
    let mut random = Random::new();
    let mut place: Option<Place> = None;
    while !worker::is_ending() {
        let mut client = Client::open(&address, place.take()).await?;
        worker::count(match client.is_resumed() {
            true => "board connections continued",
            false => "board connections with the whole state",
        });
        if random.below(3) == 0 {
            let agent = random.pick(&AGENTS);
            let _ = client.send(&json!({"type": "watch", "agent": agent})).await;
        }
        if random.below(3) == 0 {
            client.lag(random.millis(1_000, 40_000)).await;
        }
        let until = Instant::now() + random.millis(500, 8_000);
        judge(client.read_until(until).await?)?;
        // Without a closing handshake, as a page that is gone.
        let left = client.leave();
        place = (random.below(5) > 0).then_some(left);
    }
    Ok(())
}
