//! agent-snapshot: busy agents save to SQLite, Redis and PostgreSQL; their processes and the servers are
//! killed.
//!
//! Guarantees: after each kill every acknowledged tick is stored, plus at most the one that was being
//! saved; no tick is stored twice; epochs rise; a reply that was saved but not sent is recovered.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_snapshot::conversation::Message;
use agent_snapshot::{AgentId, AgentState, Error, SnapshotStorage, open_storage};
use examples::Result;
use examples::postgres_server::PostgresServer;
use examples::redis_server::{RedisServer, SyncLog};
use serde_json::json;
use tokio::task::JoinSet;

use crate::ledger::Ledger;
use crate::processes;
use crate::record::Record;
use crate::worker::{self, Random, Worker};

/// Agents in each process. Each storage has one process that is killed and one that is not.
const AGENTS: usize = 4;
/// A longer outage of the server is an error.
const MAX_OUTAGE: Duration = Duration::from_secs(60);
/// Messages in the view of an agent.
const VIEW: usize = 20;

pub(crate) fn run(ledger: &Arc<Ledger>) -> Result<()> {
    let folder = ledger.folder("snapshot")?;
    let acks = ledger.folder("snapshot/acknowledged")?;
    let data = ledger.folder("snapshot/data")?;
    let sqlite = format!("sqlite:{}", data.join("agents.db").display());
    let mut server = RedisServer::start(&data, SyncLog::EveryWrite)?;
    let redis = server.url();
    // The server may run as another user, who cannot enter the folder of the run.
    let postgres_folder = tempfile::Builder::new().prefix("soak-pg-").tempdir()?;
    let mut postgres_server = PostgresServer::start(postgres_folder.path())?;
    let postgres = postgres_server.url();
    let start = |url: &str, name: &str| {
        let acks = acks.to_string_lossy();
        Worker::start(
            ledger,
            &["snapshot", "--url", url, "--name", name, "--acks", &acks],
        )
    };
    let mut steady = [
        start(&sqlite, "sqlite-steady")?,
        start(&redis, "redis-steady")?,
        start(&postgres, "postgres-steady")?,
    ];
    ledger.watch("SQLite writer", steady[0].pid());
    ledger.watch("Redis writer", steady[1].pid());
    ledger.watch("PostgreSQL writer", steady[2].pid());
    let killed = [
        (&sqlite, "sqlite-killed"),
        (&redis, "redis-killed"),
        (&postgres, "postgres-killed"),
    ];
    let mut mortal = killed
        .iter()
        .map(|(url, name)| start(url, name))
        .collect::<Result<Vec<_>>>()?;
    let redis_agents = ["redis-steady", "redis-killed"];
    let postgres_agents = ["postgres-steady", "postgres-killed"];
    let mut random = Random::new();
    while ledger.pace(random.millis(500, 2_500)) {
        for writer in &mut steady {
            writer.expect_alive()?;
        }
        match random.below(9) {
            8 => {
                // The server takes the kill of one of its processes for a crash, and recovers by
                // itself.
                let processes = processes::children(postgres_server.pid());
                if !processes.is_empty() {
                    processes::kill(random.pick(&processes));
                    ledger.count("kills of a process of PostgreSQL", 1);
                }
            }
            0 => {
                // The drop kills the server.
                drop(server);
                server = RedisServer::start(&data, SyncLog::EveryWrite)?;
                crate::block_on(check(&redis, &redis_agents, &acks, false))?;
                ledger.count("kills of redis-server", 1);
            }
            1 => {
                drop(postgres_server);
                postgres_server = PostgresServer::start(postgres_folder.path())?;
                crate::block_on(check(&postgres, &postgres_agents, &acks, false))?;
                ledger.count("crashes of PostgreSQL", 1);
            }
            which => {
                let (url, name) = killed[which % 3];
                mortal.remove(which % 3).kill()?;
                mortal.insert(which % 3, start(url, name)?);
            }
        }
    }
    for writer in mortal.into_iter().chain(steady) {
        writer.finish()?;
    }
    let ticks = crate::block_on(check(&redis, &redis_agents, &acks, true))?
        + crate::block_on(check(&postgres, &postgres_agents, &acks, true))?
        + crate::block_on(check(
            &sqlite,
            &["sqlite-steady", "sqlite-killed"],
            &acks,
            true,
        ))?;
    ledger.count("snapshot ticks stored", ticks);
    // All messages are kept, and Redis logs every save.
    Ok(ledger.judge_disk(&folder, ticks * 4096 + (32 << 20))?)
}

/// Checks that every acknowledged tick is stored. After the end of the writers (`whole`) nothing else
/// may be stored, and the stream must contain each message once.
async fn check(url: &str, names: &[&str], acks: &Path, whole: bool) -> Result<u64> {
    let storage = open_storage(url).await?;
    let mut ticks = 0;
    for agent in names.iter().flat_map(|name| agents(name)) {
        // Read before the load: later acknowledgements can only add ticks.
        let [epoch, tick] = Record::open(acks.join(&agent))?.read()?;
        let id = AgentId::new(&agent)?;
        let Some(found) = storage.load(&id).await? else {
            match tick {
                0 => continue,
                _ => return Err(format!("{agent} is lost").into()),
            }
        };
        let stored = (found.epoch, found.tick_index);
        let known = (epoch, tick);
        if stored.0 < epoch || stored.1 < tick || (whole && stored != known) {
            return Err(format!("{agent}: stored {stored:?}, acknowledged {known:?}").into());
        }
        let from = if whole {
            0
        } else {
            found.tick_index.saturating_sub(100)
        };
        check_stream(&*storage, &id, from, found.tick_index).await?;
        ticks += found.tick_index;
    }
    storage.close().await?;
    Ok(ticks)
}

/// Checks that the stream has one message for each tick, in order.
async fn check_stream(
    storage: &dyn SnapshotStorage,
    agent: &AgentId,
    from: u64,
    to: u64,
) -> Result<()> {
    let messages = storage.stream(agent, from..to).await?;
    let expected: Vec<_> = (from..to).map(|seq| (seq, message_of(seq + 1))).collect();
    match messages == expected {
        true => Ok(()),
        false => Err(format!("{agent}: a tick from {from} to {to} is missing or double").into()),
    }
}

fn agents(name: &str) -> impl Iterator<Item = String> {
    (0..AGENTS).map(move |number| format!("{name}-{number}"))
}

/// The message of a tick.
fn message_of(tick: u64) -> Message {
    let length = usize::try_from(tick % 200).unwrap_or(0);
    Message::user(format!("tick {tick} {}", "い".repeat(length)))
}

/// A process with several agents.
#[derive(clap::Args)]
pub(crate) struct Writer {
    #[arg(long)]
    url: String,
    #[arg(long)]
    name: String,
    #[arg(long)]
    acks: PathBuf,
}

impl Writer {
    pub(crate) async fn run(self) -> Result<()> {
        let began = Instant::now();
        let storage = loop {
            match open_storage(&self.url).await {
                Err(error) if is_temporary(&error, began) => pause().await,
                opened => break opened?,
            }
        };
        let mut agents_running = JoinSet::new();
        for agent in agents(&self.name) {
            let acknowledged = Record::open(self.acks.join(&agent))?;
            agents_running.spawn(run_agent(Arc::clone(&storage), agent, acknowledged));
        }
        while let Some(ended) = agents_running.join_next().await {
            ended??;
        }
        Ok(storage.close().await?)
    }
}

/// Whether the error is temporary: the server was killed and is being restarted.
fn is_temporary(error: &Error, began: Instant) -> bool {
    error.is_backend_failure() && began.elapsed() < MAX_OUTAGE
}

async fn pause() {
    worker::count("snapshot retries during an outage");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

async fn run_agent(
    storage: Arc<dyn SnapshotStorage>,
    agent: String,
    acknowledged: Record<2>,
) -> Result<()> {
    let id = AgentId::new(&agent)?;
    let [epoch_before, tick_before] = acknowledged.read()?;
    let began = Instant::now();
    let (mut state, recovery) = loop {
        match AgentState::hydrate(Arc::clone(&storage), id.clone()).await {
            Err(error) if is_temporary(&error, began) => pause().await,
            hydrated => break hydrated?,
        }
    };
    let (epoch, tick) = (state.snapshot().epoch, state.tick_index());
    if epoch <= epoch_before || tick < tick_before || tick > tick_before + 1 {
        worker::violation(&format!(
            "{agent} is at epoch {epoch}, tick {tick} after epoch {epoch_before}, tick {tick_before}"
        ));
    }
    let unsent = recovery.unsent.iter().map(|reply| &reply.payload);
    if tick > tick_before && !unsent.into_iter().any(|payload| *payload == json!(tick)) {
        worker::violation(&format!("{agent}: the reply of tick {tick} was lost"));
    }
    for reply in recovery.unsent {
        state.confirm_sent(&reply.key);
    }
    acknowledged.write([epoch, tick])?;
    worker::count("snapshot agents recovered");

    let mut random = Random::new();
    while !worker::is_ending() {
        let mut tick = state.begin_tick()?;
        let number = tick.index();
        let history = tick.history();
        history.push(message_of(number));
        history.drop_front(history.len().saturating_sub(VIEW));
        tick.variables().insert("tick".to_owned(), json!(number));
        tick.reply(number);
        let began = Instant::now();
        let mut committed = tick.commit().await;
        while let Err(error) = &committed
            && is_temporary(error, began)
        {
            pause().await;
            committed = state.retry_commit().await;
        }
        let replies = committed?;
        acknowledged.write([epoch, number])?;
        for reply in replies {
            state.confirm_sent(&reply.key);
        }
        worker::count("snapshot ticks acknowledged");
        tokio::time::sleep(random.millis(50, 250)).await;
    }
    Ok(())
}
