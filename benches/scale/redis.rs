//! Claims, renewals and snapshots on one Redis server.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use agent_snapshot::{RedisStorage, SnapshotStorage};
use examples::redis_server::{RedisServer, SyncLog};
use examples::task_list::{Place, Task, TaskList};
use timed_store::{SessionId, TimedStorage};
use tokio::task::JoinSet;

use crate::load::{AsyncClient, Saver, drive, fill, processor_time};

/// Clients with a connection of their own.
const CLIENTS: usize = 16;

/// Tasks of the shared list.
const TASKS: usize = 1_000;

pub(crate) async fn measure(time: Duration) {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let server = RedisServer::start(folder.path(), SyncLog::EverySecond).unwrap();
    let url = server.url();
    let client = ::redis::Client::open(url.as_str()).unwrap();
    let mut raw = client.get_multiplexed_async_connection().await.unwrap();

    println!("\n| Redis, appendfsync everysec | clients | rate | time of the server for one |");
    println!("|---|---|---|---|");
    let raw_sets = (0..CLIENTS).map(|at| RawSet {
        connection: raw.clone(),
        key: format!("raw-{at}"),
    });
    drive("raw `SET` of 1 KB", server.pid(), time, raw_sets.collect()).await;
    let mut bytes = 0.0;
    for entries in [10, 100, 1_000, 10_000] {
        let name = format!("claims-{entries}");
        let before = used_memory(&mut raw).await;
        hold(&mut raw, &name, entries).await;
        bytes = (used_memory(&mut raw).await - before) / entries as f64;
        let claims = claimers(&url, &name, Work::ClaimAndRelease).await;
        let shown = format!("claim and release, {entries} claims held");
        drive(&shown, server.pid(), time, claims).await;
        let renewals = claimers(&url, &name, Work::Renew).await;
        let shown = format!("renewal, {entries} claims held");
        drive(&shown, server.pid(), time, renewals).await;
    }
    let storage = RedisStorage::connect(&url).await.unwrap();
    let storage: Arc<dyn SnapshotStorage> = Arc::new(storage);
    for agents in [1, 16, 64] {
        let savers = Saver::many(&storage, "redis", agents);
        drive("save of a tick with 1 KB", server.pid(), time, savers).await;
    }
    share_tasks(&storage, &url, server.pid()).await;
    let mut sizes = Vec::new();
    for messages in [1, 51] {
        let before = used_memory(&mut raw).await;
        fill(&storage, &format!("size-{messages}"), 200, messages).await;
        sizes.push((used_memory(&mut raw).await - before) / 200.0);
    }
    let each = (sizes[1] - sizes[0]) / 50.0;
    println!(
        "\nRedis, memory: {bytes:.0} bytes for a claim, {:.0} bytes for a session, {each:.0} bytes \
         for each message of 1 KB",
        sizes[0] - each
    );
    drop(server);

    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let server = RedisServer::start(folder.path(), SyncLog::EveryWrite).unwrap();
    println!("\n| Redis, appendfsync always | clients | rate | time of the server for one |");
    println!("|---|---|---|---|");
    let claims = claimers(&server.url(), "claims", Work::ClaimAndRelease).await;
    drive("claim and release, few held", server.pid(), time, claims).await;
    let storage = RedisStorage::connect(&server.url()).await.unwrap();
    let storage: Arc<dyn SnapshotStorage> = Arc::new(storage);
    for agents in [1, 16, 64] {
        let savers = Saver::many(&storage, "redis", agents);
        drive("save of a tick with 1 KB", server.pid(), time, savers).await;
    }
}

/// Four hosts with four workers each take and finish tasks that need no time.
async fn share_tasks(storage: &Arc<dyn SnapshotStorage>, url: &str, server: u32) {
    let task = |at: usize| Task {
        id: format!("t{at}"),
        role: String::new(),
        text: String::new(),
        after: Vec::new(),
    };
    let tasks: Vec<Task> = (0..TASKS).map(task).collect();
    let (cpu, start) = (processor_time(server), Instant::now());
    let mut workers = JoinSet::new();
    for _ in 0..4 {
        let place = Place::Redis(url.to_owned());
        let list = TaskList::open(place, Arc::clone(storage), tasks.clone());
        let list = list.await.unwrap();
        for _ in 0..4 {
            let list = list.clone();
            workers.spawn(async move {
                while let Some(taken) = list.take("worker", None).await.unwrap() {
                    taken.finish("done").await.unwrap();
                }
            });
        }
    }
    workers.join_all().await;
    let (took, cpu) = (start.elapsed(), processor_time(server) - cpu);
    let rate = TASKS as f64 / took.as_secs_f64();
    let each = cpu.as_secs_f64() * 1e6 / TASKS as f64;
    println!("| task of a shared list, taken and finished | 16 | {rate:.0}/s | {each:.0} µs |");
}

async fn used_memory(raw: &mut ::redis::aio::MultiplexedConnection) -> f64 {
    let info: String = ::redis::cmd("INFO")
        .arg("memory")
        .query_async(raw)
        .await
        .unwrap();
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"));
    line.unwrap().parse().unwrap()
}

/// Fills a store with live entries in the form of its scripts: to claim them one by one would take the
/// square of their number.
async fn hold(raw: &mut ::redis::aio::MultiplexedConnection, name: &str, entries: usize) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = now.as_millis();
    let mut command = ::redis::cmd("HSET");
    command.arg(format!("timed-store:{{{name}}}"));
    for at in 0..entries {
        command.arg(format!(
            "s:tasks-0123456789abcdef0123456789abcdef#host.{at}"
        ));
        command.arg(format!("\"task-{at}\"\n{now}\n3600000\n{at}\n"));
    }
    command.query_async::<()>(raw).await.unwrap();
}

#[derive(Clone, Copy, PartialEq)]
enum Work {
    ClaimAndRelease,
    Renew,
}

struct Claimer {
    store: TimedStorage<String>,
    work: Work,
    number: usize,
}

async fn claimers(url: &str, name: &str, work: Work) -> Vec<Claimer> {
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let store = TimedStorage::redis_builder(url, name)
            .session(SessionId::new(format!("client-{number}")).unwrap())
            .connect()
            .await
            .unwrap();
        clients.push(Claimer {
            store,
            work,
            number,
        });
    }
    clients
}

impl AsyncClient for Claimer {
    async fn repeat(self, deadline: Instant) -> u64 {
        let value = format!("client-task-{}", self.number);
        let claim = async || {
            let claim = self.store.claim(value.clone()).await.unwrap();
            assert!(claim.granted().is_some());
        };
        claim().await;
        let mut done = 0;
        while Instant::now() < deadline {
            match self.work {
                Work::ClaimAndRelease => {
                    self.store.remove().await.unwrap();
                    claim().await;
                }
                Work::Renew => assert!(self.store.refresh().await.unwrap()),
            }
            done += 1;
        }
        self.store.remove().await.unwrap();
        done
    }
}

struct RawSet {
    connection: ::redis::aio::MultiplexedConnection,
    key: String,
}

impl AsyncClient for RawSet {
    async fn repeat(mut self, deadline: Instant) -> u64 {
        let value = "x".repeat(1 << 10);
        let mut done = 0;
        while Instant::now() < deadline {
            let mut command = ::redis::cmd("SET");
            command.arg(&self.key).arg(&value);
            command
                .query_async::<()>(&mut self.connection)
                .await
                .unwrap();
            done += 1;
        }
        done
    }
}
